//! The only user of a producer's connection to one node: sends what the machine gives, in that order, and brings the
//! answers back.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant as TokioInstant;
use tramline_core::client::accumulator::{Acks, Answer as Fate, Batch, NextOrder, Order};
use tramline_core::client::connection::Poison;
use tramline_core::client::metadata::{ClusterView, Leader, Node};
use tramline_core::time::Instant;
use tramline_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use tramline_wire::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use tramline_wire::messages::{ProduceRequest, ProduceResponse};
use tramline_wire::{Str, TopicPartition};

use super::shared::{Shared, Token};
use crate::broker_connection::BrokerConnection;
use crate::cluster::{Target, jitter};
use crate::error::CallError;
use crate::exchange::Answer;

struct Flight {
    answer: Answer<ProduceResponse>,
    batches: Vec<Batch<Token>>,
}

struct Sender {
    shared: Arc<Shared>,
    node: i32,
    acks: Acks,
    alarm: Arc<Notify>,
    connection: Option<BrokerConnection>,
    /// In the order of the requests, which is that of the answers.
    flights: VecDeque<Flight>,
}

pub(super) async fn run(shared: Arc<Shared>, node: i32, alarm: Arc<Notify>) {
    let stop = shared.stop.clone();
    let acks = shared.with(|state| state.accumulator.config().acks);
    let sender = Sender { shared, node, acks, alarm, connection: None, flights: VecDeque::new() };
    tokio::select! {
        () = stop.cancelled() => {}
        () = sender.run() => {}
    }
}

impl Sender {
    async fn run(mut self) {
        loop {
            if self.flights.is_empty() && self.shared.with(|state| state.retire(self.node)) {
                return;
            }
            // Looked at once: a connection that ends between two looks would leave everybody waiting.
            let connection = match self.connection.clone().filter(|connection| !connection.is_closed()) {
                None if self.flights.is_empty() => self.connect().await,
                connection => connection,
            };
            let next = connection.and_then(|connection| self.send_what_may_leave(&connection));
            let until = next.map_or_else(TokioInstant::now, |next| self.shared.cluster.moment(next));
            let oldest = self.flights.front_mut().map(|flight| &mut flight.answer);
            tokio::select! {
                answer = answered(oldest) => self.handle_answer(answer),
                () = self.alarm.notified() => {}
                () = tokio::time::sleep_until(until), if next.is_some() => {}
            }
        }
    }

    /// Dials once if there is anything to send.
    async fn connect(&mut self) -> Option<BrokerConnection> {
        self.connection = None;
        if !self.shared.with(|state| state.accumulator.has_work(self.node)) {
            return None;
        }
        match self.shared.cluster.connection(Target::Node(self.node)).await {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => {
                tracing::debug!(node = self.node, %error, "no connection to a leader");
                self.shared.with(|state| state.accumulator.node_unreachable(self.node));
                // Dialling backs off by itself; a node that left the cluster is not dialled at all.
                tokio::time::sleep(self.shared.cluster.backoff().next_wait(jitter())).await;
                self.alarm.notify_one();
            }
        }
        self.connection.clone()
    }

    /// Gives when more may leave, if time alone decides that.
    fn send_what_may_leave(&mut self, connection: &BrokerConnection) -> Option<Instant> {
        loop {
            let now = self.shared.cluster.now();
            match self.shared.with(|state| state.accumulator.poll_order(self.node, now)) {
                NextOrder::Send(order) => self.send(connection, order),
                NextOrder::At(again) => return Some(again),
                NextOrder::Later => return None,
            }
        }
    }

    fn send(&mut self, connection: &BrokerConnection, order: Order<Token>) {
        let view = self.shared.cluster.metadata();
        let mut topics: Vec<TopicProduceData> = Vec::new();
        let mut batches = Vec::with_capacity(order.batches.len());
        for mut batch in order.batches {
            let Ok(records) = batch.encode() else {
                self.shared.with(|state| state.accumulator.handle_damaged(batch));
                continue;
            };
            let TopicPartition { topic, partition } = batch.topic_partition();
            let row = PartitionProduceData { index: *partition, records: Some(records) };
            match topics.iter_mut().find(|known| known.name == *topic) {
                Some(known) => known.partition_data.push(row),
                None => topics.push(TopicProduceData {
                    name: topic.clone(),
                    topic_id: view.topics.get(topic).map(|topic| topic.id).unwrap_or_default(),
                    partition_data: vec![row],
                }),
            }
            batches.push(batch);
        }
        let timeout = self.shared.cluster.config().request_timeout;
        let request = ProduceRequest {
            transactional_id: None,
            acks: self.acks.code(),
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            topic_data: topics,
        };
        let answer =
            connection.start::<ProduceRequest, _>(move |_| request, timeout, self.acks.is_answered());
        self.flights.push_back(Flight { answer, batches });
    }

    fn handle_answer(&mut self, answer: Result<ProduceResponse, CallError>) {
        let Some(flight) = self.flights.pop_front() else { return };
        let view = self.shared.cluster.metadata();
        let mut fates = Vec::with_capacity(flight.batches.len());
        let mut leaders = Vec::new();
        for batch in flight.batches {
            let partition = batch.topic_partition();
            let fate = match &answer {
                Ok(_) if !self.acks.is_answered() => Fate::Unanswered,
                Ok(response) => match find(response, &view, partition, fates.len()) {
                    Some(row) => {
                        leaders.extend(leader_hint(row).map(|leader| (partition.clone(), leader)));
                        fate_of_row(row)
                    }
                    // A broker that says nothing about a batch may have written it.
                    None => Fate::Lost,
                },
                Err(error) => fate_of_error(error),
            };
            fates.push((batch, fate));
        }
        let nodes = answer.iter().flat_map(|answer| &answer.node_endpoints).map(node).collect();
        let moved = !leaders.is_empty() && self.shared.cluster.leader_hints(&leaders, nodes);
        let now = self.shared.cluster.now();
        let view = self.shared.cluster.metadata();
        self.shared.with(|state| {
            state.accumulator.handle_answers(self.node, fates, now, jitter());
            // At once, so that what was refused goes to the new leader without waiting for metadata.
            for (partition, _) in leaders.iter().filter(|_| moved) {
                if let Some(topic) = view.topics.get(&partition.topic) {
                    state.accumulator.update_topic(&partition.topic, topic);
                }
            }
        });
    }
}

/// Who leads the partition, when the broker tells that with an error.
fn leader_hint(row: &PartitionProduceResponse) -> Option<Leader> {
    let LeaderIdAndEpoch { leader_id: node, leader_epoch: epoch } = row.current_leader;
    (row.error_code != 0 && node >= 0).then_some(Leader { node, epoch })
}

fn node(endpoint: &NodeEndpoint) -> Node {
    Node {
        id: endpoint.node_id,
        host: endpoint.host.detached(),
        port: endpoint.port,
        rack: endpoint.rack.as_ref().map(Str::detached),
    }
}

fn fate_of_row(row: &PartitionProduceResponse) -> Fate {
    if row.error_code == 0 {
        return Fate::Written { base_offset: row.base_offset, append_time: row.log_append_time_ms };
    }
    let about_record = || row.record_errors.first().and_then(|error| error.batch_index_error_message.clone());
    Fate::Refused { code: row.error_code, message: row.error_message.clone().or_else(about_record) }
}

async fn answered(oldest: Option<&mut Answer<ProduceResponse>>) -> Result<ProduceResponse, CallError> {
    match oldest {
        Some(answer) => answer.await.unwrap_or(Err(CallError::Lost(Poison::Closed))),
        None => std::future::pending().await,
    }
}

fn fate_of_error(error: &CallError) -> Fate {
    /// `UNSUPPORTED_VERSION` and `INVALID_REQUEST`.
    const UNSUPPORTED: i16 = 35;
    const INVALID: i16 = 42;
    let refused = |code| Fate::Refused { code, message: Some(Str::from(error.to_string())) };
    match error {
        CallError::Lost(_) => Fate::Lost,
        CallError::Unsupported(_) => refused(UNSUPPORTED),
        CallError::Encode(_) => refused(INVALID),
        _ => Fate::NotSent,
    }
}

/// The row about this partition. Brokers answer in the order they were asked, so the `guess`th is tried first.
fn find<'a>(
    response: &'a ProduceResponse,
    view: &ClusterView,
    partition: &TopicPartition,
    guess: usize,
) -> Option<&'a PartitionProduceResponse> {
    let id = view.topics.get(&partition.topic).map(|topic| topic.id).unwrap_or_default();
    let rows = || response.responses.iter().flat_map(|t| t.partition_responses.iter().map(move |p| (t, p)));
    let matches = |topic: &TopicProduceResponse, row: &PartitionProduceResponse| {
        let same_topic = topic.name == partition.topic || (topic.name.is_empty() && topic.topic_id == id);
        same_topic && row.index == partition.partition
    };
    let guessed = rows().nth(guess).filter(|(topic, row)| matches(topic, row));
    guessed.or_else(|| rows().find(|(topic, row)| matches(topic, row))).map(|(_, row)| row)
}
