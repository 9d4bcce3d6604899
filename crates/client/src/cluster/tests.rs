//! Exchanges over real sockets: every answer meets its own question, or nobody.

use std::sync::Arc;

use tokio::sync::Notify;
use tramline_wire::ApiKey;
use tramline_wire::messages::{ListGroupsRequest, ListGroupsResponse};

use super::*;
use crate::common::{Peer, Reply, jump, until};

/// A peer that answers each ListGroups with the states asked for, so that a wrong pairing shows.
async fn echo() -> Peer {
    let peer = Peer::start().await;
    peer.answer::<ListGroupsRequest>(|request, _| {
        let group = |state: &Str| tramline_wire::messages::list_groups_response::ListedGroup {
            group_id: state.clone(),
            ..Default::default()
        };
        ListGroupsResponse { groups: request.states_filter.iter().map(group).collect(), ..Default::default() }
    });
    peer
}

fn question(text: &str) -> ListGroupsRequest {
    ListGroupsRequest { states_filter: vec![text.into()], ..Default::default() }
}

async fn cluster(peer: &Peer, timeout: Duration) -> Cluster {
    let config = ClientConfig::new(peer.address())
        .request_timeout(timeout)
        .reconnect_backoff(Duration::from_millis(1), Duration::from_millis(5));
    Cluster::connect(config).await.unwrap()
}

async fn ask(cluster: &Cluster, text: &str) -> Result<String, CallError> {
    let answer = cluster.call(Target::NodeControl(1), question(text)).await?;
    Ok(answer.groups[0].group_id.to_string())
}

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn fifty_questions_at_once_on_one_connection_get_their_own_answers() {
    let peer = echo().await;
    let cluster = cluster(&peer, LONG).await;
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let cluster = cluster.clone();
            tokio::spawn(async move { (n.to_string(), ask(&cluster, &n.to_string()).await) })
        })
        .collect();
    for task in tasks {
        let (asked, answered) = task.await.unwrap();
        assert_eq!(answered.unwrap(), asked);
    }
    let ids: std::collections::BTreeSet<i32> =
        peer.seen().iter().filter(|(key, ..)| *key == ApiKey::ListGroups).map(|(.., id)| *id).collect();
    assert_eq!(ids.len(), 50, "each with an id of its own");
    assert_eq!(peer.connections(), 2, "one by the bootstrap address, one to the node");
}

#[tokio::test]
async fn an_answer_to_a_caller_that_went_away_is_nobodys() {
    let peer = echo().await;
    let cluster = cluster(&peer, LONG).await;
    assert_eq!(ask(&cluster, "warm").await.unwrap(), "warm");
    let hold = Arc::new(Notify::new());
    peer.script(ApiKey::ListGroups, [Reply::Hold(hold.clone())]);
    tokio::select! {
        _ = ask(&cluster, "gone") => panic!("it is held"),
        () = until(|| peer.script_left(ApiKey::ListGroups) == 0) => {}
    }
    let (next, ()) = tokio::join!(ask(&cluster, "next"), async { hold.notify_one() });
    assert_eq!(next.unwrap(), "next", "the late answer met its own question");
    assert_eq!(peer.connections(), 2, "and the connection lives");
}

#[tokio::test]
async fn a_timeout_kills_the_connection_for_all_that_wait_and_the_next_call_dials() {
    let peer = echo().await;
    let cluster = cluster(&peer, LONG).await;
    assert_eq!(ask(&cluster, "warm").await.unwrap(), "warm");
    peer.script(ApiKey::ListGroups, [Reply::Hold(Arc::new(Notify::new()))]);
    let silence = async {
        until(|| peer.script_left(ApiKey::ListGroups) == 0).await;
        jump(LONG).await;
    };
    let (first, second, ()) = tokio::join!(ask(&cluster, "first"), ask(&cluster, "second"), silence);
    for outcome in [first, second] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CallError::Lost(Poison::TimedOut { .. })), "{error}");
        assert!(error.is_possibly_sent() && error.is_retriable());
    }
    assert_eq!(ask(&cluster, "third").await.unwrap(), "third");
}

#[tokio::test]
async fn whatever_breaks_the_pairing_loses_every_waiter_and_nothing_later() {
    for (reply, undecodable) in [
        (Reply::WrongId, false),
        (Reply::HalfFrame, false),
        (Reply::Truncated, true),
        (Reply::DoAndClose, false),
    ] {
        let peer = echo().await;
        let cluster = cluster(&peer, LONG).await;
        peer.script(ApiKey::ListGroups, [Reply::Normal, reply.clone()]);
        let outcomes = tokio::join!(ask(&cluster, "a"), ask(&cluster, "b"), ask(&cluster, "c"));
        assert_eq!(outcomes.0.unwrap(), "a", "{reply:?}: answered before");
        let b = outcomes.1.unwrap_err();
        assert!(matches!(b, CallError::Lost(_)), "{reply:?}: {b}");
        assert_eq!(matches!(b, CallError::Lost(Poison::Undecodable)), undecodable, "{reply:?}: {b}");
        assert!(outcomes.2.unwrap_err().is_possibly_sent(), "{reply:?}");
        assert_eq!(ask(&cluster, "d").await.unwrap(), "d", "{reply:?}");
    }
}

#[tokio::test]
async fn what_the_broker_does_not_speak_is_refused_here_and_keeps_the_connection() {
    let peer = echo().await;
    peer.hide(ApiKey::ListGroups);
    let cluster = cluster(&peer, LONG).await;
    assert!(matches!(ask(&cluster, "a").await, Err(CallError::Unsupported(_))));
    cluster.call(Target::NodeControl(1), MetadataRequest::default()).await.unwrap();
    let connections = peer.connections();
    assert!(matches!(ask(&cluster, "a").await, Err(CallError::Unsupported(_))));
    assert_eq!(peer.connections(), connections);
}

#[tokio::test]
async fn b115_a_restarted_node_is_found_at_its_new_address() {
    let old = echo().await;
    let new = echo().await;
    let config = ClientConfig::new(format!("{},{}", old.address(), new.address()))
        .reconnect_backoff(Duration::from_millis(1), Duration::from_millis(5));
    let cluster = Cluster::connect(config).await.unwrap();
    assert_eq!(ask(&cluster, "old").await.unwrap(), "old");
    drop(old);
    // Known under the same id, at another port, once anybody tells.
    let mut told = cluster.refresh(Some(&[]), false).await;
    while told.is_err() {
        told = cluster.refresh(Some(&[]), false).await;
    }
    assert_eq!(ask(&cluster, "new").await.unwrap(), "new");
    assert_eq!(told.unwrap().nodes.len(), 1, "the id is the identity");
}

#[tokio::test]
async fn an_address_that_is_none_is_said_at_once() {
    for address in ["", "nonsense", "host:", ":9092", "host:port"] {
        let error = Cluster::connect(ClientConfig::new(address)).await.unwrap_err();
        assert!(matches!(error, CallError::BadAddress(_)), "{address}: {error}");
    }
}
