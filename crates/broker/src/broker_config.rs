//! The settings of the broker as Kafka names them: what is in force here, and what tools find at Kafka's default.
//!
//! Kafka's own list is `broker_keys.rs`. What this broker does otherwise, or is told otherwise, it says; what it has no
//! part for is told with its default and named as such where documentation is asked for. All of it is told at the start:
//! no setting changes while the broker runs.

use tramline_wire::ErrorCode;

use crate::admin::Refusal;
use crate::broker_keys::BROKER_KEYS;
use crate::config::BrokerConfig;
use crate::config_edit::{Edit, Edits};
use crate::fetch_sessions;
use crate::node::Node;

/// What kind of value a setting of the broker takes, in the order of the numbers DescribeConfigs gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    Boolean = 1,
    String = 2,
    Int = 3,
    Short = 4,
    Long = 5,
    Double = 6,
    List = 7,
    Class = 8,
    Password = 9,
}

/// One setting as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerSetting {
    pub(crate) name: &'static str,
    pub(crate) kind: BrokerKind,
    /// What is in force.
    pub(crate) value: Option<String>,
    /// Kafka's.
    pub(crate) default: Option<&'static str>,
    /// Whether this broker has what the setting is about.
    pub(crate) acts: bool,
}

/// Tools of before Kafka 4 take the broker's version from it; Kafka has it no more.
const VERSION_KEY: (&str, BrokerKind, Option<&str>) =
    ("inter.broker.protocol.version", BrokerKind::String, None);

/// Every setting, by name.
pub(crate) fn broker_settings(node: &Node) -> Vec<BrokerSetting> {
    let known = in_force(node);
    let setting = |(name, kind, default): (&'static str, BrokerKind, Option<&'static str>)| {
        let own = known.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        BrokerSetting {
            name,
            kind,
            value: own.map_or_else(|| default.map(str::to_owned), Clone::clone),
            default,
            acts: own.is_some(),
        }
    };
    let at = BROKER_KEYS.partition_point(|(name, ..)| *name < VERSION_KEY.0);
    let (before, after) = BROKER_KEYS.split_at(at);
    before.iter().chain([&VERSION_KEY]).chain(after).copied().map(setting).collect()
}

/// The settings that this broker has a part for, and their values; `None` is null.
fn in_force(node: &Node) -> Vec<(&'static str, Option<String>)> {
    let config = &node.config;
    let address = node.advertised();
    let listener = format!("PLAINTEXT://{}:{}", address.host, address.port);
    let mut known: Vec<(&str, String)> = vec![
        ("advertised.listeners", listener.clone()),
        ("broker.id", node.node_id.to_string()),
        ("inter.broker.protocol.version", "4.0-IV3".to_owned()),
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT".to_owned()),
        ("listeners", listener),
        ("log.dirs", node.log_dir.to_string()),
        ("max.incremental.fetch.session.cache.slots", fetch_sessions::MAX_SESSIONS.to_string()),
        ("node.id", node.node_id.to_string()),
    ];
    known.extend(told(config));
    known.extend(FIXED.map(|(name, value)| (name, value.to_owned())));
    let mut known: Vec<_> = known.into_iter().map(|(name, value)| (name, Some(value))).collect();
    known.extend(retention(config));
    known
}

/// What a broker is told when it starts.
fn told(config: &BrokerConfig) -> [(&'static str, String); 18] {
    let millis = |duration: std::time::Duration| duration.as_millis().to_string();
    [
        ("auto.create.topics.enable", config.auto_create_topics.to_string()),
        ("connections.max.idle.ms", millis(config.idle_timeout)),
        ("fetch.max.bytes", config.max_fetch_bytes.to_string()),
        ("group.initial.rebalance.delay.ms", millis(config.group_initial_rebalance_delay)),
        ("group.max.session.timeout.ms", millis(config.group_max_session_timeout)),
        ("group.max.size", config.group_max_size.to_string()),
        ("group.min.session.timeout.ms", millis(config.group_min_session_timeout)),
        ("log.cleaner.backoff.ms", millis(config.compaction_check_interval)),
        ("log.flush.interval.ms", millis(config.background_sync_interval)),
        ("log.flush.offset.checkpoint.interval.ms", millis(config.checkpoint_interval)),
        ("log.retention.check.interval.ms", millis(config.retention_check_interval)),
        ("log.segment.bytes", config.segment_bytes.to_string()),
        ("max.connections", config.max_connections.to_string()),
        ("message.max.bytes", config.max_message_bytes.to_string()),
        ("num.partitions", config.default_partitions.to_string()),
        ("offsets.retention.check.interval.ms", millis(config.offsets_retention_check_interval)),
        ("queued.max.request.bytes", config.connection_memory().to_string()),
        ("socket.request.max.bytes", config.max_request_bytes.to_string()),
    ]
}

/// What is as it is on every broker of ours. What merely happens to be Kafka's default too is here as well, so that it is
/// not called foreign.
const FIXED: [(&str, &str); 31] = [
    ("compression.type", "producer"),
    // No newer protocol of groups is spoken.
    ("group.coordinator.rebalance.protocols", "classic"),
    ("default.replication.factor", "1"),
    ("delete.topic.enable", "true"),
    ("log.cleaner.delete.retention.ms", "86400000"),
    ("log.cleaner.enable", "true"),
    ("log.cleaner.max.compaction.lag.ms", "9223372036854775807"),
    ("log.cleaner.min.cleanable.ratio", "0.5"),
    ("log.cleaner.min.compaction.lag.ms", "0"),
    ("log.cleaner.threads", "1"),
    ("log.cleanup.policy", "delete"),
    ("log.index.interval.bytes", "4096"),
    ("log.message.timestamp.after.max.ms", "3600000"),
    ("log.message.timestamp.before.max.ms", "9223372036854775807"),
    ("log.message.timestamp.type", "CreateTime"),
    ("log.roll.hours", "168"),
    // A file goes with the last reader that has it open.
    ("log.segment.delete.delay.ms", "0"),
    ("min.insync.replicas", "1"),
    ("offset.metadata.max.bytes", "4096"),
    ("offsets.topic.compression.codec", "0"),
    ("offsets.topic.num.partitions", "1"),
    ("offsets.topic.replication.factor", "1"),
    ("offsets.topic.segment.bytes", "67108864"),
    ("process.roles", "broker,controller"),
    ("producer.id.expiration.ms", "86400000"),
    ("remote.log.storage.system.enable", "false"),
    ("sasl.enabled.mechanisms", ""),
    ("security.inter.broker.protocol", "PLAINTEXT"),
    ("ssl.client.auth", "none"),
    ("transaction.two.phase.commit.enable", "false"),
    ("unclean.leader.election.enable", "false"),
];

/// Ages and sizes, of which Kafka has several settings that stand for one: as if none was told where it is Kafka's
/// default.
fn retention(config: &BrokerConfig) -> [(&'static str, Option<String>); 5] {
    let default = BrokerConfig::default().retention;
    let age = config.retention.map_or_else(|| "-1".to_owned(), |age| age.as_millis().to_string());
    let bytes = config.retention_bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
    [
        ("log.retention.bytes", Some(bytes)),
        ("log.retention.hours", Some("168".to_owned())),
        ("log.retention.minutes", None),
        ("log.retention.ms", (config.retention != default).then_some(age)),
        ("offsets.retention.minutes", Some((config.offsets_retention.as_secs() / 60).to_string())),
    ]
}

/// Settings that a broker of Kafka has only while it runs. None is ever set here; tools remove them when they are done.
const THROTTLES: [&str; 3] = [
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
];

/// Why the broker's settings cannot be changed so; `None` when nothing would change.
pub(crate) fn refusal(edits: &Edits) -> Option<Refusal> {
    edits.edits.iter().enumerate().find_map(|(at, (name, edit))| {
        let invalid = |reason| Some(Refusal::new(ErrorCode::InvalidConfig, reason));
        if edits.edits[..at].iter().any(|(before, _)| before == name) {
            return Some(Refusal::new(ErrorCode::InvalidRequest, format!("{name} is named twice")));
        }
        let known = BROKER_KEYS.iter().find(|(known, ..)| known == name).map(|(_, kind, _)| *kind);
        let Some(kind) = known.or_else(|| THROTTLES.contains(&&**name).then_some(BrokerKind::Long)) else {
            return invalid(format!("unknown broker setting {name}"));
        };
        match edit {
            // None was ever changed, so it is at what the start has told.
            Edit::Remove => None,
            Edit::Append(_) | Edit::Subtract(_) if kind != BrokerKind::List => {
                invalid(format!("{name} is not a list"))
            }
            Edit::Set(_) | Edit::Append(_) | Edit::Subtract(_) => {
                let reason = format!("{name} is read only: a broker is told its settings when it starts");
                Some(Refusal::new(ErrorCode::InvalidRequest, reason))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{FIXED, THROTTLES, VERSION_KEY, retention, told};
    use crate::broker_keys::BROKER_KEYS;
    use crate::config::BrokerConfig;

    #[test]
    fn what_is_said_to_be_in_force_is_a_setting_that_kafka_has() {
        assert!(BROKER_KEYS.is_sorted_by_key(|(name, ..)| *name));
        let config = BrokerConfig::default();
        let told = told(&config).map(|(name, _)| name);
        let kept = retention(&config).map(|(name, _)| name);
        let known = |name: &str| BROKER_KEYS.iter().any(|(known, ..)| *known == name);
        assert!(!THROTTLES.iter().any(|name| known(name)));
        for name in FIXED.map(|(name, _)| name).iter().chain(&told).chain(&kept) {
            assert!(known(name), "{name}");
        }
        assert!(!known(VERSION_KEY.0));
    }
}
