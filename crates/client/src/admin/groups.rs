//! Consumer groups: list, describe, delete.

use std::collections::BTreeMap;

use tramline_core::group::protocol::decode_assignment;
use tramline_wire::messages::describe_groups_response::DescribedGroupMember;
use tramline_wire::messages::{DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest};
use tramline_wire::{Str, TopicPartition};

use super::topics::only;
use super::{Admin, AdminError, Refusal};
use crate::cluster::Target;

/// A group as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupListing {
    /// Its name.
    pub group: Str,
    /// `consumer`, or empty for offsets that were committed without members.
    pub protocol_type: Str,
    /// `Stable`, `Empty` and so on; empty on brokers before Kafka 2.6.
    pub state: Str,
}

/// A group with its members.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescription {
    /// Its name.
    pub group: Str,
    /// `Stable`, `Empty`, `PreparingRebalance`, `CompletingRebalance`, `Dead`.
    pub state: Str,
    /// `consumer` for consumer groups.
    pub protocol_type: Str,
    /// The assignor in use, while the group is stable.
    pub protocol: Str,
    /// Its members.
    pub members: Vec<MemberDescription>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberDescription {
    /// The id the coordinator gave it.
    pub member_id: Str,
    /// The static member's name, if it has one.
    pub instance_id: Option<Str>,
    /// What the client calls itself.
    pub client_id: Str,
    /// Where it connects from.
    pub client_host: Str,
    /// What it owns, while the group is stable; empty when its assignment is not a consumer's.
    pub assignment: Vec<TopicPartition>,
}

impl Admin {
    /// The groups of all brokers, by name.
    ///
    /// # Errors
    /// [`AdminError`] when one broker does not answer.
    pub async fn list_groups(&self) -> Result<Vec<GroupListing>, AdminError> {
        let view = self.cluster().await?.refresh(Some(&[]), false).await?;
        let mut groups = BTreeMap::new();
        for &node in view.nodes.keys() {
            let request = ListGroupsRequest::default();
            let answer = self.ask(&Target::NodeControl(node), request, |answer| answer.error_code).await?;
            Refusal::check(answer.error_code, None).map_err(AdminError::Refused)?;
            for row in answer.groups {
                let listing = GroupListing {
                    group: row.group_id.clone(),
                    protocol_type: row.protocol_type,
                    state: row.group_state,
                };
                groups.insert(row.group_id, listing);
            }
        }
        Ok(groups.into_values().collect())
    }

    /// A group with its members. A group that nobody ever joined is `Dead`, or refused with `GROUP_ID_NOT_FOUND` by
    /// newer brokers.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn describe_group(&self, group: impl Into<Str>) -> Result<GroupDescription, AdminError> {
        let group = group.into();
        let request = DescribeGroupsRequest { groups: vec![group.clone()], ..Default::default() };
        let answer = self
            .ask_coordinator(&group, request, |answer| only(answer.groups.iter().map(|row| row.error_code)))
            .await?;
        let row = answer
            .groups
            .into_iter()
            .find(|row| row.group_id == group)
            .ok_or_else(|| AdminError::Missing(group.to_string()))?;
        Refusal::check(row.error_code, row.error_message.as_ref()).map_err(AdminError::Refused)?;
        Ok(GroupDescription {
            group: row.group_id,
            state: row.group_state,
            protocol_type: row.protocol_type,
            protocol: row.protocol_data,
            members: row.members.into_iter().map(member).collect(),
        })
    }

    /// Deletes a group with its offsets.
    ///
    /// # Errors
    /// [`AdminError::Refused`] with `NON_EMPTY_GROUP` while members live, `GROUP_ID_NOT_FOUND` when there is none.
    pub async fn delete_group(&self, group: impl Into<Str>) -> Result<(), AdminError> {
        let group = group.into();
        let request = DeleteGroupsRequest { groups_names: vec![group.clone()] };
        let answer = self
            .ask_coordinator(&group, request, |answer| only(answer.results.iter().map(|row| row.error_code)))
            .await?;
        let row = answer
            .results
            .into_iter()
            .find(|row| row.group_id == group)
            .ok_or_else(|| AdminError::Missing(group.to_string()))?;
        Refusal::check(row.error_code, row.error_message.as_ref()).map_err(AdminError::Refused)
    }
}

fn member(row: DescribedGroupMember) -> MemberDescription {
    MemberDescription {
        member_id: row.member_id,
        instance_id: row.group_instance_id,
        client_id: row.client_id,
        client_host: row.client_host,
        assignment: decode_assignment(&row.member_assignment).unwrap_or_default(),
    }
}
