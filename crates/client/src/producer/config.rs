//! Settings of a producer.

use std::time::Duration;

use tramline_core::client::accumulator::{AccumulatorConfig, Acks, Spread};
use tramline_wire::{Compression, Partitioner};

use crate::config::ClientConfig;

/// A setting of a producer that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerConfigError {
    /// Sequences need the acknowledgement of all replicas.
    #[error("idempotence needs Acks::Forced")]
    IdempotenceNeedsForced,
    /// A broker remembers five batches of a producer.
    #[error("max_in_flight must be 1 to 5 with idempotence, at least 1 without; it is {0}")]
    MaxInFlight(usize),
    /// A size or count of zero, or one that the protocol cannot carry.
    #[error("{0} must be at least 1 and fit the protocol")]
    OutOfRange(&'static str),
    /// Records would end before they were sent.
    #[error("delivery_timeout must be longer than linger")]
    DeliveryTimeout,
}

/// How a producer batches, retries and acknowledges. Every setting has a default that fits most.
///
/// ```
/// use std::time::Duration;
/// use tramline_client::{Acks, ProducerConfig};
///
/// let config = ProducerConfig::new().acks(Acks::Written).linger(Duration::from_millis(5));
/// ```
#[derive(Debug, Clone)]
pub struct ProducerConfig {
    accumulator: AccumulatorConfig,
    idempotence: Option<bool>,
    propagation: Duration,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        let propagation = Duration::from_secs(30);
        Self { accumulator: AccumulatorConfig::default(), idempotence: None, propagation }
    }
}

impl ProducerConfig {
    /// The defaults: everything forced to disk before it is acknowledged, nothing stored twice.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What an acknowledgement means, and so what a completed record survives. Default [`Acks::Forced`].
    #[must_use]
    pub fn acks(mut self, acks: Acks) -> Self {
        self.accumulator.acks = acks;
        self
    }

    /// Whether a retry is never stored twice and never overtaken. Default: on with [`Acks::Forced`], off without,
    /// where it is not possible. Off, a partition has one request in flight, so that order is kept still.
    #[must_use]
    pub fn idempotence(mut self, on: bool) -> Self {
        self.idempotence = Some(on);
        self
    }

    /// How long a batch waits for more records, counted from its first and never restarted. Default zero: a batch
    /// leaves when nothing is in flight to its broker and fills while something is. Above zero it also waits when
    /// nothing is in flight: fewer, larger requests, and that much more latency.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.accumulator.linger = linger;
        self
    }

    /// A batch of a partition is full at this many bytes before compression. Default 128 KiB.
    #[must_use]
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.accumulator.batch_bytes = bytes;
        self
    }

    /// A batch of a partition is full at this many records. Default 10,000.
    #[must_use]
    pub fn batch_records(mut self, records: u32) -> Self {
        self.accumulator.batch_records = records;
        self
    }

    /// The largest request, in bytes before compression; a record that takes more is refused here. Brokers refuse
    /// larger batches than they are set to, 1 MiB usually. Default 1 MiB.
    #[must_use]
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.accumulator.max_request_bytes = bytes;
        self
    }

    /// Requests unanswered per broker at once. Default 5, the most that idempotence allows.
    #[must_use]
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.accumulator.max_in_flight = requests;
        self
    }

    /// Bytes of records accepted and not yet acknowledged, at once. Beyond, `send` waits. Default 32 MiB.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.accumulator.buffer_bytes = bytes;
        self
    }

    /// Records accepted and not yet acknowledged, at once. Beyond, `send` waits. Default 1,000,000.
    #[must_use]
    pub fn buffer_records(mut self, records: usize) -> Self {
        self.accumulator.buffer_records = records;
        self
    }

    /// How long after `send` a record is told at the latest how it ended. Retries and reconnects happen inside.
    /// Default 2 min.
    #[must_use]
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.accumulator.delivery_timeout = timeout;
        self
    }

    /// How long `send` waits for a topic or partition that the cluster says is not there: one that was made a moment ago
    /// may not be known everywhere yet. Never longer than the delivery timeout, which alone counts while no broker
    /// answers. Default 30 s.
    ///
    /// This is librdkafka's `topic.metadata.propagation.max.ms`, which refuses the record after 30 s; the Java client does
    /// after `max.block.ms`, 60 s.
    #[must_use]
    pub fn topic_metadata_propagation(mut self, longest: Duration) -> Self {
        self.propagation = longest;
        self
    }

    pub(crate) fn propagation(&self) -> Duration {
        self.propagation
    }

    /// How batches are compressed. Default none.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.accumulator.compression = compression;
        self
    }

    /// How a key picks its partition. Everyone who writes to a topic must agree on it. Default murmur2, as the Java
    /// client does.
    #[must_use]
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.accumulator.partitioner = partitioner;
        self
    }

    /// How records without a key are spread. Default [`Spread::Sticky`].
    #[must_use]
    pub fn spread(mut self, spread: Spread) -> Self {
        self.accumulator.spread = spread;
        self
    }

    /// Checks the settings against each other.
    pub(crate) fn build(self, client: &ClientConfig) -> Result<AccumulatorConfig, ProducerConfigError> {
        let mut config = self.accumulator;
        let forced = config.acks == Acks::Forced;
        config.idempotent = self.idempotence.unwrap_or(forced);
        config.retry_backoff = (client.retry_backoff, client.retry_backoff_max);
        if config.idempotent && !forced {
            return Err(ProducerConfigError::IdempotenceNeedsForced);
        }
        let most = if config.idempotent { 5 } else { usize::MAX };
        if config.max_in_flight == 0 || config.max_in_flight > most {
            return Err(ProducerConfigError::MaxInFlight(config.max_in_flight));
        }
        // Ids of split batches have room for this many records.
        const MOST_RECORDS: u32 = 1 << 24;
        let sizes = [
            ("batch_bytes", config.batch_bytes, usize::MAX),
            ("batch_records", config.batch_records as usize, MOST_RECORDS as usize),
            ("max_request_bytes", config.max_request_bytes, i32::MAX as usize / 2),
            ("buffer_bytes", config.buffer_bytes, usize::MAX),
            ("buffer_records", config.buffer_records, usize::MAX),
        ];
        if let Some((name, ..)) = sizes.iter().find(|(_, size, most)| *size == 0 || size > most) {
            return Err(ProducerConfigError::OutOfRange(name));
        }
        config.batch_bytes = config.batch_bytes.min(config.max_request_bytes);
        if config.delivery_timeout <= config.linger {
            return Err(ProducerConfigError::DeliveryTimeout);
        }
        Ok(config)
    }
}
