//! Sequences and epochs: what is numbered when, and what a gap does.

use std::vec::Vec;

use super::*;

fn one_by_one() -> AccumulatorConfig {
    AccumulatorConfig { batch_records: 1, ..AccumulatorConfig::default() }
}

/// `count` requests of one record each, in flight.
fn pipelined(bench: &mut Bench, partition: i32, count: usize) -> Vec<Vec<Batch<Token>>> {
    (0..count).for_each(|_| {
        bench.send(partition, "a", 0);
    });
    (0..count).map(|_| bench.order(0).unwrap()).collect()
}

#[test]
fn sequences_are_given_when_a_batch_is_first_sent_and_kept_on_retries() {
    let mut bench = Bench::new(AccumulatorConfig { batch_records: 3, ..AccumulatorConfig::default() }, &[1]);
    for _ in 0..6 {
        bench.send(0, "a", 0);
    }
    let (first, second) = (bench.order(0).unwrap(), bench.order(0).unwrap());
    assert_eq!((stamp(&first[0]), stamp(&second[0])), ((0, 0), (0, 3)));
    bench.answer(first, Answer::Lost, 1);
    bench.answer(second, Answer::Lost, 1);
    let retried = bench.order(200).unwrap();
    assert_eq!(stamp(&retried[0]), (0, 0));
    assert!(bench.order(200).is_none(), "nothing beyond the oldest unacknowledged after an error");
    bench.written(retried, 0, 201);
    let retried = bench.order(400).unwrap();
    assert_eq!(stamp(&retried[0]), (0, 3));
    bench.written(retried, 3, 401);
    bench.send(0, "a", 402);
    let next = bench.order(402).unwrap();
    assert_eq!(stamp(&next[0]), (0, 6));
}

#[test]
fn a_failed_batch_goes_before_younger_ones_that_are_not_sent_yet() {
    let mut bench = Bench::new(one_by_one(), &[1]);
    let mut flights = pipelined(&mut bench, 0, 2);
    bench.send(0, "young", 0);
    let second = flights.pop().unwrap();
    bench.refused(flights.pop().unwrap(), 6, 1);
    assert!(bench.order(1).is_none(), "the young one must not overtake");
    bench.refused(second, 45, 2);
    let order = bench.order(200).unwrap();
    assert_eq!(stamp(&order[0]), (0, 0));
}

#[test]
fn out_of_order_behind_a_retry_is_just_retried() {
    let mut bench = Bench::new(one_by_one(), &[1]);
    let mut flights = pipelined(&mut bench, 0, 3).into_iter();
    bench.refused(flights.next().unwrap(), 6, 1);
    bench.refused(flights.next().unwrap(), 45, 1);
    bench.refused(flights.next().unwrap(), 45, 1);
    let mut stamps = Vec::new();
    for now in [200, 300, 400] {
        let order = bench.order(now).unwrap();
        stamps.push(stamp(&order[0]));
        bench.written(order, 0, now);
    }
    assert_eq!(stamps, [(0, 0), (0, 1), (0, 2)], "no new epoch");
}

#[test]
fn b101_a_real_gap_starts_a_new_epoch_and_renumbers_everything_waiting() {
    for code in [45, 59, 47] {
        let mut bench = Bench::new(one_by_one(), &[1]);
        let mut flights = pipelined(&mut bench, 0, 3).into_iter();
        bench.written(flights.next().unwrap(), 0, 1);
        bench.refused(flights.next().unwrap(), code, 2);
        bench.send(0, "young", 2);
        assert!(bench.order(2).is_none(), "the third is still in flight under the old number");
        bench.refused(flights.next().unwrap(), code, 3);
        let mut stamps = Vec::new();
        for now in 200..203 {
            let order = bench.order(now).unwrap();
            assert!(bench.order(now).is_none(), "what was sent before goes alone");
            stamps.push(stamp(&order[0]));
            bench.written(order, 1, now);
        }
        assert_eq!(stamps, [(1, 0), (1, 1), (1, 2)], "code {code}");
    }
}

#[test]
fn b100_a_gap_in_one_partition_leaves_the_others_numbers_alone() {
    let mut bench = Bench::new(one_by_one(), &[1, 1]);
    let fifth = pipelined(&mut bench, 0, 1).remove(0);
    let twelfth = pipelined(&mut bench, 1, 1).remove(0);
    bench.answer(twelfth, Answer::Lost, 1);
    bench.refused(fifth, 45, 1);
    let order = bench.order(300).unwrap();
    let stamps: Vec<_> = order.iter().map(|b| (b.topic_partition().partition, stamp(b))).collect();
    assert!(stamps.contains(&(0, (1, 0))), "renumbered: {stamps:?}");
    assert!(stamps.contains(&(1, (0, 0))), "may be written, so it keeps its number: {stamps:?}");
}

#[test]
fn b097_a_sent_batch_that_is_given_up_forces_a_new_epoch_before_anything_new() {
    let mut bench = Bench::new(one_by_one(), &[1]);
    let flights = pipelined(&mut bench, 0, 1);
    bench.acc.handle_timeout(at(120_000));
    bench.send(0, "next", 120_001);
    assert!(bench.order(120_001).is_none(), "its answer may still come");
    bench.answer(flights.into_iter().next().unwrap(), Answer::Lost, 120_002);
    let order = bench.order(120_002).unwrap();
    assert_eq!(stamp(&order[0]), (1, 0), "the old number would be taken for a retry and dropped");
}

#[test]
fn what_was_sent_behind_a_given_up_batch_is_retried_under_its_old_number_first() {
    let mut bench = Bench::new(one_by_one(), &[1]);
    bench.send(0, "old", 0);
    let first = bench.order(0).unwrap();
    bench.send(0, "younger", 60_000);
    let second = bench.order(60_000).unwrap();
    bench.acc.handle_timeout(at(120_000));
    bench.answer(first, Answer::Lost, 120_001);
    bench.answer(second, Answer::Lost, 120_001);
    bench.send(0, "new", 120_001);
    let retried = bench.order(121_000).unwrap();
    assert_eq!(stamp(&retried[0]), (0, 1), "it may be written too");
    assert!(bench.order(121_000).is_none());
    bench.written(retried, 1, 121_001);
    let order = bench.order(121_001).unwrap();
    assert_eq!(stamp(&order[0]), (1, 0));
}

#[test]
fn a_duplicate_is_success_without_an_offset() {
    let mut bench = Bench::new(one_by_one(), &[1]);
    let flights = pipelined(&mut bench, 0, 1);
    bench.refused(flights.into_iter().next().unwrap(), 46, 1);
    let told = bench.completions();
    assert_eq!(told[0].outcome, Ok(Written { base_offset: None, append_time: None }));
}

#[test]
fn the_last_epoch_is_followed_by_a_fresh_producer_id() {
    let mut bench = Bench::new(one_by_one(), &[1]);
    bench.acc.set_producer_id(ProducerId { id: 7, epoch: i16::MAX - 1 });
    let flights = pipelined(&mut bench, 0, 1);
    bench.refused(flights.into_iter().next().unwrap(), 45, 1);
    assert!(bench.acc.wants_producer_id());
    assert!(bench.order(1).is_none());
    bench.acc.set_producer_id(ProducerId { id: 8, epoch: 0 });
    let order = bench.order(1).unwrap();
    assert_eq!(order[0].stamp.unwrap().producer, ProducerId { id: 8, epoch: 0 });
    assert_eq!(stamp(&order[0]), (0, 0));
}

#[test]
fn a_second_batch_waits_until_the_broker_knows_the_producer() {
    let mut bench = Bench::fresh(one_by_one(), &[1]);
    for _ in 0..3 {
        bench.send(0, "a", 0);
    }
    let first = bench.order(0).unwrap();
    assert!(
        bench.order(0).is_none(),
        "a broker without state would take the second although it refuses the first"
    );
    bench.written(first, 0, 1);
    assert!(bench.order(1).is_some() && bench.order(1).is_some());
}

#[test]
fn sequences_wrap_to_zero() {
    assert_eq!(batch::sequence_after(i32::MAX, 1), 0);
    assert_eq!(batch::sequence_after(i32::MAX - 1, 3), 1);
}

#[test]
fn a_batch_that_is_too_large_becomes_two_with_the_sequences_of_one() {
    let mut bench = Bench::new(AccumulatorConfig::default(), &[1]);
    let (token, _) = bench.send(0, "0", 0);
    for n in 1..5 {
        bench.send(0, &std::format!("{n}"), 0);
    }
    let mut order = bench.order(0).unwrap();
    order[0].encode().unwrap();
    bench.refused(order, 10, 1);
    let low = bench.order(1).unwrap();
    assert_eq!((stamp(&low[0]), low[0].records()), ((0, 0), 2));
    bench.written(low, 50, 2);
    let high = bench.order(2).unwrap();
    assert_eq!((stamp(&high[0]), high[0].records()), ((0, 2), 3));
    bench.written(high, 52, 3);
    let told: Vec<_> = bench.completions().iter().map(|c| (c.token, c.first, c.count)).collect();
    assert_eq!(told, [(token, 0, 2), (token, 2, 3)]);
    assert!(bench.acc.budget().try_take(32 << 20), "all memory came back");
}
