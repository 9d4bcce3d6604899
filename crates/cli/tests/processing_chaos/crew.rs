//! The members that live, and who comes and goes.

use std::path::PathBuf;
use std::process::Child;

use crate::common::Random;
use crate::deliveries::{Deliveries, Entry};
use crate::member::Member;

/// The first of them have names, under which a new process gets a killed one's partitions at once.
const MEMBERS: usize = 4;
const NAMED: usize = 2;

/// Four processes, but for the moments between a kill and a start.
pub struct Crew {
    folder: PathBuf,
    address: String,
    seed: u64,
    metadata: bool,
    random: Random,
    deliveries: Deliveries,
    next: u32,
    live: Vec<(u32, Child)>,
}

impl Crew {
    pub fn start(folder: PathBuf, address: &str, seed: u64, metadata: bool) -> Self {
        let mut crew = Self {
            deliveries: Deliveries::open(&folder.join("deliveries")),
            folder,
            address: address.to_owned(),
            seed,
            metadata,
            random: Random::new(!seed),
            next: 0,
            live: Vec::new(),
        };
        for slot in 0..MEMBERS {
            let member = crew.another(slot);
            crew.live.push(member);
        }
        crew
    }

    /// How many members there were.
    pub fn members(&self) -> u32 {
        self.next
    }

    fn another(&mut self, slot: usize) -> (u32, Child) {
        let number = self.next;
        self.next += 1;
        let member = Member {
            number,
            seed: self.seed,
            address: self.address.clone(),
            deliveries: self.folder.join("deliveries"),
            instance: if slot < NAMED { format!("name {slot}") } else { String::new() },
            metadata: self.metadata,
        };
        (number, member.start(&self.folder))
    }

    /// SIGKILL to one, and another in its place; now and then that one comes first.
    pub fn kill_one_and_add_one(&mut self) {
        let slot = self.random.below(MEMBERS as u64) as usize;
        if slot >= NAMED && self.random.below(2) == 0 {
            let another = self.another(slot);
            self.kill(slot);
            self.live[slot] = another;
        } else {
            self.kill(slot);
            self.live[slot] = self.another(slot);
        }
    }

    fn kill(&mut self, slot: usize) {
        let (number, child) = &mut self.live[slot];
        assert_eq!(child.try_wait().unwrap(), None, "member {number} has ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        self.deliveries.append(Entry::Ended { member: *number, killed: true });
    }

    /// Lets all of them end.
    pub fn finish(mut self) {
        for (_, child) in &mut self.live {
            drop(child.stdin.take());
        }
        for (number, child) in &mut self.live {
            let status = child.wait().unwrap();
            assert!(status.success(), "member {number} ended with {status}");
            self.deliveries.append(Entry::Ended { member: *number, killed: false });
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (_, child) in &mut self.live {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
