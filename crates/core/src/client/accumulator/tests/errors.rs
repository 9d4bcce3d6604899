//! Every row of the error table's column for producing, through the accumulator.

use super::*;
use crate::client::error_actions::{Action, walk};
use tramline_wire::ErrorCode;

/// What the accumulator was seen to do about a batch of two records that was refused with `code`, behind another one that
/// the broker takes.
fn seen(code: ErrorCode) -> Action {
    let config = AccumulatorConfig { batch_records: 2, ..AccumulatorConfig::default() };
    let mut bench = Bench::new(config, &[1]);
    for value in ["a", "b", "c", "d"] {
        bench.send(0, value, 0);
    }
    let (first, mut second) = (bench.order(0).unwrap(), bench.order(0).unwrap());
    let bytes = second[0].encode().unwrap();
    bench.refused(second, code.code(), 1);
    bench.written(first, 7, 1);
    let told = bench.completions();
    let refusal = told.iter().find(|told| told.token.1 == 2).map(|told| told.outcome.clone());
    let slot = bench.acc.route("t", Some(0), None).unwrap();
    let record = RecordParts { timestamp: 0, key: None, value: None, headers: &[] };
    match refusal {
        Some(Ok(written)) => {
            assert_eq!(written.base_offset, None);
            return Action::AlreadyWritten;
        }
        Some(Err(Failure::Refused { code: told, .. })) => {
            assert_eq!(told, code.code());
            let free = bench.acc.budget().try_take(record.cost());
            assert!(free, "its memory came back");
            return match bench.acc.append(slot, record, at(1), |_| (0, 9)) {
                Err(AppendError::Fatal(_)) => Action::Fatal,
                taken => taken.map(|_| Action::Report).unwrap(),
            };
        }
        other => assert_eq!(other, None),
    }
    let refreshes = bench.acc.wants_metadata();
    match bench.order(1) {
        Some(mut again) if again[0].records() == 2 => {
            // At once, since nothing in the cluster has to change for it: under the old number or a new one.
            match stamp(&again[0]) {
                (0, 2) => {
                    assert_eq!(again[0].encode().unwrap(), bytes);
                    Action::OutOfOrder
                }
                renumbered => {
                    assert_eq!(renumbered, (1, 0));
                    Action::NewEpoch
                }
            }
        }
        Some(half) => {
            assert_eq!((half[0].records(), stamp(&half[0])), (1, (0, 2)));
            Action::Split
        }
        None => {
            assert_eq!(bench.order_of(1, 1).err(), Some(Some(at(101))), "after the backoff");
            let mut again = bench.order(101).unwrap();
            assert_eq!(again[0].encode().unwrap(), bytes, "a retry is the same bytes");
            if refreshes { Action::Refresh } else { Action::Retry }
        }
    }
}

#[test]
fn every_code_of_a_produce_answer_does_what_the_table_says() {
    let retriable = [14, 15, 16, 41, 51, 70, 71, 75, 78, 80, 83, 84, 88, 89, 106, 122, 123, 133];
    walk::check(
        &[
            (Action::Refresh, &[3, 100, 103, 5, 6, 9, 72, 74, 56, 13]),
            (Action::Retry, &[2, 7, 19, 20]),
            (Action::Retry, &retriable),
            (Action::Split, &[10]),
            (Action::OutOfOrder, &[45]),
            (Action::AlreadyWritten, &[46]),
            (Action::NewEpoch, &[47, 59]),
            (Action::Fatal, &[31, 53, 90, 35]),
        ],
        Action::Report,
        seen,
    );
}

#[test]
fn an_out_of_order_answer_to_the_oldest_batch_starts_a_new_epoch() {
    let mut bench = Bench::new(AccumulatorConfig::default(), &[1]);
    bench.send(0, "a", 0);
    let order = bench.order(0).unwrap();
    bench.refused(order, 45, 1);
    assert_eq!(stamp(&bench.order(1).unwrap()[0]), (1, 0));
}

#[test]
fn one_record_that_is_too_large_is_told() {
    let mut bench = Bench::new(AccumulatorConfig::default(), &[1]);
    bench.send(0, "a", 0);
    let order = bench.order(0).unwrap();
    bench.refused(order, 10, 1);
    assert_eq!(bench.completions()[0].outcome, Err(Failure::Refused { code: 10, message: None }));
}

#[test]
fn no_answer_refreshes_and_retries_as_the_row_that_stands_for_it_says() {
    for answer in [Answer::Lost, Answer::NotSent] {
        let mut bench = Bench::new(AccumulatorConfig::default(), &[1]);
        bench.send(0, "a", 0);
        let order = bench.order(0).unwrap();
        bench.answer(order, answer, 1);
        assert!(bench.acc.wants_metadata());
        assert_eq!(bench.order_of(1, 1).err(), Some(Some(at(101))));
    }
}
