//! One client's connection: frames in, answers out, in the order of the requests.
//!
//! One request is worked on at a time, except that produces may follow each other before the first is answered:
//! they are appended in the order of arrival and answered in it, so that one connection's pipelined produces share
//! a barrier. At most one whole frame is read ahead. What arrives is hostile until proven otherwise: any fault
//! closes this connection and nothing else.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::held_memory::Hold;
use crate::node::Node;
use crate::routes::{self, Call, Reply, Started};

/// Produces of one connection that may be in flight at once. Clients keep five; a few more cost nothing.
const MAX_IN_FLIGHT: usize = 32;
/// How much is read at once, and how far the buffer grows ahead of what has arrived.
const READ_STEP: usize = 64 << 10;
/// Answers are gathered up to about this many bytes before they are written.
const WRITE_STEP: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    #[error("the peer closed it")]
    Peer,
    #[error("the peer closed it in the middle of a frame")]
    HalfFrame,
    #[error("no request for too long")]
    Idle,
    #[error("the peer takes no answers")]
    Stuck,
    #[error("a frame of {0} bytes")]
    FrameLength(i64),
    #[error("{0}")]
    Refused(String),
    #[error("its memory is needed for others")]
    Evicted,
    #[error("the broker is stopping")]
    Stopping,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Closed {
    /// Whether the peer, rather than the course of things, is to blame.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::HalfFrame | Self::Stuck | Self::Evicted | Self::FrameLength(_) | Self::Refused(_)
        )
    }
}

struct InFlight {
    reply: Pin<Box<dyn Future<Output = Reply> + Send>>,
    ordered: bool,
    /// Of the request's frame.
    bytes: usize,
}

struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    node: Arc<Node>,
    input: BytesMut,
    in_flight: VecDeque<InFlight>,
    output: Chunks,
    last_request: Instant,
    hold: Hold,
}

/// Serves a connection until it ends, and says why it did.
pub(crate) async fn serve(stream: TcpStream, peer: SocketAddr, node: Arc<Node>, hold: Hold) -> Closed {
    let mut connection = Connection {
        stream,
        peer,
        node,
        input: BytesMut::new(),
        in_flight: VecDeque::new(),
        output: Chunks::default(),
        last_request: Instant::now(),
        hold,
    };
    match connection.run().await {
        Ok(never) => match never {},
        Err(closed) => closed,
    }
}

enum Never {}

impl Connection {
    async fn run(&mut self) -> Result<Never, Closed> {
        loop {
            self.collect_ready()?;
            self.flush().await?;
            // Looked at once a turn: were a stop to fall between two looks, nothing would wake an idle connection.
            let stopping = self.node.stopping.is_cancelled();
            if stopping && self.in_flight.is_empty() {
                return Err(Closed::Stopping);
            }
            if !stopping && self.start_next().await? {
                continue;
            }
            self.wait(stopping).await?;
        }
    }

    /// Moves the answers that are ready, from the front, to the output.
    fn collect_ready(&mut self) -> Result<(), Closed> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while self.output.remaining < WRITE_STEP
            && let Some(front) = self.in_flight.front_mut()
        {
            // Polled without a waker on purpose: `wait` polls the same future with one before it sleeps.
            let std::task::Poll::Ready(reply) = front.reply.as_mut().poll(&mut context) else { break };
            self.in_flight.pop_front();
            self.answer(reply)?;
        }
        Ok(())
    }

    fn answer(&mut self, reply: Reply) -> Result<(), Closed> {
        match reply {
            Reply::Frame(chunks) => {
                for chunk in chunks {
                    self.output.push(chunk);
                }
                Ok(())
            }
            Reply::Nothing => Ok(()),
            Reply::Close(reason) => Err(Closed::Refused(reason)),
        }
    }

    async fn flush(&mut self) -> Result<(), Closed> {
        if self.output.remaining == 0 {
            return Ok(());
        }
        self.node.metrics.bytes_out.add(self.output.remaining);
        self.note_held(0, false);
        let write = self.stream.write_all_buf(&mut self.output);
        timeout(self.node.config.idle_timeout, write).await.map_err(|_| Closed::Stuck)??;
        self.last_request = Instant::now();
        self.note_held(0, true);
        Ok(())
    }

    fn note_held(&mut self, starting: usize, got_on: bool) {
        let worked_on: usize = self.in_flight.iter().map(|request| request.bytes).sum();
        self.hold.set(self.input.len() + starting + worked_on + self.output.remaining, got_on);
    }

    /// Starts the next request, when there is a whole one and its turn has come.
    async fn start_next(&mut self) -> Result<bool, Closed> {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return Ok(false);
        }
        let Some(length) = self.whole_frame()? else { return Ok(false) };
        let ordered = routes::is_ordered(&self.input[4..]);
        let turn = self.in_flight.is_empty() || (ordered && self.in_flight.iter().all(|other| other.ordered));
        if !turn {
            return Ok(false);
        }
        self.input.advance(4);
        let frame = self.input.split_to(length).freeze();
        self.last_request = Instant::now();
        self.node.metrics.requests.add(1);
        self.node.metrics.bytes_in.add(length + 4);
        self.note_held(length, true);
        let call = Call { node: Arc::clone(&self.node), peer: self.peer, frame };
        let reply = match routes::start(call) {
            Started::Plain(reply) => reply,
            // Waits while the partition's mailbox is full: nothing more is read from this connection.
            Started::Ordered(accept) => accept.await,
        };
        self.in_flight.push_back(InFlight { reply, ordered, bytes: length });
        Ok(true)
    }

    /// The length of the frame at the front of the input, when all of it is there.
    fn whole_frame(&self) -> Result<Option<usize>, Closed> {
        let Some(prefix) = self.input.first_chunk::<4>() else { return Ok(None) };
        let length = i32::from_be_bytes(*prefix);
        match usize::try_from(length) {
            Ok(length) if length > 0 && length <= self.node.config.max_request_bytes => {
                Ok((self.input.len() - 4 >= length).then_some(length))
            }
            _ => Err(Closed::FrameLength(i64::from(length))),
        }
    }

    /// Sleeps until an answer is ready, bytes have arrived, or time is up.
    async fn wait(&mut self, stopping: bool) -> Result<(), Closed> {
        let may_read = self.whole_frame()?.is_none() && !stopping;
        let idle = self.last_request + self.node.config.idle_timeout;
        let busy = !self.in_flight.is_empty();
        if may_read {
            // Grows with what has arrived, never with what was announced.
            let step = READ_STEP.min(self.input.len().max(4 << 10));
            self.input.reserve(step);
        }
        let front = async {
            match self.in_flight.front_mut() {
                Some(front) => front.reply.as_mut().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            reply = front => {
                self.in_flight.pop_front();
                self.answer(reply)
            }
            read = self.stream.read_buf(&mut self.input), if may_read => match read? {
                0 if self.input.is_empty() => Err(Closed::Peer),
                0 => Err(Closed::HalfFrame),
                _ => {
                    self.note_held(0, false);
                    Ok(())
                }
            },
            () = self.node.stopping.cancelled(), if !stopping => Ok(()),
            () = async { let _ = timeout_at(idle, std::future::pending::<()>()).await; }, if !busy => Err(Closed::Idle),
        }
    }
}

/// Answers on their way out, written with one vectored call where possible.
#[derive(Default)]
struct Chunks {
    chunks: VecDeque<Bytes>,
    remaining: usize,
}

impl Chunks {
    fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.remaining += chunk.len();
            self.chunks.push_back(chunk);
        }
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk)
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while count > 0 {
            let Some(front) = self.chunks.front_mut() else { return };
            if front.len() > count {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.chunks.pop_front();
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [io::IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slot, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slot = io::IoSlice::new(chunk);
            used += 1;
        }
        used
    }
}
