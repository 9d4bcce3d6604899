//! What of rdkafka's configuration the source has to know, and the handle to the member's description.

use std::sync::Weak;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer, ConsumerGroupMetadata};
use tramline_processor::CommitConfiguration;
use tramline_wire::Str;

use crate::error::BuildError;
use crate::shared::Shared;

/// Where to begin when there is no commit, or when it is not in the log any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    Earliest,
    Latest,
    Refuse,
}

/// The settings as librdkafka understands them, its defaults included.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub group: Str,
    pub instance_id: Option<Str>,
    pub max_poll_interval: Duration,
    pub auto_commit: bool,
    /// Offsets of what was handed out are stored by this source: librdkafka would store what was only read ahead.
    pub auto_store: bool,
    pub reset: Reset,
}

impl Settings {
    /// Reads the settings, and puts those aside which the source carries out itself.
    pub(crate) fn take(config: &mut ClientConfig) -> Result<Self, BuildError> {
        let native = config.create_native_config()?;
        let get = |name: &str| native.get(name).map(|value| value.trim_end_matches('\0').to_owned());
        let group = get("group.id").unwrap_or_default();
        if group.is_empty() {
            return Err(BuildError::NoGroup);
        }
        let instance_id = get("group.instance.id").unwrap_or_default();
        let millis = get("max.poll.interval.ms")?.parse().unwrap_or(300_000);
        let reset = match &*get("auto.offset.reset").unwrap_or_default() {
            "earliest" | "smallest" | "beginning" => Reset::Earliest,
            "error" => Reset::Refuse,
            _ => Reset::Latest,
        };
        let settings = Self {
            reset,
            group: group.into(),
            instance_id: (!instance_id.is_empty()).then(|| instance_id.into()),
            max_poll_interval: Duration::from_millis(millis),
            auto_commit: get("enable.auto.commit")? == "true",
            auto_store: get("enable.auto.offset.store")? == "true",
        };
        config.set("enable.auto.offset.store", "false");
        // See the module `start`.
        config.set("auto.offset.reset", "error");
        Ok(settings)
    }

    /// How long a revocation may be held: the group waits for as long as the poll interval.
    pub(crate) fn revocation_window(&self) -> Duration {
        self.max_poll_interval.saturating_sub(self.max_poll_interval / 10).max(self.max_poll_interval / 2)
    }

    pub(crate) fn commit_configuration(&self) -> CommitConfiguration {
        CommitConfiguration {
            auto_commit: self.auto_commit,
            auto_store: self.auto_store,
            group: Some(self.group.clone()),
        }
    }
}

/// Gives rdkafka's description of the member while a run owns the source, for `send_offsets_to_transaction`. Cheap to
/// clone; does not keep the source open.
#[derive(Clone, Debug)]
pub struct GroupHandle(pub(crate) Weak<Shared>);

impl GroupHandle {
    /// Who the source is in its group as of now; `None` once it is closed.
    #[must_use]
    pub fn metadata(&self) -> Option<ConsumerGroupMetadata> {
        let shared = self.0.upgrade()?;
        let state = shared.lock();
        // Not cloned out of the lock: whoever drops the last reference waits for librdkafka to close.
        state.consumer.as_ref()?.group_metadata()
    }
}
