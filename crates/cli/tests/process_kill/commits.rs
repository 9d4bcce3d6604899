//! Groups that commit without a pause, and what a broker that came back must tell of their commits.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use tramline::wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline::wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use tramline::wire::messages::{OffsetCommitRequest, OffsetFetchRequest};
use tramline::wire::{ErrorCode, TopicPartition};

use crate::TOPICS;
use crate::common::PATIENCE;
use crate::common::frames::Wire;
use crate::load::Ledger;

const GROUPS: [&str; 2] = ["billing", "shipping"];

type Offsets = BTreeMap<TopicPartition, i64>;

/// What a group has sent and what was answered.
#[derive(Default)]
struct Book {
    sent: Offsets,
    answered: Offsets,
    commits: u64,
}

/// What the committers wait on when their broker is gone.
#[derive(Default)]
struct Presence {
    starts: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Presence {
    /// Waits for the start after those `seen`; `None` when there will be no more.
    fn next_start(&self, seen: u64) -> Option<u64> {
        let starts = self.starts.lock().unwrap();
        let (starts, waited) =
            self.changed.wait_timeout_while(starts, PATIENCE, |(n, over)| *n <= seen && !*over).unwrap();
        assert!(!waited.timed_out(), "the broker does not come back");
        if starts.1 { None } else { Some(starts.0) }
    }

    fn is_over(&self) -> bool {
        self.starts.lock().unwrap().1
    }

    fn change(&self, change: impl FnOnce(&mut (u64, bool))) {
        change(&mut self.starts.lock().unwrap());
        self.changed.notify_all();
    }
}

/// One thread for each group.
pub struct Committers {
    presence: Arc<Presence>,
    books: Vec<Arc<Mutex<Book>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Committers {
    pub fn start(address: &str, ledger: &Arc<Ledger>) -> Self {
        let presence = Arc::new(Presence { starts: Mutex::new((1, false)), ..Presence::default() });
        let books: Vec<_> = GROUPS.iter().map(|_| Arc::new(Mutex::new(Book::default()))).collect();
        let threads = GROUPS.iter().zip(&books).map(|(group, book)| {
            let committer = Committer {
                group,
                address: address.to_owned(),
                book: Arc::clone(book),
                ledger: Arc::clone(ledger),
                ends: Offsets::new(),
                looked: 0,
            };
            let presence = Arc::clone(&presence);
            std::thread::spawn(move || committer.run(&presence))
        });
        Self { threads: threads.collect(), presence, books }
    }

    pub fn broker_is_back(&self) {
        self.presence.change(|(starts, _)| *starts += 1);
    }

    /// Asserts that each group's offsets are at least what was answered, at most what was sent, and not beyond the log.
    pub fn check(&self, wire: &mut Wire) {
        for (group, book) in GROUPS.iter().zip(&self.books) {
            let answered = book.lock().unwrap().answered.clone();
            let found = committed(wire, group);
            let sent = book.lock().unwrap().sent.clone();
            for (place, answered) in &answered {
                assert!(
                    found.get(place) >= Some(answered),
                    "{group} {place}: {:?}, {answered} was answered",
                    found.get(place)
                );
            }
            for (place, offset) in &found {
                assert!(sent.get(place) >= Some(offset), "{group} {place}: {offset} was never sent");
                let end = wire.end(place);
                assert!(*offset <= end, "{group} {place}: {offset} is committed and the log ends at {end}");
            }
        }
    }

    /// Ends the committers, checks once more, and tells how many commits were answered.
    pub fn finish(mut self, wire: &mut Wire) -> u64 {
        self.presence.change(|(_, over)| *over = true);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().unwrap();
        }
        self.check(wire);
        self.books.iter().map(|book| book.lock().unwrap().commits).sum()
    }
}

struct Committer {
    group: &'static str,
    address: String,
    book: Arc<Mutex<Book>>,
    ledger: Arc<Ledger>,
    /// The offset after the newest acknowledged record of each partition.
    ends: Offsets,
    looked: usize,
}

impl Committer {
    fn run(mut self, presence: &Presence) {
        let mut seen = 0;
        while let Some(start) = presence.next_start(seen) {
            seen = start;
            // It ends with an error when the broker is killed, perhaps before it answered at all.
            let _ = self.commit_on(presence);
        }
    }

    fn commit_on(&mut self, presence: &Presence) -> io::Result<()> {
        let mut wire = Wire::connect(&self.address)?;
        while !presence.is_over() {
            self.look();
            let request = request(self.group, &self.ends);
            self.book.lock().unwrap().sent = self.ends.clone();
            let response = wire.call(7, &request)?;
            let mut book = self.book.lock().unwrap();
            for topic in &response.topics {
                for row in &topic.partitions {
                    let code = ErrorCode::from(row.error_code);
                    assert!(code.is_ok() || code.is_retriable(), "{} {code}", self.group);
                    if code.is_ok() {
                        let place = TopicPartition::new(topic.name.clone(), row.partition_index);
                        let offset = self.ends[&place];
                        book.answered.insert(place, offset);
                        book.commits += 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn look(&mut self) {
        let acks = self.ledger.acks();
        for ack in &acks[self.looked..] {
            let end = self.ends.entry(ack.place.clone()).or_default();
            *end = (ack.offset + 1).max(*end);
        }
        self.looked = acks.len();
    }
}

fn request(group: &str, offsets: &Offsets) -> OffsetCommitRequest {
    let mut topics: BTreeMap<_, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for (place, offset) in offsets {
        topics.entry(place.topic.clone()).or_default().push(OffsetCommitRequestPartition {
            partition_index: place.partition,
            committed_offset: *offset,
            committed_leader_epoch: -1,
            ..Default::default()
        });
    }
    let topics = topics.into_iter().map(|(name, partitions)| OffsetCommitRequestTopic {
        name,
        partitions,
        ..Default::default()
    });
    OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: -1,
        topics: topics.collect(),
        ..Default::default()
    }
}

/// The offsets of a group as the broker tells them.
fn committed(wire: &mut Wire, group: &str) -> Offsets {
    let topics = TOPICS.map(|(topic, partitions, _)| OffsetFetchRequestTopic {
        name: topic.into(),
        partition_indexes: (0..partitions).collect(),
    });
    let request =
        OffsetFetchRequest { group_id: group.into(), topics: Some(topics.into()), ..Default::default() };
    let response = wire.call(7, &request).unwrap();
    assert_eq!(response.error_code, 0, "the offsets of {group}");
    let rows = response.topics.into_iter().flat_map(|topic| {
        let name = topic.name;
        topic
            .partitions
            .into_iter()
            .map(move |row| (TopicPartition::new(name.clone(), row.partition_index), row))
    });
    rows.filter(|(_, row)| row.committed_offset >= 0)
        .map(|(place, row)| {
            assert_eq!(row.error_code, 0, "{group} {place}");
            (place, row.committed_offset)
        })
        .collect()
}
