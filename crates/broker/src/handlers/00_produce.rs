//! Produce (0), advertised from 0, served from 3 to 11.
//!
//! Advertised from 0 because older librdkafka takes that for "this broker knows compression"; a request below 3
//! closes the connection. Each partition gets exactly one batch of format 2; the checks run here, down to each record,
//! since a batch that cannot be taken apart would stop every reader of its partition; the sequence check is made
//! with the append. `acks=1` is answered after the write, `acks=all` after the barrier, `acks=0` never, but an error
//! then closes the connection. A full mailbox holds the request back, and with it the connection.
//! Gaps: no transactions (transactional batches get 48), no recompression, `timeout_ms` is not needed on one node.

use tokio::sync::oneshot;
use tramline_log::Append;
use tramline_wire::batch::{BatchRefusal, ProduceRules, RecordError, validate_produce_batch};
use tramline_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use tramline_wire::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceResponse,
};
use tramline_wire::messages::{ProduceRequest, ProduceResponse};
use tramline_wire::{ApiKey, BatchHeader, Compression, ErrorCode, Str};

use crate::node::Node;
use crate::partition::{Failure, Submission, Written};
use crate::routes::{Api, Envelope, Pending, Reply, Started, frame, ready};
use crate::topic_config::Effective;
use crate::topics::Topic;

pub(crate) const API: Api = Api {
    key: ApiKey::Produce,
    min: 0,
    max: 11,
    served_from: 3,
    start: |envelope| Started::Ordered(Box::pin(accept(envelope))),
};

/// The first version whose clients know zstd.
const ZSTD_FROM: i16 = 7;
/// What the records of one batch may unpack to: enough for any reader, and not too much for several at once here.
const MAX_UNPACKED: usize = 128 << 20;

/// What became of one partition's batch so far.
enum Row {
    Settled(PartitionProduceResponse),
    Waiting { index: i32, log_start: i64, written: oneshot::Receiver<Result<Written, Failure>> },
}

/// Checks and queues every batch of the request; when this is done, its place in the logs is fixed.
async fn accept(mut envelope: Envelope) -> Pending {
    let request = match envelope.decode::<ProduceRequest>() {
        Ok(request) => request,
        Err(reply) => return ready(reply),
    };
    let (version, correlation_id) = (envelope.context.version, envelope.correlation_id);
    let acks = request.acks;
    let topics = submit(&envelope.context.node, version, request).await;
    Box::pin(async move {
        let response = collect(topics).await;
        if acks == 0 {
            return unanswered(&response);
        }
        frame::<ProduceRequest>(correlation_id, version, &response)
    })
}

/// `acks=0` is answered by silence. An error cannot be told, so the connection ends and the client asks anew.
fn unanswered(response: &ProduceResponse) -> Reply {
    let mut rows = response.responses.iter().flat_map(|topic| &topic.partition_responses);
    match rows.find(|row| row.error_code != 0) {
        Some(row) => Reply::Close(format!("acks=0 and error {}", ErrorCode::from(row.error_code))),
        None => Reply::Nothing,
    }
}

async fn submit(node: &Node, version: i16, request: ProduceRequest) -> Vec<(Str, Vec<Row>)> {
    let now = node.topics();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for TopicProduceData { name, partition_data, .. } in request.topic_data {
        let topic = now.by_name(&name).map(|topic| &**topic);
        let mut rows = Vec::with_capacity(partition_data.len());
        for data in partition_data {
            let index = data.index;
            let row = submit_one(node, version, request.acks, topic, data).await;
            rows.push(row.unwrap_or_else(|refusal| Row::Settled(refused(index, refusal))));
        }
        topics.push((name, rows));
    }
    topics
}

async fn submit_one(
    node: &Node,
    version: i16,
    acks: i16,
    topic: Option<&Topic>,
    data: PartitionProduceData,
) -> Result<Row, Refused> {
    if !matches!(acks, -1..=1) {
        return Err(Refused::code(ErrorCode::InvalidRequiredAcks));
    }
    let Some((topic, partition)) = topic.and_then(|topic| Some((topic, topic.partition(data.index)?))) else {
        return Err(Refused::code(ErrorCode::UnknownTopicOrPartition));
    };
    if topic.is_internal() {
        return Err(Refused::code(ErrorCode::InvalidTopicException));
    }
    let records = data.records.unwrap_or_default();
    let (settings, now) = (partition.settings(), (node.clock)());
    let checked = records.clone();
    let check = move || validate(&checked, settings, version, now);
    let header = if is_compressed(&records) {
        // Not on the runtime: a few bytes may unpack to very many.
        node.unpackers.run(check).await.map_err(|_| Refused::code(ErrorCode::NotLeaderOrFollower))??
    } else {
        check()?
    };
    if header.is_transactional() {
        return Err(Refused::code(ErrorCode::InvalidTxnState));
    }
    let batch = Append::from_checked(records, header).map_err(|error| Refused {
        code: ErrorCode::from(error.code()),
        message: Some(error.to_string()),
        records: Vec::new(),
    })?;
    let room = partition.room_for(batch.bytes().len()).await;
    let (sender, written) = oneshot::channel();
    let done = Box::new(move |result| {
        let _ = sender.send(result);
    });
    let log_start = partition.reader.log_start();
    node.engine.submit(partition, Submission::Append { batch, forced: acks == -1, done, room });
    Ok(Row::Waiting { index: data.index, log_start, written })
}

fn is_compressed(records: &[u8]) -> bool {
    let codec = BatchHeader::parse(records).and_then(|header| header.compression());
    codec.is_ok_and(|codec| codec != Compression::None)
}

fn validate(records: &[u8], settings: Effective, version: i16, now: i64) -> Result<BatchHeader, Refused> {
    let mut rules = ProduceRules {
        max_message_bytes: settings.max_message_bytes,
        compacted: settings.compaction.is_some(),
        log_append_time: settings.log_append_time,
        zstd: version >= ZSTD_FROM,
        // A batch that cannot be taken apart would stop every reader of the partition.
        deep: true,
        max_uncompressed: MAX_UNPACKED,
        ..ProduceRules::default()
    };
    let header = validate_produce_batch(records, &rules)?;
    let oldest = now.saturating_sub(settings.timestamp_before_max_ms);
    let newest = now.saturating_add(settings.timestamp_after_max_ms);
    let suspicious =
        header.max_timestamp > newest || (header.base_timestamp != -1 && header.base_timestamp < oldest);
    if suspicious && !settings.log_append_time {
        // Only now is it worth looking at each: to say which records are at fault.
        rules.timestamps = Some((oldest, newest));
        validate_produce_batch(records, &rules)?;
        if header.max_timestamp > newest {
            // No record has it, but the segment would be as young as that.
            return Err(Refused::code(ErrorCode::InvalidTimestamp));
        }
    }
    Ok(header)
}

struct Refused {
    code: ErrorCode,
    message: Option<String>,
    records: Vec<BatchIndexAndErrorMessage>,
}

impl Refused {
    fn code(code: ErrorCode) -> Self {
        Self { code, message: None, records: Vec::new() }
    }
}

impl From<BatchRefusal> for Refused {
    fn from(refusal: BatchRefusal) -> Self {
        let record = |error: &RecordError| BatchIndexAndErrorMessage {
            batch_index: error.batch_index,
            batch_index_error_message: Some(Str::from(error.message)),
        };
        Self {
            code: ErrorCode::from(refusal.error_code()),
            message: Some(refusal.to_string()),
            records: refusal.record_errors.iter().map(record).collect(),
        }
    }
}

fn refused(index: i32, refusal: Refused) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        error_code: refusal.code.code(),
        base_offset: -1,
        log_append_time_ms: -1,
        log_start_offset: -1,
        record_errors: refusal.records,
        error_message: refusal.message.map(Str::from),
        ..PartitionProduceResponse::default()
    }
}

async fn collect(topics: Vec<(Str, Vec<Row>)>) -> ProduceResponse {
    let mut responses = Vec::with_capacity(topics.len());
    for (name, rows) in topics {
        let mut partition_responses = Vec::with_capacity(rows.len());
        for row in rows {
            partition_responses.push(match row {
                Row::Settled(row) => row,
                Row::Waiting { index, log_start, written } => settled(index, log_start, written.await.ok()),
            });
        }
        responses.push(TopicProduceResponse { name, partition_responses, ..TopicProduceResponse::default() });
    }
    ProduceResponse { responses, ..ProduceResponse::default() }
}

fn settled(index: i32, log_start: i64, result: Option<Result<Written, Failure>>) -> PartitionProduceResponse {
    let failure = match result {
        Some(Ok(written)) => {
            return PartitionProduceResponse {
                index,
                base_offset: written.base_offset,
                log_append_time_ms: written.log_append_time,
                log_start_offset: log_start,
                ..PartitionProduceResponse::default()
            };
        }
        Some(Err(failure)) => failure,
        // The answer was dropped: a bug of ours that has closed the partition.
        None => Failure::Storage,
    };
    refused(index, Refused { code: failure.code(), message: Some(failure.to_string()), records: Vec::new() })
}
