//! The producer: accepts records, batches them per partition and tells what became of each.

mod background;
mod config;
mod delivery;
mod error;
mod record;
mod sender;
mod shared;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::time::Instant as TokioInstant;
use tramline_core::client::accumulator::{Accumulator, RouteError, Ticket};
use tramline_core::client::error_actions::{Operation, action};
use tramline_core::time::Timestamp;
use tramline_wire::{BatchBuilder, ErrorCode, Str, TopicPartition};

use crate::cluster::{Cluster, jitter};
use crate::config::ClientConfig;
use delivery::BatchFate;
use shared::{Shared, State};

pub use config::{ProducerConfig, ProducerConfigError};
pub use delivery::{Delivery, DeliveryError};
pub use error::{FlushError, ProducerStartError, SendError, TrySendError, TrySendReason};
pub use record::{ProducerRecord, RecordMetadata};

/// Writes records to topics, in order per partition, batched and pipelined, each with its own outcome.
///
/// A producer dials its connections itself and is their only user, so that no answer can be taken for another's: one
/// connection per broker for records, another for questions about the cluster. Nothing public reaches them:
///
/// ```compile_fail,E0616
/// # async fn steal(producer: tramline_client::Producer) {
/// let connection = producer.shared; // private
/// # }
/// ```
///
/// Nor can two owners come about by copying:
///
/// ```compile_fail,E0599
/// # fn copy(producer: tramline_client::Producer) {
/// let second = producer.clone(); // there is no such method
/// # }
/// ```
///
/// All methods take `&self`; share it in an [`Arc`] or borrow it.
///
/// # Loss
/// Records are accepted before they are sent. [`close`](Self::close) sends all of them and reports failures. A producer
/// that is dropped without it gives up what is not acknowledged, and logs an error with the number of records.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tramline_client::{ClientConfig, Producer, ProducerConfig, ProducerRecord};
///
/// let producer = Producer::new(ClientConfig::new("127.0.0.1:9092"), ProducerConfig::new()).await?;
/// let delivery = producer.send(ProducerRecord::to("readings").key("meter-7").value("21.5")).await?;
/// let written = delivery.await?;
/// println!("stored at offset {:?}", written.offset);
/// producer.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    closed: bool,
}

/// Gives a ticket for memory back unless it was used.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    ticket: Option<Ticket>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.with(|state| {
                state.waiting.remove(&ticket);
                state.accumulator.budget().cancel(ticket);
            });
        }
    }
}

/// What an attempt to accept a record came to.
enum Accepted {
    Done(Delivery),
    NeedsRoute,
    NeedsMemory,
}

fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::try_from(since.as_millis()).unwrap_or(Timestamp::MAX)
}

impl Producer {
    /// Connects to the cluster. Must be called inside a tokio runtime, which then carries the producer's tasks.
    ///
    /// # Errors
    /// A setting cannot be, or no broker answered within the connect timeout.
    pub async fn new(client: ClientConfig, config: ProducerConfig) -> Result<Self, ProducerStartError> {
        let propagation = config.propagation();
        let config = config.build(&client)?;
        let cluster = Cluster::connect(client).await?;
        let seed = getrandom::u64().unwrap_or(0);
        let shared = Shared::new(cluster, Accumulator::new(config, seed), propagation);
        background::spawn(&shared);
        Ok(Self { shared, closed: false })
    }

    /// Accepts a record, waiting for memory and for the topic's partitions to be known. The record is sent whatever
    /// becomes of the returned [`Delivery`], which tells how it ended.
    ///
    /// A topic or partition that does not exist is waited for (and created, where the cluster does that) for
    /// [`topic_metadata_propagation`](ProducerConfig::topic_metadata_propagation), 30 s; while no broker answers, until the
    /// delivery timeout.
    ///
    /// Cancel-safe: dropped before it returns, the record was not accepted and is not sent.
    ///
    /// # Errors
    /// The record was not accepted.
    pub async fn send(&self, record: ProducerRecord) -> Result<Delivery, SendError> {
        let timestamp = record.timestamp.unwrap_or_else(wall_clock);
        let mut accepted = self.shared.with(|state| self.accept(state, &record, timestamp, None))?;
        loop {
            accepted = match accepted {
                Accepted::Done(delivery) => return Ok(delivery),
                Accepted::NeedsRoute => {
                    self.known_partition(&record.topic, record.partition).await?;
                    self.shared.with(|state| self.accept(state, &record, timestamp, None))?
                }
                Accepted::NeedsMemory => {
                    let mut waiting = self.memory(record.parts(timestamp).cost()).await;
                    let ticket = waiting.ticket.take();
                    self.shared.with(|state| self.accept(state, &record, timestamp, ticket))?
                }
            };
        }
    }

    /// Accepts a record if that is possible at once.
    ///
    /// # Errors
    /// The record back, and why it was not accepted.
    // The record travels back in the error: that is what it is for.
    #[allow(clippy::result_large_err)]
    pub fn try_send(&self, record: ProducerRecord) -> Result<Delivery, TrySendError> {
        let timestamp = record.timestamp.unwrap_or_else(wall_clock);
        let reason = match self.shared.with(|state| self.accept(state, &record, timestamp, None)) {
            Ok(Accepted::Done(delivery)) => return Ok(delivery),
            Ok(Accepted::NeedsMemory) => TrySendReason::Full,
            Ok(Accepted::NeedsRoute) => {
                self.shared.with(|state| state.wanted.insert(record.topic.clone()));
                TrySendReason::PartitionsUnknown
            }
            Err(error) => TrySendReason::Refused(error),
        };
        Err(TrySendError { record, reason })
    }

    /// Sends records as one batch in one request, past the batching of [`send`](Self::send), and returns the offset of
    /// the first; the others follow without a gap. It keeps its place behind what was already sent to the partition.
    /// No record sends nothing and returns `None`, as does [`Acks::None`](crate::Acks::None).
    ///
    /// The records' own topics and partitions are not looked at.
    ///
    /// Dropping the future after the batch was accepted cancels nothing: it is sent, and nobody is told.
    ///
    /// # Errors
    /// The whole batch has one outcome. [`DeliveryError::NotAccepted`] when it is larger than a request.
    pub async fn send_batch(
        &self,
        topic: impl Into<Str>,
        partition: i32,
        records: Vec<ProducerRecord>,
    ) -> Result<Option<i64>, DeliveryError> {
        let topic = topic.into();
        let Some(first) = records.first() else { return Ok(None) };
        let now = wall_clock();
        let timestamp = first.timestamp.unwrap_or(now);
        let compression = self.shared.with(|state| state.accumulator.config().compression);
        let mut builder = BatchBuilder::new(compression);
        for record in &records {
            let parts = record.parts(record.timestamp.unwrap_or(now));
            let fits = builder.append(parts.timestamp, parts.key, parts.value, parts.headers);
            let too_large = || SendError::RecordTooLarge { bytes: parts.cost(), max: i32::MAX as usize };
            fits.map_err(|_| too_large())?;
        }
        let bytes = builder.size_bytes();
        self.known_partition(&topic, Some(partition)).await?;
        let mut waiting = self.memory(bytes).await;
        let ticket = waiting.ticket.take();
        let fate = BatchFate::new(TopicPartition { topic: topic.clone(), partition });
        let token = fate.clone();
        let at = self.shared.cluster.now();
        self.shared.with(|state| {
            if let Some(ticket) = ticket {
                // The batch is charged with all of its records when it is appended.
                state.accumulator.budget().cancel(ticket);
            }
            let unknown = |_| SendError::UnknownTopic { topic: topic.clone(), code: None };
            let slot = state.accumulator.route(&topic, Some(partition), None).map_err(unknown)?;
            state.accumulator.append_batch(slot, builder, at, token).map_err(SendError::from)
        })?;
        Ok(Delivery::new(fate, 0, timestamp).await?.offset)
    }

    /// Sends everything accepted so far without waiting for more, and waits until all of it is acknowledged or failed.
    ///
    /// Cancel-safe: dropping it stops the waiting only.
    ///
    /// # Errors
    /// Records failed since the last flush; each [`Delivery`] tells its own outcome.
    pub async fn flush(&self) -> Result<(), FlushError> {
        let mark = self.shared.with(|state| state.accumulator.begin_flush());
        self.shared.flushed(mark).await;
        self.failures()
    }

    fn failures(&self) -> Result<(), FlushError> {
        match self.shared.with(State::take_failures) {
            (failed, Some(first)) => Err(FlushError { failed, first }),
            (_, None) => Ok(()),
        }
    }

    /// Flushes, and closes the connections. At the latest after the delivery timeout everything accepted is told.
    ///
    /// Not cancel-safe: dropping the future half way drops the producer, and what is not acknowledged is given up.
    ///
    /// # Errors
    /// Records failed since the last flush.
    pub async fn close(mut self) -> Result<(), FlushError> {
        let mark = self.shared.with(|state| state.accumulator.close());
        self.shared.flushed(mark).await;
        self.closed = true;
        self.shared.stop.cancel();
        self.failures()
    }

    /// How many records were accepted and are neither acknowledged nor failed yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.with(|state| state.accumulator.untold_records())
    }

    /// One attempt, without waiting. `ticket` stands for memory that was granted already.
    fn accept(
        &self,
        state: &mut State,
        record: &ProducerRecord,
        timestamp: Timestamp,
        ticket: Option<Ticket>,
    ) -> Result<Accepted, SendError> {
        let parts = record.parts(timestamp);
        let cost = parts.cost();
        let accumulator = &mut state.accumulator;
        let granted = ticket.is_some_and(|ticket| accumulator.budget().redeem(ticket));
        if cost > accumulator.budget().max_bytes() {
            return Err(SendError::RecordTooLarge { bytes: cost, max: accumulator.budget().max_bytes() });
        }
        let slot = match accumulator.route(&record.topic, record.partition, record.router()) {
            Ok(slot) => slot,
            Err(_) => {
                if granted {
                    accumulator.budget().give_back(cost, 1);
                }
                return Ok(Accepted::NeedsRoute);
            }
        };
        if !granted && !accumulator.budget().try_take(cost) {
            return Ok(Accepted::NeedsMemory);
        }
        let now = self.shared.cluster.now();
        let fate = |partition: &TopicPartition| BatchFate::new(partition.clone());
        let appended = accumulator.append(slot, parts, now, fate)?;
        Ok(Accepted::Done(Delivery::new(appended.token, appended.index, timestamp)))
    }

    /// Waits in line for memory. The ticket is granted when this returns.
    async fn memory(&self, bytes: usize) -> Waiting<'_> {
        let (granted, waits) = oneshot::channel();
        let ticket = self.shared.with(|state| {
            let ticket = state.accumulator.budget().wait(bytes);
            state.waiting.insert(ticket, granted);
            // Under pressure nothing waits for more records.
            state.accumulator.wake_all();
            ticket
        });
        let waiting = Waiting { shared: &self.shared, ticket: Some(ticket) };
        // The other end is dropped only with the whole producer, which is borrowed here.
        waits.await.ok();
        waiting
    }

    /// Waits until the partition is known, asking for metadata meanwhile.
    async fn known_partition(&self, topic: &Str, partition: Option<i32>) -> Result<(), SendError> {
        let delivery_timeout = self.shared.with(|state| state.accumulator.config().delivery_timeout);
        let mut deadline = TokioInstant::now() + delivery_timeout;
        let mut told = false;
        let mut backoff = self.shared.cluster.backoff();
        loop {
            let changed = self.shared.routes.notified();
            let route = self.shared.with(|state| {
                let route = state.accumulator.route(topic, partition.or(Some(0)), None);
                if route.is_err() {
                    state.wanted.insert(topic.clone());
                }
                route
            });
            let Err(error) = route else { return Ok(()) };
            let code = self.topic_error(topic);
            if let Some(code) = code.filter(|code| is_hopeless(*code)) {
                self.shared.with(|state| state.wanted.remove(topic));
                return Err(SendError::TopicRefused { topic: topic.clone(), code });
            }
            let is_told = code.is_some() || matches!(error, RouteError::UnknownPartition { .. });
            if is_told && !std::mem::replace(&mut told, true) {
                // That it is there spreads in moments; what is not there by then was never made.
                deadline = deadline.min(TokioInstant::now() + self.shared.propagation);
            }
            // What came may be news of something else: ask again, but not in a tight loop.
            let again = async {
                changed.await;
                let route =
                    self.shared.with(|state| state.accumulator.route(topic, partition.or(Some(0)), None));
                if route.is_err() && !self.topic_error(topic).is_some_and(is_hopeless) {
                    tokio::time::sleep(backoff.next_wait(jitter())).await;
                }
            };
            if tokio::time::timeout_at(deadline, again).await.is_err() {
                self.shared.with(|state| state.wanted.remove(topic));
                return Err(match error {
                    RouteError::UnknownTopic => SendError::UnknownTopic { topic: topic.clone(), code },
                    RouteError::UnknownPartition { count } => SendError::UnknownPartition {
                        partition: TopicPartition { topic: topic.clone(), partition: partition.unwrap_or(0) },
                        count,
                    },
                });
            }
        }
    }

    fn topic_error(&self, topic: &Str) -> Option<ErrorCode> {
        let code = self.shared.cluster.metadata().topics.get(topic)?.error_code;
        (code != 0).then(|| ErrorCode::from(code))
    }
}

/// Whether waiting for the topic cannot help.
fn is_hopeless(code: ErrorCode) -> bool {
    !action(Operation::Metadata, code).asks_again()
}

impl Drop for Producer {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        self.shared.stop.cancel();
        let lost = self.shared.with(|state| {
            let untold = state.accumulator.untold_records();
            state.accumulator.abandon();
            untold
        });
        if lost > 0 {
            tracing::error!(
                records = lost,
                "a producer was dropped without close(); these records may be lost"
            );
        }
    }
}
