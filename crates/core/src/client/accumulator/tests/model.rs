//! The accumulator against a broker's rules, with a hostile network between them and time that jumps.

use std::collections::{BTreeMap, VecDeque};
use std::format;
use std::string::String;
use std::vec::Vec;

use super::broker::Log;
use super::*;

/// A small generator, so that a failing run can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

struct World {
    bench: Bench,
    random: Random,
    logs: Vec<Log>,
    now: u64,
    /// Requests on the wire, in the order of their connection.
    wire: VecDeque<Vec<Batch<Token>>>,
    /// The value of each record by token and place.
    sent: BTreeMap<(Token, u32), String>,
    acked: Vec<(i32, String, Option<i64>)>,
    unknown: Vec<String>,
    failed: Vec<String>,
}

impl World {
    fn new(seed: u64, delivery_timeout: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let config = AccumulatorConfig {
            batch_records: 1 + random.below(4) as u32,
            linger: Duration::from_millis(random.below(3) * 5),
            delivery_timeout: Duration::from_millis(delivery_timeout),
            ..AccumulatorConfig::default()
        };
        let bench = Bench::fresh(config, &[1, 1, 1]);
        let logs = (0..3).map(|_| Log::default()).collect();
        Self {
            bench,
            random,
            logs,
            now: 0,
            wire: VecDeque::new(),
            sent: BTreeMap::new(),
            acked: Vec::new(),
            unknown: Vec::new(),
            failed: Vec::new(),
        }
    }

    fn append(&mut self, batch: &mut Batch<Token>) -> Result<i64, i16> {
        let bytes = batch.encode().unwrap();
        self.logs[batch.topic_partition().partition as usize].append(&bytes)
    }

    /// The oldest request is answered, in one of the ways a network and a broker have.
    fn answer_oldest(&mut self, faults: u64) {
        let Some(mut batches) = self.wire.pop_front() else { return };
        if self.random.chance(faults) {
            // The connection breaks; what was on it may have been carried out, from the front.
            let mut carried_out = self.random.chance(50);
            let mut lost = std::vec![batches];
            lost.extend(self.wire.drain(..));
            for mut batches in lost {
                if carried_out {
                    batches.iter_mut().for_each(|batch| self.append(batch).map(|_| ()).unwrap_or_default());
                }
                carried_out &= self.random.chance(70);
                self.bench.answer(batches, Answer::Lost, self.now);
            }
            return;
        }
        let answers: Vec<Answer> = batches
            .iter_mut()
            .map(|batch| {
                if self.random.chance(faults / 2) {
                    return Answer::Refused {
                        code: [6, 3, 56][self.random.below(3) as usize],
                        message: None,
                    };
                }
                match self.append(batch) {
                    // Written, but the broker says it took too long.
                    Ok(_) if self.random.chance(faults / 4) => Answer::Refused { code: 7, message: None },
                    Ok(base_offset) => Answer::Written { base_offset, append_time: -1 },
                    Err(code) => Answer::Refused { code, message: None },
                }
            })
            .collect();
        self.bench.acc.handle_answers(1, batches.into_iter().zip(answers), at(self.now), JITTER);
    }

    fn collect(&mut self) {
        for told in self.bench.completions() {
            for place in told.first..told.first + told.count {
                let value = self.sent.remove(&(told.token, place)).expect("each record is told once");
                match &told.outcome {
                    Ok(written) => {
                        let offset = written.base_offset.map(|base| base + i64::from(place - told.first));
                        self.acked.push((told.token.0, value, offset));
                    }
                    Err(Failure::TimedOut { possibly_written: true, .. }) => self.unknown.push(value),
                    Err(_) => self.failed.push(value),
                }
            }
        }
    }

    /// Sends what may leave; gives when to ask again.
    fn poll_orders(&mut self) -> Option<Instant> {
        loop {
            match self.bench.order_of(1, self.now) {
                Ok(batches) => self.wire.push_back(batches),
                Err(again) => return again,
            }
            assert!(self.wire.len() <= 5, "five in flight");
        }
    }

    fn run(&mut self, steps: u64, faults: u64, forget: bool) {
        for step in 0..steps {
            match self.random.below(10) {
                0..=4 => {
                    let partition = self.random.below(3) as i32;
                    let value = format!("{partition}:{step}");
                    let (token, place) = self.bench.send(partition, &value, self.now);
                    self.sent.insert((token, place), value);
                }
                5..=8 => self.answer_oldest(faults),
                _ => self.now += self.random.below(300),
            }
            if forget && self.random.chance(1) && self.wire.is_empty() {
                let partition = self.random.below(3) as usize;
                self.logs[partition].forget();
            }
            self.bench.acc.handle_timeout(at(self.now));
            self.poll_orders();
            self.collect();
        }
        // The network heals and everything ends, although nobody looks but when an answer comes or a timer is due.
        self.bench.acc.close();
        for _ in 0..20_000 {
            if self.bench.acc.untold_records() == 0 {
                return;
            }
            let again = self.poll_orders();
            if self.wire.is_empty() {
                let due = again.into_iter().chain(self.bench.acc.next_timeout()).min();
                let due = due.expect("something waits, and nothing will ever wake it").since_start();
                self.now = self.now.max(u64::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap());
            }
            self.answer_oldest(0);
            self.bench.acc.handle_timeout(at(self.now));
            self.collect();
        }
        panic!("{} records are never told", self.bench.acc.untold_records());
    }

    fn check(&self, seed: u64) {
        let step = |value: &String| value.split(':').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        for (partition, log) in self.logs.iter().enumerate() {
            let steps: Vec<u64> = log.values.iter().map(step).collect();
            assert!(
                steps.windows(2).all(|w| w[0] < w[1]),
                "seed {seed}: order or doubles in {partition}: {steps:?}"
            );
        }
        for (partition, value, offset) in &self.acked {
            let log = &self.logs[*partition as usize].values;
            let found = log.iter().position(|stored| stored == value);
            assert!(found.is_some(), "seed {seed}: {value} was acknowledged and is not there");
            if let Some(offset) = offset {
                assert_eq!(found, usize::try_from(*offset).ok(), "seed {seed}: {value} at a wrong offset");
            }
        }
        for value in &self.failed {
            let stored = self.logs.iter().any(|log| log.values.contains(value));
            assert!(!stored, "seed {seed}: {value} was reported as not written and is there");
        }
        assert_eq!(self.bench.acc.untold_records(), 0);
        assert!(self.sent.is_empty(), "seed {seed}: never told: {:?}", self.sent);
    }
}

#[test]
fn nothing_is_lost_doubled_or_reordered_however_the_network_breaks() {
    for seed in 1..=400 {
        let mut world = World::new(seed, 100_000_000);
        world.run(600, 5 + seed % 30, false);
        world.check(seed);
        assert!(
            world.unknown.is_empty() && world.failed.is_empty(),
            "seed {seed}: all were delivered in time"
        );
    }
}

#[test]
fn what_times_out_is_told_truthfully_and_harms_no_other_record() {
    let mut unknown = 0;
    for seed in 1..=400 {
        let mut world = World::new(seed, 1_500);
        world.run(600, 10 + seed % 30, false);
        world.check(seed);
        unknown += world.unknown.len();
    }
    assert!(unknown > 1_000, "the runs did time out: {unknown}");
}

#[test]
fn a_broker_that_forgets_producers_between_requests_loses_and_doubles_nothing() {
    for seed in 1..=200 {
        let mut world = World::new(seed, 100_000_000);
        // Faults and forgetting together may double: that is what the state at the broker is for.
        world.run(600, 0, true);
        world.check(seed);
    }
}
