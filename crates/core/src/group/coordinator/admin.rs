//! ListGroups (16), DescribeGroups (15) and DeleteGroups (42).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use tramline_wire::messages::delete_groups_response::DeletableGroupResult;
use tramline_wire::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use tramline_wire::messages::list_groups_response::ListedGroup;
use tramline_wire::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    ListGroupsRequest, ListGroupsResponse,
};
use tramline_wire::{Str, TopicPartition};

use super::Coordinator;
use super::config::Client;
use super::group::{Group, State};
use super::journal::Then;
use super::output::{GroupRecord, Response};
use super::record::{self, Key};
use crate::group::codes;

const CLASSIC: Str = Str::from_static("classic");

impl Coordinator {
    /// ListGroups (16), versions 0 to 5. Groups that only committed offsets count as Empty.
    pub fn handle_list_groups(&mut self, client: &Client, request: &ListGroupsRequest) {
        let mut response = ListGroupsResponse::default();
        if self.loading {
            response.error_code = codes::COORDINATOR_LOAD_IN_PROGRESS;
        }
        let wanted = |filter: &[Str], value: &str| {
            filter.is_empty() || filter.iter().any(|name| name.eq_ignore_ascii_case(value))
        };
        let ids: BTreeSet<&Str> = self.groups.keys().chain(self.ledger.offsets().keys()).collect();
        for id in ids {
            let group = self.groups.get(id);
            let state = group.map_or(State::Empty, |group| group.state);
            if wanted(&request.states_filter, state.name()) && wanted(&request.types_filter, &CLASSIC) {
                response.groups.push(ListedGroup {
                    group_id: id.clone(),
                    protocol_type: group.map(|group| group.protocol_type.clone()).unwrap_or_default(),
                    group_state: Str::from_static(state.name()),
                    group_type: CLASSIC,
                });
            }
        }
        self.journal.reply(client.token, Response::ListGroups(response));
    }

    /// DescribeGroups (15), versions 0 to 6.
    pub fn handle_describe_groups(&mut self, client: &Client, request: &DescribeGroupsRequest) {
        // Each once: a name can be answered with thousands of members.
        let mut seen = BTreeSet::new();
        let asked = request.groups.iter().filter(|id| seen.insert(*id));
        let groups = asked.map(|id| self.describe(client, id)).collect();
        let response = DescribeGroupsResponse { groups, ..Default::default() };
        self.journal.reply(client.token, Response::DescribeGroups(response));
    }

    fn describe(&self, client: &Client, id: &Str) -> DescribedGroup {
        let mut described = DescribedGroup { group_id: id.clone(), ..Default::default() };
        if self.loading {
            described.error_code = codes::COORDINATOR_LOAD_IN_PROGRESS;
            return described;
        }
        let Some(group) = self.groups.get(id) else {
            let known = self.ledger.knows(id);
            let state = if known { State::Empty } else { State::Dead };
            described.group_state = Str::from_static(state.name());
            if !known && client.version >= 6 {
                described.error_code = codes::GROUP_ID_NOT_FOUND;
                described.error_message = Some(Str::from_static("there is no group of this name"));
            }
            return described;
        };
        let stable = group.state == State::Stable;
        described.group_state = Str::from_static(group.state.name());
        described.protocol_type = group.protocol_type.clone();
        if stable {
            described.protocol_data = group.protocol.clone().unwrap_or_default();
        }
        let members = group.members.values().map(|member| {
            let mut row = DescribedGroupMember {
                member_id: member.id.clone(),
                group_instance_id: member.instance_id.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                ..Default::default()
            };
            if stable {
                row.member_metadata = group.chosen_metadata(member);
                row.member_assignment = member.assignment.clone();
            }
            row
        });
        described.members = members.collect();
        described
    }

    /// DeleteGroups (42), versions 0 to 3. The reply comes when the deletion is durable; until then the groups
    /// are Dead, and requests to them are answered with 15.
    pub fn handle_delete_groups(&mut self, client: &Client, request: &DeleteGroupsRequest) {
        let (mut response, mut records, mut deleted) =
            (DeleteGroupsResponse::default(), Vec::new(), Vec::new());
        for id in &request.groups_names {
            let checked = self.check_delete(id);
            if checked.is_ok() {
                let id = id.detached();
                records.extend(self.tombstones(&id));
                self.groups.entry(id.clone()).or_insert_with(|| Group::new(id.clone())).state = State::Dead;
                deleted.push(id);
            }
            response.results.push(DeletableGroupResult {
                group_id: id.clone(),
                error_code: checked.err().unwrap_or(codes::NONE),
                ..Default::default()
            });
        }
        if records.is_empty() {
            self.journal.reply(client.token, Response::DeleteGroups(response));
        } else {
            let then = Then::Deleted { groups: deleted, reply: Some((client.token, response)) };
            self.journal.append(records, Vec::new(), then);
        }
    }

    fn check_delete(&self, id: &Str) -> Result<(), i16> {
        if self.loading {
            return Err(codes::COORDINATOR_LOAD_IN_PROGRESS);
        }
        match self.groups.get(id) {
            None if self.ledger.knows(id) => Ok(()),
            None => Err(codes::GROUP_ID_NOT_FOUND),
            // Its deletion is on its way already: for the second caller it does not exist.
            Some(group) if group.state == State::Dead => Err(codes::GROUP_ID_NOT_FOUND),
            Some(group) if group.is_void() => Ok(()),
            Some(_) => Err(codes::NON_EMPTY_GROUP),
        }
    }

    /// The records that delete a group and all its offsets, those whose commit is on its way too.
    fn tombstones(&self, id: &Str) -> Vec<GroupRecord> {
        let mut offsets: BTreeSet<TopicPartition> =
            self.ledger.offsets_of(id).map(|(of, _)| of.clone()).collect();
        offsets.extend(self.journal.keys_on_their_way().filter_map(|key| match key {
            Key::Offset(group, of) if group == *id => Some(of),
            _ => None,
        }));
        let mut records: Vec<GroupRecord> =
            offsets.iter().map(|of| record::offset_record(id, of, None)).collect();
        records.push(record::group_record(id, None));
        records
    }
}
