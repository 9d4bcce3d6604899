//! When batches leave, what flush, close, time and memory mean.

use std::string::ToString;
use std::vec::Vec;

use super::*;

fn config() -> AccumulatorConfig {
    AccumulatorConfig::default()
}

fn lingering(ms: u64) -> AccumulatorConfig {
    AccumulatorConfig { linger: Duration::from_millis(ms), ..config() }
}

const HOUR: u64 = 3_600_000;

#[test]
fn without_linger_an_idle_node_gets_the_record_at_once() {
    let mut bench = Bench::new(config(), &[1]);
    bench.send(0, "a", 0);
    assert_eq!(bench.order(0).unwrap()[0].records(), 1);
}

#[test]
fn without_linger_records_batch_while_something_is_in_flight() {
    let mut bench = Bench::new(config(), &[1, 1]);
    bench.send(0, "a", 0);
    let first = bench.order(0).unwrap();
    for n in 0..10 {
        bench.send(0, "b", n);
        bench.send(1, "c", n);
        assert!(bench.order(n).is_none(), "the node is busy");
    }
    assert_eq!(bench.quiet_until(9), None, "only the answer can change that");
    bench.written(first, 0, 20);
    let second = bench.order(20).unwrap();
    assert_eq!(
        second.iter().map(Batch::records).collect::<Vec<_>>(),
        [10, 10],
        "one request, both partitions"
    );
}

#[test]
fn without_linger_a_full_batch_leaves_although_others_are_in_flight() {
    let mut bench = Bench::new(AccumulatorConfig { batch_records: 2, ..config() }, &[1]);
    for n in 0..12 {
        bench.send(0, "a", n);
    }
    let in_flight = (0..5).map(|_| bench.order(12).unwrap()).collect::<Vec<_>>();
    assert!(bench.order(12).is_none(), "five per broker");
    assert!(in_flight.iter().all(|batches| batches[0].records() == 2));
}

#[test]
fn linger_waits_when_idle_is_counted_from_the_first_record_and_never_restarted() {
    let mut bench = Bench::new(lingering(20), &[1]);
    bench.send(0, "a", 100);
    for now in 101..120 {
        bench.send(0, "b", now);
        assert_eq!(bench.quiet_until(now), Some(at(120)), "a trickle postpones nothing");
    }
    assert_eq!(bench.order(120).unwrap()[0].records(), 20);
    bench.send(0, "c", 125);
    assert_eq!(bench.quiet_until(125), Some(at(145)), "the next batch has its own window");
}

#[test]
fn each_partition_has_its_own_window() {
    let mut bench = Bench::new(lingering(20), &[1, 1]);
    bench.send(0, "a", 0);
    bench.send(1, "b", 15);
    let first = bench.order(20).unwrap();
    assert_eq!(first.len(), 1, "a hot partition does not take a cold one along");
    assert_eq!(bench.quiet_until(20), Some(at(35)));
    bench.written(first, 0, 21);
    assert!(bench.order(34).is_none());
    assert!(bench.order(35).is_some());
}

#[test]
fn one_record_per_window_loses_nothing_and_takes_a_request_each() {
    let mut bench = Bench::new(lingering(1), &[1, 1]);
    let mut requests = 0;
    let mut told = 0;
    for round in 0..1_500u64 {
        let now = round * 2;
        bench.send(0, "fast", now);
        if round % 7 == 0 {
            bench.send(1, "slow", now);
        }
        let order = bench.order(now + 1).unwrap();
        requests += 1;
        bench.written(order, 0, now + 1);
        told += bench.completions().iter().map(|c| c.count).sum::<u32>();
    }
    assert_eq!(told, 1_500 + 215);
    assert!(requests > 1_500 / 100, "the timer sent them, not full batches");
}

#[test]
fn a_full_batch_leaves_at_once_under_a_long_linger() {
    let mut bench = Bench::new(AccumulatorConfig { batch_records: 10, ..lingering(HOUR) }, &[1]);
    for n in 0..9 {
        bench.send(0, "a", n);
        assert!(bench.order(n).is_none());
    }
    let (_, index) = bench.send(0, "a", 9);
    assert_eq!(index, 9);
    assert_eq!(bench.order(9).unwrap()[0].records(), 10);
}

#[test]
fn a_batch_is_bounded_by_bytes_and_a_larger_record_has_its_own() {
    let mut bench = Bench::new(AccumulatorConfig { batch_bytes: 200, ..lingering(HOUR) }, &[1]);
    bench.send(0, &"x".repeat(50), 0);
    bench.send(0, &"x".repeat(500), 0);
    bench.send(0, "y", 0);
    let sizes: Vec<u32> = core::iter::from_fn(|| bench.order(0)).map(|b| b[0].records()).collect();
    assert_eq!(sizes, [1, 1], "the small one before is closed, the large one is full at once");
}

#[test]
fn flush_sends_all_partitions_at_once_and_is_over_when_they_are_told() {
    let mut bench = Bench::new(lingering(HOUR), &[1, 1, 1]);
    for partition in 0..3 {
        bench.send(partition, "a", 0);
    }
    let mark = bench.acc.begin_flush();
    bench.send(0, "after the flush", 1);
    let order = bench.order(1).unwrap();
    assert_eq!(order.len(), 3, "one record per partition, in one request");
    assert!(!bench.acc.is_flushed(mark));
    bench.written(order, 0, 2);
    assert!(bench.acc.is_flushed(mark), "what came later is not waited for");
    assert!(bench.order(2).is_none());
}

#[test]
fn close_delivers_what_is_there_and_refuses_what_comes() {
    let mut bench = Bench::new(lingering(HOUR), &[1]);
    bench.send(0, "a", 0);
    let mark = bench.acc.close();
    let slot = bench.acc.route("t", Some(0), None).unwrap();
    let parts = RecordParts { timestamp: 0, key: None, value: None, headers: &[] };
    let free = bench.acc.budget().try_take(parts.cost());
    assert!(free);
    let late = bench.acc.append(slot, parts, at(1), |_| (0, 0)).unwrap_err();
    assert_eq!(late, AppendError::Closed);
    let order = bench.order(1).unwrap();
    bench.written(order, 0, 2);
    assert!(bench.acc.is_flushed(mark));
    assert_eq!(bench.acc.untold_records(), 0);
}

#[test]
fn completions_carry_offsets_and_the_place_of_each_record() {
    let mut bench = Bench::new(config(), &[1]);
    let (token, _) = bench.send(0, "a", 0);
    let (same, index) = bench.send(0, "b", 0);
    assert_eq!((token, index), (same, 1));
    let order = bench.order(0).unwrap();
    bench.written(order, 40, 1);
    let told = bench.completions();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].token, told[0].first, told[0].count), (token, 0, 2));
    assert_eq!(told[0].outcome, Ok(Written { base_offset: Some(40), append_time: None }));
}

#[test]
fn acks_none_completes_without_an_offset_and_pipelines() {
    let config = AccumulatorConfig { acks: Acks::None, idempotent: false, batch_records: 1, ..config() };
    let mut bench = Bench::new(config, &[1]);
    bench.send(0, "a", 0);
    bench.send(0, "b", 0);
    let (first, second) = (bench.order(0).unwrap(), bench.order(0).unwrap());
    bench.answer(first, Answer::Unanswered, 1);
    bench.answer(second, Answer::Unanswered, 1);
    let outcomes: Vec<_> = bench.completions().into_iter().map(|c| c.outcome.unwrap().base_offset).collect();
    assert_eq!(outcomes, [None, None]);
}

#[test]
fn a_refused_batch_fails_all_its_records_and_the_next_goes_on() {
    let mut bench = Bench::new(config(), &[1]);
    for _ in 0..5 {
        bench.send(0, "a", 0);
    }
    let order = bench.order(0).unwrap();
    bench.refused(order, 87, 1);
    let told = bench.completions();
    assert_eq!((told.len(), told[0].count), (1, 5));
    assert_eq!(told[0].outcome, Err(Failure::Refused { code: 87, message: None }));
    bench.send(0, "b", 2);
    let order = bench.order(2).unwrap();
    assert_eq!(stamp(&order[0]), (0, 0), "the refused numbers were never used at the broker");
}

#[test]
fn a_waiting_batch_times_out_as_not_written_and_a_sent_one_as_possibly_written() {
    let mut bench = Bench::new(AccumulatorConfig { batch_records: 1, max_in_flight: 1, ..config() }, &[1]);
    bench.send(0, "sent", 0);
    bench.send(0, "waiting", 5);
    let order = bench.order(5).unwrap();
    assert_eq!(bench.acc.next_timeout(), Some(at(120_000)));
    bench.acc.handle_timeout(at(119_999));
    assert_eq!(bench.completions().len(), 0);
    bench.acc.handle_timeout(at(120_005));
    let written: Vec<_> = bench.completions().into_iter().map(|c| c.outcome.unwrap_err()).collect();
    let timed_out = |possibly_written| Failure::TimedOut { possibly_written, last_error: None };
    assert_eq!(written, [timed_out(true), timed_out(false)]);
    // The late answer is nobody's any more, and gives the memory back.
    bench.written(order, 0, 120_006);
    assert_eq!(bench.completions().len(), 0);
    assert!(bench.acc.budget().try_take(32 << 20));
}

#[test]
fn b109_b110_retries_wait_with_a_growing_backoff_and_keep_the_bytes() {
    let mut bench = Bench::new(config(), &[1]);
    bench.send(0, "a", 0);
    let mut order = bench.order(0).unwrap();
    let bytes = order[0].encode().unwrap();
    let mut now = 0;
    for wait in [100, 200, 400, 800, 1000, 1000] {
        bench.refused(order, 6, now);
        assert!(bench.acc.wants_metadata(), "the leader is probably elsewhere");
        assert_eq!(bench.acc.take_stale().len(), 1);
        assert_eq!(bench.quiet_until(now), Some(at(now + wait)));
        now += wait;
        order = bench.order(now).unwrap();
        assert_eq!(order[0].encode().unwrap(), bytes, "never rebuilt, never compressed twice");
    }
    bench.written(order, 9, now);
    assert_eq!(bench.completions().len(), 1);
}

#[test]
fn b106_without_idempotence_a_partition_has_one_request_in_flight() {
    let config = AccumulatorConfig { acks: Acks::Written, idempotent: false, batch_records: 1, ..config() };
    let mut bench = Bench::new(config, &[1, 1]);
    for partition in [0, 0, 1] {
        bench.send(partition, "a", 0);
    }
    let order = bench.order(0).unwrap();
    assert_eq!(order.len(), 2, "each partition one");
    assert!(bench.order(0).is_none());
    bench.written(order, 0, 1);
    assert!(bench.order(1).is_some());
}

#[test]
fn a_leader_that_moves_takes_its_batches_along_once_the_old_one_answered() {
    let mut bench = Bench::new(AccumulatorConfig { batch_records: 1, ..config() }, &[1]);
    bench.send(0, "a", 0);
    bench.send(0, "b", 0);
    let old = bench.order(0).unwrap();
    bench.acc.update_topic(&"t".into(), &view(&[2]));
    assert!(bench.order_of(2, 0).is_err(), "two leaders at once would break the order");
    bench.answer(old, Answer::Lost, 1);
    assert!(bench.order_of(1, 500).is_err());
    let moved = bench.order_of(2, 500).unwrap();
    assert_eq!(stamp(&moved[0]), (0, 0), "the retry keeps its number at the new leader");
}

#[test]
fn without_a_leader_batches_wait_and_metadata_is_asked_for() {
    let mut bench = Bench::new(config(), &[1]);
    let leaderless = TopicView { partitions: std::vec![row(0, None)], ..TopicView::default() };
    bench.acc.update_topic(&"t".into(), &leaderless);
    bench.send(0, "a", 0);
    assert!(bench.order(0).is_none() && bench.acc.wants_metadata());
    assert_eq!(bench.acc.take_stale().iter().map(ToString::to_string).collect::<Vec<_>>(), ["t"]);
    bench.acc.update_topic(&"t".into(), &view(&[1]));
    assert!(bench.order(0).is_some() && !bench.acc.wants_metadata());
}

#[test]
fn memory_pressure_sends_without_waiting_for_the_linger() {
    let mut bench = Bench::new(AccumulatorConfig { buffer_records: 2, ..lingering(HOUR) }, &[1]);
    bench.send(0, "a", 0);
    bench.send(0, "b", 0);
    assert!(bench.order(0).is_none());
    let ticket = bench.acc.budget().wait(10);
    let order = bench.order(0).unwrap();
    bench.written(order, 0, 1);
    assert_eq!(bench.acc.budget().poll_granted(), Some(ticket));
}

#[test]
fn nothing_is_sent_before_the_producer_id_is_known() {
    let mut acc = Accumulator::<Token>::new(config(), 1);
    acc.update_topic(&"t".into(), &view(&[1]));
    let mut bench = Bench { acc, opened: 0 };
    bench.send(0, "a", 0);
    assert!(bench.acc.wants_producer_id() && bench.order(0).is_none() && !bench.acc.has_work(1));
    bench.acc.set_producer_id(ProducerId { id: 1, epoch: 0 });
    assert!(bench.acc.has_work(1) && bench.order(0).is_some());
}

#[test]
fn b118_routes_by_partition_then_key_then_turn() {
    let config = AccumulatorConfig { spread: Spread::RoundRobin, ..config() };
    let mut bench = Bench::new(config, &[1, 1, 1]);
    let mut pick = |partition, key| {
        let slot = bench.acc.route("t", partition, key).unwrap();
        bench.acc.topic_partition(slot).partition
    };
    assert_eq!([pick(None, None), pick(None, None), pick(None, None), pick(None, None)], [0, 1, 2, 0]);
    assert_eq!(pick(None, Some(b"user-2")), 2);
    assert_eq!(pick(None, Some(b"")), 0, "an empty key is a key");
    assert_eq!(pick(Some(1), Some(b"user-2")), 1);
    assert_eq!(bench.acc.route("t", Some(3), None), Err(RouteError::UnknownPartition { count: 3 }));
    assert_eq!(bench.acc.route("t", Some(-1), None), Err(RouteError::UnknownPartition { count: 3 }));
    assert_eq!(bench.acc.route("u", None, None), Err(RouteError::UnknownTopic));
    bench.acc.update_topic(&"t".into(), &view(&[1, 1, 1, 1]));
    assert!(bench.acc.route("t", Some(3), None).is_ok(), "partitions added later are used");
}

#[test]
fn sticky_stays_until_its_batch_is_closed() {
    let mut bench = Bench::new(AccumulatorConfig { batch_records: 3, ..lingering(HOUR) }, &[1, 1, 1]);
    let mut partitions = Vec::new();
    for n in 0..9 {
        let slot = bench.acc.route("t", None, None).unwrap();
        let partition = bench.acc.topic_partition(slot).partition;
        partitions.push(partition);
        bench.send(partition, "a", n);
    }
    for batch in partitions.chunks(3) {
        assert!(batch.iter().all(|p| *p == batch[0]), "{partitions:?}");
    }
    assert!(partitions[0] != partitions[3] && partitions[3] != partitions[6], "{partitions:?}");
}

#[test]
fn abandoning_tells_everyone_whether_it_may_be_written() {
    let mut bench = Bench::new(AccumulatorConfig { batch_records: 1, max_in_flight: 1, ..config() }, &[1]);
    bench.send(0, "sent", 0);
    bench.send(0, "kept", 0);
    let _sent = bench.order(0).unwrap();
    bench.acc.abandon();
    let told: Vec<_> = bench.completions().into_iter().map(|c| c.outcome.unwrap_err()).collect();
    let abandoned = |possibly_written| Failure::Abandoned { possibly_written };
    assert_eq!(told, [abandoned(true), abandoned(false)]);
    assert_eq!(bench.acc.untold_records(), 0);
}

#[test]
fn many_partitions_share_requests_without_one_starving() {
    let leaders = [1; 50];
    let config =
        AccumulatorConfig { max_request_bytes: 1_000, batch_bytes: 200, max_in_flight: 1, ..config() };
    let mut bench = Bench::new(config, &leaders);
    let mut served = [0u32; 50];
    for round in 0..100 {
        for partition in 0..50 {
            if bench.acc.budget().try_take(0) {
                bench.send(partition, &"x".repeat(100), round);
            }
        }
        let order = bench.order(round).unwrap();
        for batch in &order {
            served[batch.topic_partition().partition as usize] += 1;
        }
        bench.written(order, 0, round);
    }
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(*least > 0 && most - least <= 2, "{served:?}");
}
