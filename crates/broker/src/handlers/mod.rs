//! One file per API, numbered by its key: the listing of this folder is what the broker serves.

#[path = "33_alter_configs.rs"]
pub(crate) mod alter_configs;
#[path = "45_alter_partition_reassignments.rs"]
pub(crate) mod alter_partition_reassignments;
#[path = "18_api_versions.rs"]
pub(crate) mod api_versions;
#[path = "30_create_acls.rs"]
pub(crate) mod create_acls;
#[path = "37_create_partitions.rs"]
pub(crate) mod create_partitions;
#[path = "19_create_topics.rs"]
pub(crate) mod create_topics;
#[path = "31_delete_acls.rs"]
pub(crate) mod delete_acls;
#[path = "42_delete_groups.rs"]
pub(crate) mod delete_groups;
#[path = "21_delete_records.rs"]
pub(crate) mod delete_records;
#[path = "20_delete_topics.rs"]
pub(crate) mod delete_topics;
#[path = "29_describe_acls.rs"]
pub(crate) mod describe_acls;
#[path = "48_describe_client_quotas.rs"]
pub(crate) mod describe_client_quotas;
#[path = "60_describe_cluster.rs"]
pub(crate) mod describe_cluster;
#[path = "32_describe_configs.rs"]
pub(crate) mod describe_configs;
#[path = "15_describe_groups.rs"]
pub(crate) mod describe_groups;
#[path = "35_describe_log_dirs.rs"]
pub(crate) mod describe_log_dirs;
#[path = "61_describe_producers.rs"]
pub(crate) mod describe_producers;
#[path = "55_describe_quorum.rs"]
pub(crate) mod describe_quorum;
#[path = "75_describe_topic_partitions.rs"]
pub(crate) mod describe_topic_partitions;
#[path = "65_describe_transactions.rs"]
pub(crate) mod describe_transactions;
#[path = "50_describe_user_scram_credentials.rs"]
pub(crate) mod describe_user_scram_credentials;
#[path = "43_elect_leaders.rs"]
pub(crate) mod elect_leaders;
#[path = "01_fetch.rs"]
pub(crate) mod fetch;
#[path = "10_find_coordinator.rs"]
pub(crate) mod find_coordinator;
#[path = "12_heartbeat.rs"]
pub(crate) mod heartbeat;
#[path = "44_incremental_alter_configs.rs"]
pub(crate) mod incremental_alter_configs;
#[path = "22_init_producer_id.rs"]
pub(crate) mod init_producer_id;
#[path = "11_join_group.rs"]
pub(crate) mod join_group;
#[path = "13_leave_group.rs"]
pub(crate) mod leave_group;
#[path = "74_list_config_resources.rs"]
pub(crate) mod list_config_resources;
#[path = "16_list_groups.rs"]
pub(crate) mod list_groups;
#[path = "02_list_offsets.rs"]
pub(crate) mod list_offsets;
#[path = "46_list_partition_reassignments.rs"]
pub(crate) mod list_partition_reassignments;
#[path = "66_list_transactions.rs"]
pub(crate) mod list_transactions;
#[path = "03_metadata.rs"]
pub(crate) mod metadata;
#[path = "08_offset_commit.rs"]
pub(crate) mod offset_commit;
#[path = "47_offset_delete.rs"]
pub(crate) mod offset_delete;
#[path = "09_offset_fetch.rs"]
pub(crate) mod offset_fetch;
#[path = "23_offset_for_leader_epoch.rs"]
pub(crate) mod offset_for_leader_epoch;
#[path = "00_produce.rs"]
pub(crate) mod produce;
#[path = "14_sync_group.rs"]
pub(crate) mod sync_group;

use tramline_wire::{ErrorCode, Str};

use crate::partition::Partition;

/// What the access list APIs answer.
const SECURITY_DISABLED: i16 = ErrorCode::SecurityDisabled.code();
const NO_AUTHORIZER: Str = Str::from_static("this broker has no authorizer");

/// Whether the epoch a client believes in is ours: older ones must refresh, newer ones know a future we do not.
fn epoch_error(asked: i32, ours: i32) -> Option<ErrorCode> {
    match asked {
        epoch if epoch < 0 || epoch == ours => None,
        epoch if epoch < ours => Some(ErrorCode::FencedLeaderEpoch),
        _ => Some(ErrorCode::UnknownLeaderEpoch),
    }
}

/// What a partition that just vanished is called.
fn gone(partition: &Partition, by_id: bool) -> Option<ErrorCode> {
    partition.is_deleted().then_some(if by_id {
        ErrorCode::UnknownTopicId
    } else {
        ErrorCode::UnknownTopicOrPartition
    })
}

/// Hands a request to the group coordinator and takes the answer out of its wrapping. A coordinator that stopped
/// closes the connection: clients look for another one.
macro_rules! ask_coordinator {
    ($context:ident, $variant:ident, |$machine:ident, $now:ident, $wall:ident, $client:ident| $call:expr) => {{
        let node = &$context.node;
        let asked = node.groups.call(
            &$context.client_id,
            $context.peer.ip(),
            $context.version,
            |$machine, $now, $wall, $client| {
                let _ = ($now, $wall);
                $call
            },
        );
        match asked.await {
            Ok(tramline_core::group::coordinator::Response::$variant(response)) => Ok(response),
            Ok(_) => Err(concat!("internal error: not the answer to ", stringify!($variant)).to_owned()),
            Err(_) => Err("the group coordinator is stopping".to_owned()),
        }
    }};
}
use ask_coordinator;
