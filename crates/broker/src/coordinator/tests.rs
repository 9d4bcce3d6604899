//! What threads can do to the coordinator's driver.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tramline_core::group::coordinator::Response;
use tramline_log::storage::MemoryStorage;
use tramline_wire::messages::JoinGroupRequest;
use tramline_wire::messages::join_group_request::JoinGroupRequestProtocol;

use super::{GroupCoordinator, Unanswered};
use crate::config::BrokerConfig;
use crate::metrics::Metrics;
use crate::node::{Node, wall_clock};
use crate::startup;

type Joining = Pin<Box<dyn Future<Output = Result<Response, Unanswered>> + Send>>;

/// A node whose groups wait an hour for more members.
fn node() -> Arc<Node> {
    let plan = startup::Plan {
        storage: MemoryStorage::new().shared(),
        dir: "/data".into(),
        config: BrokerConfig::new().group_initial_rebalance_delay(Duration::from_hours(1)),
        metrics: Arc::new(Metrics::default()),
        clock: wall_clock,
        threads: false,
    };
    startup::open(plan).unwrap()
}

/// A join in version 3, which is a member at once.
fn join(groups: &Arc<GroupCoordinator>) -> Joining {
    let groups = Arc::clone(groups);
    Box::pin(async move {
        let request = JoinGroupRequest {
            group_id: "g".into(),
            session_timeout_ms: 30_000,
            rebalance_timeout_ms: 30_000,
            protocol_type: "consumer".into(),
            protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata: "m".into() }],
            ..JoinGroupRequest::default()
        };
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        groups
            .call("test", host, 3, |machine, now, wall, client| {
                machine.handle_join(now, wall, client, &request);
            })
            .await
    })
}

fn poll(joining: &mut Joining) -> Option<Result<Response, Unanswered>> {
    match joining.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Joins until it is refused, and returns those that were let in and not answered at once.
fn join_until_stopped(groups: &Arc<GroupCoordinator>) -> Vec<Joining> {
    let mut waiting = Vec::new();
    loop {
        let mut joining = join(groups);
        match poll(&mut joining) {
            None => waiting.push(joining),
            Some(Err(Unanswered)) => return waiting,
            // Let in, and answered by the stop before it was looked at.
            Some(Ok(_)) => {}
        }
    }
}

/// As many stops as `TRAMLINE_STOPS` says.
#[test]
fn no_join_that_races_a_stop_is_left_waiting() {
    let stops = std::env::var("TRAMLINE_STOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    for stop in 0..stops {
        let node = node();
        let ready = Barrier::new(4);
        let left: Vec<Joining> = std::thread::scope(|scope| {
            let joiner = || {
                ready.wait();
                join_until_stopped(&node.groups)
            };
            let joiners: Vec<_> = (0..3).map(|_| scope.spawn(joiner)).collect();
            ready.wait();
            node.groups.stop();
            joiners.into_iter().flat_map(|joiner| joiner.join().unwrap()).collect()
        });
        for mut joining in left {
            let answer = poll(&mut joining);
            assert!(matches!(answer, Some(Ok(Response::Join(_)))), "stop {stop}: {answer:?}");
        }
    }
}
