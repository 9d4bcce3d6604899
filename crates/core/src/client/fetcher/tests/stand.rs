//! A fetcher, a pretended cluster that holds its partitions' batches, and a clock that is moved by hand.

use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

use bytes::{Bytes, BytesMut};
use core::time::Duration;
use tramline_wire::batch::{BatchBuilder, set_base_offset_and_epoch};
use tramline_wire::checksum::crc32c;
use tramline_wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::{FetchRequest, ListOffsetsRequest};
use tramline_wire::{Compression, ErrorCode, Str, TopicPartition, Uuid};

use super::super::*;
use crate::client::metadata::{ClusterView, PartitionView, TopicView};

pub(super) fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

pub(super) fn at(ms: u64) -> Instant {
    Instant::from_start(Duration::from_millis(ms))
}

/// `count` records from `base`, the value of each its offset; leader epoch 3.
pub(super) fn batch(base: i64, count: i64) -> Bytes {
    batch_of(base, count, 0)
}

/// As [`batch`], each value padded to `size` bytes.
pub(super) fn batch_of(base: i64, count: i64, size: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for offset in base..base + count {
        let value = std::format!("{offset:>size$}");
        builder.append(1_000 + offset, None, Some(value.as_bytes()), &[]).unwrap();
    }
    placed(&builder.build(), base)
}

fn placed(batch: &[u8], base: i64) -> Bytes {
    let mut bytes = BytesMut::from(batch);
    set_base_offset_and_epoch(&mut bytes, base, 3);
    bytes.freeze()
}

fn reseal(mut bytes: BytesMut) -> Bytes {
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.freeze()
}

/// A control batch of one record at `base`.
pub(super) fn control(base: i64) -> Bytes {
    let mut bytes = BytesMut::from(&batch(base, 1)[..]);
    bytes[22] |= 1 << 5;
    reseal(bytes)
}

/// What compaction left of the offsets `base..=last`: nothing but the header.
pub(super) fn emptied(base: i64, last: i64) -> Bytes {
    let mut bytes = BytesMut::from(&batch(base, 1)[..61]);
    bytes[8..12].copy_from_slice(&49_i32.to_be_bytes());
    bytes[23..27].copy_from_slice(&i32::try_from(last - base).unwrap().to_be_bytes());
    bytes[57..61].copy_from_slice(&0_i32.to_be_bytes());
    reseal(bytes)
}

/// One byte of the checksum turned over.
pub(super) fn damaged(batch: &Bytes) -> Bytes {
    let mut bytes = BytesMut::from(&batch[..]);
    bytes[18] ^= 0x40;
    bytes.freeze()
}

fn last_offset(batch: &Bytes) -> i64 {
    tramline_wire::BatchHeader::parse(batch).unwrap().last_offset()
}

/// One partition of the pretended cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub start: i64,
    pub batches: Vec<Bytes>,
    /// Answered instead of data, once.
    pub error: Option<ErrorCode>,
    /// Answered byte for byte instead of what the limits allow, once.
    pub raw: Option<Bytes>,
}

impl Log {
    pub(super) fn end(&self) -> i64 {
        self.batches.last().map_or(self.start, |batch| last_offset(batch) + 1)
    }

    /// As a broker reads: whole batches up to `max`, but the first one in any case when `first`.
    fn read(&self, offset: i64, max: usize, first: bool) -> Bytes {
        let mut bytes = BytesMut::new();
        for batch in self.batches.iter().filter(|batch| last_offset(batch) >= offset) {
            let fits = bytes.len() + batch.len() <= max || (first && bytes.is_empty());
            if !fits {
                break;
            }
            bytes.extend_from_slice(batch);
        }
        bytes.freeze()
    }
}

pub(super) struct Stand {
    pub fetcher: Fetcher,
    pub logs: BTreeMap<TopicPartition, Log>,
    pub leaders: BTreeMap<i32, i32>,
    pub topic_id: u8,
    pub now: Instant,
    pub fetches: Vec<FetchRequest>,
    pub lookups: usize,
    pub metadata: usize,
    /// Whether brokers answer at all.
    pub up: bool,
}

impl Stand {
    pub(super) fn new(config: FetcherConfig) -> Self {
        Self {
            fetcher: Fetcher::new(config),
            logs: BTreeMap::new(),
            leaders: BTreeMap::new(),
            topic_id: 7,
            now: Instant::ZERO,
            fetches: Vec::new(),
            lookups: 0,
            metadata: 0,
            up: true,
        }
    }

    /// A stand whose one partition holds these batches and is read from offset 0.
    pub(super) fn with(batches: Vec<Bytes>) -> Self {
        Self::configured(FetcherConfig::default(), batches)
    }

    pub(super) fn configured(config: FetcherConfig, batches: Vec<Bytes>) -> Self {
        let mut stand = Self::new(config);
        stand.add(0, batches);
        stand.assign(0, 0);
        stand
    }

    pub(super) fn add(&mut self, partition: i32, batches: Vec<Bytes>) {
        self.logs.insert(tp(partition), Log { batches, ..Default::default() });
        self.leaders.insert(partition, 1);
    }

    pub(super) fn assign(&mut self, partition: i32, offset: i64) {
        self.fetcher.assign(tp(partition), 1, Start::Offset(Position::at(offset)));
    }

    pub(super) fn log(&mut self, partition: i32) -> &mut Log {
        self.logs.get_mut(&tp(partition)).unwrap()
    }

    pub(super) fn position(&self, partition: i32) -> Option<i64> {
        self.fetcher.position(&tp(partition)).map(|position| position.offset)
    }

    pub(super) fn view(&self) -> ClusterView {
        let row = |(&partition, &leader): (&i32, &i32)| PartitionView {
            partition,
            leader: (leader >= 0).then_some(leader),
            leader_epoch: 3,
            replicas: Vec::new(),
            in_sync_replicas: Vec::new(),
            error_code: 0,
        };
        let partitions = self.leaders.iter().map(row).collect();
        let topic = TopicView { id: Uuid::from_bytes([self.topic_id; 16]), partitions, ..Default::default() };
        ClusterView { topics: [(Str::from("t"), topic)].into(), ..Default::default() }
    }

    /// The next request that is a fetch; everything else is answered on the way.
    pub(super) fn next_fetch(&mut self) -> Option<(FetchRequest, FetchTicket)> {
        loop {
            match self.fetcher.poll_request(self.now)? {
                FetcherRequest::Fetch { request, ticket, .. } => {
                    self.fetches.push(request.clone());
                    return Some((request, ticket));
                }
                FetcherRequest::ListOffsets { request, ticket, .. } => {
                    self.lookups += 1;
                    let answer = self.up.then(|| self.answer_lookup(&request));
                    self.fetcher.handle_list_offsets(ticket, answer, self.now);
                }
                FetcherRequest::Metadata { .. } => {
                    self.metadata += 1;
                    let view = self.up.then(|| self.view());
                    self.fetcher.handle_metadata(view.as_ref(), self.now);
                }
            }
        }
    }

    /// Answers until the fetcher wants nothing more. Answers without news come last, as those of a long poll do.
    pub(super) fn settle(&mut self) {
        let mut parked = Vec::new();
        while let Some((request, ticket)) = self.next_fetch() {
            let answer = self.up.then(|| self.answer(&request));
            let is_news = |answer: &FetchResponse| {
                let mut rows = answer.responses.iter().flat_map(|topic| &topic.partitions);
                rows.any(|row| {
                    row.error_code != 0 || row.records.as_ref().is_some_and(|bytes| !bytes.is_empty())
                })
            };
            if answer.as_ref().is_none_or(is_news) {
                self.fetcher.handle_fetch(ticket, answer, self.now);
            } else {
                parked.push((ticket, answer));
            }
        }
        for (ticket, answer) in parked {
            self.fetcher.handle_fetch(ticket, answer, self.now);
        }
    }

    pub(super) fn answer(&mut self, request: &FetchRequest) -> FetchResponse {
        let mut left = usize::try_from(request.max_bytes).unwrap();
        let mut first = true;
        let mut responses = Vec::new();
        for topic in &request.topics {
            let mut partitions = Vec::new();
            for asked in &topic.partitions {
                let mut data = PartitionData { partition_index: asked.partition, ..Default::default() };
                let log = self.logs.get_mut(&tp(asked.partition)).unwrap();
                data.high_watermark = log.end();
                data.records = Some(Bytes::new());
                if let Some(code) = log.error.take() {
                    data.error_code = code.code();
                } else if let Some(raw) = log.raw.take() {
                    data.records = Some(raw);
                } else if asked.fetch_offset < log.start || asked.fetch_offset > log.end() {
                    data.error_code = ErrorCode::OffsetOutOfRange.code();
                } else {
                    let max = left.min(usize::try_from(asked.partition_max_bytes).unwrap());
                    let bytes = log.read(asked.fetch_offset, max, first);
                    left = left.saturating_sub(bytes.len());
                    first &= bytes.is_empty();
                    data.records = Some(bytes);
                }
                partitions.push(data);
            }
            responses.push(FetchableTopicResponse {
                topic_id: topic.topic_id,
                partitions,
                ..Default::default()
            });
        }
        FetchResponse { responses, ..Default::default() }
    }

    fn answer_lookup(&mut self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        let mut partitions = Vec::new();
        for asked in &request.topics[0].partitions {
            let log = self.logs.get_mut(&tp(asked.partition_index)).unwrap();
            let mut row =
                ListOffsetsPartitionResponse { partition_index: asked.partition_index, ..Default::default() };
            match (log.error.take(), asked.timestamp) {
                (Some(code), _) => row.error_code = code.code(),
                (None, -2) => row.offset = log.start,
                (None, -1) => row.offset = log.end(),
                (None, _) => row.offset = -1,
            }
            partitions.push(row);
        }
        let topic = ListOffsetsTopicResponse { name: "t".into(), partitions };
        ListOffsetsResponse { topics: std::vec![topic], ..Default::default() }
    }

    /// Takes one record, letting the cluster answer and time pass as needed.
    pub(super) fn record(&mut self) -> Result<i64, String> {
        for _ in 0..100 {
            if let Some(taken) = self.fetcher.take_record() {
                return taken.map(|record| record.offset()).map_err(|error| std::format!("{error:?}"));
            }
            self.settle();
            if let Some(due) = self.fetcher.next_timeout() {
                self.now = self.now.max(due);
                self.fetcher.handle_timeout(self.now);
            }
        }
        Err("nothing more".into())
    }

    pub(super) fn records(&mut self, count: usize) -> Vec<i64> {
        (0..count).map(|_| self.record().unwrap()).collect()
    }

    /// As [`Stand::record`] for a chunk: its offsets, and the offset after it.
    pub(super) fn chunk(&mut self) -> Option<(Vec<i64>, i64)> {
        for _ in 0..100 {
            if let Some(taken) = self.fetcher.take_batch() {
                let fetched = taken.unwrap();
                return Some((
                    fetched.records.iter().map(tramline_wire::Record::offset).collect(),
                    fetched.next_offset,
                ));
            }
            self.settle();
            if let Some(due) = self.fetcher.next_timeout() {
                self.now = self.now.max(due);
                self.fetcher.handle_timeout(self.now);
            }
        }
        None
    }

    /// The next thing taken must be an error.
    pub(super) fn error(&mut self) -> FetchError {
        for _ in 0..100 {
            match self.fetcher.take_record() {
                Some(Err(error)) => return error,
                Some(Ok(record)) => panic!("a record at {} in place of an error", record.offset()),
                None => self.settle(),
            }
        }
        panic!("no error came");
    }
}
