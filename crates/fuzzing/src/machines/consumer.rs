//! The fetcher: positions, what is asked, what is handed out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use tramline_core::client::fetcher::{
    Fetched, Fetcher, FetcherConfig, FetcherEvent, FetcherRequest, IsolationLevel, OffsetReset, OffsetSpec,
    Position, Start,
};
use tramline_core::client::metadata::ClusterView;
use tramline_core::time::Instant;
use tramline_wire::batch::set_base_offset_and_epoch;
use tramline_wire::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset as Diverging, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint,
    PartitionData,
};
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use tramline_wire::messages::{
    FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
};
use tramline_wire::{BatchBuilder, Compression, TopicPartition};

use super::{Choices, LEADER_EPOCH, PARTITIONS, later, learn, metadata};

/// Where the honest log of each partition ends.
const END: i64 = 20;
/// What may be buffered: what is read ahead, and one answer of each of a few leaders.
const MOST_BUFFERED: usize = 64 << 10;

/// Two records, made once: at which offset is written into copies.
static PAIR: LazyLock<Bytes> = LazyLock::new(|| {
    let mut builder = BatchBuilder::new(Compression::None);
    for value in [b"first", b"other"] {
        builder.append(1_000, Some(b"k"), Some(value), &[]).expect("two small records");
    }
    builder.build()
});

fn pair_at(base: i64, leader_epoch: i32) -> Bytes {
    let mut bytes = BytesMut::from(&PAIR[..]);
    set_base_offset_and_epoch(&mut bytes, base, leader_epoch);
    bytes.freeze()
}

struct Stand {
    fetcher: Fetcher,
    view: ClusterView,
    now: Instant,
    pending: Vec<FetcherRequest>,
    /// Where the next record of each partition may lie at the earliest.
    next: BTreeMap<TopicPartition, i64>,
    /// Resets told, and not yet seen in a position.
    resets: BTreeSet<TopicPartition>,
    handed_out: usize,
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

pub(super) fn check(mut choices: Choices<'_>) -> bool {
    let offset_reset = match choices.byte() % 3 {
        0 => OffsetReset::Earliest,
        1 => OffsetReset::Latest,
        _ => OffsetReset::None,
    };
    let settings = choices.byte();
    let isolation = settings & 2 != 0;
    let config = FetcherConfig {
        offset_reset,
        prefetch_bytes: if settings & 4 == 0 { 4096 } else { 0 },
        partition_max_bytes: 512,
        max_bytes: 2048,
        fetch_sessions: settings & 1 == 0,
        isolation_level: if isolation { IsolationLevel::ReadCommitted } else { IsolationLevel::default() },
        max_poll_records: 3,
        ..FetcherConfig::default()
    };
    let mut stand = Stand {
        fetcher: Fetcher::new(config),
        view: ClusterView::default(),
        now: Instant::ZERO,
        pending: Vec::new(),
        next: BTreeMap::new(),
        resets: BTreeSet::new(),
        handed_out: 0,
    };
    for partition in 0..PARTITIONS {
        stand.fetcher.assign(tp(partition), 1, Start::Offset(Position::at(0)));
    }
    while !choices.is_over() {
        stand.step(&mut choices);
    }
    let got_anywhere = stand.handed_out > 0;
    stand.recover();
    got_anywhere
}

impl Stand {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0 | 1 => {
                self.ask();
                self.answer(choices);
            }
            2 => {
                self.ask();
                if !self.pending.is_empty() {
                    let at = choices.below(self.pending.len());
                    let request = self.pending.remove(at);
                    self.fail(request);
                }
            }
            3 => self.take(),
            4 => {
                self.now = later(self.now, self.fetcher.next_timeout()) + choices.wait();
                self.fetcher.handle_timeout(self.now);
            }
            5 => {
                learn(&mut self.view, metadata(choices));
                self.fetcher.metadata_changed(&self.view);
            }
            6 => self.by_the_owner(choices),
            _ => self.ask(),
        }
        self.events();
        assert!(self.fetcher.buffered_bytes() <= MOST_BUFFERED, "{}", self.fetcher.buffered_bytes());
    }

    /// Takes what the fetcher wants to ask. It ends, and no broker has two fetches at once.
    fn ask(&mut self) {
        for round in 0.. {
            let Some(request) = self.fetcher.poll_request(self.now) else { break };
            self.pending.push(request);
            assert!(round < 64, "it never has enough");
        }
        let fetched = |request: &FetcherRequest| match request {
            FetcherRequest::Fetch { node, .. } => Some(*node),
            _ => None,
        };
        let nodes: Vec<i32> = self.pending.iter().filter_map(fetched).collect();
        let different: BTreeSet<i32> = nodes.iter().copied().collect();
        assert_eq!(nodes.len(), different.len(), "two fetches at one broker");
    }

    fn answer(&mut self, choices: &mut Choices<'_>) {
        if self.pending.is_empty() {
            return;
        }
        let at = choices.below(self.pending.len());
        match self.pending.remove(at) {
            FetcherRequest::Fetch { request, ticket, .. } => {
                self.fetcher.handle_fetch(ticket, Some(fetched(&request, choices)), self.now);
            }
            FetcherRequest::ListOffsets { request, ticket, .. } => {
                self.fetcher.handle_list_offsets(ticket, Some(looked_up(&request, choices)), self.now);
            }
            FetcherRequest::Epochs { request, ticket, .. } => {
                self.fetcher.handle_epochs(ticket, Some(epochs(&request, choices)), self.now);
            }
            FetcherRequest::Metadata { .. } => {
                learn(&mut self.view, metadata(choices));
                self.fetcher.handle_metadata(Some(&self.view), self.now);
            }
            other => panic!("{other:?}"),
        }
    }

    fn fail(&mut self, request: FetcherRequest) {
        match request {
            FetcherRequest::Fetch { ticket, .. } => self.fetcher.handle_fetch(ticket, None, self.now),
            FetcherRequest::ListOffsets { ticket, .. } => {
                self.fetcher.handle_list_offsets(ticket, None, self.now);
            }
            FetcherRequest::Epochs { ticket, .. } => self.fetcher.handle_epochs(ticket, None, self.now),
            FetcherRequest::Metadata { .. } => self.fetcher.handle_metadata(None, self.now),
            other => panic!("{other:?}"),
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.fetcher.poll_event() {
            if let FetcherEvent::Reset { topic_partition, .. } = event {
                self.resets.insert(topic_partition);
            }
        }
    }

    /// Takes what there is: in order, after what was handed out before, unless a reset was told.
    fn take(&mut self) {
        for _ in 0..64 {
            let taken = self.fetcher.take_batch();
            self.events();
            match taken {
                Some(Ok(fetched)) => self.taken(&fetched),
                Some(Err(_)) | None => return,
            }
        }
    }

    fn taken(&mut self, fetched: &Fetched) {
        let tp = &fetched.topic_partition;
        let mut next = match self.next.get(tp) {
            Some(next) if !self.resets.remove(tp) => *next,
            _ => fetched.first_offset,
        };
        assert_eq!(fetched.first_offset, next, "{tp}: from one place to another without a word");
        for record in &fetched.records {
            assert!(record.offset() >= next, "{tp}: {} after {next}", record.offset());
            next = record.offset() + 1;
            self.handed_out += 1;
        }
        assert!(fetched.next_offset >= next && fetched.next_offset > fetched.first_offset, "{fetched:?}");
        self.next.insert(tp.clone(), fetched.next_offset);
    }

    fn by_the_owner(&mut self, choices: &mut Choices<'_>) {
        let tp = tp(i32::from(choices.byte()) % PARTITIONS);
        match choices.byte() % 6 {
            0 => {
                self.fetcher.seek(&tp, Start::Offset(Position::at(i64::from(choices.byte()))));
            }
            1 => {
                self.fetcher.seek(&tp, Start::Lookup(OffsetSpec::Latest));
            }
            2 => return self.fetcher.pause(&tp),
            3 => return self.fetcher.resume(&tp),
            4 => self.fetcher.withhold(&tp),
            _ => self.fetcher.assign(tp.clone(), 2, Start::Offset(Position::at(0))),
        }
        self.next.remove(&tp);
    }

    /// From here on the peers are honest: everything to the end is handed out.
    fn recover(&mut self) {
        for request in std::mem::take(&mut self.pending) {
            self.fail(request);
        }
        for partition in 0..PARTITIONS {
            let tp = tp(partition);
            self.fetcher.resume(&tp);
            if self.fetcher.assignment().all(|(other, _)| *other != tp) {
                self.fetcher.assign(tp, 3, Start::Offset(Position::at(0)));
            }
        }
        let is_done = |fetcher: &Fetcher| {
            let at_end = |n| fetcher.position(&tp(n)).is_some_and(|at| at.offset == END);
            (0..PARTITIONS).all(at_end) && fetcher.buffered_bytes() == 0
        };
        let mut honest = Choices(&[]);
        for _ in 0..2_000 {
            if is_done(&self.fetcher) {
                return;
            }
            let awaiting: Vec<_> =
                self.fetcher.awaiting_position().map(|(tp, generation)| (tp.clone(), generation)).collect();
            for (tp, generation) in awaiting {
                self.fetcher.position_known(&tp, generation, Position::at(0));
                self.next.remove(&tp);
            }
            self.ask();
            while !self.pending.is_empty() {
                self.answer(&mut honest);
                self.events();
            }
            while let Some(taken) = self.fetcher.take_batch() {
                self.events();
                match taken {
                    Ok(fetched) => self.taken(&fetched),
                    // Told, with the position: the owner begins anew.
                    Err(error) => {
                        let tp = error.topic_partition();
                        self.fetcher.seek(tp, Start::Offset(Position::at(0)));
                        self.next.remove(tp);
                    }
                }
            }
            self.now = later(self.now, self.fetcher.next_timeout());
            self.fetcher.handle_timeout(self.now);
        }
        panic!("it does not come to the end: {:?}", self.fetcher);
    }
}

/// What an honest leader says to who takes it for the leader of this epoch.
fn of_leader(epoch: i32) -> i16 {
    match epoch {
        0..LEADER_EPOCH => 74,
        epoch if epoch > LEADER_EPOCH => 75,
        _ => 0,
    }
}

/// The answer of an honest log of pairs, as far as the bytes say nothing else.
fn fetched(request: &FetchRequest, choices: &mut Choices<'_>) -> FetchResponse {
    let mut responses = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::new();
        for asked in &topic.partitions {
            partitions.push(row(asked.partition, asked.fetch_offset, asked.current_leader_epoch, choices));
        }
        choices.disorder(&mut partitions);
        // The answer of version 13 and later has ids, that of older ones names.
        let (topic, topic_id) = match choices.byte() {
            0xff => (choices.topic(), topic.topic_id),
            0xfe => (Default::default(), choices.topic_id()),
            _ => (topic.topic.clone(), topic.topic_id),
        };
        responses.push(FetchableTopicResponse { topic, topic_id, partitions });
    }
    choices.disorder(&mut responses);
    let session_id = choices.small(0);
    let node_id = choices.small(1);
    FetchResponse {
        throttle_time_ms: choices.small(0),
        error_code: choices.code(),
        session_id,
        responses,
        node_endpoints: vec![NodeEndpoint { node_id, host: "h".into(), port: 9092, rack: None }],
    }
}

fn row(partition: i32, offset: i64, leader_epoch: i32, choices: &mut Choices<'_>) -> PartitionData {
    let honest_code = match (of_leader(leader_epoch), offset) {
        (0, 0..=END) => 0,
        (0, _) => 1,
        (code, _) => code,
    };
    let lie = choices.code();
    let error_code = if lie == 0 { honest_code } else { lie };
    let mut records = BytesMut::new();
    let mut base = offset & !1;
    while error_code == 0 && base < END && records.len() < 400 {
        records.extend_from_slice(&pair_at(choices.number(base), choices.small(LEADER_EPOCH)));
        base += 2;
    }
    if choices.one_in(16) {
        records.truncate(choices.below(records.len() + 1));
    }
    if choices.one_in(16) && !records.is_empty() {
        let at = choices.below(records.len());
        records[at] ^= choices.byte();
    }
    let diverging_epoch = match choices.byte() {
        0xff => Diverging { epoch: choices.small(1), end_offset: choices.number(offset - 1) },
        _ => Diverging::default(),
    };
    let current_leader = match choices.byte() {
        0xf0.. => LeaderIdAndEpoch { leader_id: choices.small(1), leader_epoch: choices.small(LEADER_EPOCH) },
        _ => LeaderIdAndEpoch::default(),
    };
    PartitionData {
        partition_index: choices.small(partition),
        error_code,
        high_watermark: choices.number(END),
        last_stable_offset: choices.number(END),
        log_start_offset: choices.number(0),
        diverging_epoch,
        current_leader,
        aborted_transactions: choices.one_in(8).then(|| {
            vec![AbortedTransaction { producer_id: choices.number(1), first_offset: choices.number(0) }]
        }),
        records: Some(records.freeze()),
        ..Default::default()
    }
}

fn looked_up(request: &ListOffsetsRequest, choices: &mut Choices<'_>) -> ListOffsetsResponse {
    let mut topics = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::new();
        for asked in &topic.partitions {
            let lie = choices.code();
            partitions.push(ListOffsetsPartitionResponse {
                partition_index: choices.small(asked.partition_index),
                error_code: if lie == 0 { of_leader(asked.current_leader_epoch) } else { lie },
                offset: choices.number(if asked.timestamp == -2 { 0 } else { END }),
                leader_epoch: choices.small(LEADER_EPOCH),
                ..Default::default()
            });
        }
        choices.disorder(&mut partitions);
        topics.push(ListOffsetsTopicResponse { name: choices.topic(), partitions });
    }
    choices.disorder(&mut topics);
    ListOffsetsResponse { topics, ..Default::default() }
}

fn epochs(request: &OffsetForLeaderEpochRequest, choices: &mut Choices<'_>) -> OffsetForLeaderEpochResponse {
    let mut topics = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::new();
        for asked in &topic.partitions {
            let (known, end) = match asked.leader_epoch {
                LEADER_EPOCH.. => (asked.leader_epoch, END),
                epoch => (epoch, 0),
            };
            let lie = choices.code();
            partitions.push(EpochEndOffset {
                error_code: if lie == 0 { of_leader(asked.current_leader_epoch) } else { lie },
                partition: choices.small(asked.partition),
                leader_epoch: choices.small(known),
                end_offset: choices.number(end),
            });
        }
        choices.disorder(&mut partitions);
        topics.push(OffsetForLeaderTopicResult { topic: choices.topic(), partitions });
    }
    choices.disorder(&mut topics);
    OffsetForLeaderEpochResponse { topics, ..Default::default() }
}
