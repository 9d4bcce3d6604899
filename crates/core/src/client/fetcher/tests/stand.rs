//! A fetcher, a pretended cluster that holds its partitions' batches, and a clock that is moved by hand.

use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

use bytes::{Bytes, BytesMut};
use core::time::Duration;
use tramline_wire::batch::{BatchBuilder, set_base_offset_and_epoch};
use tramline_wire::checksum::crc32c;
use tramline_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use tramline_wire::messages::fetch_response::{
    AbortedTransaction, FetchResponse, FetchableTopicResponse, PartitionData,
};
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use tramline_wire::messages::{FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest};
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
    under(batch, base, 3)
}

/// The batch at `base`, written under a leader of this epoch.
pub(super) fn under(batch: &[u8], base: i64, leader_epoch: i32) -> Bytes {
    let mut bytes = BytesMut::from(batch);
    set_base_offset_and_epoch(&mut bytes, base, leader_epoch);
    bytes.freeze()
}

/// Two records from `base`, in a transaction of `producer`.
pub(super) fn in_transaction(base: i64, producer: i64) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::Gzip);
    for offset in base..base + 2 {
        builder.append(1_000 + offset, None, Some(b"in a transaction"), &[]).unwrap();
    }
    placed(&builder.producer(producer, 0, 0).transactional(true).build(), base)
}

/// The record that ends a transaction of `producer`.
pub(super) fn end_of_transaction(base: i64, producer: i64, committed: bool) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    let key = [0, 0, 0, u8::from(committed)];
    builder.append(1_000 + base, Some(&key), Some(&[0; 6]), &[]).unwrap();
    placed(&builder.producer(producer, 0, -1).transactional(true).control(true).build(), base)
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
    /// Each leader epoch and the first offset under it; empty: epoch 3 from the start.
    pub epochs: Vec<(i32, i64)>,
    /// Transactions that were aborted.
    pub aborted: Vec<AbortedTransaction>,
    /// Where the oldest open transaction begins.
    pub open_from: Option<i64>,
}

impl Log {
    pub(super) fn end(&self) -> i64 {
        self.batches.last().map_or(self.start, |batch| last_offset(batch) + 1)
    }

    /// Where an epoch ends, as Kafka says it.
    fn end_of(&self, epoch: i32) -> (i32, i64) {
        let first = [(3, self.start)];
        let epochs = if self.epochs.is_empty() { &first[..] } else { &self.epochs };
        match epochs.iter().position(|(known, _)| *known > epoch) {
            None if epochs.last().is_some_and(|(last, _)| *last == epoch) => (epoch, self.end()),
            None => (-1, -1),
            Some(0) => (epoch, epochs[0].1),
            Some(next) => (epochs[next - 1].0, epochs[next].1),
        }
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

/// What the pretended brokers remember of the fetcher, by session.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    ids: i32,
    pub sessions: BTreeMap<i32, Session>,
}

#[derive(Debug, Default)]
pub(super) struct Session {
    epoch: i32,
    partitions: Vec<(Uuid, FetchPartition)>,
    /// Which high watermark was told last.
    told: BTreeMap<i32, i64>,
}

pub(super) struct Stand {
    pub fetcher: Fetcher,
    pub leader_epoch: i32,
    /// Sessions are kept when there is something to keep them in.
    pub session: Option<Remembered>,
    /// Whether brokers speak of epochs, and how often they were asked to.
    pub knows_epochs: bool,
    pub epochs: usize,
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
            leader_epoch: 3,
            session: None,
            knows_epochs: true,
            epochs: 0,
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
            leader_epoch: self.leader_epoch,
            replicas: Vec::new(),
            in_sync_replicas: Vec::new(),
            error_code: 0,
        };
        let partitions = self.leaders.iter().map(row).collect();
        let topic = TopicView { id: Uuid::from_bytes([self.topic_id; 16]), partitions, ..Default::default() };
        let mut view = ClusterView::default();
        view.topics.insert(Str::from("t"), topic);
        view
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
                FetcherRequest::Epochs { ticket, .. } if !self.knows_epochs => {
                    self.fetcher.epochs_unsupported(ticket);
                }
                FetcherRequest::Epochs { request, ticket, .. } => {
                    self.epochs += 1;
                    let answer = self.up.then(|| self.answer_epochs(&request));
                    self.fetcher.handle_epochs(ticket, answer, self.now);
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
        let mut whole = request.clone();
        let session = match self.session.as_mut().map(|remembered| remembered.begin(&mut whole)) {
            Some(Err(code)) => return FetchResponse { error_code: code.code(), ..Default::default() },
            Some(Ok(id)) => id,
            None => 0,
        };
        let mut left = usize::try_from(request.max_bytes).unwrap();
        let mut first = true;
        let mut responses = Vec::new();
        for topic in &whole.topics {
            let rows = topic.partitions.iter().map(|asked| self.read(request, asked, &mut left, &mut first));
            let partitions = rows.collect();
            responses.push(FetchableTopicResponse {
                topic_id: topic.topic_id,
                partitions,
                ..Default::default()
            });
        }
        let mut response = FetchResponse { responses, ..Default::default() };
        let remembered = self.session.as_mut().and_then(|remembered| remembered.sessions.get_mut(&session));
        if let Some(session) = remembered {
            session.tell(request.session_epoch > 0, &mut response);
        }
        response.session_id = session;
        response
    }

    fn read(
        &mut self,
        request: &FetchRequest,
        asked: &FetchPartition,
        left: &mut usize,
        first: &mut bool,
    ) -> PartitionData {
        let mut data = PartitionData { partition_index: asked.partition, ..Default::default() };
        let log = self.logs.get_mut(&tp(asked.partition)).unwrap();
        data.high_watermark = log.end();
        data.last_stable_offset = log.open_from.unwrap_or(log.end());
        data.records = Some(Bytes::new());
        if let Some(code) = log.error.take() {
            data.error_code = code.code();
        } else if (0..self.leader_epoch).contains(&asked.current_leader_epoch) {
            data.error_code = ErrorCode::FencedLeaderEpoch.code();
        } else if asked.current_leader_epoch > self.leader_epoch {
            data.error_code = ErrorCode::UnknownLeaderEpoch.code();
        } else if let Some(raw) = log.raw.take() {
            data.records = Some(raw);
        } else if asked.fetch_offset < log.start || asked.fetch_offset > log.end() {
            data.error_code = ErrorCode::OffsetOutOfRange.code();
        } else {
            if request.isolation_level == 1 {
                data.aborted_transactions = Some(log.aborted.clone());
            }
            let max = (*left).min(usize::try_from(asked.partition_max_bytes).unwrap());
            let bytes = log.read(asked.fetch_offset, max, *first);
            *left = left.saturating_sub(bytes.len());
            *first &= bytes.is_empty();
            data.records = Some(bytes);
        }
        data
    }

    pub(super) fn answer_epochs(
        &mut self,
        request: &OffsetForLeaderEpochRequest,
    ) -> OffsetForLeaderEpochResponse {
        assert_eq!(request.replica_id, -1);
        let mut partitions = Vec::new();
        for asked in &request.topics[0].partitions {
            assert!(asked.leader_epoch <= asked.current_leader_epoch, "a leader cannot know later epochs");
            let log = self.logs.get_mut(&tp(asked.partition)).unwrap();
            let (leader_epoch, end_offset) = log.end_of(asked.leader_epoch);
            let error_code = match log.error.take() {
                Some(code) => code.code(),
                None if asked.current_leader_epoch < self.leader_epoch => ErrorCode::FencedLeaderEpoch.code(),
                None if asked.current_leader_epoch > self.leader_epoch => {
                    ErrorCode::UnknownLeaderEpoch.code()
                }
                None => 0,
            };
            partitions.push(EpochEndOffset {
                error_code,
                partition: asked.partition,
                leader_epoch,
                end_offset,
            });
        }
        let topic = OffsetForLeaderTopicResult { topic: "t".into(), partitions };
        OffsetForLeaderEpochResponse { topics: std::vec![topic], ..Default::default() }
    }

    /// A new leader is elected, and the client hears of it.
    pub(super) fn elect(&mut self, node: i32) {
        self.leader_epoch += 1;
        let partitions: Vec<i32> = self.leaders.keys().copied().collect();
        for partition in partitions {
            self.leaders.insert(partition, node);
            let (epoch, log) = (self.leader_epoch, self.log(partition));
            if log.epochs.is_empty() {
                log.epochs.push((3, log.start));
            }
            log.epochs.push((epoch, log.end()));
        }
        self.fetcher.metadata_changed(&self.view());
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

impl Remembered {
    /// Makes the request name everything its session reads, and gives the session.
    fn begin(&mut self, request: &mut FetchRequest) -> Result<i32, ErrorCode> {
        if request.session_epoch <= 0 {
            self.sessions.remove(&request.session_id);
            if request.session_epoch < 0 {
                return Ok(0);
            }
            self.ids += 1;
            let session = Session { epoch: 1, partitions: named(request), ..Default::default() };
            self.sessions.insert(self.ids, session);
            return Ok(self.ids);
        }
        let session = self.sessions.get_mut(&request.session_id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if session.epoch != request.session_epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        session.epoch += 1;
        for topic in &request.forgotten_topics_data {
            let forgotten = |id: &Uuid, p: &FetchPartition| {
                *id == topic.topic_id && topic.partitions.contains(&p.partition)
            };
            session.partitions.retain(|(id, row)| !forgotten(id, row));
        }
        for (id, row) in named(request) {
            match session.partitions.iter_mut().find(|(i, r)| (*i, r.partition) == (id, row.partition)) {
                Some(known) => known.1 = row,
                None => session.partitions.push((id, row)),
            }
        }
        if session.partitions.is_empty() {
            self.sessions.remove(&request.session_id);
            request.topics.clear();
            return Ok(0);
        }
        let rows = session.partitions.iter().map(|(topic_id, row)| FetchTopic {
            topic: Str::new(),
            topic_id: *topic_id,
            partitions: std::vec![row.clone()],
        });
        request.topics = rows.collect();
        Ok(request.session_id)
    }
}

fn named(request: &FetchRequest) -> Vec<(Uuid, FetchPartition)> {
    let rows = |topic: &FetchTopic| {
        let id = topic.topic_id;
        topic.partitions.iter().map(move |row| (id, row.clone())).collect::<Vec<_>>()
    };
    request.topics.iter().flat_map(rows).collect()
}

impl Session {
    /// Leaves out what is known, and moves what had data to the end.
    fn tell(&mut self, incremental: bool, response: &mut FetchResponse) {
        for topic in &mut response.responses {
            let told = &mut self.told;
            let served = &mut self.partitions;
            topic.partitions.retain(|row| {
                let mark = if row.error_code == 0 { row.high_watermark } else { -1 };
                let news = told.insert(row.partition_index, mark) != Some(mark);
                let has_data = row.records.as_ref().is_some_and(|bytes| !bytes.is_empty());
                if has_data
                    && let Some(at) = served.iter().position(|(_, r)| r.partition == row.partition_index)
                {
                    let moved = served.remove(at);
                    served.push(moved);
                }
                !incremental || news || has_data || row.error_code != 0
            });
        }
        response.responses.retain(|topic| !topic.partitions.is_empty());
    }
}
