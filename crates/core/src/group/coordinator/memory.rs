//! What the coordinator holds for its clients, and the limit of it.
//!
//! Anybody can name groups, members and offsets, and give each as many bytes as a request has. Bytes are added up as they
//! are taken and counted anew when the sum comes to the limit, at most once a second: a client that runs into the limit
//! again and again must not make everybody else wait for counting.

use core::time::Duration;

use tramline_wire::messages::JoinGroupRequest;

use super::Coordinator;
use super::config::Client;
use super::group::Group;
use super::ledger::Ledger;
use super::member::Member;
use crate::time::Instant;

/// What a group, a member, an id given out or an offset takes beside its bytes, about.
const OVERHEAD: usize = 256;
/// How often everything may be counted.
const BETWEEN_COUNTS: Duration = Duration::from_secs(1);

/// What was taken since everything was counted, and what was counted then.
#[derive(Debug, Default)]
pub(super) struct Memory {
    taken: usize,
    counted_at: Option<Instant>,
}

impl Coordinator {
    /// Takes so many more bytes; `false` when there is no room for them. None are always there.
    pub(super) fn take_room(&mut self, now: Instant, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let limit = self.config.max_bytes;
        let long_ago = self.memory.counted_at.is_none_or(|at| now >= at + BETWEEN_COUNTS);
        if self.memory.taken.saturating_add(bytes) > limit && long_ago {
            self.memory = Memory { taken: self.held_bytes(), counted_at: Some(now) };
        }
        let taken = self.memory.taken.saturating_add(bytes);
        let fits = taken <= limit;
        if fits {
            self.memory.taken = taken;
        }
        fits
    }

    /// What is held now, about.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.groups.values().map(Group::held_bytes).sum::<usize>() + self.ledger.held_bytes()
    }

    /// Room for what a Join says. A member that says no more than before needs none.
    pub(super) fn take_room_for_join(
        &mut self,
        now: Instant,
        client: &Client,
        request: &JoinGroupRequest,
    ) -> bool {
        let said = request.protocols.iter().map(|protocol| protocol.name.len() + protocol.metadata.len());
        let instance = request.group_instance_id.as_ref().map_or(0, |id| id.len());
        let needed = 3 * OVERHEAD + request.group_id.len() + client.id.len() + instance + said.sum::<usize>();
        let group = self.groups.get(&request.group_id);
        let before = group.and_then(|group| group.members.get(&request.member_id)).map(Member::held_bytes);
        match before {
            Some(before) => self.take_room(now, needed.saturating_sub(2 * OVERHEAD + before)),
            None => self.take_room(now, needed),
        }
    }
}

impl Group {
    fn held_bytes(&self) -> usize {
        let members = self.members.values().map(Member::held_bytes);
        let pending = self.pending.keys().map(|id| OVERHEAD + id.len());
        OVERHEAD + self.id.len() + members.chain(pending).sum::<usize>()
    }
}

impl Member {
    fn held_bytes(&self) -> usize {
        let protocols = self.protocols.iter().map(|(name, metadata)| name.len() + metadata.len());
        let ids = self.id.len() + self.client_id.len() + self.instance_id.as_ref().map_or(0, |id| id.len());
        OVERHEAD + ids + protocols.sum::<usize>() + self.assignment.len()
    }
}

impl Ledger {
    fn held_bytes(&self) -> usize {
        let offsets = self.offsets().iter().map(|(group, offsets)| {
            let rows = offsets.iter().map(|(of, value)| offset_bytes(&of.topic, &value.metadata));
            OVERHEAD + group.len() + rows.sum::<usize>()
        });
        let groups = self.groups().iter().map(|(group, value)| {
            let members = value.members.iter();
            let bytes = members.map(|of| OVERHEAD + of.subscription.len() + of.assignment.len());
            OVERHEAD + group.len() + bytes.sum::<usize>()
        });
        offsets.sum::<usize>() + groups.sum::<usize>()
    }
}

/// What a committed offset takes.
pub(super) fn offset_bytes(topic: &str, metadata: &str) -> usize {
    OVERHEAD + topic.len() + metadata.len()
}
