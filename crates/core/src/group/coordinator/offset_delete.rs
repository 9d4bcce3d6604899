//! OffsetDelete (47): removing single committed offsets.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use tramline_wire::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use tramline_wire::messages::{OffsetDeleteRequest, OffsetDeleteResponse};
use tramline_wire::{Str, TopicPartition};

use super::Coordinator;
use super::config::Client;
use super::group::State;
use super::journal::Then;
use super::output::Response;
use super::record;
use crate::group::codes;
use crate::group::protocol::CONSUMER;

impl Coordinator {
    /// OffsetDelete (47), version 0. Offsets of topics that a live member reads are refused with 86, partitions that
    /// `exists` does not know with 3; one without an offset is deleted without error. The reply comes when the
    /// deletion is durable.
    pub fn handle_offset_delete(
        &mut self,
        client: &Client,
        request: &OffsetDeleteRequest,
        mut exists: impl FnMut(&TopicPartition) -> bool,
    ) {
        let subscribed = match self.check_offset_delete(&request.group_id) {
            Ok(subscribed) => subscribed,
            Err(error_code) => {
                let response = OffsetDeleteResponse { error_code, ..Default::default() };
                self.journal.reply(client.token, Response::OffsetDelete(response));
                return;
            }
        };
        let group = request.group_id.detached();
        let mut records = Vec::new();
        let mut response = OffsetDeleteResponse::default();
        for topic in &request.topics {
            let name = topic.name.detached();
            let row =
                |asked: &tramline_wire::messages::offset_delete_request::OffsetDeleteRequestPartition| {
                    let of = TopicPartition { topic: name.clone(), partition: asked.partition_index };
                    let error_code = if subscribed.contains(&name) {
                        codes::GROUP_SUBSCRIBED_TO_TOPIC
                    } else if exists(&of) {
                        records.push(record::offset_record(&group, &of, None));
                        codes::NONE
                    } else {
                        codes::UNKNOWN_TOPIC_OR_PARTITION
                    };
                    OffsetDeleteResponsePartition { partition_index: asked.partition_index, error_code }
                };
            let partitions = topic.partitions.iter().map(row).collect();
            response.topics.push(OffsetDeleteResponseTopic { name: name.clone(), partitions });
        }
        if records.is_empty() {
            self.journal.reply(client.token, Response::OffsetDelete(response));
        } else {
            let then = Then::OffsetsDeleted { token: client.token, response };
            self.journal.append(records, Vec::new(), then);
        }
    }

    /// The topics that live members of the group read.
    fn check_offset_delete(&self, id: &Str) -> Result<BTreeSet<Str>, i16> {
        if self.loading {
            return Err(codes::COORDINATOR_LOAD_IN_PROGRESS);
        }
        match self.groups.get(id) {
            None if self.ledger.knows(id) => Ok(BTreeSet::new()),
            None => Err(codes::GROUP_ID_NOT_FOUND),
            Some(group) if group.state == State::Dead => Err(codes::GROUP_ID_NOT_FOUND),
            Some(group) if group.members.is_empty() => Ok(BTreeSet::new()),
            Some(group) if group.protocol_type != CONSUMER => Err(codes::NON_EMPTY_GROUP),
            // What its members read cannot be told, so any offset may be in use.
            Some(group) => group.subscribed_topics().ok_or(codes::NON_EMPTY_GROUP),
        }
    }
}
