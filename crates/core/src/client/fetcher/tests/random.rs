//! Random logs, answers, faults, elections and callers against a model: what is handed out is what the log holds from the position
//! on, in order, once; whatever happens in between.

use std::collections::BTreeMap;
use std::vec::Vec;

use bytes::Bytes;

use super::stand::*;
use crate::client::fetcher::*;
use crate::group::Seeded;
use core::time::Duration;
use tramline_wire::ErrorCode;

/// A log with gaps, control records and emptied batches; and the offsets a reader sees.
fn random_log(seeded: &mut Seeded) -> (Vec<Bytes>, Vec<i64>) {
    let (mut batches, mut visible, mut next) = (Vec::new(), Vec::new(), 0);
    for _ in 0..seeded.below(12) + 3 {
        let count = i64::try_from(seeded.below(7) + 1).unwrap();
        match seeded.below(10) {
            0 => batches.push(control(next)),
            1 => batches.push(emptied(next, next + count - 1)),
            2 => next += count,
            _ => {
                let size = usize::try_from(seeded.below(300)).unwrap();
                batches.push(batch_of(next, count, size));
                visible.extend(next..next + count);
            }
        }
        next += count;
    }
    (batches, visible)
}

struct Model {
    visible: BTreeMap<i32, Vec<i64>>,
    /// The offset from which each partition must go on.
    from: BTreeMap<i32, i64>,
    paused: BTreeMap<i32, bool>,
}

impl Model {
    fn expect(&mut self, partition: i32, offsets: &[i64], next: i64, seed: u64) {
        assert!(!self.paused[&partition], "seed {seed}: partition {partition} is paused");
        let from = self.from[&partition];
        let due: Vec<i64> =
            self.visible[&partition].iter().copied().filter(|o| (from..next).contains(o)).collect();
        assert_eq!(offsets, due, "seed {seed}: partition {partition} from {from} to {next}");
        assert!(next > from, "seed {seed}: progress");
        self.from.insert(partition, next);
    }
}

fn run(seed: u64) {
    let mut seeded = Seeded::from_number(seed);
    let config = FetcherConfig {
        prefetch_bytes: usize::try_from(seeded.below(2) * seeded.below(4000)).unwrap(),
        partition_max_bytes: usize::try_from(seeded.below(1500) + 20).unwrap(),
        fetch_max_bytes: usize::try_from(seeded.below(4000) + 20).unwrap(),
        max_poll_records: usize::try_from(seeded.below(6) + 1).unwrap(),
        ..Default::default()
    };
    let mut stand = Stand::new(config);
    stand.session = seeded.percent(60).then(Remembered::default);
    let mut model = Model { visible: BTreeMap::new(), from: BTreeMap::new(), paused: BTreeMap::new() };
    for partition in 0..3 {
        let (batches, visible) = random_log(&mut seeded);
        stand.add(partition, batches);
        stand.leaders.insert(partition, partition % 2);
        stand.assign(partition, 0);
        model.visible.insert(partition, visible);
        model.from.insert(partition, 0);
        model.paused.insert(partition, false);
    }
    let mut under_way = Vec::new();
    for _ in 0..400 {
        let partition = i32::try_from(seeded.below(3)).unwrap();
        match seeded.below(15) {
            0..=3 => take(&mut stand, &mut model, seeded.percent(50), seed),
            4..=6 => under_way.extend(stand.next_fetch()),
            7..=9 if !under_way.is_empty() => {
                let at = usize::try_from(seeded.below(under_way.len() as u64)).unwrap();
                let (request, ticket) = under_way.swap_remove(at);
                if seeded.percent(10) {
                    stand.log(partition).error = Some(ErrorCode::NotLeaderOrFollower);
                }
                let answer = (!seeded.percent(10)).then(|| stand.answer(&request));
                stand.fetcher.handle_fetch(ticket, answer, stand.now);
            }
            10 => {
                let pause = seeded.percent(40);
                if pause {
                    stand.fetcher.pause(&tp(partition));
                } else {
                    stand.fetcher.resume(&tp(partition));
                }
                model.paused.insert(partition, pause);
            }
            11 if seeded.percent(30) => {
                let end = stand.log(partition).end();
                let to = i64::try_from(seeded.below(end.unsigned_abs() + 1)).unwrap();
                stand.fetcher.seek(&tp(partition), Start::Offset(Position::at(to)));
                model.from.insert(partition, to);
            }
            12 if seeded.percent(20) => {
                let to = model.from[&partition];
                stand.fetcher.assign(tp(partition), 2, Start::Offset(Position::at(to)));
                model.paused.insert(partition, false);
            }
            13 if seeded.percent(10) => {
                // The brokers forget.
                if let Some(remembered) = &mut stand.session {
                    remembered.sessions.clear();
                }
            }
            13 if seeded.percent(20) => stand.elect(i32::try_from(seeded.below(2)).unwrap()),
            _ => {
                stand.now += Duration::from_millis(seeded.below(500));
                stand.fetcher.handle_timeout(stand.now);
            }
        }
    }
    drain(&mut stand, &mut model, under_way, seed);
}

fn take(stand: &mut Stand, model: &mut Model, whole: bool, seed: u64) {
    if whole {
        if let Some(fetched) = stand.fetcher.take_batch() {
            let fetched = fetched.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
            let offsets: Vec<i64> = fetched.records.iter().map(tramline_wire::Record::offset).collect();
            model.expect(fetched.topic_partition.partition, &offsets, fetched.next_offset, seed);
        }
    } else if let Some(record) = stand.fetcher.take_record() {
        let record = record.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        let partition = record.partition();
        let next = stand.position(partition).unwrap();
        model.expect(partition, &[record.offset()], next, seed);
    }
}

/// Answers and reads everything that is left: every partition must come to its end.
fn drain(
    stand: &mut Stand,
    model: &mut Model,
    under_way: Vec<(tramline_wire::messages::FetchRequest, FetchTicket)>,
    seed: u64,
) {
    for (request, ticket) in under_way {
        let answer = stand.answer(&request);
        stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    }
    for partition in 0..3 {
        stand.fetcher.resume(&tp(partition));
        model.paused.insert(partition, false);
        stand.log(partition).error = None;
    }
    for _ in 0..2000 {
        take(stand, model, true, seed);
        stand.settle();
        stand.now += Duration::from_millis(200);
        stand.fetcher.handle_timeout(stand.now);
        if (0..3).all(|p| stand.position(p) == Some(stand.logs[&tp(p)].end()).filter(|end| *end >= 0)) {
            break;
        }
    }
    for partition in 0..3 {
        let end = stand.log(partition).end();
        assert_eq!(stand.position(partition), Some(end), "seed {seed}: partition {partition} stopped short");
    }
    assert_eq!(stand.fetcher.buffered_bytes(), 0, "seed {seed}");
}

#[test]
fn what_is_handed_out_is_what_the_log_holds_whatever_happens_in_between() {
    for seed in 0..500 {
        run(seed);
    }
}
