//! The numbers of [`Monitor::stats`](crate::Monitor::stats) and [`Monitor::snapshot`](crate::Monitor::snapshot)
//! through the `metrics` facade, for whichever recorder the program has installed. `docs/metrics.md` lists them.
//!
//! Handles are registered when a partition gets its first lane, and kept. What lanes count is copied into them at
//! every look of the run at its lanes, so that no record touches the facade; only a handler call that was
//! measured is recorded at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label, Unit};
use tokio::time::Instant;
use tramline_core::lanes::{LaneState, StopReason};
use tramline_wire::TopicPartition;

use crate::monitor::{LaneSnapshot, Registry, WaitingFor};
use crate::stats::{PartitionStats, RunStats};

struct Metric<Read> {
    name: &'static str,
    unit: Unit,
    meaning: &'static str,
    read: Read,
}

const fn metric<R>(name: &'static str, unit: Unit, meaning: &'static str, read: R) -> Metric<R> {
    Metric { name, unit, meaning, read }
}

fn number(value: impl TryInto<u32>) -> f64 {
    value.try_into().map_or(f64::from(u32::MAX), f64::from)
}

/// Offsets: exact up to 2^53.
fn offset(value: Option<i64>) -> f64 {
    value.unwrap_or(-1) as f64
}

type LaneGauge = Metric<fn(&LaneSnapshot) -> f64>;
type LaneCounter = Metric<fn(&PartitionStats) -> u64>;
type LaneCount = Metric<fn(&RunStats) -> usize>;
type RunGauge = Metric<fn(&RunStats) -> f64>;
type RunCounter = Metric<fn(&RunStats) -> u64>;

const STATE: &str = "0 no lane, 1 running, 2 paused, 3 draining, 4 cancelling, 5 failed and to be started again, \
                     6 stopped by a failure";

const LANE_GAUGES: &[LaneGauge] = &[
    metric("tramline_lane_state", Unit::Count, STATE, state),
    metric("tramline_lane_queued_records", Unit::Count, "Records in the queue", |lane| number(lane.queued)),
    metric(
        "tramline_lane_held_bytes",
        Unit::Bytes,
        "Memory kept in use by records that are queued or not finished",
        |lane| lane.held_bytes as f64,
    ),
    metric(
        "tramline_lane_in_flight_records",
        Unit::Count,
        "Records with the processor, not finished",
        |lane| number(lane.unfinished),
    ),
    metric("tramline_lane_key_lanes", Unit::Count, "Different keys of those, in key order", |lane| {
        number(lane.keys)
    }),
    metric("tramline_lane_parked_keys", Unit::Count, "Keys that are parked", |lane| number(lane.parked_keys)),
    metric("tramline_lane_parked_records", Unit::Count, "Records of those", |lane| number(lane.parked)),
    metric(
        "tramline_lane_frontier_offset",
        Unit::Count,
        "The offset that may be committed; -1 none",
        |lane| offset(lane.frontier),
    ),
    metric(
        "tramline_lane_delivered_offset",
        Unit::Count,
        "The offset after the last record handed out; -1 none",
        |lane| offset(lane.position),
    ),
    metric("tramline_lane_ahead_offsets", Unit::Count, "Delivered minus frontier", |lane| {
        lane.ahead() as f64
    }),
    metric(
        "tramline_lane_oldest_unfinished_seconds",
        Unit::Seconds,
        "Age of the oldest unfinished record, since it was handed out",
        |lane| lane.oldest_unfinished.map_or(0.0, |(_, since)| since.as_secs_f64()),
    ),
];

const LANE_COUNTERS: &[LaneCounter] = &[
    metric("tramline_lane_starts_total", Unit::Count, "Lanes started", |stats| stats.lanes),
    metric("tramline_lane_restarts_total", Unit::Count, "Of those, after a failure", |stats| stats.restarts),
    metric("tramline_lane_failures_total", Unit::Count, "Lanes that failed", |stats| stats.lane_failures),
    metric("tramline_lane_delivered_records_total", Unit::Count, "Records handed to processors", |stats| {
        stats.records_delivered
    }),
    metric("tramline_lane_completed_records_total", Unit::Count, "Records completed", |stats| {
        stats.records_completed
    }),
    metric(
        "tramline_lane_abandoned_records_total",
        Unit::Count,
        "Records dropped by a processor without completing them",
        |stats| stats.records_abandoned,
    ),
    metric(
        "tramline_lane_already_done_records_total",
        Unit::Count,
        "Records passed over, because an earlier lane or run had completed them",
        |stats| stats.records_already_done,
    ),
    metric("tramline_lane_fetch_failures_total", Unit::Count, "Times it could not be read on", |stats| {
        stats.fetch_failures
    }),
    metric("tramline_lane_retries_total", Unit::Count, "Records or batches handled again", |stats| {
        stats.retries
    }),
    metric("tramline_lane_skipped_records_total", Unit::Count, "Failed records that were skipped", |stats| {
        stats.records_skipped
    }),
    metric(
        "tramline_lane_dead_letters_total",
        Unit::Count,
        "Failed records that were written elsewhere",
        |stats| stats.records_dead_lettered,
    ),
    metric("tramline_lane_parked_keys_total", Unit::Count, "Keys that were parked", |stats| {
        stats.keys_parked
    }),
    metric("tramline_lane_pauses_total", Unit::Count, "Pauses of the partition", |stats| stats.pauses),
    metric("tramline_lane_paused_milliseconds_total", Unit::Milliseconds, "Time it was paused", |stats| {
        u64::try_from(stats.paused.as_millis()).unwrap_or(u64::MAX)
    }),
    metric("tramline_lane_commits_total", Unit::Count, "Commits that moved its offset", |stats| {
        stats.commits
    }),
    metric("tramline_lane_commit_failures_total", Unit::Count, "Commits that failed for it", |stats| {
        stats.commit_failures
    }),
];

const RUN_GAUGES: &[RunGauge] = &[
    metric(
        "tramline_run_buffered_bytes",
        Unit::Bytes,
        "Bytes of records that count against the budget",
        |stats| stats.buffered_bytes as f64,
    ),
    metric("tramline_run_max_buffered_bytes", Unit::Bytes, "That budget", |stats| {
        stats.max_buffered_bytes as f64
    }),
    metric("tramline_run_processors", Unit::Count, "Processors that have not ended", |stats| {
        number(stats.processors)
    }),
];

/// Under one name, by the label `state`.
const RUN_LANES: &str = "tramline_run_lanes";
const RUN_LANES_MEANING: &str = "Lanes, by state";
const RUN_LANES_BY: &[LaneCount] = &[
    metric("running", Unit::Count, "", |stats| stats.lanes.running),
    metric("paused", Unit::Count, "", |stats| stats.lanes.paused),
    metric("draining", Unit::Count, "", |stats| stats.lanes.draining),
    metric("cancelling", Unit::Count, "", |stats| stats.lanes.cancelling),
    metric("restarting", Unit::Count, "", |stats| stats.lanes.restarting),
    metric("stopped", Unit::Count, "", |stats| stats.lanes.stopped),
];

const RUN_COUNTERS: &[RunCounter] = &[
    metric("tramline_run_commits_total", Unit::Count, "Commit requests that worked", |stats| stats.commits),
    metric("tramline_run_commit_failures_total", Unit::Count, "Commit requests that failed", |stats| {
        stats.commit_failures
    }),
    metric("tramline_run_deadline_overruns_total", Unit::Count, "Lanes that did not stop in time", |stats| {
        stats.deadline_overruns
    }),
    metric(
        "tramline_run_stale_batches_total",
        Unit::Count,
        "Batches of an assignment that had gone, dropped",
        |stats| stats.stale_batches,
    ),
];

const HANDLED: &str = "tramline_lane_handler_duration_seconds";
const HANDLED_MEANING: &str =
    "Duration of handler calls; of those that never wait, one in 64 stands for the rest";
const STOPPED: &str = "tramline_run_stop_duration_seconds";
const STOPPED_MEANING: &str = "From the request to stop to the end of a lane's processor, by reason";
const HELD: &str = "tramline_run_revoke_hold_seconds";
const HELD_MEANING: &str = "How long revoked partitions were held";

fn state(lane: &LaneSnapshot) -> f64 {
    match (&lane.waiting_for, lane.state) {
        (WaitingFor::Restart { .. }, _) => 5.0,
        (WaitingFor::Stopped { .. }, _) => 6.0,
        (_, LaneState::Running) => 1.0,
        (_, LaneState::Paused) => 2.0,
        (_, LaneState::Draining) => 3.0,
        (_, LaneState::Cancelling) => 4.0,
        _ => 0.0,
    }
}

/// What the lane's own task records.
pub(crate) struct LaneMetrics(Histogram);

impl LaneMetrics {
    pub(crate) fn handled(&self, took: Duration, times: u32) {
        self.0.record_many(took.as_secs_f64(), times as usize);
    }
}

/// A counter of the facade, and how much of ours it has been told.
struct Told(Counter, u64);

impl Told {
    /// Differences, not totals: another run of this process may count under the same name.
    fn tell(&mut self, total: u64) {
        self.0.increment(total.saturating_sub(self.1));
        self.1 = self.1.max(total);
    }
}

struct Handles {
    gauges: Vec<Gauge>,
    counters: Vec<Told>,
    durations: Histogram,
    /// Whether a gauge may be other than zero.
    shown: bool,
}

/// The handles of a run.
pub(crate) struct RunMetrics {
    labels: Vec<Label>,
    lanes: HashMap<TopicPartition, Handles>,
    gauges: Vec<Gauge>,
    states: Vec<Gauge>,
    counters: Vec<Told>,
    stopped: [(StopReason, Histogram); 4],
    released: Histogram,
}

impl RunMetrics {
    pub(crate) fn new(group: Option<&str>) -> Self {
        describe();
        let labels = vec![Label::new("group", group.unwrap_or_default().to_owned())];
        let with = |name: &'static str, value: &'static str| {
            let mut labels = labels.clone();
            labels.push(Label::new(name, value));
            labels
        };
        let stopped = |reason, name| {
            let labels = with("reason", name);
            (reason, metrics::histogram!(STOPPED, labels))
        };
        let gauge = |metric: &RunGauge| metrics::gauge!(metric.name, labels.clone());
        let counter = |metric: &RunCounter| Told(metrics::counter!(metric.name, labels.clone()), 0);
        Self {
            lanes: HashMap::new(),
            gauges: RUN_GAUGES.iter().map(gauge).collect(),
            states: RUN_LANES_BY
                .iter()
                .map(|state| metrics::gauge!(RUN_LANES, with("state", state.name)))
                .collect(),
            counters: RUN_COUNTERS.iter().map(counter).collect(),
            stopped: [
                stopped(StopReason::Revoke, "revoke"),
                stopped(StopReason::Lost, "lost"),
                stopped(StopReason::Shutdown, "shutdown"),
                stopped(StopReason::Failure, "failure"),
            ],
            released: metrics::histogram!(HELD, labels.clone()),
            labels,
        }
    }

    /// For a lane that is being started.
    pub(crate) fn lane(&mut self, partition: &TopicPartition) -> LaneMetrics {
        let handles = self.lanes.entry(partition.clone()).or_insert_with(|| {
            let mut labels = self.labels.clone();
            labels.push(Label::new("topic", partition.topic.to_string()));
            labels.push(Label::new("partition", partition.partition.to_string()));
            let gauge = |metric: &LaneGauge| metrics::gauge!(metric.name, labels.clone());
            let counter = |metric: &LaneCounter| Told(metrics::counter!(metric.name, labels.clone()), 0);
            Handles {
                gauges: LANE_GAUGES.iter().map(gauge).collect(),
                counters: LANE_COUNTERS.iter().map(counter).collect(),
                durations: metrics::histogram!(HANDLED, labels.clone()),
                shown: true,
            }
        });
        LaneMetrics(handles.durations.clone())
    }

    /// Copies everything into the handles. The gauges of a partition without a lane are set to zero.
    pub(crate) fn publish(&mut self, registry: &Arc<Registry>) {
        let now = Instant::now();
        let (lanes, stats) = (registry.snapshot(now), registry.stats(now));
        for (gauge, metric) in self.gauges.iter().zip(RUN_GAUGES) {
            gauge.set((metric.read)(&stats));
        }
        for (gauge, metric) in self.states.iter().zip(RUN_LANES_BY) {
            gauge.set(number((metric.read)(&stats)));
        }
        for (told, metric) in self.counters.iter_mut().zip(RUN_COUNTERS) {
            told.tell((metric.read)(&stats));
        }
        for (partition, stats) in &stats.partitions {
            let counters = self.lanes.get_mut(partition).map(|handles| &mut handles.counters);
            for (told, metric) in counters.into_iter().flatten().zip(LANE_COUNTERS) {
                told.tell((metric.read)(stats));
            }
        }
        for handles in self.lanes.values_mut().filter(|handles| handles.shown) {
            handles.shown = false;
            handles.gauges.iter().for_each(|gauge| gauge.set(0.0));
        }
        for lane in &lanes {
            let Some(handles) = self.lanes.get_mut(&lane.lane.topic_partition) else {
                continue;
            };
            handles.shown = true;
            for (gauge, metric) in handles.gauges.iter().zip(LANE_GAUGES) {
                gauge.set((metric.read)(lane));
            }
        }
    }

    pub(crate) fn stopped(&self, reason: StopReason, took: Duration) {
        let histogram = self.stopped.iter().find(|(of, _)| *of == reason);
        if let Some((_, histogram)) = histogram {
            histogram.record(took.as_secs_f64());
        }
    }

    pub(crate) fn released(&self, held: Duration) {
        self.released.record(held.as_secs_f64());
    }
}

fn describe() {
    for metric in LANE_GAUGES {
        metrics::describe_gauge!(metric.name, metric.unit, metric.meaning);
    }
    for metric in RUN_GAUGES {
        metrics::describe_gauge!(metric.name, metric.unit, metric.meaning);
    }
    metrics::describe_gauge!(RUN_LANES, Unit::Count, RUN_LANES_MEANING);
    for metric in LANE_COUNTERS {
        metrics::describe_counter!(metric.name, metric.unit, metric.meaning);
    }
    for metric in RUN_COUNTERS {
        metrics::describe_counter!(metric.name, metric.unit, metric.meaning);
    }
    for (name, meaning) in [(HANDLED, HANDLED_MEANING), (STOPPED, STOPPED_MEANING), (HELD, HELD_MEANING)] {
        metrics::describe_histogram!(name, Unit::Seconds, meaning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as the documentation has it.
    fn table() -> String {
        let mut lines = vec!["| name | kind | labels | meaning |".to_owned(), "|---|---|---|---|".to_owned()];
        let mut line = |name: &str, kind: &str, labels: &str, meaning: &str| {
            lines.push(format!("| `{name}` | {kind} | {labels} | {meaning} |"));
        };
        let lane = "group, topic, partition";
        LANE_GAUGES.iter().for_each(|metric| line(metric.name, "gauge", lane, metric.meaning));
        LANE_COUNTERS.iter().for_each(|metric| line(metric.name, "counter", lane, metric.meaning));
        line(HANDLED, "histogram", lane, HANDLED_MEANING);
        line(RUN_LANES, "gauge", "group, state", RUN_LANES_MEANING);
        RUN_GAUGES.iter().for_each(|metric| line(metric.name, "gauge", "group", metric.meaning));
        RUN_COUNTERS.iter().for_each(|metric| line(metric.name, "counter", "group", metric.meaning));
        line(STOPPED, "histogram", "group, reason", STOPPED_MEANING);
        line(HELD, "histogram", "group", HELD_MEANING);
        lines.join("\n")
    }

    #[test]
    fn the_documentation_lists_what_there_is() {
        let documented = include_str!("../../../docs/metrics.md");
        let rows: Vec<&str> = documented.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.join("\n"), table(), "put this into docs/metrics.md:\n{}", table());
    }
}
