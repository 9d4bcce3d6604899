//! What the dispatcher tells of itself, and what it keeps of what waits.

use super::*;

#[test]
fn the_figures_tell_what_runs_which_keys_there_are_and_whose_each_job_is() {
    let mut bench = Bench::by_key(16, 2, 1);
    for (offset, key) in (0..).zip([None, named(""), named("ann"), named("ann")]) {
        bench.admit(key, offset);
    }
    let figures = |bench: &Bench| {
        let dispatcher = &bench.dispatcher;
        (dispatcher.running(), dispatcher.pending(), dispatcher.keys(), dispatcher.key_lanes())
    };
    assert_eq!(figures(&bench), (0, 4, 3, 3));
    let jobs = bench.start_all();
    assert_eq!(figures(&bench), (2, 4, 3, 3));
    assert_eq!(bench.dispatcher.key_of(jobs[0].0), Some(None));
    assert_eq!(bench.dispatcher.key_of(jobs[1].0), Some(Some(&b""[..])));
    bench.finish(jobs[0].0);
    assert_eq!(figures(&bench), (1, 3, 2, 2));
    let (ann, _) = bench.start().unwrap();
    assert_eq!(bench.dispatcher.key_of(ann), Some(Some(&b"ann"[..])));

    let mut bench = Bench::new(DispatcherConfig::one_by_one(1));
    let ticket = bench.tracker.deliver(0, None);
    bench.dispatcher.admit_together(Rec { key: named("ann"), offset: 0 }, ticket);
    let (job, _) = bench.start().unwrap();
    assert_eq!(bench.dispatcher.key_of(job), None, "not in key order");
    assert_eq!(figures(&bench), (1, 1, 0, 1));
}

#[test]
fn records_run_after_those_that_were_admitted_under_an_equal_key_whatever_theirs_is() {
    let mut bench = Bench::by_key(16, 4, 1);
    for (offset, (own, under)) in
        (0..).zip([("a", Some("x")), ("b", Some("x")), ("a", Some("y")), ("a", None), ("b", None)])
    {
        let ticket = bench.tracker.deliver(offset, None);
        let under = under.map(|under| Bytes::from_static(under.as_bytes()));
        bench.dispatcher.admit_under(Rec { key: named(own), offset }, ticket, under);
    }
    let jobs = bench.start_all();
    assert_eq!(jobs.iter().map(|job| job.1[0]).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(bench.dispatcher.key_of(jobs[0].0), Some(Some(&b"x"[..])));
    bench.finish(jobs[0].0);
    assert_eq!(bench.start().unwrap().1, [1]);
}

/// A record that knows whether it was told that it will wait for long.
#[derive(Debug, PartialEq, Eq)]
struct Settling(&'static str, bool);

impl HasKey for Settling {
    fn key(&self) -> Option<&[u8]> {
        Some(self.0.as_bytes())
    }

    fn key_bytes(&self) -> Option<Bytes> {
        Some(Bytes::from_static(self.0.as_bytes()))
    }

    fn settle_down(&mut self) -> Option<usize> {
        (!std::mem::replace(&mut self.1, true)).then_some(self.0.len())
    }
}

#[test]
fn records_that_wait_behind_a_parked_one_settle_down_and_others_do_not() {
    let mut dispatcher = Dispatcher::new(DispatcherConfig::side_by_side(16, 2, 8, (1, 2)));
    let mut tracker = OffsetTracker::new();
    let mut offsets = 0..;
    let mut admit = |dispatcher: &mut Dispatcher<Settling>, key| {
        let ticket = tracker.deliver(offsets.next().unwrap(), None);
        dispatcher.admit_by_key(Settling(key, false), ticket);
    };
    let take = |dispatcher: &mut Dispatcher<Settling>| {
        let mut taken = Vec::new();
        let start = dispatcher.start(Instant::ZERO, |_| false, |record, _| taken.push(record));
        let Some(Start::Fresh(job) | Start::Again(job)) = start else { panic!("{start:?}") };
        (job, taken)
    };
    admit(&mut dispatcher, "bad");
    let (bad, _) = take(&mut dispatcher);
    for key in ["bad", "good", "bad"] {
        admit(&mut dispatcher, key);
    }
    let told = |dispatcher: &mut Dispatcher<Settling>| {
        let mut told = Vec::new();
        dispatcher.take_copied(|ticket, bytes| told.push((*ticket, bytes)));
        told
    };
    assert_eq!(told(&mut dispatcher), []);
    dispatcher.park(bad);
    let copies = told(&mut dispatcher);
    assert_eq!(copies.iter().map(|copy| copy.1).collect::<Vec<_>>(), [3, 3], "the two that wait behind it");
    for key in ["bad", "good"] {
        admit(&mut dispatcher, key);
    }
    let copies = told(&mut dispatcher);
    assert_eq!(copies.iter().map(|copy| copy.1).collect::<Vec<_>>(), [3], "the one of its key");
    assert_eq!(told(&mut dispatcher), [], "each is told once");
    assert_eq!(take(&mut dispatcher).1, [Settling("good", false), Settling("good", false)]);
    assert!(dispatcher.unpark(bad));
    assert_eq!(take(&mut dispatcher), (bad, Vec::new()), "its own record is where it was");
    dispatcher.finish(bad);
    let settled = || Settling("bad", true);
    assert_eq!(take(&mut dispatcher).1, [settled(), settled(), settled()]);
}

#[test]
fn giving_up_what_rests_includes_what_waits_for_a_worker_after_its_rest_and_leaves_other_keys() {
    let mut bench = Bench::by_key(16, 1, 1);
    for (offset, key) in (0..).zip(["a", "b", "c", "a"]) {
        bench.admit(named(key), offset);
    }
    let (a, _) = bench.start().unwrap();
    bench.dispatcher.rest(a, bench.now + Duration::from_secs(1));
    let (b, _) = bench.start().unwrap();
    bench.dispatcher.rest(b, bench.now + Duration::from_secs(2));
    bench.now += Duration::from_secs(1);
    let (c, offsets) = bench.start().unwrap();
    assert_eq!(offsets, [2], "its turn comes before that of the one whose rest is just over");
    bench.admit(named("d"), 4);
    let mut given_up = Vec::new();
    bench.dispatcher.give_up_resting(|job| given_up.push(job));
    assert_eq!((given_up, bench.dispatcher.next_timeout()), (vec![b, a], None));
    bench.admit(named("b"), 5);
    bench.finish(c);
    let (d, offsets) = bench.start().unwrap();
    assert_eq!(offsets, [4]);
    bench.finish(d);
    assert_eq!((bench.start(), bench.dispatcher.pending()), (None, 0));
}

#[test]
fn a_parked_job_that_is_taken_up_goes_on_with_what_waits_behind_it_and_only_while_it_runs() {
    let mut bench = Bench::new(parking(2, 100));
    for offset in 0..3 {
        bench.admit(named("bad"), offset);
    }
    let (bad, _) = bench.start().unwrap();
    bench.dispatcher.park(bad);
    let go_on = |bench: &mut Bench| {
        let mut taken = Vec::new();
        let goes = bench.dispatcher.go_on(bad, |_| false, |record, _| taken.push(record.offset));
        (goes, taken, bench.dispatcher.pending(), bench.dispatcher.behind(bad))
    };
    assert!(!bench.dispatcher.parking_is_full(), "one of two keys, three of a hundred records");
    assert_eq!(go_on(&mut bench), (false, vec![], 0, 2), "it does not run");
    assert!(bench.dispatcher.take_up(bad));
    assert!(!bench.dispatcher.take_up(bad) && !bench.dispatcher.unpark(bad), "it is not parked any more");
    assert_eq!((bench.dispatcher.pending(), bench.dispatcher.running()), (3, 1));
    assert_eq!(go_on(&mut bench), (true, vec![1], 2, 1));
    assert_eq!(go_on(&mut bench), (true, vec![2], 1, 0));
    assert_eq!(go_on(&mut bench), (false, vec![], 1, 0));
    bench.finish(bad);
    assert_eq!((bench.dispatcher.pending(), bench.dispatcher.running()), (0, 0));
}

#[test]
fn giving_up_what_is_parked_leaves_what_runs_and_blocks_the_keys() {
    let mut bench = Bench::new(parking(2, 100));
    for (offset, key) in (0..).zip(["a", "b", "a"]) {
        bench.admit(named(key), offset);
    }
    let parked: Vec<_> = bench.start_all().into_iter().map(|(job, _)| job).collect();
    parked.iter().for_each(|&job| bench.dispatcher.park(job));
    assert!(bench.dispatcher.parking_is_full());
    bench.admit(named("c"), 3);
    let (c, _) = bench.start().unwrap();
    let mut given_up = Vec::new();
    bench.dispatcher.give_up_parked(|job| given_up.push(job));
    assert_eq!(given_up, parked);
    let dispatcher = &bench.dispatcher;
    assert_eq!((dispatcher.parked_keys(), dispatcher.parked_records(), dispatcher.pending()), (0, 0, 1));
    bench.admit(named("a"), 4);
    assert_eq!(bench.start(), None);
    bench.finish(c);
    assert_eq!((bench.start(), bench.dispatcher.pending()), (None, 0));
}
