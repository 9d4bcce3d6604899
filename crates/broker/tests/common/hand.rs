//! A broker without sockets and threads for tests: requests in, steps taken to the answers.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tramline_broker::{Answer, BrokerConfig, SteppedBroker};
use tramline_log::Storage;
use tramline_wire::messages::alter_configs_request::{
    AlterConfigsRequest, AlterConfigsResource, AlterableConfig,
};
use tramline_wire::{Request, decode_response, encode_request};

/// Where its files are.
pub const DIR: &str = "/data";

type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A broker moved by hand.
pub struct Hand(pub SteppedBroker);

impl Hand {
    pub fn open(storage: Arc<dyn Storage>, config: BrokerConfig) -> Option<Self> {
        SteppedBroker::open(storage, DIR, config).ok().map(Self)
    }

    /// All are handed in before anything is written; `None` for those whose connection was closed.
    pub fn all<R: Request>(&self, version: i16, requests: &[R]) -> Vec<Option<R::Response>> {
        let start = |request: &R| {
            let frame = encode_request(1, Some("test"), version, request).unwrap().to_bytes();
            self.0.request(frame.slice(4..))
        };
        let mut pending: Vec<Pending> = requests.iter().map(start).collect();
        let early: Vec<Option<Answer>> = pending.iter_mut().map(poll).collect();
        self.0.settle();
        let answers = pending.iter_mut().zip(early).map(|(pending, early)| {
            match early.or_else(|| poll(pending)).expect("nothing is left to do, and a waiter still waits") {
                Answer::Frame(frame) => Some(decode_response::<R>(frame.slice(4..), version).unwrap().1),
                _ => None,
            }
        });
        answers.collect()
    }

    /// Compacts what is worth it.
    pub fn compact(&self) {
        let mut pass = self.0.compact();
        while pass.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.0.settle();
        }
    }

    /// One request, stepped to its answer.
    pub fn call<R: Request>(&self, version: i16, request: R) -> Option<R::Response> {
        self.all(version, &[request]).remove(0)
    }
}

/// All settings of a topic replaced by one.
pub fn alter_topic(topic: &str, name: &str, value: &str) -> AlterConfigsRequest {
    let config = AlterableConfig { name: name.into(), value: Some(value.into()) };
    let resource =
        AlterConfigsResource { resource_type: 2, resource_name: topic.into(), configs: vec![config] };
    AlterConfigsRequest { resources: vec![resource], ..AlterConfigsRequest::default() }
}

fn poll(pending: &mut Pending) -> Option<Answer> {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}
