//! What a run has counted since it began: per partition over all its lanes, and for the run as a whole.

use std::collections::BTreeMap;
use std::time::Duration;

use tramline_core::lanes::{LaneState, StopReason};
use tramline_wire::TopicPartition;

use crate::lane::{Cell, Counts};

/// How long something took, many times: counts in buckets whose bounds double, from 1 us to 36 min.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    count: u64,
    total: Duration,
    longest: Duration,
    /// Bucket n holds what took less than 2^n us, and at least half of that; the last one also what took longer.
    buckets: [u64; Self::BUCKETS],
}

impl Default for Durations {
    fn default() -> Self {
        Self { count: 0, total: Duration::ZERO, longest: Duration::ZERO, buckets: [0; Self::BUCKETS] }
    }
}

impl Durations {
    const BUCKETS: usize = 32;

    pub(crate) fn note(&mut self, took: Duration, times: u32) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)] += u64::from(times);
        self.count += u64::from(times);
        self.total = self.total.saturating_add(took.saturating_mul(times));
        self.longest = self.longest.max(took);
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.total = self.total.saturating_add(more.total);
        self.longest = self.longest.max(more.longest);
        for (bucket, more) in self.buckets.iter_mut().zip(more.buckets) {
            *bucket += more;
        }
    }

    /// How many there were.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// All of them together.
    #[must_use]
    pub const fn total(&self) -> Duration {
        self.total
    }

    /// The longest one.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// The mean; zero when there was none.
    #[must_use]
    pub fn mean(&self) -> Duration {
        if self.count == 0 { Duration::ZERO } else { self.total.div_f64(self.count as f64) }
    }

    /// What this share of them (0.99, say) did not exceed, as the upper bound of a bucket: at most twice too
    /// long. None when there was none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (share.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let (bound, _) = self.buckets().find(|(_, count)| {
            seen += count;
            seen >= wanted
        })?;
        Some(bound.min(self.longest))
    }

    /// Every bucket: the bound that is above all in it, and how many are in it. The last bound is the longest
    /// duration there is.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets.iter().enumerate().map(|(at, &count)| {
            let bound = if at == Self::BUCKETS - 1 { Duration::MAX } else { Duration::from_micros(1 << at) };
            (bound, count)
        })
    }
}

/// What was counted for one partition: over all lanes it had in this run, those that live included.
///
/// How it stands at this moment is a [`LaneSnapshot`](crate::LaneSnapshot).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionStats {
    /// How many lanes it had.
    pub lanes: u64,
    /// How many of them were started again after a failure.
    pub restarts: u64,
    /// How many of them failed.
    pub lane_failures: u64,
    /// How many records were handed to processors.
    pub records_delivered: u64,
    /// How many of them were completed, those that were skipped or became dead letters included.
    pub records_completed: u64,
    /// How many a processor dropped without completing them.
    pub records_abandoned: u64,
    /// How many records were passed over, because an earlier lane or run had completed them.
    pub records_already_done: u64,
    /// How often it could not be read on, retries included.
    pub fetch_failures: u64,
    /// How many records (or batches) were handled again after a failure.
    pub retries: u64,
    /// How many records failed and were skipped.
    pub records_skipped: u64,
    /// How many records failed and were written elsewhere.
    pub records_dead_lettered: u64,
    /// How many keys were parked.
    pub keys_parked: u64,
    /// How often the source was asked to pause it.
    pub pauses: u64,
    /// For how long it was paused, all pauses together.
    pub paused: Duration,
    /// How many commits moved its committed offset.
    pub commits: u64,
    /// How many of its commits failed, those that were tried again included.
    pub commit_failures: u64,
    /// How long handlers took, one call after the other; nothing for a processor of a whole lane.
    ///
    /// A call that waits is measured, from its first await at the latest. Of calls that never wait one in 64 is
    /// measured and stands for all since the one before, because reading the clock costs as much as a lane does.
    pub handler_durations: Durations,
}

impl PartitionStats {
    /// Adds what a lane has counted up to `now`.
    pub(crate) fn add_lane(&mut self, cell: &Cell, now: tokio::time::Instant) {
        self.lanes += 1;
        self.records_delivered += cell.lane.delivered();
        self.records_completed += cell.lane.completed();
        self.records_abandoned += cell.abandoned;
        self.records_already_done += cell.lane.already_done();
        let Counts { retries, skipped, dead_lettered, parked } = cell.counts;
        self.keys_parked += parked;
        self.retries += retries;
        self.records_skipped += skipped;
        self.records_dead_lettered += dead_lettered;
        self.pauses += cell.pauses;
        let pause = cell.paused_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.paused += cell.paused + pause;
        self.handler_durations.add(&cell.durations);
    }
}

/// What a run has counted so far, or when it is over what it counted. From [`Monitor::stats`](crate::Monitor::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunStats {
    /// What was counted for each partition that ever had a lane.
    pub partitions: BTreeMap<TopicPartition, PartitionStats>,
    /// How many lanes there are now in each state.
    pub lanes: LaneStates,
    /// How many processors have not ended, also those that the run does not wait for any longer because they
    /// could not be dropped.
    pub processors: usize,
    /// How many bytes of records count against the run's budget now.
    pub buffered_bytes: usize,
    /// That budget.
    pub max_buffered_bytes: usize,
    /// How many commit requests worked.
    pub commits: u64,
    /// How many failed, in whole or in part.
    pub commit_failures: u64,
    /// How long revoked partitions were held, until their records were drained and committed.
    pub revocations_held: Durations,
    /// How long lanes took to stop, by the reason.
    pub stops: StopDurations,
    /// How many lanes did not stop in time.
    pub deadline_overruns: u64,
    /// How many batches came for an assignment that had gone, and were dropped.
    pub stale_batches: u64,
}

impl RunStats {
    /// All partitions together.
    #[must_use]
    pub fn total(&self) -> PartitionStats {
        let mut total = PartitionStats::default();
        for more in self.partitions.values() {
            total.lanes += more.lanes;
            total.restarts += more.restarts;
            total.lane_failures += more.lane_failures;
            total.records_delivered += more.records_delivered;
            total.records_completed += more.records_completed;
            total.records_abandoned += more.records_abandoned;
            total.records_already_done += more.records_already_done;
            total.fetch_failures += more.fetch_failures;
            total.retries += more.retries;
            total.records_skipped += more.records_skipped;
            total.records_dead_lettered += more.records_dead_lettered;
            total.keys_parked += more.keys_parked;
            total.pauses += more.pauses;
            total.paused += more.paused;
            total.commits += more.commits;
            total.commit_failures += more.commit_failures;
            total.handler_durations.add(&more.handler_durations);
        }
        total
    }
}

/// How many lanes are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStates {
    /// They take batches.
    pub running: usize,
    /// They are full.
    pub paused: usize,
    /// They finish what is queued.
    pub draining: usize,
    /// They finish what is with their processors.
    pub cancelling: usize,
    /// They failed, and are started again after a while.
    pub restarting: usize,
    /// They failed, and their partitions are not processed any more while they stay assigned.
    pub stopped: usize,
}

impl LaneStates {
    pub(crate) const fn count(&mut self, state: LaneState) {
        match state {
            LaneState::Paused => self.paused += 1,
            LaneState::Draining => self.draining += 1,
            LaneState::Cancelling => self.cancelling += 1,
            LaneState::Running => self.running += 1,
            // Not among the lanes that live.
            _ => {}
        }
    }
}

/// How long lanes took to stop, from the request to the end of their processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopDurations {
    /// Because the group took the partition.
    pub revoke: Durations,
    /// Because the partition was lost.
    pub lost: Durations,
    /// Because the run ended.
    pub shutdown: Durations,
    /// Because a handler had failed while others were at work.
    pub failure: Durations,
}

impl StopDurations {
    pub(crate) const fn of(&mut self, reason: StopReason) -> &mut Durations {
        match reason {
            StopReason::Revoke => &mut self.revoke,
            StopReason::Lost => &mut self.lost,
            StopReason::Shutdown => &mut self.shutdown,
            // The only one left; the enum may grow.
            _ => &mut self.failure,
        }
    }
}

/// Chooses the handler calls that are measured.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Whether any was chosen.
    any: bool,
    skipped: u32,
}

impl Sampler {
    /// One call in so many of those that never wait.
    const ONE_IN: u32 = 64;

    /// Whether to read the clock before this call. The first one of a lane is among them.
    pub(crate) const fn is_due(&mut self) -> bool {
        if !self.any || self.skipped >= Self::ONE_IN - 1 {
            self.any = true;
            return true;
        }
        self.skipped += 1;
        false
    }

    /// For how many calls a measured one stands that never waited.
    pub(crate) const fn weight(&mut self) -> u32 {
        let weight = self.skipped + 1;
        self.skipped = 0;
        weight
    }

    /// A call that was not chosen waited, and is measured for itself.
    pub(crate) const fn waited(&mut self) {
        self.skipped = self.skipped.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_buckets_that_double_and_quantiles_are_at_most_twice_too_long() {
        let mut durations = Durations::default();
        assert_eq!((durations.quantile(0.5), durations.mean()), (None, Duration::ZERO));
        for millis in 1..=100 {
            durations.note(Duration::from_millis(millis), 1);
        }
        assert_eq!((durations.count(), durations.mean()), (100, Duration::from_micros(50_500)));
        for (share, exact) in [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100)] {
            let (exact, told) = (Duration::from_millis(exact), durations.quantile(share).unwrap());
            assert!(exact <= told && told <= exact * 2, "{share}: {told:?}");
        }
        assert_eq!(durations.quantile(1.0), Some(durations.longest()));
        let counted: u64 = durations.buckets().map(|(_, count)| count).sum();
        assert_eq!(counted, 100);
    }

    #[test]
    fn the_shortest_and_the_longest_have_a_bucket_too() {
        let mut durations = Durations::default();
        for took in [Duration::ZERO, Duration::from_nanos(999), Duration::from_secs(1 << 40)] {
            durations.note(took, 2);
        }
        let first = durations.buckets().next().unwrap();
        assert_eq!(first, (Duration::from_micros(1), 4));
        assert_eq!(durations.buckets().last().unwrap().1, 2);
        let mut twice = durations;
        twice.add(&durations);
        assert_eq!(twice.count(), 12);
    }

    #[test]
    fn one_call_in_64_stands_for_those_that_were_not_measured() {
        let mut sampler = Sampler::default();
        let mut stood_for = 0;
        for _ in 0..640 {
            if sampler.is_due() {
                stood_for += sampler.weight();
            }
        }
        assert_eq!(stood_for, 577, "all up to the last one measured");
    }
}
