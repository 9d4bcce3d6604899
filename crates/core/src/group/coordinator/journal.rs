//! Appends that are not durable yet and what follows them; replies on their way out.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use tramline_wire::Str;
use tramline_wire::messages::{
    DeleteGroupsResponse, JoinGroupResponse, OffsetCommitResponse, OffsetDeleteResponse,
};

use super::config::Token;
use super::output::{CommittedOffset, GroupRecord, Output, Response, Seq};
use super::record::{self, Key};

/// What to do when an append is durable, or failed.
#[derive(Debug)]
pub(super) enum Then {
    /// Nothing: nobody waits.
    Nothing,
    /// Answer a commit.
    Committed { token: Token, response: OffsetCommitResponse },
    /// Answer a deletion of offsets.
    OffsetsDeleted { token: Token, response: OffsetDeleteResponse },
    /// The assignments of this generation are stored: hand them out.
    Assigned { group: Str, generation: i32 },
    /// A static member was replaced: answer its Join.
    Replaced { token: Token, version: i16, response: JoinGroupResponse },
    /// Groups are gone.
    Deleted { groups: Vec<Str>, reply: Option<(Token, DeleteGroupsResponse)> },
}

/// An append on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub records: Vec<GroupRecord>,
    pub then: Then,
}

/// What goes out, and what is waited for.
#[derive(Debug, Default)]
pub(super) struct Journal {
    outputs: VecDeque<Output>,
    pending: BTreeMap<Seq, Pending>,
    last: u64,
    /// Requests that are parked in a group, for finding the group when the connection closes.
    parked: BTreeMap<Token, Str>,
}

impl Journal {
    pub(super) fn append(
        &mut self,
        records: Vec<GroupRecord>,
        commits: Vec<CommittedOffset>,
        then: Then,
    ) -> Seq {
        self.last += 1;
        let seq = Seq(self.last);
        self.pending.insert(seq, Pending { records: records.clone(), then });
        self.outputs.push_back(Output::Append { seq, records, commits });
        seq
    }

    pub(super) fn reply(&mut self, token: Token, response: Response) {
        self.parked.remove(&token);
        self.outputs.push_back(Output::Reply { token, response });
    }

    pub(super) fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The oldest append, when its number is at most `seq`.
    pub(super) fn take_up_to(&mut self, seq: Seq) -> Option<Pending> {
        let first = self.pending.first_entry()?;
        (*first.key() <= seq).then(|| first.remove())
    }

    pub(super) fn take(&mut self, seq: Seq) -> Option<Pending> {
        self.pending.remove(&seq)
    }

    pub(super) fn park(&mut self, token: Token, group: &Str) {
        self.parked.insert(token, group.clone());
    }

    pub(super) fn unpark(&mut self, token: Token) -> Option<Str> {
        self.parked.remove(&token)
    }

    /// Whether an append on its way stores this group.
    pub(super) fn writes_group(&self, id: &Str) -> bool {
        self.keys_on_their_way().any(|key| matches!(key, Key::Group(group) if group == *id))
    }

    /// The keys that appends on their way write, deletions aside.
    pub(super) fn keys_on_their_way(&self) -> impl Iterator<Item = Key> {
        let records = self.pending.values().flat_map(|pending| &pending.records);
        records
            .filter(|record| record.value.is_some())
            .filter_map(|record| record::read_key(&record.key).ok())
    }
}
