//! `process -e`: the ends seen at the start, and whether the group has got there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tramline::client::{Admin, StartOffset};
use tramline::processor::Monitor;
use tramline::wire::TopicPartition;

use super::Job;
use super::source::Seen;

/// How often the lanes are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How often the group is asked for the commits of other members.
const ASK: Duration = Duration::from_millis(500);

/// The ends of a topic's partitions at one moment. A partition that was not there has nothing below its end.
#[derive(Clone, Debug)]
pub struct Ends(Arc<BTreeMap<TopicPartition, i64>>);

impl Ends {
    /// Asks for them.
    pub async fn seen_by(admin: &Admin, topic: &str) -> Result<Self> {
        let ends = admin.list_offsets(topic, StartOffset::Latest).await?;
        let starts = admin.list_offsets(topic, StartOffset::Earliest).await?;
        // Where nothing is left there is nothing to do.
        let end = |(partition, end): (i32, i64)| match starts.get(&partition) {
            Some(start) if *start >= end => 0,
            _ => end,
        };
        let place = |(partition, at)| (TopicPartition::new(topic, partition), end((partition, at)));
        Ok(Self(Arc::new(ends.into_iter().map(place).collect())))
    }

    /// The end of one partition.
    pub fn of(&self, place: &TopicPartition) -> i64 {
        self.0.get(place).copied().unwrap_or(0)
    }
}

/// Waits until every partition is done up to its end, by this member or, as the group's commits tell, by another.
/// Waits for ever without ends.
pub async fn reached(job: &Job, seen: &Seen, monitor: &Monitor) {
    let Some(ends) = &job.ends else { return std::future::pending().await };
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked: Option<Instant> = None;
    loop {
        look.tick().await;
        if !seen.was_assigned() || !own_reached(job, ends, seen, monitor) {
            continue;
        }
        if elsewhere(job, ends).next().is_none() {
            return;
        }
        if asked.is_none_or(|at| at.elapsed() >= ASK) {
            asked = Some(Instant::now());
            // A question that fails is asked again.
            let Ok(committed) = job.admin.group_offsets(&*job.args.group).await else { continue };
            let is_done =
                |place: &TopicPartition| committed.get(place).is_some_and(|at| at.offset >= ends.of(place));
            if own_reached(job, ends, seen, monitor) && elsewhere(job, ends).all(is_done) {
                return;
            }
        }
    }
}

fn own_reached(job: &Job, ends: &Ends, seen: &Seen, monitor: &Monitor) -> bool {
    let lanes = monitor.snapshot();
    let frontier = |place: &TopicPartition| {
        let current = lanes.iter().rev().find(|lane| lane.lane.topic_partition == *place);
        current.and_then(|lane| lane.frontier)
    };
    job.consumer.assignment().iter().all(|place| {
        let end = ends.of(place);
        let handed_out = job.consumer.position(place).is_some_and(|position| position >= end);
        end == 0 || handed_out && (seen.is_untouched(place) || frontier(place).is_some_and(|at| at >= end))
    })
}

/// The partitions with something below their end that are not ours now.
fn elsewhere<'a>(job: &Job, ends: &'a Ends) -> impl Iterator<Item = &'a TopicPartition> {
    let own = job.consumer.assignment();
    ends.0.iter().filter(move |(place, end)| **end > 0 && !own.contains(place)).map(|(place, _)| place)
}
