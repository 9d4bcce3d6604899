//! A client of frames over a blocking socket: what it sends and gets is exactly what is on the wire.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use tramline::wire::messages::fetch_request::{FetchPartition, FetchTopic};
use tramline::wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use tramline::wire::messages::metadata_request::MetadataRequestTopic;
use tramline::wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use tramline::wire::messages::produce_response::PartitionProduceResponse;
use tramline::wire::messages::{
    FetchRequest, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest,
};
use tramline::wire::{
    BatchBuilder, Compression, Request, TopicPartition, Uuid, decode_response, encode_request,
};

use super::PATIENCE;

/// One connection.
pub struct Wire {
    stream: TcpStream,
    correlation: i32,
}

impl Wire {
    pub fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, correlation: 0 })
    }

    /// Sends a request; the answers come in the order of the requests.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> io::Result<()> {
        self.correlation += 1;
        let frame = encode_request(self.correlation, Some("test"), version, request).unwrap();
        self.stream.write_all(&frame.to_bytes())
    }

    pub fn receive<R: Request>(&mut self, version: i16) -> io::Result<R::Response> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; i32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame)?;
        Ok(decode_response::<R>(Bytes::from(frame), version).unwrap().1)
    }

    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> io::Result<R::Response> {
        self.send(version, request)?;
        self.receive::<R>(version)
    }

    /// A producer id with its epoch.
    pub fn producer_id(&mut self) -> (i64, i16) {
        let request = InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: 60_000,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        let response = self.call(4, &request).unwrap();
        assert_eq!(response.error_code, 0);
        (response.producer_id, response.producer_epoch)
    }

    pub fn send_batch(&mut self, place: &TopicPartition, batch: Bytes) -> io::Result<()> {
        self.send(PRODUCE, &produce(place, batch))
    }

    pub fn receive_batch(&mut self) -> io::Result<PartitionProduceResponse> {
        let mut response = self.receive::<ProduceRequest>(PRODUCE)?;
        Ok(response.responses.remove(0).partition_responses.remove(0))
    }

    /// Error code and base offset of one produced batch.
    pub fn produce(&mut self, place: &TopicPartition, batch: Bytes) -> (i16, i64) {
        self.send_batch(place, batch).unwrap();
        let row = self.receive_batch().unwrap();
        (row.error_code, row.base_offset)
    }

    /// The high watermark.
    pub fn end(&mut self, place: &TopicPartition) -> i64 {
        let partition = ListOffsetsPartition {
            partition_index: place.partition,
            current_leader_epoch: -1,
            timestamp: -1,
        };
        let request = ListOffsetsRequest {
            replica_id: -1,
            topics: vec![ListOffsetsTopic { name: place.topic.clone(), partitions: vec![partition] }],
            ..Default::default()
        };
        let row = self.call(7, &request).unwrap().topics.remove(0).partitions.remove(0);
        assert_eq!(row.error_code, 0, "the end of {place}");
        row.offset
    }

    /// The bytes of the batches from `offset` on that fit in one answer, at least one when there is any.
    pub fn fetch(&mut self, place: &TopicPartition, offset: i64) -> Bytes {
        let partition = FetchPartition {
            partition: place.partition,
            fetch_offset: offset,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        };
        let request = FetchRequest {
            replica_id: -1,
            max_bytes: 1 << 20,
            session_epoch: -1,
            topics: vec![FetchTopic {
                topic: place.topic.clone(),
                topic_id: Uuid::default(),
                partitions: vec![partition],
            }],
            ..Default::default()
        };
        let row = self.call(12, &request).unwrap().responses.remove(0).partitions.remove(0);
        assert_eq!(row.error_code, 0, "a fetch of {place} at {offset}");
        row.records.unwrap_or_default()
    }

    /// The leader epoch of each partition of a topic.
    pub fn epochs(&mut self, topic: &str) -> Vec<i32> {
        let topic = MetadataRequestTopic { name: Some(topic.into()), ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
        let mut found = self.call(9, &request).unwrap().topics.remove(0).partitions;
        found.sort_by_key(|partition| partition.partition_index);
        found.into_iter().map(|partition| partition.leader_epoch).collect()
    }
}

const PRODUCE: i16 = 9;

fn produce(place: &TopicPartition, batch: Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: place.partition, records: Some(batch) };
    ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![TopicProduceData {
            name: place.topic.clone(),
            partition_data: vec![data],
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// A batch of an idempotent producer.
pub fn sequenced<V: AsRef<[u8]>>(values: &[V], (id, epoch): (i64, i16), sequence: i32) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for value in values {
        builder.append(1_700_000_000_000, None, Some(value.as_ref()), &[]).unwrap();
    }
    builder.producer(id, epoch, sequence);
    builder.build()
}
