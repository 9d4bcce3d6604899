//! Workers, their log and its broker on virtual time: skewed clocks, late, doubled and lost appends, workers that stall or
//! die. A ledger beside the log judges every record as it is appended; what workers believe is held against it.

mod random;
mod scenarios;

use std::collections::BTreeMap;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use core::time::Duration;

use super::ledger::{Ledger, Verdict};
use super::record::{ClaimRecord, Kind};
use super::task::TaskMeta;
use super::worker::{Action, Ends, Held, Lost, Outcome, Worker, WorkerConfig};
use crate::time::{Instant, Timestamp};

/// Leases in these tests, in milliseconds.
const LEASE: u64 = 3000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The broker: two partitions, a clock of its own, and the judge.
struct Broker {
    tasks: Vec<TaskMeta>,
    claims: Vec<(Timestamp, String)>,
    judge: Ledger,
    /// The judge's state after each so many records, by claims offset.
    snapshots: BTreeMap<i64, Vec<u8>>,
    /// What the broker's clock shows beyond the world's.
    skew: i64,
    /// Who was granted each token, by task.
    grants: BTreeMap<i64, (i64, String)>,
    /// Tasks done, in order.
    done: Vec<i64>,
}

impl Broker {
    fn publish(&mut self, meta: TaskMeta) {
        self.judge.add_task(self.tasks.len() as i64, meta.clone());
        self.tasks.push(meta);
    }

    fn append(&mut self, now: u64, text: &str) -> Verdict {
        let at = now as i64 + self.skew;
        let offset = self.claims.len() as i64;
        let record = ClaimRecord::decode(text.as_bytes());
        let before = record.as_ref().and_then(|record| self.judge.open(record.task)).cloned();
        let verdict =
            self.judge.apply(offset, at, record.as_ref()).expect("workers name tasks they have read");
        self.claims.push((at, text.to_string()));
        let log_time = self.judge.log_time();
        if let Some(record) = record {
            match verdict {
                Verdict::Granted { .. } => {
                    let held = before.and_then(|open| open.lease);
                    let live = held.filter(|lease| log_time < lease.expires);
                    assert_eq!(live, None, "a live lease was given away by {text}");
                    self.grants.insert(offset, (record.task, record.worker.to_string()));
                }
                Verdict::Done => {
                    assert!(!self.done.contains(&record.task), "done twice: {text}");
                    self.done.push(record.task);
                }
                _ => {}
            }
        }
        if offset % 7 == 0 {
            let snapshot = self.judge.clone().snapshot();
            self.snapshots.insert(snapshot.claims, snapshot.bytes.to_vec());
        }
        verdict
    }
}

/// A worker with its position in both partitions, its handlers, and its appends on their way.
struct Member {
    name: String,
    machine: Worker,
    tasks: usize,
    claims: usize,
    /// Handlers with the time they end and what they answer.
    running: Vec<(Held, u64, Outcome)>,
    on_their_way: Vec<(u64, ClaimRecord)>,
    /// Neither reads nor acts before this time.
    stalled_until: u64,
    stopped: Vec<(u64, Lost)>,
    /// Whether renewals get through.
    renewals_blocked: bool,
}

/// What a handler does: how long it takes, how it ends.
type Script = fn(&Held, u64) -> (u64, Outcome);

struct World {
    now: u64,
    broker: Broker,
    members: Vec<Member>,
    script: Script,
    born: u32,
}

impl World {
    fn new(script: Script) -> Self {
        let broker = Broker {
            tasks: Vec::new(),
            claims: Vec::new(),
            judge: Ledger::new(0, 0),
            snapshots: BTreeMap::new(),
            skew: 1_700_000_000_000,
            grants: BTreeMap::new(),
            done: Vec::new(),
        };
        Self { now: 0, broker, members: Vec::new(), script, born: 0 }
    }

    fn at(&self) -> Instant {
        Instant::from_start(ms(self.now))
    }

    /// A worker whose wall clock is off by `skew` from the broker's. It begins with a snapshot when there is one.
    fn join(&mut self, skew: i64, change: impl FnOnce(&mut WorkerConfig)) -> usize {
        self.born += 1;
        let name = format!("w{}", self.born);
        let mut config = WorkerConfig::new(name.as_str());
        config.lease = ms(LEASE);
        config.renew_after = ms(LEASE / 3);
        config.settle_timeout = ms(1000);
        config.snapshot_every = 0;
        change(&mut config);
        let mut seed = [7; 16];
        seed[0] = self.born as u8;
        let mut machine = Worker::new(config, seed);
        let ends = Ends { tasks: self.broker.tasks.len() as i64, claims: self.broker.claims.len() as i64 };
        let newest = self.broker.snapshots.last_key_value();
        let ledger = newest.map_or_else(|| Ledger::new(0, 0), |(_, bytes)| Ledger::restore(bytes).unwrap());
        let (tasks, claims) = (ledger.tasks_end() as usize, ledger.claims_end() as usize);
        let wall = self.now as i64 + self.broker.skew + skew;
        machine.add_shard(0, ledger, ends, wall, self.at());
        self.members.push(Member {
            name,
            machine,
            tasks,
            claims,
            running: Vec::new(),
            on_their_way: Vec::new(),
            stalled_until: 0,
            stopped: Vec::new(),
            renewals_blocked: false,
        });
        self.members.len() - 1
    }

    fn tasks(&mut self, count: usize) {
        for _ in 0..count {
            self.broker.publish(TaskMeta::plain(0));
        }
    }

    /// One worker reads, ends handlers, and acts; its appends arrive after `delay`.
    fn step(&mut self, member: usize, delay: u64) {
        let now = self.at();
        let member = &mut self.members[member];
        if member.stalled_until > self.now {
            return;
        }
        member.read(&self.broker, now);
        member.machine.handle_timeout(now);
        let (ended, running) =
            core::mem::take(&mut member.running).into_iter().partition(|run| run.1 <= self.now);
        member.running = running;
        let ended: Vec<(Held, u64, Outcome)> = ended;
        for (held, _, outcome) in ended {
            member.machine.handle_outcome(held.id, outcome);
        }
        while let Some(action) = member.machine.poll(now) {
            match action {
                Action::Append { record, .. } => {
                    if !(member.renewals_blocked && matches!(record.kind, Kind::Renew { .. })) {
                        member.on_their_way.push((self.now + delay, record));
                    }
                }
                Action::Start(held) => {
                    let granted = self.broker.grants.get(&held.token);
                    assert_eq!(
                        granted,
                        Some(&(held.task, member.name.clone())),
                        "it works on what it was not given"
                    );
                    let (takes, outcome) = (self.script)(&held, self.now);
                    member.running.push((held, self.now + takes, outcome));
                }
                Action::Bury { held, cause } => member.machine.handle_letter(held.id, cause),
                Action::Stop { id, why } => {
                    member.running.retain(|(held, ..)| held.id != id);
                    member.stopped.push((id, why));
                }
                Action::Snapshot { .. } => {}
            }
        }
    }

    /// Whatever is due arrives in the log, in the order of its time.
    fn arrive(&mut self) {
        for member in &mut self.members {
            member.on_their_way.sort_by_key(|(at, _)| *at);
            while let Some((at, _)) = member.on_their_way.first()
                && *at <= self.now
            {
                let (_, record) = member.on_their_way.remove(0);
                self.broker.append(self.now, &record.encode());
            }
        }
    }

    /// Lets `millis` pass in steps of ten, everybody acting in each.
    fn run(&mut self, millis: u64) {
        let end = self.now + millis;
        while self.now < end {
            self.now += 10;
            for member in 0..self.members.len() {
                self.step(member, 0);
            }
            self.arrive();
        }
    }
}

impl Member {
    fn read(&mut self, broker: &Broker, now: Instant) {
        while let Some(meta) = broker.tasks.get(self.tasks) {
            self.machine.handle_task(0, self.tasks as i64, meta.clone(), now);
            self.tasks += 1;
        }
        while let Some((at, text)) = broker.claims.get(self.claims) {
            self.machine.handle_claim(0, self.claims as i64, *at, text.as_bytes(), now);
            self.claims += 1;
        }
        self.agrees(broker);
    }

    /// Whoever has folded as much as the judge once had is in the same state, to the byte.
    fn agrees(&self, broker: &Broker) {
        let Some(ledger) = self.machine.ledger(0) else { return };
        if let Some(judged) = broker.snapshots.get(&ledger.claims_end()) {
            let mine = ledger.clone().snapshot();
            assert!(mine.bytes[..] == judged[..], "{} differs at claims offset {}", self.name, mine.claims);
        }
    }
}
