//! The proof at the end: both topics replayed against the input, without any state of the run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use super::fold::{Done, Totals};
use super::input::Event;

/// An acknowledgement the producer received: this row lies at this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    pub row: u64,
    pub partition: i32,
    pub offset: i64,
}

/// A record of the events topic as the replay read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub partition: i32,
    pub offset: i64,
    pub row: Option<u64>,
    pub key: String,
    pub value: Vec<u8>,
}

/// What the run knows of itself and the verifier does not judge.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    pub broker_kills: u32,
    pub member_kills: u32,
    pub acked_at_kill: u64,
    pub completed_at_kill: u64,
    pub seconds: f64,
}

/// The findings. Every field that must be zero is named in [`Report::holds`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub records: u64,
    pub keys: u64,
    pub lost: u64,
    pub order_violations: u64,
    pub redelivered: u64,
    pub duplicated: u64,
    pub acked_forced_lost: u64,
    pub broker_kills: u32,
    pub member_kills: u32,
    pub acked_at_kill: u64,
    pub completed_at_kill: u64,
    pub seconds: f64,
    pub records_per_second: f64,
    /// Aircraft whose totals differ from those computed from the file.
    #[serde(skip)]
    pub wrong_totals: u64,
}

impl Report {
    /// Whether nothing was lost, doubled, out of order or miscounted.
    pub fn holds(&self) -> bool {
        let faults =
            self.lost + self.order_violations + self.duplicated + self.acked_forced_lost + self.wrong_totals;
        faults == 0
    }
}

/// Replays both topics against the input. `stored` and `done` are in log order within each partition.
pub fn verify(input: &[Event], acks: &[Ack], stored: &[Stored], done: &[Done], run: Run) -> Report {
    let by_row: HashMap<u64, &Event> = input.iter().map(|event| (event.row, event)).collect();
    let places: HashMap<(i32, i64), &Stored> =
        stored.iter().map(|record| ((record.partition, record.offset), record)).collect();
    let completions = Completions::of(done, &places, &by_row);

    let keys: HashSet<&str> = input.iter().map(|event| event.key.as_str()).collect();
    let lost = input.iter().filter(|event| !completions.rows.contains(&event.row)).count();
    Report {
        records: input.len() as u64,
        keys: keys.len() as u64,
        lost: lost as u64,
        order_violations: completions.order_violations,
        redelivered: completions.redelivered,
        duplicated: duplicated(stored),
        acked_forced_lost: acked_but_gone(acks, &places, &by_row),
        broker_kills: run.broker_kills,
        member_kills: run.member_kills,
        acked_at_kill: run.acked_at_kill,
        completed_at_kill: run.completed_at_kill,
        seconds: (run.seconds * 1000.0).round() / 1000.0,
        records_per_second: (input.len() as f64 / run.seconds.max(0.001)).round(),
        wrong_totals: wrong_totals(input, &completions.last),
    }
}

/// What the results say, each offset counted once.
#[derive(Default)]
struct Completions {
    rows: HashSet<u64>,
    /// The totals at the highest offset of each aircraft.
    last: BTreeMap<String, (i64, Totals)>,
    order_violations: u64,
    redelivered: u64,
}

impl Completions {
    fn of(done: &[Done], places: &HashMap<(i32, i64), &Stored>, by_row: &HashMap<u64, &Event>) -> Self {
        let mut found = Self::default();
        let mut seen = HashSet::new();
        let mut newest_row: HashMap<&str, u64> = HashMap::new();
        for entry in done {
            if !seen.insert((entry.partition, entry.offset)) {
                found.redelivered += 1;
                continue;
            }
            // A result that names a place which does not hold that row proves nothing about the row.
            let true_place = places
                .get(&(entry.partition, entry.offset))
                .is_some_and(|record| record.row == Some(entry.row) && record.key == entry.key);
            let true_row = by_row.get(&entry.row).is_some_and(|event| event.key == entry.key);
            if !true_place || !true_row {
                continue;
            }
            found.rows.insert(entry.row);
            let newest = newest_row.entry(entry.key.as_str()).or_insert(0);
            if entry.row <= *newest {
                found.order_violations += 1;
            }
            *newest = entry.row.max(*newest);
            let last = found.last.entry(entry.key.clone()).or_insert((-1, Totals::default()));
            if entry.offset > last.0 {
                *last = (entry.offset, entry.totals);
            }
        }
        found
    }
}

fn duplicated(stored: &[Stored]) -> u64 {
    let mut times: HashMap<Option<u64>, u64> = HashMap::new();
    for record in stored {
        *times.entry(record.row).or_default() += 1;
    }
    times.values().filter(|&&count| count > 1).count() as u64
}

fn acked_but_gone(acks: &[Ack], places: &HashMap<(i32, i64), &Stored>, by_row: &HashMap<u64, &Event>) -> u64 {
    let kept = |ack: &&Ack| {
        let record = places.get(&(ack.partition, ack.offset));
        let event = by_row.get(&ack.row);
        match (record, event) {
            (Some(record), Some(event)) => {
                record.row == Some(ack.row) && record.key == event.key && record.value == event.value
            }
            _ => false,
        }
    };
    (acks.len() - acks.iter().filter(kept).count()) as u64
}

fn wrong_totals(input: &[Event], last: &BTreeMap<String, (i64, Totals)>) -> u64 {
    let mut expected: BTreeMap<&str, Option<Totals>> = BTreeMap::new();
    for event in input {
        let totals = expected.entry(&event.key).or_insert(Some(Totals::default()));
        *totals = totals.and_then(|totals| totals.after(&event.value).ok());
    }
    let names: BTreeSet<&str> = expected.keys().copied().chain(last.keys().map(String::as_str)).collect();
    let differs =
        |name: &&str| expected.get(*name).copied().flatten() != last.get(*name).map(|(_, totals)| *totals);
    names.into_iter().filter(differs).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        input: Vec<Event>,
        acks: Vec<Ack>,
        stored: Vec<Stored>,
        done: Vec<Done>,
    }

    /// Four rows of two aircraft in one partition, all stored, acknowledged and completed once, in order.
    fn right() -> Case {
        let mut case = Case { input: vec![], acks: vec![], stored: vec![], done: vec![] };
        let mut totals: HashMap<&str, Totals> = HashMap::new();
        for (row, key) in [(1, "N1"), (2, "N2"), (3, "N1"), (4, "N2")] {
            let offset = row as i64 - 1;
            let value = format!(r#"{{"distance":{row},"arr_delay":1}}"#).into_bytes();
            let folded = totals.entry(key).or_default().after(&value).unwrap();
            totals.insert(key, folded);
            case.acks.push(Ack { row, partition: 0, offset });
            case.done.push(Done {
                member: "a".into(),
                generation: 1,
                partition: 0,
                offset,
                row,
                key: key.into(),
                totals: folded,
            });
            let key = key.to_owned();
            case.stored.push(Stored {
                partition: 0,
                offset,
                row: Some(row),
                key: key.clone(),
                value: value.clone(),
            });
            case.input.push(Event { row, key, value });
        }
        case
    }

    fn check(case: &Case) -> Report {
        verify(&case.input, &case.acks, &case.stored, &case.done, Run { seconds: 2.0, ..Run::default() })
    }

    #[test]
    fn a_right_run_holds() {
        let report = check(&right());
        assert!(report.holds(), "{report:?}");
        assert_eq!((report.records, report.keys, report.redelivered), (4, 2, 0));
    }

    #[test]
    fn a_row_without_a_result_is_lost() {
        let mut case = right();
        case.done.remove(1);
        let report = check(&case);
        assert_eq!((report.lost, report.holds()), (1, false));
    }

    #[test]
    fn a_result_for_a_place_that_holds_another_row_completes_nothing() {
        let mut case = right();
        case.done[3].offset = 9;
        assert_eq!(check(&case).lost, 1);
    }

    #[test]
    fn a_second_result_of_an_offset_is_a_redelivery_and_no_fault() {
        let mut case = right();
        case.done.push(case.done[0].clone());
        let report = check(&case);
        assert_eq!((report.redelivered, report.holds()), (1, true));
    }

    #[test]
    fn first_completions_out_of_input_order_are_violations() {
        let mut case = right();
        case.done.swap(0, 2);
        let report = check(&case);
        assert_eq!((report.order_violations, report.holds()), (1, false));
    }

    #[test]
    fn a_row_stored_twice_is_duplicated() {
        let mut case = right();
        case.stored.push(Stored { offset: 4, ..case.stored[0].clone() });
        let report = check(&case);
        assert_eq!((report.duplicated, report.holds()), (1, false));
    }

    #[test]
    fn an_acknowledged_place_must_hold_that_row_with_its_bytes() {
        let mut case = right();
        case.stored[2].value = b"{}".to_vec();
        assert_eq!(check(&case).acked_forced_lost, 1);
        case.stored.remove(2);
        let report = check(&case);
        assert_eq!((report.acked_forced_lost, report.lost), (1, 1));
    }

    #[test]
    fn totals_that_differ_from_the_file_fail_the_proof_though_every_count_is_zero() {
        let mut case = right();
        case.done[3].totals.distance += 1;
        let report = check(&case);
        assert_eq!(
            (report.lost, report.order_violations, report.duplicated, report.acked_forced_lost),
            (0, 0, 0, 0)
        );
        assert_eq!((report.wrong_totals, report.holds()), (1, false));
    }

    #[test]
    fn the_report_is_the_line_scripts_rely_on() {
        let text = serde_json::to_string(&check(&right())).unwrap();
        assert_eq!(
            text,
            r#"{"records":4,"keys":2,"lost":0,"order_violations":0,"redelivered":0,"duplicated":0,"acked_forced_lost":0,"broker_kills":0,"member_kills":0,"acked_at_kill":0,"completed_at_kill":0,"seconds":2.0,"records_per_second":2.0}"#
        );
    }
}
