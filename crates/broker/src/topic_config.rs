//! The settings a topic can have: names, kinds, defaults, and which of them this broker acts on.

use std::collections::BTreeMap;
use std::time::Duration;

use tramline_log::Compaction;

use crate::config::BrokerConfig;

/// What kind of value a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Boolean,
    Text(&'static [&'static str]),
    Int { min: i64, max: i64 },
    Long { min: i64 },
    Double,
    List(&'static [&'static str]),
}

impl Kind {
    /// The number DescribeConfigs gives this kind.
    pub(crate) fn wire_type(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::Text(_) => 2,
            Self::Int { .. } => 3,
            Self::Long { .. } => 5,
            Self::Double => 6,
            Self::List(_) => 7,
        }
    }

    fn accepts(self, value: &str) -> bool {
        match self {
            Self::Boolean => matches!(value, "true" | "false"),
            Self::Text(allowed) => allowed.contains(&value),
            Self::Int { min, max } => value.parse::<i64>().is_ok_and(|n| (min..=max).contains(&n)),
            Self::Long { min } => value.parse::<i64>().is_ok_and(|n| n >= min),
            Self::Double => value.parse::<f64>().is_ok_and(|n| (0.0..=1.0).contains(&n)),
            Self::List(allowed) => {
                value.is_empty()
                    || value.split(',').all(|item| {
                        !item.is_empty()
                            && !item.contains(char::is_whitespace)
                            && (allowed.is_empty() || allowed.contains(&item))
                    })
            }
        }
    }
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    pub(crate) kind: Kind,
}

const LONG_MAX: &str = "9223372036854775807";
const DAY_MS: i64 = 86_400_000;
const SEGMENT_MS: i64 = 604_800_000;
const INT_MAX: i64 = i32::MAX as i64;
const ANY_INT: Kind = Kind::Int { min: 0, max: INT_MAX };

const fn setting(name: &'static str, default: &'static str, kind: Kind) -> Setting {
    Setting { name, default, kind }
}

/// Every topic setting of Kafka 4, by name.
pub(crate) const SETTINGS: &[Setting] = &[
    setting("cleanup.policy", "delete", Kind::List(&["delete", "compact"])),
    setting("compression.gzip.level", "-1", Kind::Int { min: -1, max: 9 }),
    setting("compression.lz4.level", "9", Kind::Int { min: 1, max: 17 }),
    setting(
        "compression.type",
        "producer",
        Kind::Text(&["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    ),
    setting("compression.zstd.level", "3", Kind::Int { min: -131_072, max: 22 }),
    setting("delete.retention.ms", "86400000", Kind::Long { min: 0 }),
    setting("file.delete.delay.ms", "60000", Kind::Long { min: 0 }),
    setting("flush.messages", LONG_MAX, Kind::Long { min: 1 }),
    setting("flush.ms", LONG_MAX, Kind::Long { min: 0 }),
    setting("follower.replication.throttled.replicas", "", Kind::List(&[])),
    setting("index.interval.bytes", "4096", ANY_INT),
    setting("leader.replication.throttled.replicas", "", Kind::List(&[])),
    setting("local.retention.bytes", "-2", Kind::Long { min: -2 }),
    setting("local.retention.ms", "-2", Kind::Long { min: -2 }),
    setting("max.compaction.lag.ms", LONG_MAX, Kind::Long { min: 1 }),
    setting("max.message.bytes", "1048588", ANY_INT),
    setting("message.timestamp.after.max.ms", "3600000", Kind::Long { min: 0 }),
    setting("message.timestamp.before.max.ms", LONG_MAX, Kind::Long { min: 0 }),
    setting("message.timestamp.type", "CreateTime", Kind::Text(&["CreateTime", "LogAppendTime"])),
    setting("min.cleanable.dirty.ratio", "0.5", Kind::Double),
    setting("min.compaction.lag.ms", "0", Kind::Long { min: 0 }),
    setting("min.insync.replicas", "1", Kind::Int { min: 1, max: INT_MAX }),
    setting("preallocate", "false", Kind::Boolean),
    setting("remote.storage.enable", "false", Kind::Boolean),
    setting("retention.bytes", "-1", Kind::Long { min: -1 }),
    setting("retention.ms", "604800000", Kind::Long { min: -1 }),
    setting("segment.bytes", "1073741824", Kind::Int { min: 4096, max: INT_MAX }),
    setting("segment.index.bytes", "10485760", Kind::Int { min: 4, max: INT_MAX }),
    setting("segment.jitter.ms", "0", Kind::Long { min: 0 }),
    setting("segment.ms", "604800000", Kind::Long { min: 1 }),
    setting("unclean.leader.election.enable", "false", Kind::Boolean),
];

/// Bytes of a value at most: all of them are written down together.
pub(crate) const MAX_VALUE: usize = 8192;

/// Why `value` cannot be the setting `name`; `None` when it can.
pub(crate) fn refusal(name: &str, value: &str) -> Option<String> {
    let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
        return Some(format!("unknown topic setting {name}"));
    };
    if value.len() > MAX_VALUE {
        return Some(format!("a value of {name} has at most {MAX_VALUE} bytes"));
    }
    (!setting.kind.accepts(value)).then(|| format!("invalid value {value:?} for topic setting {name}"))
}

/// The default of a setting on this broker, which may be configured away from Kafka's.
pub(crate) fn default_value(setting: &Setting, broker: &BrokerConfig) -> String {
    match setting.name {
        "max.message.bytes" => broker.max_message_bytes.to_string(),
        "segment.bytes" => broker.segment_bytes.to_string(),
        "retention.ms" => broker.retention.map_or_else(|| "-1".to_owned(), |age| age.as_millis().to_string()),
        "retention.bytes" => broker.retention_bytes.map_or_else(|| "-1".to_owned(), |n| n.to_string()),
        _ => setting.default.to_owned(),
    }
}

/// The settings of one topic that this broker acts on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Effective {
    pub(crate) max_message_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) index_interval_bytes: u32,
    /// `None`: every record stays, whatever follows it.
    pub(crate) compaction: Option<Compaction>,
    /// Whether old records may be removed.
    pub(crate) deletes: bool,
    pub(crate) log_append_time: bool,
    pub(crate) timestamp_before_max_ms: i64,
    pub(crate) timestamp_after_max_ms: i64,
    /// `None`: no limit, as for topics whose policy is not to delete.
    pub(crate) retention_ms: Option<u64>,
    pub(crate) retention_bytes: Option<u64>,
    pub(crate) segment_ms: u64,
}

impl Effective {
    /// What `overrides` (already checked) make of the defaults.
    pub(crate) fn new(overrides: &BTreeMap<String, String>, broker: &BrokerConfig) -> Self {
        let number = |name: &str, fallback: i64| -> i64 {
            overrides.get(name).and_then(|value| value.parse().ok()).unwrap_or(fallback)
        };
        let text = |name: &str| overrides.get(name).map(String::as_str);
        let max_message =
            number("max.message.bytes", i64::try_from(broker.max_message_bytes).unwrap_or(i64::MAX));
        let segment = number("segment.bytes", i64::try_from(broker.segment_bytes).unwrap_or(i64::MAX));
        let deletes = text("cleanup.policy").is_none_or(|policy| policy.split(',').any(|p| p == "delete"));
        let compacted =
            text("cleanup.policy").is_some_and(|policy| policy.split(',').any(|p| p == "compact"));
        let millis = |name: &str, fallback: i64| Duration::from_millis(number(name, fallback).unsigned_abs());
        // -1 is no limit.
        let limit = |name: &str, default: Option<u64>| match overrides.get(name) {
            Some(value) => value.parse().ok(),
            None => default,
        };
        let kept_ms = broker.retention.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        Self {
            deletes,
            retention_ms: limit("retention.ms", kept_ms).filter(|_| deletes),
            retention_bytes: limit("retention.bytes", broker.retention_bytes).filter(|_| deletes),
            segment_ms: number("segment.ms", SEGMENT_MS).unsigned_abs(),
            max_message_bytes: usize::try_from(max_message).unwrap_or(usize::MAX),
            segment_bytes: u64::try_from(segment).unwrap_or(u64::MAX),
            index_interval_bytes: u32::try_from(number("index.interval.bytes", 4096)).unwrap_or(4096),
            compaction: compacted.then(|| Compaction {
                min_dirty_ratio: text("min.cleanable.dirty.ratio")
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(0.5),
                min_lag: millis("min.compaction.lag.ms", 0),
                max_lag: millis("max.compaction.lag.ms", i64::MAX),
                delete_retention: millis("delete.retention.ms", DAY_MS),
                ..Compaction::default()
            }),
            log_append_time: text("message.timestamp.type") == Some("LogAppendTime"),
            timestamp_before_max_ms: number("message.timestamp.before.max.ms", i64::MAX),
            timestamp_after_max_ms: number("message.timestamp.after.max.ms", 3_600_000),
        }
    }
}

/// Why a topic cannot have this name; `None` when it can.
pub(crate) fn name_refusal(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > 249 {
        return Some("a topic name has 1 to 249 characters");
    }
    if name == "." || name == ".." {
        return Some("a topic name is neither . nor ..");
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Some("a topic name has only letters, digits, '.', '_' and '-'");
    }
    None
}
