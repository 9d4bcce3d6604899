//! A scripted broker on a loopback socket, or on streams in memory under a clock that the test moves: it keeps what is produced, checks sequences as Kafka does, and misbehaves
//! exactly as told.
//!
//! By default it serves ApiVersions, Metadata (topics made with [`Peer::topic`]), InitProducerId and Produce. Any API is
//! served or overridden by [`Peer::answer`]; the next requests of one API misbehave by [`Peer::script`].

// Each test file uses another part of this, and helpers of tests may fail by panicking.
#![allow(dead_code, clippy::unwrap_used)]

pub mod fetch;
pub mod group;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tramline_wire::messages::api_versions_response::ApiVersion;
use tramline_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use tramline_wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use tramline_wire::messages::*;
use tramline_wire::*;

/// Lets this much time pass at once, for every timer there is. A test that shows what a timeout does sets it far beyond
/// what any machine needs, waits until all is in place, and jumps.
pub async fn jump(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Lets others run until this holds.
pub async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

/// What the peer does with a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// As it should.
    Normal,
    /// Carries nothing out; every partition of a produce and every topic of metadata gets this error.
    Error(i16),
    /// Carries it out, then closes without an answer.
    DoAndClose,
    /// Closes without carrying it out.
    Close,
    /// Carries it out, and never answers.
    DoAndSilence,
    /// Never answers, and does nothing.
    Silence,
    /// Answers under another correlation id.
    WrongId,
    /// Sends half of the answer and closes.
    HalfFrame,
    /// Sends half of the answer, and nothing more ever.
    Stall,
    /// Sends the answer byte by byte.
    Trickle,
    /// Sends an answer whose body ends after the correlation id.
    Truncated,
    /// Sends these bytes instead of the answer.
    Bytes(&'static [u8]),
    /// Sends the answer twice.
    Twice,
    /// Closes its side for writing and goes on reading.
    HalfClose,
    /// Reads nothing more from the connection, which stays open.
    Deaf,
    /// Answers when the test says so; later requests of the connection wait behind it.
    Hold(Arc<Notify>),
}

type Handler = Box<dyn FnMut(Reader, i16, i32) -> Frame + Send>;

/// What is known of a producer: its epoch, then its last five batches as first sequence, last sequence, offset.
type Known = (i16, VecDeque<(i32, i32, i64)>);

/// One partition as stored.
#[derive(Debug, Default)]
pub struct Stored {
    pub records: Vec<(Option<Bytes>, Option<Bytes>, i64)>,
    pub batches: Vec<BatchHeader>,
    producers: BTreeMap<i64, Known>,
    pub leader_epoch: i32,
}

#[derive(Default)]
struct Inner {
    topics: BTreeMap<String, Vec<Stored>>,
    /// What is put behind a topic's name before its id is made of it.
    remade: BTreeMap<String, String>,
    auto_create: Option<usize>,
    handlers: BTreeMap<i16, Handler>,
    scripts: BTreeMap<i16, VecDeque<Reply>>,
    seen: Vec<(ApiKey, i16, i32)>,
    connections: usize,
    next_producer_id: i64,
    max_versions: BTreeMap<i16, i16>,
    hide: Vec<i16>,
    log_append_time: i64,
    host: String,
    port: u16,
    hang_up: Arc<Notify>,
}

/// The peer. Dropping it closes everything.
pub struct Peer {
    inner: Arc<Mutex<Inner>>,
    tasks: JoinSet<()>,
}

/// The versions the peer speaks unless a test lowers them.
fn served() -> Vec<(ApiKey, i16, i16)> {
    fn of<R: Request>() -> (ApiKey, i16, i16) {
        (R::KEY, R::MIN_VERSION, R::MAX_VERSION)
    }
    vec![
        of::<ProduceRequest>(),
        of::<FetchRequest>(),
        of::<ListOffsetsRequest>(),
        of::<OffsetForLeaderEpochRequest>(),
        of::<MetadataRequest>(),
        of::<OffsetCommitRequest>(),
        of::<OffsetFetchRequest>(),
        of::<FindCoordinatorRequest>(),
        of::<JoinGroupRequest>(),
        of::<HeartbeatRequest>(),
        of::<LeaveGroupRequest>(),
        of::<SyncGroupRequest>(),
        of::<DescribeGroupsRequest>(),
        of::<ListGroupsRequest>(),
        of::<ApiVersionsRequest>(),
        of::<CreateTopicsRequest>(),
        of::<DeleteTopicsRequest>(),
        of::<DeleteRecordsRequest>(),
        of::<InitProducerIdRequest>(),
        of::<DescribeConfigsRequest>(),
        of::<CreatePartitionsRequest>(),
        of::<DeleteGroupsRequest>(),
        of::<DescribeClusterRequest>(),
    ]
}

impl Peer {
    /// A peer with no topics.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mut peer, shared) = Self::at(address.ip().to_string(), address.port());
        peer.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).unwrap();
                shared.lock().unwrap().connections += 1;
                connections.spawn(serve(shared.clone(), socket));
            }
        });
        peer
    }

    /// A peer with no topics, reached by the streams that come from `incoming`.
    pub fn in_memory(host: &str, port: u16, mut incoming: mpsc::UnboundedReceiver<DuplexStream>) -> Self {
        let (mut peer, shared) = Self::at(host.to_owned(), port);
        peer.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Some(stream) = incoming.recv().await {
                shared.lock().unwrap().connections += 1;
                connections.spawn(serve(shared.clone(), stream));
            }
        });
        peer
    }

    fn at(host: String, port: u16) -> (Self, Arc<Mutex<Inner>>) {
        let inner = Inner { log_append_time: -1, host, port, ..Inner::default() };
        let inner = Arc::new(Mutex::new(inner));
        (Self { inner: inner.clone(), tasks: JoinSet::new() }, inner)
    }

    /// A peer with one topic.
    pub async fn with_topic(name: &str, partitions: usize) -> Self {
        let peer = Self::start().await;
        peer.topic(name, partitions);
        peer
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub fn address(&self) -> String {
        let inner = self.inner();
        format!("{}:{}", inner.host, inner.port)
    }

    /// Makes a topic, or gives it more partitions.
    pub fn topic(&self, name: &str, partitions: usize) {
        self.inner().topics.entry(name.to_owned()).or_default().resize_with(partitions, Stored::default);
    }

    /// The partition's leader is in office under this epoch.
    pub fn leader_epoch(&self, name: &str, partition: usize, epoch: i32) {
        self.inner().topics.get_mut(name).unwrap()[partition].leader_epoch = epoch;
    }

    pub fn remove_topic(&self, name: &str) {
        self.inner().topics.remove(name);
    }

    /// Deletes a topic and makes it again: empty, and under another id.
    pub fn recreate_topic(&self, name: &str, partitions: usize) {
        self.remove_topic(name);
        self.inner().remade.entry(name.to_owned()).or_default().push('\'');
        self.topic(name, partitions);
    }

    /// Unknown topics are created with this many partitions when a client asks for that.
    pub fn auto_create(&self, partitions: usize) {
        self.inner().auto_create = Some(partitions);
    }

    /// What the next requests of this API get, in order; afterwards it is served normally.
    pub fn script(&self, key: ApiKey, replies: impl IntoIterator<Item = Reply>) {
        self.inner().scripts.entry(key as i16).or_default().extend(replies);
    }

    /// How many replies of a script were not used yet.
    pub fn script_left(&self, key: ApiKey) -> usize {
        self.inner().scripts.get(&(key as i16)).map_or(0, VecDeque::len)
    }

    /// Serves an API by a function.
    pub fn answer<R: Request>(&self, mut serve: impl FnMut(R, i16) -> R::Response + Send + 'static) {
        let handler = move |mut reader: Reader, version: i16, correlation_id: i32| {
            let request = R::decode(&mut reader, version).unwrap();
            let response = serve(request, version);
            encode_response::<R>(correlation_id, version, &response).unwrap()
        };
        self.inner().handlers.insert(R::KEY as i16, Box::new(handler));
    }

    /// Advertises no newer version of this API.
    pub fn max_version(&self, key: ApiKey, version: i16) {
        self.inner().max_versions.insert(key as i16, version);
    }

    /// Does not advertise this API.
    pub fn hide(&self, key: ApiKey) {
        self.inner().hide.push(key as i16);
    }

    /// Stamps records with this time.
    pub fn log_append_time(&self, at: i64) {
        self.inner().log_append_time = at;
    }

    /// The requests that arrived, with version and correlation id.
    pub fn seen(&self) -> Vec<(ApiKey, i16, i32)> {
        self.inner().seen.clone()
    }

    pub fn count(&self, key: ApiKey) -> usize {
        self.inner().seen.iter().filter(|(seen, ..)| *seen == key).count()
    }

    /// Closes every connection that waits for a request, as a broker does with idle ones.
    pub fn hang_up(&self) {
        self.inner().hang_up.notify_waiters();
    }

    pub fn connections(&self) -> usize {
        self.inner().connections
    }

    /// Forgets all producers, as a broker does that lost its state.
    pub fn forget_producers(&self) {
        for stored in self.inner().topics.values_mut().flatten() {
            stored.producers.clear();
        }
    }

    /// The values stored in a partition, as text.
    pub fn values(&self, topic: &str, partition: usize) -> Vec<String> {
        let inner = self.inner();
        let records = &inner.topics[topic][partition].records;
        records
            .iter()
            .map(|(_, value, _)| String::from_utf8_lossy(value.as_deref().unwrap_or(b"<null>")).into())
            .collect()
    }

    /// Looks at a stored partition.
    pub fn stored<T>(&self, topic: &str, partition: usize, look: impl FnOnce(&Stored) -> T) -> T {
        look(&self.inner().topics[topic][partition])
    }
}

async fn serve(inner: Arc<Mutex<Inner>>, mut socket: impl AsyncRead + AsyncWrite + Unpin) {
    let hang_up = inner.lock().unwrap().hang_up.clone();
    let decoder = FrameDecoder::new(256 << 20);
    let mut buffer = BytesMut::new();
    loop {
        while let Some(frame) = decoder.decode(&mut buffer).unwrap() {
            if !respond(&inner, &mut socket, frame).await {
                return;
            }
        }
        let read = tokio::select! {
            read = socket.read_buf(&mut buffer) => read,
            () = hang_up.notified() => return,
        };
        if !matches!(read, Ok(1..)) {
            return;
        }
    }
}

/// False when the connection is to be closed.
async fn respond(inner: &Arc<Mutex<Inner>>, socket: &mut (impl AsyncWrite + Unpin), frame: Bytes) -> bool {
    let (header, reader) = decode_request_header(frame).unwrap();
    let (key, version) = (ApiKey::try_from(header.request_api_key).unwrap(), header.request_api_version);
    let id = header.correlation_id;
    let (reply, answer) = {
        let mut inner = inner.lock().unwrap();
        inner.seen.push((key, version, id));
        let reply =
            inner.scripts.get_mut(&(key as i16)).and_then(VecDeque::pop_front).unwrap_or(Reply::Normal);
        let answer = match &reply {
            Reply::Close | Reply::Silence => None,
            Reply::Error(code) => inner.handle(key, version, id, reader, *code),
            _ => inner.handle(key, version, id, reader, 0),
        };
        (reply, answer)
    };
    if matches!(reply, Reply::Deaf) {
        std::future::pending::<()>().await;
    }
    let Some(answer) = answer.map(|frame| frame.to_bytes()) else {
        // An acks=0 produce is refused by closing.
        return !matches!(reply, Reply::Close | Reply::Error(_));
    };
    match reply {
        Reply::Normal | Reply::Error(_) => socket.write_all(&answer).await.is_ok(),
        Reply::DoAndClose | Reply::Close => false,
        Reply::DoAndSilence | Reply::Silence => true,
        Reply::WrongId => {
            let mut bytes = answer.to_vec();
            bytes[4..8].copy_from_slice(&(id + 1000).to_be_bytes());
            socket.write_all(&bytes).await.is_ok()
        }
        Reply::HalfFrame => {
            socket.write_all(&answer[..answer.len() / 2]).await.unwrap();
            false
        }
        Reply::Stall => {
            socket.write_all(&answer[..answer.len() / 2]).await.unwrap();
            std::future::pending().await
        }
        Reply::Trickle => {
            for byte in &answer[..] {
                if socket.write_all(&[*byte]).await.is_err() {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            true
        }
        Reply::Truncated => {
            let mut bytes = 5i32.to_be_bytes().to_vec();
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.push(0);
            socket.write_all(&bytes).await.is_ok()
        }
        Reply::Bytes(bytes) => socket.write_all(bytes).await.is_ok(),
        Reply::Twice => socket.write_all(&[&answer[..], &answer].concat()).await.is_ok(),
        Reply::HalfClose => socket.shutdown().await.is_ok(),
        Reply::Deaf => false,
        Reply::Hold(release) => {
            release.notified().await;
            socket.write_all(&answer).await.is_ok()
        }
    }
}

impl Inner {
    fn handle(
        &mut self,
        key: ApiKey,
        version: i16,
        id: i32,
        mut reader: Reader,
        error: i16,
    ) -> Option<Frame> {
        if let Some(handler) = self.handlers.get_mut(&(key as i16)) {
            return Some(handler(reader, version, id));
        }
        match key {
            ApiKey::ApiVersions => Some(self.api_versions(version, id)),
            ApiKey::Metadata => {
                let request = MetadataRequest::decode(&mut reader, version).unwrap();
                Some(
                    encode_response::<MetadataRequest>(id, version, &self.metadata(&request, error)).unwrap(),
                )
            }
            ApiKey::InitProducerId => {
                let producer_id = self.next_producer_id;
                self.next_producer_id += i64::from(error == 0);
                let answer = InitProducerIdResponse {
                    error_code: error,
                    producer_id,
                    producer_epoch: 0,
                    ..Default::default()
                };
                Some(encode_response::<InitProducerIdRequest>(id, version, &answer).unwrap())
            }
            ApiKey::Produce => {
                let request = ProduceRequest::decode(&mut reader, version).unwrap();
                let answer = self.produce(&request, error);
                if request.acks == 0 {
                    // Refused: `respond` closes. Accepted: nothing is said.
                    return None;
                }
                Some(encode_response::<ProduceRequest>(id, version, &answer).unwrap())
            }
            other => panic!("the peer does not serve {other}; use Peer::answer"),
        }
    }

    fn api_versions(&self, version: i16, id: i32) -> Frame {
        let newest = self.max_versions.get(&18).copied().unwrap_or(4);
        let api_keys = served()
            .into_iter()
            .filter(|(key, ..)| !self.hide.contains(&(*key as i16)))
            .map(|(key, min, max)| ApiVersion {
                api_key: key as i16,
                min_version: min,
                max_version: self.max_versions.get(&(key as i16)).copied().unwrap_or(max),
            })
            .collect();
        let error_code = if version > newest { 35 } else { 0 };
        let answer = ApiVersionsResponse { error_code, api_keys, ..Default::default() };
        let shape = if error_code == 0 { version } else { 0 };
        encode_response::<ApiVersionsRequest>(id, shape, &answer).unwrap()
    }

    fn metadata(&mut self, request: &MetadataRequest, error: i16) -> MetadataResponse {
        let names: Vec<String> = match &request.topics {
            None => self.topics.keys().cloned().collect(),
            Some(rows) => rows.iter().map(|row| row.name.as_deref().unwrap_or_default().to_owned()).collect(),
        };
        if let Some(partitions) = self.auto_create.filter(|_| request.allow_auto_topic_creation) {
            for name in &names {
                self.topics
                    .entry(name.clone())
                    .or_insert_with(|| std::iter::repeat_with(Stored::default).take(partitions).collect());
            }
        }
        let refused = |name: &String| MetadataResponseTopic {
            name: Some(name.as_str().into()),
            error_code: error,
            ..Default::default()
        };
        let topics = names.iter().map(|name| if error == 0 { self.describe(name) } else { refused(name) });
        let topics = topics.collect();
        let broker = MetadataResponseBroker {
            node_id: 1,
            host: self.host.as_str().into(),
            port: i32::from(self.port),
            ..Default::default()
        };
        MetadataResponse { brokers: vec![broker], controller_id: 1, topics, ..Default::default() }
    }

    fn describe(&self, name: &str) -> MetadataResponseTopic {
        let Some(stored) = self.topics.get(name) else {
            return MetadataResponseTopic { name: Some(name.into()), error_code: 3, ..Default::default() };
        };
        let row = |(index, stored): (usize, &Stored)| MetadataResponsePartition {
            partition_index: index as i32,
            leader_id: 1,
            leader_epoch: stored.leader_epoch,
            replica_nodes: vec![1],
            isr_nodes: vec![1],
            ..Default::default()
        };
        MetadataResponseTopic {
            name: Some(name.into()),
            topic_id: self.id_of(name),
            partitions: stored.iter().enumerate().map(row).collect(),
            ..Default::default()
        }
    }

    fn id_of(&self, name: &str) -> Uuid {
        let remade = self.remade.get(name).map_or("", String::as_str);
        topic_id(&format!("{name}{remade}"))
    }

    fn produce(&mut self, request: &ProduceRequest, error: i16) -> ProduceResponse {
        let mut responses = Vec::new();
        for topic in &request.topic_data {
            let known =
                self.topics.keys().find(|name| topic.name == ***name || self.id_of(name) == topic.topic_id);
            let known = known.cloned();
            let mut rows = Vec::new();
            for part in &topic.partition_data {
                let stored =
                    known.as_ref().and_then(|name| self.topics.get_mut(name)?.get_mut(part.index as usize));
                let outcome = match (error, stored) {
                    (0, Some(stored)) => stored.append(part.records.clone().unwrap_or_default()),
                    (0, None) if topic.name.is_empty() => Err(100),
                    (0, None) => Err(3),
                    (code, _) => Err(code),
                };
                rows.push(PartitionProduceResponse {
                    index: part.index,
                    error_code: outcome.err().unwrap_or(0),
                    base_offset: outcome.unwrap_or(-1),
                    log_append_time_ms: self.log_append_time,
                    ..Default::default()
                });
            }
            responses.push(TopicProduceResponse {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partition_responses: rows,
            });
        }
        ProduceResponse { responses, ..Default::default() }
    }
}

pub fn topic_id(name: &str) -> Uuid {
    let mut bytes = [7u8; 16];
    for (place, byte) in name.bytes().enumerate() {
        bytes[place % 16] = bytes[place % 16].wrapping_mul(31).wrapping_add(byte);
    }
    Uuid::from_bytes(bytes)
}

impl Stored {
    /// Kafka's rules for the sequences of idempotent producers.
    fn append(&mut self, bytes: Bytes) -> Result<i64, i16> {
        let header = check_batch(&bytes).map_err(|_| 2i16)?;
        let (first, count) = (header.base_sequence, header.record_count);
        let last = first.wrapping_add(count - 1) & i32::MAX;
        let offset = self.records.len() as i64;
        if header.producer_id >= 0 {
            if let Some((epoch, batches)) = self.producers.get_mut(&header.producer_id) {
                let known = batches.iter().find(|(f, l, _)| (*f, *l) == (first, last));
                if let Some((_, _, offset)) = known.filter(|_| *epoch == header.producer_epoch) {
                    return Ok(*offset);
                }
                if header.producer_epoch < *epoch {
                    return Err(47);
                }
                if header.producer_epoch > *epoch {
                    if first != 0 {
                        return Err(45);
                    }
                    batches.clear();
                    *epoch = header.producer_epoch;
                } else if let Some((_, before, _)) = batches.back()
                    && first != (before.wrapping_add(1) & i32::MAX)
                {
                    return Err(45);
                }
            }
            let (_, batches) =
                self.producers.entry(header.producer_id).or_insert((header.producer_epoch, VecDeque::new()));
            batches.push_back((first, last, offset));
            if batches.len() > 5 {
                batches.pop_front();
            }
        }
        let batch = RecordBatch::decode(TopicPartition::new("t", 0), bytes).map_err(|_| 2i16)?;
        for record in &batch {
            self.records.push((record.key_bytes(), record.value_bytes(), record.timestamp()));
        }
        self.batches.push(header);
        Ok(offset)
    }
}
