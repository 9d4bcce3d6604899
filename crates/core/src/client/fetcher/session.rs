//! Fetch sessions (KIP-227): a broker remembers what it was asked for, so that a fetch names changes only, and is
//! answered with news only.
//!
//! One session per broker. It opens with a full fetch under epoch 0, goes on with epochs 1, 2, and so on, and at the
//! slightest doubt begins anew: the next fetch is a full one that closes what the broker may still hold. Since one fetch
//! per broker is under way at a time, what was sent last is what the broker has.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tramline_wire::messages::FetchResponse;
use tramline_wire::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use tramline_wire::{ErrorCode, TopicPartition, Uuid};

use crate::client::error_actions::{Action, Operation, action};

/// The epoch of a fetch that opens a session.
const OPENS: i32 = 0;
/// The epoch of a fetch outside of sessions.
const NONE: i32 = -1;

/// A partition as a fetch asks for it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub topic_partition: TopicPartition,
    pub topic_id: Uuid,
    pub row: FetchPartition,
}

/// What a fetch says of its session.
#[derive(Debug)]
pub(super) struct Opening {
    pub session_id: i32,
    pub session_epoch: i32,
    pub topics: Vec<FetchTopic>,
    pub forgotten: Vec<ForgottenTopic>,
}

impl Opening {
    /// Whether it names changes only.
    pub(super) fn is_incremental(&self) -> bool {
        self.session_epoch > OPENS
    }

    /// A fetch outside of sessions.
    pub(super) fn without_session(wanted: Vec<Wanted>) -> Self {
        Self { session_id: 0, session_epoch: NONE, topics: topics(wanted), forgotten: Vec::new() }
    }
}

/// What one broker remembers of us.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// 0 when the broker has none.
    id: i32,
    /// The epoch of the next fetch.
    epoch: i32,
    sent: BTreeMap<TopicPartition, (Uuid, FetchPartition)>,
}

impl Session {
    /// The next fetch, for exactly these partitions.
    pub(super) fn next(&mut self, wanted: Vec<Wanted>) -> Opening {
        let now: BTreeMap<_, _> =
            wanted.iter().map(|w| (w.topic_partition.clone(), (w.topic_id, w.row.clone()))).collect();
        // A topic under a new id would have to be forgotten and named in one request, which brokers differ on.
        let renamed = |w: &Wanted| self.sent.get(&w.topic_partition).is_some_and(|(id, _)| *id != w.topic_id);
        if wanted.iter().any(renamed) {
            self.begin_anew();
        }
        let before = core::mem::replace(&mut self.sent, now);
        if self.epoch == OPENS {
            let topics = topics(wanted);
            return Opening { session_id: self.id, session_epoch: OPENS, topics, forgotten: Vec::new() };
        }
        let is_new = |w: &Wanted| before.get(&w.topic_partition).is_none_or(|(_, row)| *row != w.row);
        let mut forgotten: Vec<ForgottenTopic> = Vec::new();
        for (tp, (topic_id, _)) in before.iter().filter(|(tp, _)| !self.sent.contains_key(*tp)) {
            match forgotten.last_mut().filter(|topic| topic.topic == tp.topic) {
                Some(topic) => topic.partitions.push(tp.partition),
                None => forgotten.push(ForgottenTopic {
                    topic: tp.topic.clone(),
                    topic_id: *topic_id,
                    partitions: alloc::vec![tp.partition],
                }),
            }
        }
        let topics = topics(wanted.into_iter().filter(is_new).collect());
        Opening { session_id: self.id, session_epoch: self.epoch, topics, forgotten }
    }

    #[cfg(test)]
    pub(super) fn set_epoch(&mut self, epoch: i32) {
        self.epoch = epoch;
    }

    /// Whatever the broker still holds: the next fetch is a full one, and closes it.
    pub(super) fn begin_anew(&mut self) {
        self.epoch = OPENS;
    }

    /// Takes the answer's word on the session. `false` when it refuses the session and nothing else, so that the same
    /// partitions may be asked for at once, in full.
    pub(super) fn answered(&mut self, incremental: bool, response: &FetchResponse) -> bool {
        let code = ErrorCode::from(response.error_code);
        if code == ErrorCode::None && !incremental {
            self.id = response.session_id.max(0);
            self.epoch = i32::from(self.id > 0);
        } else if code == ErrorCode::None && response.session_id == self.id {
            // Zero is the epoch that opens: it is passed over.
            self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        } else {
            self.begin_anew();
            if code == ErrorCode::FetchSessionIdNotFound
                || (code == ErrorCode::None && response.session_id == 0)
            {
                self.id = 0;
            }
        }
        !(incremental && action(Operation::Fetch, code) == Action::NewSession)
    }
}

/// In the order given; neighbours of one topic together.
fn topics(wanted: Vec<Wanted>) -> Vec<FetchTopic> {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for Wanted { topic_partition, topic_id, row } in wanted {
        match topics.last_mut().filter(|topic| topic.topic == topic_partition.topic) {
            Some(topic) => topic.partitions.push(row),
            None => topics.push(FetchTopic {
                topic: topic_partition.topic,
                topic_id,
                partitions: alloc::vec![row],
            }),
        }
    }
    topics
}
