//! Brokers that do not wait: a fetch asks them to hold it back until there is something, and one that answers at once
//! with nothing would be asked again and again without end.

use alloc::collections::BTreeSet;

use tramline_wire::messages::FetchResponse;

use super::Fetcher;
use super::plan::FetchTicket;
use crate::time::Instant;

/// So many answers in a row may come too soon and with nothing: other reasons than a fault can be behind a few.
const PATIENCE: u32 = 8;

/// More brokers than this are not remembered without a partition of ours.
const REMEMBERED: usize = 16;

/// A broker whose last answers came too soon and with nothing.
#[derive(Debug, Default)]
pub(super) struct Hasty {
    answers: u32,
    /// The next fetch waits until then.
    pub not_before: Option<Instant>,
}

impl Fetcher {
    /// Whether a fetch may go to this broker now.
    pub(super) fn may_ask(&self, node: i32, now: Instant) -> bool {
        let not_before = self.hasty.get(&node).and_then(|hasty| hasty.not_before);
        !self.in_flight.contains(&node) && not_before.is_none_or(|at| at <= now)
    }

    /// Takes note of how an answer came. Too soon means sooner than a retry would go out: brokers, and what stands in between,
    /// may have good reasons to wait less than they are allowed to.
    pub(super) fn note_pace(&mut self, ticket: &FetchTicket, response: Option<&FetchResponse>, now: Instant) {
        let Some(response) = response else { return };
        let pace = ticket.wait.min(self.config.retry_backoff);
        let in_time = now.saturating_since(ticket.sent) >= pace;
        if in_time || has_news(response) {
            self.hasty.remove(&ticket.node);
            return;
        }
        let hasty = self.hasty.entry(ticket.node).or_default();
        hasty.answers = hasty.answers.saturating_add(1);
        if hasty.answers > PATIENCE {
            hasty.not_before = Some(ticket.sent + pace);
        }
    }

    /// Forgets brokers that lead nothing of ours, when there are many: answers may name new ones without end.
    pub(super) fn forget_strangers(&mut self) {
        if self.sessions.len().max(self.left_out.len()) <= REMEMBERED {
            return;
        }
        let leaders = self.partitions.values().filter_map(|p| p.leader).map(|leader| leader.node);
        let known: BTreeSet<i32> = leaders.chain(self.in_flight.iter().copied()).collect();
        self.sessions.retain(|node, _| known.contains(node));
        self.left_out.retain(|node, _| known.contains(node));
        self.hasty.retain(|node, _| known.contains(node));
    }
}

/// Whether the answer says anything of a partition. What it says of sessions is no reason to answer.
fn has_news(response: &FetchResponse) -> bool {
    let mut rows = response.responses.iter().flat_map(|topic| &topic.partitions);
    rows.any(|row| {
        row.error_code != 0
            || row.diverging_epoch.epoch >= 0
            || row.records.as_ref().is_some_and(|records| !records.is_empty())
    })
}
