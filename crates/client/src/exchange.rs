//! One question and its answer, with the types erased so that a connection can queue different ones.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tramline_core::client::api_versions::VersionRange;
use tramline_wire::{ApiKey, DecodeError, EncodeError, Frame, Request};

use crate::error::CallError;

/// A request on its way through a connection.
pub(crate) trait Exchange: Send {
    /// Which API, in which versions we can speak it.
    fn api(&self) -> (ApiKey, VersionRange);
    /// How long the answer may take.
    fn timeout(&self) -> Duration;
    /// Whether the broker answers at all.
    fn is_answered(&self) -> bool;
    /// The frame, length prefix included.
    fn encode(&mut self, version: i16, correlation_id: i32, client_id: &str) -> Result<Frame, EncodeError>;
    /// The frame that answers it. An error means that the connection cannot be trusted; the caller is told.
    fn complete(self: Box<Self>, version: i16, frame: Bytes) -> Result<(), DecodeError>;
    /// The last byte went to the socket (only asked for when there is no answer).
    fn written(self: Box<Self>);
    /// There will be no answer.
    fn fail(self: Box<Self>, error: CallError);
}

/// The other end of an exchange: resolves once. Dropping it cancels nothing; the answer is then nobody's.
pub(crate) type Answer<R> = oneshot::Receiver<Result<R, CallError>>;

/// The versions of `R` that are ours to speak.
pub(crate) fn our_versions<R: Request>() -> VersionRange {
    // Newer versions than these carry topic ids in place of names, which our offsets code does not resolve.
    let newest = match R::KEY {
        ApiKey::OffsetCommit | ApiKey::OffsetFetch => 9,
        _ => R::MAX_VERSION,
    };
    // Before version 3 brokers answer this to other brokers only.
    let oldest = match R::KEY {
        ApiKey::OffsetForLeaderEpoch => 3,
        _ => R::MIN_VERSION,
    };
    VersionRange::new(oldest, R::MAX_VERSION.min(newest))
}

/// A request whose content may depend on the version that is spoken.
pub(crate) struct Typed<R: Request, F> {
    build: Option<F>,
    timeout: Duration,
    is_answered: bool,
    answer: oneshot::Sender<Result<R::Response, CallError>>,
}

impl<R: Request, F: FnOnce(i16) -> R + Send> Typed<R, F> {
    /// A request that is answered within `timeout`, or never when `is_answered` is false.
    pub(crate) fn new(build: F, timeout: Duration, is_answered: bool) -> (Self, Answer<R::Response>) {
        let (answer, receiver) = oneshot::channel();
        (Self { build: Some(build), timeout, is_answered, answer }, receiver)
    }
}

impl<R: Request, F: FnOnce(i16) -> R + Send> Exchange for Typed<R, F> {
    fn api(&self) -> (ApiKey, VersionRange) {
        (R::KEY, our_versions::<R>())
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn is_answered(&self) -> bool {
        self.is_answered
    }

    fn encode(&mut self, version: i16, correlation_id: i32, client_id: &str) -> Result<Frame, EncodeError> {
        let request = self.build.take().map_or_else(R::default, |build| build(version));
        tramline_wire::encode_request(correlation_id, Some(client_id), version, &request)
    }

    fn complete(self: Box<Self>, version: i16, frame: Bytes) -> Result<(), DecodeError> {
        match tramline_wire::decode_response::<R>(frame, version) {
            Ok((_, response)) => {
                // The caller may be gone; the answer was still its own and is now consumed.
                self.answer.send(Ok(response)).ok();
                Ok(())
            }
            Err(error) => {
                self.answer
                    .send(Err(CallError::Lost(tramline_core::client::connection::Poison::Undecodable)))
                    .ok();
                Err(error)
            }
        }
    }

    fn written(self: Box<Self>) {
        self.answer.send(Ok(R::Response::default())).ok();
    }

    fn fail(self: Box<Self>, error: CallError) {
        self.answer.send(Err(error)).ok();
    }
}

impl From<EncodeError> for CallError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(Arc::new(error))
    }
}
