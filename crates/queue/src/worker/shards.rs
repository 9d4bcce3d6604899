//! Which shards a worker follows: those its group gives it, and one more to help out in while its own have nothing to do.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use tramline_client::{Consumer, Event, Events, OffsetReset};

use super::Settings;
use crate::error::ReadError;
use crate::shared::Shared;

/// The longest a worker without work waits before it looks into another shard.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Nothing is ever read through the membership, so not reading says nothing.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The group of a queue's workers: it only says whose shards are whose. No offset is committed in it.
pub(super) struct Membership {
    consumer: Consumer,
    events: Events,
}

impl Membership {
    pub async fn join(shared: &Shared, settings: &Settings) -> Result<Self, ReadError> {
        let consumer = Consumer::builder(shared.client.clone())
            .group(shared.topics.group.clone())
            .subscribe([shared.topics.claims.clone()])
            .offset_reset(OffsetReset::Latest)
            .prefetch(0)
            .session_timeout(settings.session_timeout)
            .max_poll_interval(FOR_EVER)
            .build()
            .await?;
        let events = consumer.events();
        Ok(Self { consumer, events })
    }

    pub async fn leave(self) {
        drop(self.events);
        self.consumer.close().await;
    }
}

/// The shards to follow.
pub(super) struct Wanted {
    pub owned: BTreeSet<i32>,
    /// Where it helps out.
    visited: Option<i32>,
    membership: Option<Membership>,
    shards: i32,
    steal_after: Option<Duration>,
    wait: Duration,
    dry_since: Option<Instant>,
}

impl Wanted {
    pub async fn start(shared: &Shared, settings: &Settings) -> Result<Self, ReadError> {
        let membership = match settings.shards {
            Some(_) => None,
            None => Some(Membership::join(shared, settings).await?),
        };
        Ok(Self {
            owned: settings.shards.clone().unwrap_or_default(),
            visited: None,
            membership,
            shards: shared.shards,
            steal_after: settings.steal_after,
            wait: settings.steal_after.unwrap_or(LONGEST_WAIT),
            dry_since: None,
        })
    }

    /// Whether the shard is to be followed.
    pub fn has(&self, shard: i32) -> bool {
        self.owned.contains(&shard) || self.visited == Some(shard)
    }

    pub fn all(&self) -> BTreeSet<i32> {
        self.owned.iter().copied().chain(self.visited).collect()
    }

    /// Waits until the group gives or takes shards. Cancel-safe.
    pub async fn changed(&mut self) {
        let Some(membership) = &mut self.membership else { return std::future::pending().await };
        match membership.events.next().await {
            Some(Event::Assigned { partitions, .. }) => {
                self.owned.extend(partitions.iter().map(|partition| partition.partition));
            }
            // Given up at once: what is in hand stays ours by its leases, whoever owns the shard.
            Some(Event::Revoked(revocation)) => {
                for partition in revocation.partitions() {
                    self.owned.remove(&partition.partition);
                }
            }
            Some(Event::Lost { partitions, .. }) => {
                for partition in partitions {
                    self.owned.remove(&partition.partition);
                }
            }
            Some(_) => {}
            None => std::future::pending().await,
        }
    }

    /// Told after every step whether there is nothing to do; `random` picks where to look.
    pub fn note(&mut self, dry: bool, random: u64) {
        let Some(steal_after) = self.steal_after else { return };
        if !dry {
            self.dry_since = None;
            self.wait = steal_after;
            return;
        }
        let since = *self.dry_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.wait {
            return;
        }
        let others: Vec<i32> = (0..self.shards).filter(|shard| !self.has(*shard)).collect();
        if others.is_empty() {
            return;
        }
        self.visited = Some(others[(random % others.len() as u64) as usize]);
        self.dry_since = None;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
    }

    /// When to look into another shard.
    pub fn next_visit(&self) -> Option<Instant> {
        let somewhere_else = self.all().len() < self.shards as usize;
        self.dry_since.filter(|_| self.steal_after.is_some() && somewhere_else).map(|since| since + self.wait)
    }

    pub async fn leave(self) {
        if let Some(membership) = self.membership {
            membership.leave().await;
        }
    }
}
