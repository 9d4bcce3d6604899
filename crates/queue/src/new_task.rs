//! A task to publish.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tramline_client::ProducerRecord;
use tramline_core::claims::task::LAST_CLASS;
use tramline_core::claims::{TaskMeta, Unique};
use tramline_wire::Str;

/// A task to publish: a payload, and how it wants to be worked on.
#[derive(Clone, Debug)]
pub struct NewTask {
    payload: Bytes,
    delay: Duration,
    meta: TaskMeta,
    headers: Vec<(Str, Bytes)>,
}

impl NewTask {
    /// A task that can be taken at once, up to five times, in no order with others.
    #[must_use]
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), delay: Duration::ZERO, meta: TaskMeta::plain(0), headers: Vec::new() }
    }

    /// Tasks of one key are worked on in the order they were published, each after the one before is done or dead.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.meta.key = Some(key.into());
        self
    }

    /// Gives the task to nobody before it is this old, by the brokers' clocks. Default zero.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Gives the task to nobody before this time, by the brokers' clocks. A time before 1970 is no time.
    #[must_use]
    pub fn scheduled_at(mut self, time: SystemTime) -> Self {
        self.meta.not_before = time.duration_since(UNIX_EPOCH).map_or(0, millis);
        self
    }

    /// Its priority class, from 0 (first) to 9 (last); beyond counts as 9. Default 5. Workers take what is most urgent
    /// among what they see, so a class waits as long as a more urgent one has tasks.
    #[must_use]
    pub const fn class(mut self, class: u8) -> Self {
        self.meta.class = if class > LAST_CLASS { LAST_CLASS } else { class };
        self
    }

    /// How often the task is begun before it is dead; at least once. Default 5.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.meta.max_attempts = attempts.max(1);
        self
    }

    /// Passes the task over when another of this name was published less than `window` before it, whatever became of
    /// that one. The name picks the shard unless the task has a key; with a key it is unique among the tasks of the
    /// key's shard.
    #[must_use]
    pub fn unique(mut self, id: impl Into<Bytes>, window: Duration) -> Self {
        self.meta.unique = Some(Unique { id: id.into(), window: millis(window) });
        self
    }

    /// Adds a header that the handler sees. Names that begin with `tl-` are the queue's own.
    #[must_use]
    pub fn header(mut self, name: impl Into<Str>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// A task that wants the same as an earlier one, at once.
    pub(crate) fn like(payload: Bytes, meta: TaskMeta) -> Self {
        let meta = TaskMeta { not_before: 0, unique: None, ..meta };
        Self { meta, ..Self::new(payload) }
    }

    pub(crate) fn into_record(self, topic: &Str) -> ProducerRecord {
        let mut record = ProducerRecord::to(topic.clone()).value(self.payload);
        for (name, value) in self.meta.headers(millis(self.delay)) {
            record = record.header(name, value);
        }
        for (name, value) in self.headers {
            record = record.header(name, value);
        }
        match (self.meta.key, self.meta.unique) {
            (Some(key), _) => record.key(key),
            (None, Some(unique)) => record.routing_key(unique.id),
            (None, None) => record,
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
