//! A workload over a broker moved by hand, and a ledger of everything it was promised.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tramline_broker::{Answer, BrokerConfig, SteppedBroker};
use tramline_log::Storage;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use tramline_wire::messages::{
    DeleteTopicsRequest, InitProducerIdRequest, MetadataRequest, OffsetCommitRequest, OffsetFetchRequest,
    ProduceRequest,
};
use tramline_wire::{Request, decode_response, encode_request};

use super::{FETCH, PRODUCE, create_topics, fetch, only_partition, only_row, produce, sequenced, values};

pub const DIR: &str = "/data";
const GROUP: &str = "g";

type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A record that was sent, and what is known of it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub topic: &'static str,
    pub partition: i32,
    pub value: String,
    pub acks: i16,
    pub producer: (i64, i32),
    /// The offset, once acked.
    pub offset: Option<i64>,
}

/// What a broker has promised so far.
#[derive(Default)]
pub struct Ledger {
    pub sent: Vec<Sent>,
    /// Commits in the order they were sent; the flag says answered.
    pub commits: Vec<(i32, i64, bool)>,
    pub topics: BTreeSet<&'static str>,
    /// Values of topics whose deletion was answered: never to be seen again, in no topic of that name.
    pub ghosts: Vec<(&'static str, String)>,
    pub producer_ids: BTreeSet<i64>,
    /// Error codes that were answered.
    pub codes: BTreeMap<i16, usize>,
}

pub struct Hand {
    pub broker: SteppedBroker,
}

pub fn config() -> BrokerConfig {
    BrokerConfig::new()
        .presize_bytes(8192)
        .checkpoint_interval(std::time::Duration::ZERO)
        .auto_create_topics(false)
}

fn start<R: Request>(broker: &SteppedBroker, version: i16, request: &R) -> Pending {
    let frame = encode_request(1, Some("test"), version, request).unwrap().to_bytes();
    broker.request(frame.slice(4..))
}

fn poll(pending: &mut Pending) -> Option<Answer> {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn decode<R: Request>(version: i16, answer: Answer) -> Option<R::Response> {
    match answer {
        Answer::Frame(frame) => Some(decode_response::<R>(frame.slice(4..), version).unwrap().1),
        _ => None,
    }
}

impl Hand {
    pub fn open(storage: Arc<dyn Storage>) -> Result<Self, tramline_broker::StartError> {
        Ok(Self { broker: SteppedBroker::open(storage, DIR, config())? })
    }

    /// A request on its own, stepped to its answer. A request that never gets one is a hang.
    pub fn call<R: Request>(&self, version: i16, request: &R) -> Option<R::Response> {
        self.all::<R>(version, &[request]).remove(0)
    }

    /// Requests that are all queued before anything is written.
    pub fn all<R: Request>(&self, version: i16, requests: &[&R]) -> Vec<Option<R::Response>> {
        let mut pending: Vec<Pending> =
            requests.iter().map(|request| start(&self.broker, version, *request)).collect();
        let early: Vec<Option<Answer>> = pending.iter_mut().map(poll).collect();
        self.broker.settle();
        let finish = |(mut pending, early): (Pending, Option<Answer>)| {
            let answer = early
                .or_else(|| poll(&mut pending))
                .expect("nothing is left to do, and a waiter still waits");
            decode::<R>(version, answer)
        };
        pending.into_iter().zip(early).map(finish).collect()
    }

    pub fn fetch_all(&self, topic: &str, partition: i32) -> Result<Vec<(i64, String)>, i16> {
        let (mut found, mut next) = (Vec::new(), 0);
        loop {
            let response = self
                .call(FETCH, &fetch(topic, partition, next, 0, 1))
                .expect("a fetch closed its connection");
            let row = only_partition(&response);
            if row.error_code != 0 {
                return Err(row.error_code);
            }
            let records = values(row.records.unwrap());
            let Some((last, _)) = records.last() else { return Ok(found) };
            next = last + 1;
            found.extend(records);
        }
    }

    pub fn committed(&self, partition: i32) -> i64 {
        let request = OffsetFetchRequest {
            group_id: GROUP.into(),
            topics: Some(vec![OffsetFetchRequestTopic {
                name: "t".into(),
                partition_indexes: vec![partition],
            }]),
            ..OffsetFetchRequest::default()
        };
        let response = self.call(7, &request).unwrap();
        assert_eq!((response.error_code, response.topics[0].partitions[0].error_code), (0, 0));
        response.topics[0].partitions[0].committed_offset
    }

    pub fn topic_names(&self) -> BTreeSet<String> {
        let response =
            self.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).unwrap();
        let ours = response.topics.iter().filter(|topic| !topic.is_internal);
        ours.map(|topic| topic.name.clone().unwrap().to_string()).collect()
    }
}

impl Ledger {
    fn note_code(&mut self, code: i16) {
        *self.codes.entry(code).or_insert(0) += 1;
    }

    fn create(&mut self, hand: &Hand, name: &'static str, partitions: i32) {
        let Some(response) = hand.call(7, &create_topics(name, partitions, &[("segment.bytes", "4096")]))
        else {
            return;
        };
        self.note_code(response.topics[0].error_code);
        if response.topics[0].error_code == 0 {
            self.topics.insert(name);
        }
    }

    fn delete(&mut self, hand: &Hand, name: &'static str) {
        self.topics.remove(name);
        // From here on its records may be there or gone.
        let gone = self.sent.extract_if(.., |sent| sent.topic == name);
        let gone: Vec<(&'static str, String)> = gone.map(|sent| (name, sent.value)).collect();
        let request =
            DeleteTopicsRequest { topic_names: vec![name.into()], ..DeleteTopicsRequest::default() };
        let Some(response) = hand.call(5, &request) else { return };
        let code = response.responses[0].error_code;
        self.note_code(code);
        if code == 0 {
            self.ghosts.extend(gone);
        }
    }

    fn producer_id(&mut self, hand: &Hand) -> Option<i64> {
        let response =
            hand.call(4, &InitProducerIdRequest { transactional_id: None, ..Default::default() })?;
        self.note_code(response.error_code);
        if response.error_code != 0 {
            return None;
        }
        assert!(self.producer_ids.insert(response.producer_id), "producer id {} twice", response.producer_id);
        Some(response.producer_id)
    }

    /// Sends one record per entry, all queued before the first is written.
    fn produce(&mut self, hand: &Hand, batch: Vec<Sent>) {
        let requests: Vec<ProduceRequest> = batch
            .iter()
            .map(|sent| {
                let records = sequenced(&[&sent.value], sent.producer.0, 0, sent.producer.1);
                produce(sent.topic, sent.partition, sent.acks, records)
            })
            .collect();
        let answers = hand.all(PRODUCE, &requests.iter().collect::<Vec<_>>());
        for (mut sent, answer) in batch.into_iter().zip(answers) {
            if let Some(row) = answer.map(|response| only_row(&response)) {
                self.note_code(row.error_code);
                sent.offset = (row.error_code == 0).then_some(row.base_offset);
            }
            self.sent.push(sent);
        }
    }

    fn commit(&mut self, hand: &Hand, partition: i32, offset: i64) {
        let row = OffsetCommitRequestPartition {
            partition_index: partition,
            committed_offset: offset,
            ..OffsetCommitRequestPartition::default()
        };
        let request = OffsetCommitRequest {
            group_id: GROUP.into(),
            topics: vec![OffsetCommitRequestTopic {
                name: "t".into(),
                partitions: vec![row],
                ..OffsetCommitRequestTopic::default()
            }],
            ..OffsetCommitRequest::default()
        };
        let code = hand.call(8, &request).map(|response| response.topics[0].partitions[0].error_code);
        self.note_code(code.unwrap_or(0));
        self.commits.push((partition, offset, code == Some(0)));
    }

    /// The whole story: topics, two partitions over several rolls, weak and forced acks in the same groups, commits
    /// above what was forced, a topic that comes, goes and comes again.
    pub fn run(&mut self, hand: &Hand) {
        self.create(hand, "t", 2);
        let Some(id) = self.producer_id(hand) else { return };
        // Three batches fill a segment, so that every other roll falls between two members of a group.
        let text = |name: &str, round: i32| format!("{name}-{round}-{}", "x".repeat(1100));
        for round in 0..8 {
            let sent = |partition, acks, name: &str, sequence| Sent {
                topic: "t",
                partition,
                value: text(name, round),
                acks,
                producer: (id, sequence),
                offset: None,
            };
            self.produce(
                hand,
                vec![
                    sent(0, -1, "forced", round * 2),
                    sent(0, 1, "weak", round * 2 + 1),
                    sent(1, 1, "weak", round * 2),
                    sent(1, if round % 2 == 0 { -1 } else { 1 }, "mixed", round * 2 + 1),
                ],
            );
            let end =
                self.sent.iter().filter(|sent| sent.partition == 1).filter_map(|sent| sent.offset).max();
            if let Some(end) = end {
                self.commit(hand, 1, end + 1);
            }
            if round == 2 {
                self.create(hand, "u", 1);
                let value = "old".to_owned();
                self.produce(
                    hand,
                    vec![Sent { topic: "u", partition: 0, value, acks: -1, producer: (id, 0), offset: None }],
                );
            }
            if round == 4 {
                self.delete(hand, "u");
            }
            if round == 6 {
                self.create(hand, "u", 1);
                let value = "new".to_owned();
                self.produce(
                    hand,
                    vec![Sent { topic: "u", partition: 0, value, acks: -1, producer: (id, 1), offset: None }],
                );
            }
        }
        self.producer_id(hand);
    }

    /// Everything promised is there, once, in its place; `weak` says whether `acks=1` counts as a promise.
    pub fn violation(&self, hand: &Hand, weak: bool) -> Option<String> {
        let names = hand.topic_names();
        if let Some(lost) = self.topics.iter().find(|name| !names.contains(**name)) {
            return Some(format!("topic {lost} was created and is not there"));
        }
        let mut logs: BTreeMap<(&str, i32), Vec<(i64, String)>> = BTreeMap::new();
        for sent in &self.sent {
            let promised = sent.offset.is_some() && (sent.acks == -1 || (weak && sent.acks == 1));
            if !names.contains(sent.topic) && !promised {
                continue;
            }
            let key = (sent.topic, sent.partition);
            let log = match logs.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unread) => match hand.fetch_all(sent.topic, sent.partition) {
                    Ok(log) => unread.insert(log),
                    Err(code) => return Some(format!("{key:?} cannot be read: code {code}")),
                },
            };
            let places: Vec<i64> =
                log.iter().filter(|(_, value)| *value == sent.value).map(|(offset, _)| *offset).collect();
            let fine = match places[..] {
                [] => !promised,
                [at] => sent.offset.is_none_or(|offset| offset == at),
                _ => false,
            };
            if !fine {
                let value = sent.value.split_at_checked(12).map_or(&*sent.value, |(head, _)| head);
                return Some(format!(
                    "{value} of {key:?}, acks {}, acked at {:?}, is at {places:?}",
                    sent.acks, sent.offset
                ));
            }
        }
        for (topic, value) in self.ghosts.iter().filter(|(topic, _)| names.contains(*topic)) {
            if hand.fetch_all(topic, 0).is_ok_and(|log| log.iter().any(|(_, found)| found == value)) {
                return Some(format!("{value} of a deleted topic is back in the new one"));
            }
        }
        for ((topic, partition), log) in &logs {
            if log.iter().zip(0..).any(|((offset, _), expected)| *offset != expected) {
                return Some(format!("{topic}-{partition} has a gap"));
            }
        }
        self.commit_violation(hand, &logs)
            .or_else(|| self.retry_violation(hand))
            .or_else(|| self.id_violation(hand))
    }

    fn commit_violation(
        &self,
        hand: &Hand,
        logs: &BTreeMap<(&str, i32), Vec<(i64, String)>>,
    ) -> Option<String> {
        let found = hand.committed(1);
        let answered = self.commits.iter().rposition(|(_, _, answered)| *answered);
        let allowed: Vec<i64> = match answered {
            Some(last) => self.commits[last..].iter().map(|(_, offset, _)| *offset).collect(),
            None => self.commits.iter().map(|(_, offset, _)| *offset).chain([-1]).collect(),
        };
        if !allowed.contains(&found) {
            return Some(format!("the committed offset is {found}, one of {allowed:?} was promised"));
        }
        let end = logs.get(&("t", 1)).map_or(0, |log| i64::try_from(log.len()).unwrap());
        (found > end).then(|| format!("offset {found} is committed, and the log ends at {end}"))
    }

    /// The newest forced batch of each partition, sent again, gets its old offset.
    fn retry_violation(&self, hand: &Hand) -> Option<String> {
        for partition in 0..2 {
            let promised = |sent: &&Sent| sent.topic == "t" && sent.partition == partition && sent.acks == -1;
            let Some(sent) = self.sent.iter().filter(promised).rfind(|sent| sent.offset.is_some()) else {
                continue;
            };
            let records: Bytes = sequenced(&[&sent.value], sent.producer.0, 0, sent.producer.1);
            let row = only_row(&hand.call(PRODUCE, &produce("t", partition, -1, records))?);
            if row.error_code != 0 || Some(row.base_offset) != sent.offset {
                return Some(format!(
                    "a retry of {:?} got code {}, offset {}",
                    sent.offset, row.error_code, row.base_offset
                ));
            }
        }
        None
    }

    fn id_violation(&self, hand: &Hand) -> Option<String> {
        let response =
            hand.call(4, &InitProducerIdRequest { transactional_id: None, ..Default::default() })?;
        (response.error_code == 0 && self.producer_ids.contains(&response.producer_id))
            .then(|| format!("producer id {} was given out before", response.producer_id))
    }
}
