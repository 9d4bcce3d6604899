//! One connection: a task that owns its socket, writes requests in the order they were started and hands out answers.
//!
//! Every decision about pairing and poisoning is the machine's ([`tramline_core::client::connection`]).

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant as TokioInstant, Sleep};
use tramline_core::client::api_versions::{ApiVersions, Handshake, Step};
use tramline_core::client::connection::{Connection, Poison};
use tramline_core::time::Instant;
use tramline_wire::messages::{ApiVersionsRequest, ApiVersionsResponse};
use tramline_wire::{ErrorCode, FrameDecoder, Request, Str};

use crate::config::ClientConfig;
use crate::error::CallError;
use crate::exchange::{Answer, Exchange, Typed};
use crate::transport::Transport;

/// Later versions of the handshake name the node they mean to reach, which a bootstrap address cannot.
const NEWEST_HANDSHAKE: i16 = 4;
/// No more requests are taken over while this many bytes wait for the socket.
const WRITE_BACKLOG: usize = 4 << 20;
/// Slices given to one vectored write.
const SLICES: usize = 64;
/// Room made for one read.
const READ_BYTES: usize = 64 << 10;

/// A handle to a connection. The connection ends when the last handle is gone and nothing is in flight.
#[derive(Debug, Clone)]
pub(crate) struct BrokerConnection {
    requests: mpsc::UnboundedSender<Box<dyn Exchange>>,
}

impl BrokerConnection {
    /// Connects to `address` and finds out what it speaks. Bounded by the connect timeout.
    pub(crate) async fn dial(address: &str, config: &ClientConfig) -> Result<Self, CallError> {
        let mut handshake = Handshake::new(NEWEST_HANDSHAKE);
        let mut connected = false;
        let attempt = async {
            loop {
                let transport =
                    Transport::dial(address).await.map_err(|cause| unreachable(address, cause))?;
                connected = true;
                match shake_hands(transport, &mut handshake, address, config).await {
                    // Some brokers close instead of refusing a version they do not know: older ones, on new sockets.
                    Err(CallError::Lost(Poison::Closed)) if handshake.handle_closed().is_some() => {}
                    done => return done,
                }
            }
        };
        match tokio::time::timeout(config.connect_timeout, attempt).await {
            Ok(done) => done,
            Err(_) if connected => {
                let what =
                    "it takes connections and does not answer the version handshake; is it a Kafka broker?";
                Err(unreachable(address, io::Error::new(io::ErrorKind::TimedOut, what)))
            }
            Err(_) => Err(unreachable(address, io::Error::from(io::ErrorKind::TimedOut))),
        }
    }

    fn spawn(transport: Transport, versions: ApiVersions, config: &ClientConfig) -> Self {
        let (requests, queue) = mpsc::unbounded_channel();
        tokio::spawn(Task::new(transport, versions, config).run(queue));
        Self { requests }
    }

    /// Queues a request; what is started first is written first. The answer resolves exactly once.
    pub(crate) fn start<R, F>(&self, build: F, timeout: Duration, is_answered: bool) -> Answer<R::Response>
    where
        R: Request,
        F: FnOnce(i16) -> R + Send + 'static,
    {
        let (exchange, answer) = Typed::<R, F>::new(build, timeout, is_answered);
        if let Err(refused) = self.requests.send(Box::new(exchange)) {
            refused.0.fail(CallError::NotSent);
        }
        answer
    }

    /// Whether the connection ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }
}

fn unreachable(address: &str, cause: io::Error) -> CallError {
    CallError::Unreachable { address: address.to_owned(), cause: cause.into() }
}

/// The conversation that precedes everything else on a socket.
async fn shake_hands(
    mut transport: Transport,
    handshake: &mut Handshake,
    address: &str,
    config: &ClientConfig,
) -> Result<BrokerConnection, CallError> {
    let mut correlation_id = 0;
    loop {
        correlation_id += 1;
        let answer =
            ask_versions(&mut transport, handshake.version(), correlation_id, address, config).await?;
        let advertised = answer.api_keys.iter().map(|k| (k.api_key, k.min_version, k.max_version));
        match handshake.handle_answer(answer.error_code, advertised) {
            Step::Done(versions) => return Ok(BrokerConnection::spawn(transport, versions, config)),
            Step::Ask(_) => {}
            Step::Refused(code) => {
                let code = ErrorCode::from(code);
                return Err(CallError::HandshakeRefused { address: address.to_owned(), code });
            }
        }
    }
}

async fn ask_versions(
    transport: &mut Transport,
    version: i16,
    correlation_id: i32,
    address: &str,
    config: &ClientConfig,
) -> Result<ApiVersionsResponse, CallError> {
    let request = ApiVersionsRequest {
        client_software_name: Str::from_static("tramline"),
        client_software_version: Str::from_static(env!("CARGO_PKG_VERSION")),
        ..Default::default()
    };
    let closed = |_: io::Error| CallError::Lost(Poison::Closed);
    let frame = tramline_wire::encode_request(correlation_id, Some(&config.client_id), version, &request)?;
    for chunk in frame.into_chunks() {
        transport.write_all(&chunk).await.map_err(closed)?;
    }
    let decoder = FrameDecoder::new(config.max_frame_bytes);
    let mut buffer = BytesMut::new();
    loop {
        let undecodable = CallError::Lost(Poison::Undecodable);
        let framed = decoder.decode(&mut buffer);
        if let Some(frame) = framed.map_err(|_| not_kafka(address, &buffer))? {
            let (got, answer) = decode_versions(frame, version).ok_or(undecodable)?;
            if got != correlation_id {
                return Err(CallError::Lost(Poison::WrongCorrelationId { expected: correlation_id, got }));
            }
            return Ok(answer);
        }
        if transport.read_buf(&mut buffer).await.map_err(closed)? == 0 {
            return Err(CallError::Lost(Poison::Closed));
        }
    }
}

/// The first bytes from there are no length of a frame that this client takes.
fn not_kafka(address: &str, began: &[u8]) -> CallError {
    // TLS records of an alert begin so, and web servers with their name.
    let what = match began {
        [0x15, 3, ..] => "it speaks TLS; name its plain listener".to_owned(),
        _ if began.starts_with(b"HTTP/") => {
            "it answered as a web server; name the port of a broker's listener".to_owned()
        }
        _ => format!("its answer begins with {:?}", began[..began.len().min(16)].escape_ascii().to_string()),
    };
    CallError::NotKafka { address: address.to_owned(), what }
}

/// An answer that carries an error has the shape of version 0, whatever was asked; where it has no shape at all (the
/// mock cluster of librdkafka), the code alone counts.
fn decode_versions(frame: Bytes, version: i16) -> Option<(i32, ApiVersionsResponse)> {
    let correlation_id = i32::from_be_bytes(*frame.first_chunk()?);
    let error_code = frame.get(4..6).map(|code| i16::from_be_bytes([code[0], code[1]]))?;
    if error_code == 0 {
        return tramline_wire::decode_response::<ApiVersionsRequest>(frame, version).ok();
    }
    let bare = || ApiVersionsResponse { error_code, ..ApiVersionsResponse::default() };
    let decoded = tramline_wire::decode_response::<ApiVersionsRequest>(frame, 0).ok();
    Some(decoded.unwrap_or_else(|| (correlation_id, bare())))
}

struct Waiting {
    exchange: Box<dyn Exchange>,
    version: i16,
}

/// A request that is done once it is written.
struct Unanswered {
    /// Where its last byte stands among all that were ever queued.
    end: u64,
    correlation_id: i32,
    /// When a peer that does not read is given up.
    deadline: Instant,
    exchange: Box<dyn Exchange>,
}

struct Task {
    machine: Connection<Waiting>,
    versions: ApiVersions,
    client_id: String,
    started: TokioInstant,
    reader: ReadHalf<Transport>,
    writer: WriteHalf<Transport>,
    decoder: FrameDecoder,
    buffer: BytesMut,
    out: VecDeque<Bytes>,
    out_bytes: usize,
    /// Bytes ever queued and ever written, to know when an unanswered request has left.
    queued: u64,
    written: u64,
    unanswered: VecDeque<Unanswered>,
}

impl Task {
    fn new(transport: Transport, versions: ApiVersions, config: &ClientConfig) -> Self {
        let (reader, writer) = tokio::io::split(transport);
        Self {
            machine: Connection::new(),
            versions,
            client_id: config.client_id.clone(),
            started: TokioInstant::now(),
            reader,
            writer,
            decoder: FrameDecoder::new(config.max_frame_bytes),
            buffer: BytesMut::new(),
            out: VecDeque::new(),
            out_bytes: 0,
            queued: 0,
            written: 0,
            unanswered: VecDeque::new(),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_start(self.started.elapsed())
    }

    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Box<dyn Exchange>>) {
        let mut timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut handles_left = true;
        while self.machine.poisoned().is_none() {
            if !handles_left && self.machine.in_flight() == 0 && self.out.is_empty() {
                self.machine.poison(Poison::Closed);
                break;
            }
            let unwritten = self.unanswered.front().map(|oldest| oldest.deadline);
            let deadline = self.machine.next_timeout().into_iter().chain(unwritten).min();
            self.arm(timer.as_mut(), deadline);
            tokio::select! {
                request = requests.recv(), if handles_left && self.out_bytes < WRITE_BACKLOG => match request {
                    Some(exchange) => {
                        self.begin(exchange);
                        while self.out_bytes < WRITE_BACKLOG && let Ok(more) = requests.try_recv() {
                            self.begin(more);
                        }
                    }
                    None => handles_left = false,
                },
                wrote = write_some(&mut self.writer, &self.out), if !self.out.is_empty() => self.handle_written(wrote),
                read = read_some(&mut self.reader, &mut self.buffer) => self.handle_read(read),
                () = timer.as_mut(), if deadline.is_some() => self.handle_timeout(),
            }
        }
        self.end(requests).await;
    }

    /// Re-arms the timer only when it would fire too late; one that fires early finds nothing due and costs little.
    fn arm(&self, timer: Pin<&mut Sleep>, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            let at = self.started + deadline.since_start();
            if timer.is_elapsed() || at < timer.deadline() {
                timer.reset(at);
            }
        }
    }

    fn begin(&mut self, mut exchange: Box<dyn Exchange>) {
        let (key, ours) = exchange.api();
        let version = match self.versions.negotiate(key.into(), ours) {
            Ok(version) => version,
            Err(unsupported) => return exchange.fail(CallError::Unsupported(unsupported)),
        };
        let frame = match exchange.encode(version, self.machine.next_correlation_id(), &self.client_id) {
            Ok(frame) => frame,
            Err(error) => return exchange.fail(error.into()),
        };
        let length = frame.len();
        if exchange.is_answered() {
            let deadline = self.now() + exchange.timeout();
            if let Err(refused) = self.machine.start(deadline, Waiting { exchange, version }) {
                return refused.exchange.fail(CallError::NotSent);
            }
        } else if let Some(correlation_id) = self.machine.start_unanswered() {
            let (end, deadline) = (self.queued + length as u64, self.now() + exchange.timeout());
            self.unanswered.push_back(Unanswered { end, correlation_id, deadline, exchange });
        } else {
            return exchange.fail(CallError::NotSent);
        }
        self.queued += length as u64;
        self.out_bytes += length;
        self.out.extend(frame.into_chunks());
    }

    fn handle_written(&mut self, wrote: io::Result<usize>) {
        let Ok(mut count) = wrote else { return self.machine.poison(Poison::Closed) };
        if count == 0 {
            return self.machine.poison(Poison::Closed);
        }
        self.written += count as u64;
        self.out_bytes -= count;
        while let Some(chunk) = self.out.front_mut() {
            if chunk.len() > count {
                chunk.advance(count);
                break;
            }
            count -= chunk.len();
            self.out.pop_front();
        }
        while self.unanswered.front().is_some_and(|oldest| oldest.end <= self.written)
            && let Some(Unanswered { exchange, .. }) = self.unanswered.pop_front()
        {
            exchange.written();
        }
    }

    fn handle_timeout(&mut self) {
        let now = self.now();
        self.machine.handle_timeout(now);
        if let Some(late) = self.unanswered.front().filter(|oldest| oldest.deadline <= now) {
            self.machine.poison(Poison::TimedOut { correlation_id: late.correlation_id });
        }
    }

    fn handle_read(&mut self, read: io::Result<usize>) {
        if !matches!(read, Ok(1..)) {
            return self.machine.poison(Poison::Closed);
        }
        loop {
            let frame = match self.decoder.decode(&mut self.buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(_) => return self.machine.poison(Poison::Undecodable),
            };
            let Some(id) = frame.first_chunk::<4>() else { return self.machine.poison(Poison::Undecodable) };
            let Ok(waiting) = self.machine.handle_answer(i32::from_be_bytes(*id)) else { return };
            if waiting.exchange.complete(waiting.version, frame).is_err() {
                return self.machine.poison(Poison::Undecodable);
            }
        }
    }

    /// Tells everyone who still waits. What was queued behind was never written.
    async fn end(mut self, mut requests: mpsc::UnboundedReceiver<Box<dyn Exchange>>) {
        requests.close();
        let cause = self.machine.poisoned().cloned().unwrap_or(Poison::Closed);
        if !matches!(cause, Poison::Closed) {
            tracing::warn!(%cause, in_flight = self.machine.in_flight(), "a broker connection was given up");
        }
        while let Some(waiting) = self.machine.poll_lost() {
            waiting.exchange.fail(CallError::Lost(cause.clone()));
        }
        for Unanswered { exchange, .. } in self.unanswered {
            exchange.fail(CallError::Lost(cause.clone()));
        }
        // `recv`, since it also waits for a request that another thread is just putting in.
        while let Some(exchange) = requests.recv().await {
            exchange.fail(CallError::NotSent);
        }
    }
}

async fn read_some(reader: &mut ReadHalf<Transport>, buffer: &mut BytesMut) -> io::Result<usize> {
    buffer.reserve(READ_BYTES);
    reader.read_buf(buffer).await
}

async fn write_some(writer: &mut WriteHalf<Transport>, out: &VecDeque<Bytes>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); SLICES];
    let mut count = 0;
    for (slice, chunk) in slices.iter_mut().zip(out) {
        *slice = IoSlice::new(chunk);
        count += 1;
    }
    writer.write_vectored(&slices[..count]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b128_a_refusal_to_speak_our_version_is_read_whatever_its_shape() {
        // Correlation id 1, error 35, then: one row of version 0; the single byte of librdkafka's mock; nothing.
        let rows: [&[u8]; 3] = [&[0, 0, 0, 1, 0, 18, 0, 0, 0, 2], &[1, 0, 18, 0, 0, 0, 2, 0, 0, 0, 0], &[]];
        let known = rows.map(|rows| {
            let frame: Bytes = [&[0, 0, 0, 1, 0, 35], rows].concat().into();
            let (id, answer) = decode_versions(frame, 4).expect("the code is there");
            assert_eq!((id, answer.error_code), (1, 35));
            answer.api_keys.first().map(|row| row.max_version)
        });
        assert_eq!(known, [Some(2), None, None]);
        assert!(decode_versions(Bytes::from_static(&[0, 0, 0, 1, 0]), 4).is_none());
        assert!(
            decode_versions(Bytes::from_static(&[0, 0, 0, 1, 0, 0]), 4).is_none(),
            "good news need a body"
        );
    }
}
