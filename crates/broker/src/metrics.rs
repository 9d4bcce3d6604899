//! Counters of a running broker: plain atomics, read as one snapshot.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

macro_rules! metrics {
    ($($kind:ident $name:ident: $doc:literal,)*) => {
        /// What a broker has done since it started, and what it is doing now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct MetricsSnapshot {
            $(#[doc = $doc] pub $name: metrics!(@value $kind),)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $(pub(crate) $name: metrics!(@cell $kind),)*
        }

        impl Metrics {
            pub(crate) fn snapshot(&self) -> MetricsSnapshot {
                MetricsSnapshot { $($name: self.$name.get(),)* }
            }
        }
    };
    (@value counter) => { u64 };
    (@value gauge) => { i64 };
    (@cell counter) => { Counter };
    (@cell gauge) => { Gauge };
}

metrics! {
    counter connections_accepted: "Connections accepted since the start.",
    counter connections_refused: "Connections closed at once because too many were open.",
    counter connections_failed: "Connections closed by the broker because of what arrived on them.",
    gauge connections_open: "Connections open now.",
    counter requests: "Requests decoded.",
    counter bytes_in: "Bytes of request frames.",
    counter bytes_out: "Bytes of response frames.",
    counter batches_in: "Record batches appended.",
    counter record_bytes_in: "Bytes of the record batches appended.",
    counter batches_refused: "Record batches refused with an error code.",
    counter groups_written: "Groups of batches written, one vectored write each.",
    counter barriers: "Barriers (forces of one log's files) completed.",
    counter barriers_failed: "Barriers that failed; each has fenced its partition.",
    counter acks_after_barrier: "Answers that waited for a barrier.",
    gauge batches_waiting: "Record batches accepted and not yet written.",
    gauge fetches_parked: "Fetches waiting for data now.",
    counter record_bytes_out: "Bytes of record batches in fetch answers.",
    counter compactions: "Passes of compaction that changed something.",
    counter bytes_compacted_away: "Bytes of sealed segments that compaction has saved.",
    counter partitions_fenced: "Partitions that a storage failure has closed for writing.",
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Gauge {
    pub(crate) fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}
