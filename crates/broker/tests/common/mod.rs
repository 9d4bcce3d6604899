//! A broker in a temporary folder, and a client that speaks frames to it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tramline_broker::{Broker, BrokerConfig, BrokerHandle};
use tramline_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use tramline_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use tramline_wire::messages::fetch_response::PartitionData;
use tramline_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use tramline_wire::messages::list_offsets_response::ListOffsetsPartitionResponse;
use tramline_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use tramline_wire::messages::produce_response::PartitionProduceResponse;
use tramline_wire::messages::{
    CreateTopicsRequest, FetchRequest, FetchResponse, ListOffsetsRequest, ProduceRequest, ProduceResponse,
};
use tramline_wire::{
    BatchBuilder, Compression, RecordBatch, Request, Str, TopicPartition, batches, decode_response,
    encode_request,
};

pub const PRODUCE: i16 = 9;
pub const FETCH: i16 = 12;

/// A broker whose folder outlives it.
pub struct Stage {
    pub dir: TempDir,
    pub broker: BrokerHandle,
}

impl Stage {
    pub async fn new() -> Self {
        Self::with(BrokerConfig::default()).await
    }

    pub async fn with(config: BrokerConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let broker = start(&dir, config).await;
        Self { dir, broker }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.broker.local_addr()).await
    }

    /// Stops the broker cleanly and starts it on the same folder.
    pub async fn restart(self, config: BrokerConfig) -> Self {
        self.broker.shutdown().await.unwrap();
        let broker = start(&self.dir, config).await;
        Self { dir: self.dir, broker }
    }

    /// Ends the broker like a process that dies and starts it on the same folder.
    pub async fn kill_and_restart(self, config: BrokerConfig) -> Self {
        self.broker.abort().await;
        let broker = start(&self.dir, config).await;
        Self { dir: self.dir, broker }
    }
}

pub async fn start(dir: &TempDir, config: BrokerConfig) -> BrokerHandle {
    Broker::builder(dir.path()).listen("127.0.0.1:0").config(config).start().await.unwrap()
}

/// One connection.
pub struct Client {
    pub stream: TcpStream,
    input: BytesMut,
    correlation: i32,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, input: BytesMut::new(), correlation: 0 }
    }

    /// Sends a request and returns the correlation id.
    pub async fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.try_send(version, request).await.unwrap()
    }

    /// As [`send`](Self::send), to a broker that may close the connection meanwhile.
    pub async fn try_send<R: Request>(&mut self, version: i16, request: &R) -> std::io::Result<i32> {
        self.correlation += 1;
        let frame = encode_request(self.correlation, Some("test"), version, request).unwrap();
        self.stream.write_all(&frame.to_bytes()).await?;
        Ok(self.correlation)
    }

    /// The next frame, without its length; `None` when the broker has closed the connection.
    pub async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(prefix) = self.input.first_chunk::<4>() {
                let length = i32::from_be_bytes(*prefix) as usize;
                if self.input.len() >= 4 + length {
                    let _ = self.input.split_to(4);
                    return Some(self.input.split_to(length).freeze());
                }
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub async fn receive<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        let frame = self.frame().await.expect("the broker closed the connection");
        decode_response::<R>(frame, version).unwrap()
    }

    pub async fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let sent = self.send(version, request).await;
        let (received, response) = self.receive::<R>(version).await;
        assert_eq!(sent, received, "answers come in the order of the requests");
        response
    }

    pub async fn create_topic(&mut self, name: &str, partitions: i32) {
        self.create_topic_with(name, partitions, &[]).await;
    }

    pub async fn create_topic_with(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        let response = self.call(7, &create_topics(name, partitions, configs)).await;
        assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
    }

    pub async fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        acks: i16,
        batch: Bytes,
    ) -> PartitionProduceResponse {
        let response = self.call(PRODUCE, &produce(topic, partition, acks, batch)).await;
        only_row(&response)
    }

    /// A fetch of one partition that does not wait.
    pub async fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> PartitionData {
        let response = self.call(FETCH, &fetch(topic, partition, offset, 0, 1)).await;
        only_partition(&response)
    }

    /// The values of all records from `offset` on, each with its offset.
    pub async fn values(&mut self, topic: &str, partition: i32, offset: i64) -> Vec<(i64, String)> {
        let mut found = Vec::new();
        let mut next = offset;
        loop {
            let row = self.fetch(topic, partition, next).await;
            assert_eq!(row.error_code, 0);
            let records = values(row.records.unwrap());
            let Some((last, _)) = records.last() else { return found };
            next = last + 1;
            found.extend(records.into_iter().filter(|(at, _)| *at >= offset));
        }
    }

    pub async fn offset_at(
        &mut self,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        let request = list_offsets(topic, partition, timestamp);
        self.call(7, &request).await.topics[0].partitions[0].clone()
    }
}

pub fn only_row(response: &ProduceResponse) -> PartitionProduceResponse {
    response.responses[0].partition_responses[0].clone()
}

pub fn only_partition(response: &FetchResponse) -> PartitionData {
    response.responses[0].partitions[0].clone()
}

pub fn create_topics(name: &str, partitions: i32, configs: &[(&str, &str)]) -> CreateTopicsRequest {
    let configs = configs
        .iter()
        .map(|(name, value)| CreatableTopicConfig { name: (*name).into(), value: Some((*value).into()) })
        .collect();
    CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: -1,
            configs,
            ..CreatableTopic::default()
        }],
        ..CreateTopicsRequest::default()
    }
}

pub fn produce(topic: &str, partition: i32, acks: i16, batch: Bytes) -> ProduceRequest {
    ProduceRequest {
        acks,
        timeout_ms: 1000,
        topic_data: vec![TopicProduceData {
            name: topic.into(),
            partition_data: vec![PartitionProduceData { index: partition, records: Some(batch) }],
            ..TopicProduceData::default()
        }],
        ..ProduceRequest::default()
    }
}

pub fn fetch(topic: &str, partition: i32, offset: i64, max_wait_ms: i32, min_bytes: i32) -> FetchRequest {
    FetchRequest {
        replica_id: -1,
        max_wait_ms,
        min_bytes,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics: vec![FetchTopic {
            topic: topic.into(),
            partitions: vec![FetchPartition {
                partition,
                fetch_offset: offset,
                partition_max_bytes: 1 << 20,
                ..FetchPartition::default()
            }],
            ..FetchTopic::default()
        }],
        ..FetchRequest::default()
    }
}

pub fn list_offsets(topic: &str, partition: i32, timestamp: i64) -> ListOffsetsRequest {
    ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic {
            name: topic.into(),
            partitions: vec![ListOffsetsPartition {
                partition_index: partition,
                current_leader_epoch: -1,
                timestamp,
            }],
        }],
        ..ListOffsetsRequest::default()
    }
}

pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// A batch of these values, stamped now.
pub fn batch(texts: &[&str]) -> Bytes {
    batch_at(texts, now(), Compression::None)
}

pub fn batch_at(texts: &[&str], timestamp: i64, compression: Compression) -> Bytes {
    let mut builder = BatchBuilder::new(compression);
    for text in texts {
        builder.append(timestamp, None, Some(text.as_bytes()), &[]).unwrap();
    }
    builder.build()
}

/// A batch of an idempotent producer.
pub fn sequenced(texts: &[&str], producer_id: i64, epoch: i16, base_sequence: i32) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for text in texts {
        builder.append(now(), None, Some(text.as_bytes()), &[]).unwrap();
    }
    builder.producer(producer_id, epoch, base_sequence);
    builder.build()
}

/// Offsets and values of every record in a fetched field.
pub fn values(records: Bytes) -> Vec<(i64, String)> {
    let mut found = Vec::new();
    for batch in batches(records) {
        let (_, bytes) = batch.unwrap();
        let batch = RecordBatch::decode(TopicPartition::new("", 0), bytes).unwrap();
        for record in &batch {
            found.push((
                record.offset(),
                String::from_utf8(record.value().unwrap_or_default().to_vec()).unwrap(),
            ));
        }
    }
    found
}

pub fn str(text: &str) -> Str {
    Str::from(text)
}
