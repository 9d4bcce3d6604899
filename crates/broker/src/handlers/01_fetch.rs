//! Fetch (1), versions 4 to 17.
//!
//! Partitions are read in the order of the request, whole batches only, from the batch that holds the offset. The
//! first batch of the first partition with data is given whole whatever the limits say; after it, what does not fit
//! stays for the next time. Consumers read below the high watermark. A fetch without enough bytes waits, holding no
//! part of any file, until a high watermark moves, a topic goes, the time is over, or the broker stops.
//! From version 13 topics come by id. Gaps: no followers, no open transactions, so the last stable offset is the high
//! watermark.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tramline_log::{ReadError, Slice};
use tramline_wire::messages::fetch_request::FetchPartition;
use tramline_wire::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use tramline_wire::messages::{FetchRequest, FetchResponse};
use tramline_wire::{Compression, ErrorCode, Str, Uuid, batches};

use crate::fetch_sessions::Opened;
use crate::handlers::{epoch_error, gone};
use crate::node::Node;
use crate::partition::{Partition, Watch};
use crate::read_buffers::ReadBuffers;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(FetchRequest, 4..=17, handle);

/// The first version whose topics come by id.
const IDS_FROM: i16 = 13;
/// The first version whose clients know zstd.
const ZSTD_FROM: i16 = 10;

/// One partition of the request.
struct Wanted {
    source: Result<Arc<Partition>, ErrorCode>,
    asked: FetchPartition,
}

struct Plan {
    topics: Vec<(Str, Uuid, Vec<Wanted>)>,
    min_bytes: usize,
    max_bytes: usize,
    read_committed: bool,
    by_id: bool,
    zstd: bool,
    leader_epoch: i32,
    buffers: Arc<ReadBuffers>,
}

async fn handle(context: Context, mut request: FetchRequest) -> Result<FetchResponse, String> {
    let node = &*context.node;
    let sessions = &node.fetch_sessions;
    let by_id = context.version >= IDS_FROM;
    let opened = match sessions.begin(&mut request, by_id, Instant::now()) {
        Ok(Opened::Emptied) => return Ok(FetchResponse::default()),
        Ok(opened) => opened,
        Err(code) => return Ok(FetchResponse { error_code: code.code(), ..FetchResponse::default() }),
    };
    let full = if opened == Opened::Full { request.topics.clone() } else { Vec::new() };
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0))
        .min(node.config.max_fetch_wait);
    let deadline = Instant::now() + wait;
    let plan = Arc::new(plan(node, context.version, request));
    let mut response = answer(node, &plan, deadline, !wait.is_zero()).await?;
    let bytes = response.responses.iter().flat_map(|topic| &topic.partitions);
    node.metrics.record_bytes_out.add(bytes.map(|row| row.records.as_ref().map_or(0, Bytes::len)).sum());
    match opened {
        Opened::Full => sessions.open(&full, by_id, Instant::now(), &mut response),
        Opened::Incremental(id) => sessions.shorten(id, &mut response),
        Opened::None | Opened::Emptied => {}
    }
    Ok(response)
}

fn plan(node: &Node, version: i16, request: FetchRequest) -> Plan {
    let now = node.topics();
    let by_id = version >= IDS_FROM;
    let follower = request.replica_id >= 0 || request.replica_state.replica_id >= 0;
    // Each once: a partition takes a few bytes to ask for and a look at its files to answer.
    let mut seen = HashSet::new();
    let topic = |topic: tramline_wire::messages::fetch_request::FetchTopic| {
        let found = if by_id { now.by_id(&topic.topic_id) } else { now.by_name(&topic.topic) };
        let wanted = |asked: FetchPartition| {
            let source = if follower {
                Err(ErrorCode::TopicAuthorizationFailed)
            } else {
                match found {
                    None if by_id => Err(ErrorCode::UnknownTopicId),
                    None => Err(ErrorCode::UnknownTopicOrPartition),
                    Some(found) => {
                        found.partition(asked.partition).cloned().ok_or(ErrorCode::UnknownTopicOrPartition)
                    }
                }
            };
            Wanted { source, asked }
        };
        let once =
            |asked: &FetchPartition| seen.insert((topic.topic.clone(), topic.topic_id, asked.partition));
        let partitions = topic.partitions.into_iter().filter(once).map(wanted).collect();
        (topic.topic.clone(), topic.topic_id, partitions)
    };
    let max_bytes = usize::try_from(request.max_bytes).unwrap_or(0).min(node.config.max_fetch_bytes);
    Plan {
        topics: request.topics.into_iter().map(topic).collect(),
        min_bytes: usize::try_from(request.min_bytes).unwrap_or(0).min(max_bytes),
        max_bytes,
        read_committed: request.isolation_level == 1,
        by_id,
        zstd: version >= ZSTD_FROM,
        leader_epoch: node.leader_epoch,
        buffers: Arc::clone(&node.read_buffers),
    }
}

async fn answer(
    node: &Node,
    plan: &Arc<Plan>,
    deadline: Instant,
    may_wait: bool,
) -> Result<FetchResponse, String> {
    if let Some(response) = look(node, plan, !may_wait).await? {
        return Ok(response);
    }
    let watched = u32::try_from(plan.partitions().count()).unwrap_or(u32::MAX);
    let places = (node.parked_fetches.try_acquire(), node.parked_partitions.try_acquire_many(watched));
    let (Ok(_place), Ok(_partitions)) = places else {
        return Ok(look(node, plan, true).await?.unwrap_or_default());
    };
    let _parked = Parked::new(node);
    let moved = Arc::new(Notify::new());
    let _watches: Vec<Watch> =
        plan.partitions().map(|partition| partition.watch(Arc::clone(&moved))).collect();
    loop {
        // Looked at after registering: what moved before is seen now, what moves later wakes us.
        if let Some(response) = look(node, plan, false).await? {
            return Ok(response);
        }
        let woken = tokio::select! {
            () = moved.notified() => true,
            () = tokio::time::sleep_until(deadline) => false,
            () = node.stopping.cancelled() => false,
        };
        if !woken {
            return Ok(look(node, plan, true).await?.unwrap_or_default());
        }
    }
}

/// Reads what there is, off the runtime; `None` when it is not enough and the fetch may wait.
async fn look(node: &Node, plan: &Arc<Plan>, answer_anyway: bool) -> Result<Option<FetchResponse>, String> {
    let plan = Arc::clone(plan);
    node.readers.run(move || plan.look(answer_anyway)).await.map_err(|_| "the broker is stopping".to_owned())
}

struct Parked<'a>(&'a Node);

impl<'a> Parked<'a> {
    fn new(node: &'a Node) -> Self {
        node.metrics.fetches_parked.inc();
        Self(node)
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.metrics.fetches_parked.dec();
    }
}

/// One partition's part of the answer, its bytes still in the files.
struct Found {
    row: PartitionData,
    slice: Option<Slice>,
}

impl Plan {
    fn partitions(&self) -> impl Iterator<Item = &Arc<Partition>> {
        self.topics.iter().flat_map(|(_, _, wanted)| wanted).filter_map(|wanted| wanted.source.as_ref().ok())
    }

    fn look(&self, answer_anyway: bool) -> Option<FetchResponse> {
        let mut total = 0;
        let mut settled = answer_anyway || self.min_bytes == 0;
        let mut any = false;
        let mut topics = Vec::with_capacity(self.topics.len());
        for (name, id, wanted) in &self.topics {
            let mut rows = Vec::with_capacity(wanted.len());
            for wanted in wanted {
                any = true;
                let found = match self.find(wanted, total) {
                    Ok(found) => found,
                    Err(code) => {
                        settled = true;
                        Found { row: error_row(wanted.asked.partition, code), slice: None }
                    }
                };
                total += found.slice.as_ref().map_or(0, Slice::len);
                // It was cut for another reason than that there is no more.
                settled |=
                    found.slice.as_ref().is_some_and(|slice| slice.ranges().len() == Slice::MAX_RANGES);
                rows.push(found);
            }
            topics.push((name, *id, rows));
        }
        if any && !settled && total < self.min_bytes {
            // The slices go here: a waiting fetch holds no file open.
            return None;
        }
        let responses = topics
            .into_iter()
            .map(|(name, topic_id, rows)| FetchableTopicResponse {
                topic: name.clone(),
                topic_id,
                partitions: rows.into_iter().map(|found| self.load(found)).collect(),
            })
            .collect();
        Some(FetchResponse { responses, ..FetchResponse::default() })
    }

    fn find(&self, wanted: &Wanted, total: usize) -> Result<Found, ErrorCode> {
        let partition = wanted.source.as_ref().map_err(|code| *code)?;
        let asked = &wanted.asked;
        if let Some(code) = gone(partition, self.by_id) {
            return Err(code);
        }
        if let Some(code) = epoch_error(asked.current_leader_epoch, self.leader_epoch) {
            return Err(code);
        }
        let high_watermark = partition.high_watermark();
        let limit = usize::try_from(asked.partition_max_bytes).unwrap_or(0);
        let limit = limit.min(self.max_bytes.saturating_sub(total));
        let slice = partition
            .reader
            .read(asked.fetch_offset, limit, high_watermark, total == 0)
            .map_err(|error| gone(partition, self.by_id).unwrap_or_else(|| read_error(partition, &error)))?;
        let row = PartitionData {
            partition_index: asked.partition,
            high_watermark,
            last_stable_offset: high_watermark,
            log_start_offset: partition.reader.log_start(),
            aborted_transactions: self.read_committed.then(Vec::new),
            preferred_read_replica: -1,
            records: Some(Bytes::new()),
            ..PartitionData::default()
        };
        Ok(Found { row, slice: Some(slice) })
    }

    fn load(&self, found: Found) -> PartitionData {
        let Found { mut row, slice } = found;
        let Some(slice) = slice.filter(|slice| !slice.is_empty()) else { return row };
        match self.buffers.read(slice.len(), |out| slice.read_into(out)) {
            Ok(bytes) if !self.zstd && holds_zstd(&bytes) => {
                error_row(row.partition_index, ErrorCode::UnsupportedCompressionType)
            }
            Ok(bytes) => {
                row.records = Some(bytes);
                row
            }
            Err(error) => {
                tracing::error!(%error, "reading a log failed");
                error_row(row.partition_index, ErrorCode::KafkaStorageError)
            }
        }
    }
}

fn read_error(partition: &Partition, error: &ReadError) -> ErrorCode {
    if !matches!(error, ReadError::OutOfRange { .. }) {
        tracing::error!(partition = %partition.id, %error, "a fetch failed");
    }
    ErrorCode::from(error.code())
}

fn holds_zstd(bytes: &Bytes) -> bool {
    batches(bytes.clone())
        .filter_map(Result::ok)
        .any(|(header, _)| header.compression().is_ok_and(|codec| codec == Compression::Zstd))
}

fn error_row(partition_index: i32, code: ErrorCode) -> PartitionData {
    PartitionData {
        partition_index,
        error_code: code.code(),
        high_watermark: -1,
        last_stable_offset: -1,
        log_start_offset: -1,
        preferred_read_replica: -1,
        // Never null: librdkafka takes that for a broken answer.
        records: Some(Bytes::new()),
        ..PartitionData::default()
    }
}
