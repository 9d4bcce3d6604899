//! What a recorder of the `metrics` facade is told by a run.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Probe, for_each, secs, settle, tp};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tramline_processor::testing::MemoryLog;
use tramline_processor::{Backoff, CommitErrorKind, CommitPolicy, ErrorPolicy, Lane, Retry, StopPolicy};
use tramline_wire::Record;

/// Keeps what it is told, by name and labels.
#[derive(Default)]
struct Kept {
    described: Mutex<BTreeMap<String, Option<Unit>>>,
    numbers: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Values>>>,
    registered: AtomicU64,
}

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

fn name(key: &Key) -> String {
    let labels = key.labels().map(|label| format!("{}={}", label.key(), label.value()));
    format!("{}{{{}}}", key.name(), labels.collect::<Vec<_>>().join(","))
}

impl Kept {
    fn describe(&self, name: &KeyName, unit: Option<Unit>) {
        self.described.lock().unwrap().insert(name.as_str().to_owned(), unit);
    }

    fn number(&self, key: &Key) -> Arc<AtomicU64> {
        self.registered.fetch_add(1, Ordering::SeqCst);
        Arc::clone(self.numbers.lock().unwrap().entry(name(key)).or_default())
    }

    fn counter(&self, name: &str, labels: &str) -> u64 {
        let numbers = self.numbers.lock().unwrap();
        let name = format!("tramline_{name}{{{labels}}}");
        numbers.get(&name).unwrap_or_else(|| panic!("{name}")).load(Ordering::SeqCst)
    }

    fn all_are_described(&self) {
        let described = self.described.lock().unwrap();
        let (numbers, histograms) = (self.numbers.lock().unwrap(), self.histograms.lock().unwrap());
        for name in numbers.keys().chain(histograms.keys()) {
            let name = name.split('{').next().unwrap();
            assert!(described.get(name).is_some_and(Option::is_some), "{name} is described, with its unit");
        }
    }

    fn holds(&self, counters: &[(&str, u64)]) {
        for (counter, expected) in counters {
            assert_eq!(self.counter(counter, LANE), *expected, "{counter}");
        }
    }

    fn gauge(&self, name: &str, labels: &str) -> f64 {
        f64::from_bits(self.counter(name, labels))
    }

    fn histogram(&self, name: &str, labels: &str) -> Vec<f64> {
        let histograms = self.histograms.lock().unwrap();
        histograms[&format!("tramline_{name}{{{labels}}}")].0.lock().unwrap().clone()
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.number(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.number(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.registered.fetch_add(1, Ordering::SeqCst);
        Histogram::from_arc(Arc::clone(self.histograms.lock().unwrap().entry(name(key)).or_default()))
    }
}

const LANE: &str = "group=test,topic=t,partition=0";

/// Runs the test with this recorder, under a clock that stands still.
fn with(recorder: &Kept, test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(recorder, || runtime.block_on(test));
}

/// What is counted once one of four records was tried twice and skipped, and one commit failed.
const AFTER_FOUR: [(&str, u64); 9] = [
    ("lane_delivered_records_total", 4),
    ("lane_completed_records_total", 4),
    ("lane_retries_total", 1),
    ("lane_skipped_records_total", 1),
    ("lane_dead_letters_total", 0),
    ("lane_pauses_total", 1),
    ("lane_commits_total", 1),
    ("lane_commit_failures_total", 1),
    ("lane_starts_total", 1),
];

/// One second for each record; the one that says so fails.
async fn handler(record: Record, _: Lane) -> Result<(), &'static str> {
    tokio::time::sleep(secs(1)).await;
    if record.value() == Some(b"bad") { Err("no") } else { Ok(()) }
}

#[test]
fn a_run_tells_a_recorder_what_it_counts() {
    let kept = Kept::default();
    with(&kept, async {
        let log = MemoryLog::new();
        for value in [&b"good"[..], b"bad", b"good", b"good"] {
            log.produce(&tp(0), None, Some(value));
        }
        let policy = Retry::new(2, Backoff::every(Duration::from_millis(1))).then(ErrorPolicy::Skip);
        let run = for_each(
            &log,
            &[0],
            |b| {
                b.on_error(policy)
                    .max_buffered_records(3)
                    .commit(CommitPolicy::Periodic(secs(60)))
                    .stop(StopPolicy::Drain, secs(60))
            },
            handler,
        );
        run.control.fail_commits(&[CommitErrorKind::Retriable]);
        let registered = kept.registered.load(Ordering::SeqCst);
        tokio::time::sleep(secs(61)).await;
        tokio::time::sleep(secs(5)).await;
        assert_eq!(kept.gauge("lane_state", LANE), 1.0);
        assert_eq!(kept.gauge("lane_frontier_offset", LANE), 4.0);
        assert_eq!(kept.gauge("lane_delivered_offset", LANE), 4.0);
        assert_eq!(kept.gauge("run_lanes", "group=test,state=running"), 1.0);
        assert_eq!(kept.gauge("run_max_buffered_bytes", "group=test"), f64::from(64 << 20));
        kept.holds(&AFTER_FOUR);
        assert!(kept.counter("lane_paused_milliseconds_total", LANE) >= 1000);
        let handled = kept.histogram("lane_handler_duration_seconds", LANE);
        assert!(handled.len() == 5 && handled.iter().all(|took| (1.0..1.1).contains(took)), "{handled:?}");
        assert!(registered < kept.registered.load(Ordering::SeqCst), "a lane registers its handles");

        let registered = kept.registered.load(Ordering::SeqCst);
        run.control.revoke(&[tp(0)]).released().await;
        tokio::time::sleep(secs(6)).await;
        assert_eq!(kept.gauge("lane_state", LANE), 0.0, "its lane has ended");
        assert_eq!(kept.gauge("lane_frontier_offset", LANE), 0.0);
        run.control.assign(&[tp(0)]);
        log.produce_many(&tp(0), 1);
        settle().await;
        run.stop().await.0.unwrap();
        assert_eq!(kept.counter("lane_completed_records_total", LANE), 5, "goes on counting");
        assert_eq!(kept.counter("lane_starts_total", LANE), 2);
        assert_eq!(kept.gauge("run_lanes", "group=test,state=running"), 0.0);
        assert_eq!(
            kept.registered.load(Ordering::SeqCst),
            registered,
            "handles are kept, not looked up again"
        );
        assert_eq!(kept.histogram("run_stop_duration_seconds", "group=test,reason=revoke").len(), 1);
        assert_eq!(kept.histogram("run_stop_duration_seconds", "group=test,reason=shutdown").len(), 1);
        assert_eq!(kept.histogram("run_revoke_hold_seconds", "group=test").len(), 1);
    });
    kept.all_are_described();
}

#[test]
fn two_runs_of_one_process_add_up_and_a_run_that_is_dropped_leaves_zeros() {
    let kept = Kept::default();
    with(&kept, async {
        let log = MemoryLog::new();
        for _ in 0..2 {
            log.produce_many(&tp(0), 3);
            let run = for_each(&log, &[0], |b| b, Probe::default().handler());
            settle().await;
            run.stop().await.0.unwrap();
        }
        assert_eq!(kept.counter("lane_completed_records_total", LANE), 6);
        log.produce_many(&tp(0), 3);
        let probe = Probe::default();
        probe.hold(0, 6);
        let run = for_each(&log, &[0], |b| b, probe.handler());
        tokio::time::sleep(secs(6)).await;
        assert_eq!(kept.gauge("lane_in_flight_records", LANE), 1.0);
        assert!(kept.gauge("lane_oldest_unfinished_seconds", LANE) >= 1.0);
        run.drop_it().await;
        assert_eq!(kept.gauge("lane_in_flight_records", LANE), 0.0);
        assert_eq!(kept.gauge("run_lanes", "group=test,state=running"), 0.0);
    });
}
