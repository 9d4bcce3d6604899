//! The producer over real sockets, against a peer that does as it is told.

// Helpers of tests may fail by panicking.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Peer, Reply, jump, until};
use tokio::sync::Notify;
use tramline_client::producer::{TrySendError, TrySendReason};
use tramline_client::{
    Acks, ClientConfig, Compression, Delivery, DeliveryError, ErrorCode, Producer, ProducerConfig,
    ProducerRecord, SendError, Spread,
};
use tramline_wire::ApiKey;

const HOUR: Duration = Duration::from_secs(3600);

fn client(peer: &Peer) -> ClientConfig {
    ClientConfig::new(peer.address())
        .retry_backoff(Duration::from_millis(5), Duration::from_millis(20))
        .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20))
}

async fn producer(peer: &Peer, config: ProducerConfig) -> Producer {
    Producer::new(client(peer), config).await.unwrap()
}

fn to(value: impl ToString) -> ProducerRecord {
    ProducerRecord::to("t").value(value.to_string())
}

async fn offset(delivery: Delivery) -> Option<i64> {
    delivery.await.unwrap().offset
}

#[tokio::test]
async fn records_arrive_in_order_with_their_offsets() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new()).await;
    let mut deliveries = Vec::new();
    for n in 0..300 {
        deliveries.push(producer.send(to(n)).await.unwrap());
    }
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(offset(delivery).await, Some(n as i64));
    }
    producer.close().await.unwrap();
    assert_eq!(peer.values("t", 0), (0..300).map(|n| n.to_string()).collect::<Vec<_>>());
    let ids: Vec<i64> = peer.stored("t", 0, |s| s.batches.iter().map(|b| b.producer_id).collect());
    assert!(ids.iter().all(|id| *id == 0), "idempotent by default");
}

#[tokio::test]
async fn a_full_batch_leaves_at_once_under_a_long_linger() {
    let peer = Peer::with_topic("t", 1).await;
    let config = ProducerConfig::new().linger(HOUR).delivery_timeout(2 * HOUR).batch_records(10);
    let producer = producer(&peer, config).await;
    let mut last = None;
    for n in 0..10 {
        last = Some(producer.send(to(n)).await.unwrap());
    }
    assert_eq!(offset(last.unwrap()).await, Some(9));
    assert_eq!(peer.count(ApiKey::Produce), 1);
}

#[tokio::test]
async fn flush_and_close_do_not_wait_for_the_linger() {
    let peer = Peer::with_topic("t", 3).await;
    let config = ProducerConfig::new().linger(HOUR).delivery_timeout(2 * HOUR).spread(Spread::RoundRobin);
    let producer = producer(&peer, config).await;
    for n in 0..9 {
        drop(producer.send(to(n)).await.unwrap());
    }
    producer.flush().await.unwrap();
    for partition in 0..3 {
        let expected: Vec<String> = (0..3).map(|n| (n * 3 + partition).to_string()).collect();
        assert_eq!(peer.values("t", partition), expected, "without a key, one after the other from 0");
    }
    let delivery = producer.send(to("last")).await.unwrap();
    producer.close().await.unwrap();
    assert_eq!(offset(delivery).await, Some(3));
}

#[tokio::test]
async fn b107_acks_none_completes_without_an_offset_and_without_an_answer() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new().acks(Acks::None)).await;
    assert_eq!(offset(producer.send(to(1)).await.unwrap()).await, None);
    assert_eq!(producer.send_batch("t", 0, vec![to(2), to(3)]).await.unwrap(), None);
    producer.close().await.unwrap();
}

#[tokio::test]
async fn a_refused_acks_none_request_closes_and_the_next_goes_over_a_fresh_connection() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new().acks(Acks::None)).await;
    peer.script(ApiKey::Produce, [Reply::Error(3)]);
    assert_eq!(offset(producer.send(to("refused")).await.unwrap()).await, None, "nobody can know");
    let before = peer.connections();
    // The peer closes after it read the request; records written before that is noticed are lost, as documented.
    let mut n = 0;
    while peer.connections() == before || peer.values("t", 0).is_empty() {
        assert_eq!(offset(producer.send(to(n)).await.unwrap()).await, None);
        n += 1;
        tokio::task::yield_now().await;
    }
    producer.close().await.unwrap();
    assert!(!peer.values("t", 0).contains(&"refused".to_owned()));
}

#[tokio::test]
async fn b112_a_refused_batch_fails_each_of_its_records_at_once_and_keeps_the_connection() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new().linger(HOUR).delivery_timeout(2 * HOUR)).await;
    peer.script(ApiKey::Produce, [Reply::Error(87)]);
    let mut deliveries = Vec::new();
    for n in 0..5 {
        deliveries.push(producer.send(to(n)).await.unwrap());
    }
    let report = producer.flush().await.unwrap_err();
    assert_eq!(report.failed, 5);
    for delivery in deliveries {
        let error = delivery.await.unwrap_err();
        assert!(matches!(error, DeliveryError::Refused { code: ErrorCode::InvalidRecord, .. }), "{error}");
        assert!(!error.is_possibly_written());
    }
    let connections = peer.connections();
    let delivery = producer.send(to("next")).await.unwrap();
    producer.flush().await.unwrap();
    assert_eq!(offset(delivery).await, Some(0));
    assert_eq!(peer.connections(), connections);
}

#[tokio::test]
async fn a_retried_batch_is_stored_once_whatever_happens_to_its_connection() {
    for reply in [
        Reply::DoAndClose,
        Reply::Close,
        Reply::WrongId,
        Reply::HalfFrame,
        Reply::Truncated,
        Reply::Error(6),
        Reply::Error(3),
        Reply::Error(56),
        Reply::Error(7),
    ] {
        let peer = Peer::with_topic("t", 1).await;
        let producer = producer(&peer, ProducerConfig::new().batch_records(1)).await;
        peer.script(ApiKey::Produce, [Reply::Normal, reply.clone(), Reply::Normal, reply.clone()]);
        let mut deliveries = Vec::new();
        for n in 0..20 {
            deliveries.push(producer.send(to(n)).await.unwrap());
        }
        for (n, delivery) in deliveries.into_iter().enumerate() {
            assert_eq!(offset(delivery).await, Some(n as i64), "{reply:?}");
        }
        producer.close().await.unwrap();
        assert_eq!(peer.values("t", 0), (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "{reply:?}");
        assert_eq!(peer.script_left(ApiKey::Produce), 0);
    }
}

#[tokio::test]
async fn b106_without_idempotence_order_is_kept_too() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new().acks(Acks::Written).batch_records(1)).await;
    peer.script(ApiKey::Produce, [Reply::Normal, Reply::Error(6), Reply::Normal, Reply::Close]);
    let mut deliveries = Vec::new();
    for n in 0..20 {
        deliveries.push(producer.send(to(n)).await.unwrap());
    }
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(offset(delivery).await, Some(n as i64));
    }
    producer.close().await.unwrap();
    assert_eq!(peer.values("t", 0), (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_request_without_an_answer_kills_its_connection_and_is_retried_on_another() {
    let peer = Peer::with_topic("t", 1).await;
    let config = client(&peer).request_timeout(HOUR);
    let producer = Producer::new(config, ProducerConfig::new().delivery_timeout(4 * HOUR)).await.unwrap();
    offset(producer.send(to(0)).await.unwrap()).await;
    let connections = peer.connections();
    peer.script(ApiKey::Produce, [Reply::DoAndSilence]);
    let silent = producer.send(to(1)).await.unwrap();
    until(|| peer.script_left(ApiKey::Produce) == 0).await;
    jump(HOUR).await;
    assert_eq!(offset(silent).await, Some(1));
    assert_eq!(peer.connections(), connections + 1);
    assert_eq!(offset(producer.send(to(2)).await.unwrap()).await, Some(2));
    assert_eq!(peer.values("t", 0), ["0", "1", "2"]);
}

#[tokio::test]
async fn b097_a_record_that_was_sent_but_never_answered_is_possibly_written() {
    let peer = Peer::with_topic("t", 1).await;
    let config = client(&peer).request_timeout(9 * HOUR);
    let producer = Producer::new(config, ProducerConfig::new().delivery_timeout(9 * HOUR)).await.unwrap();
    let hold = Arc::new(Notify::new());
    peer.script(ApiKey::Produce, [Reply::Hold(hold.clone())]);
    let slow = producer.send(to("slow")).await.unwrap();
    until(|| peer.script_left(ApiKey::Produce) == 0).await;
    jump(9 * HOUR).await;
    let error = slow.await.unwrap_err();
    assert!(error.is_possibly_written(), "{error}");
    hold.notify_one();
    // Its sequence must not be used again: the record below would pass for a retry of the one above and be dropped.
    assert_eq!(offset(producer.send(to("next")).await.unwrap()).await, Some(1));
    assert_eq!(peer.values("t", 0), ["slow", "next"]);
    let epochs: Vec<i16> = peer.stored("t", 0, |s| s.batches.iter().map(|b| b.producer_epoch).collect());
    assert_eq!(epochs, [0, 1]);
}

#[tokio::test]
async fn b101_a_broker_that_forgot_the_producer_gets_a_new_epoch() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new()).await;
    assert_eq!(offset(producer.send(to(0)).await.unwrap()).await, Some(0));
    for code in [59, 45, 47] {
        peer.script(ApiKey::Produce, [Reply::Error(code)]);
        assert!(offset(producer.send(to(code)).await.unwrap()).await.is_some(), "{code}");
    }
    assert_eq!(peer.values("t", 0), ["0", "59", "45", "47"]);
    let epochs: Vec<i16> = peer.stored("t", 0, |s| s.batches.iter().map(|b| b.producer_epoch).collect());
    assert_eq!(epochs, [0, 1, 2, 3]);
}

#[tokio::test]
async fn b113_a_batch_that_is_too_large_is_split_and_each_record_keeps_its_place() {
    let peer = Peer::with_topic("t", 1).await;
    for compression in [Compression::None, Compression::Lz4] {
        let config = ProducerConfig::new().linger(HOUR).delivery_timeout(2 * HOUR).compression(compression);
        let producer = producer(&peer, config).await;
        let base = peer.values("t", 0).len() as i64;
        peer.script(ApiKey::Produce, [Reply::Error(10), Reply::Error(10)]);
        let mut deliveries = Vec::new();
        for n in 0..101 {
            deliveries.push(producer.send(to(n)).await.unwrap());
        }
        producer.flush().await.unwrap();
        for (n, delivery) in deliveries.into_iter().enumerate() {
            assert_eq!(offset(delivery).await, Some(base + n as i64));
        }
        // One record cannot be divided: it fails, and the producer goes on.
        peer.script(ApiKey::Produce, [Reply::Error(10)]);
        let alone = producer.send(to("alone")).await.unwrap();
        assert_eq!(producer.flush().await.unwrap_err().failed, 1);
        assert!(matches!(alone.await, Err(DeliveryError::Refused { code: ErrorCode::MessageTooLarge, .. })));
        let next = producer.send(to("next")).await.unwrap();
        producer.close().await.unwrap();
        assert_eq!(offset(next).await, Some(base + 101));
    }
}

#[tokio::test]
async fn b113_a_record_beyond_the_request_limit_is_refused_here_and_the_connection_survives() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new().max_request_bytes(10_000)).await;
    let large = "x".repeat(20_000);
    let refused = producer.send(to(&large)).await;
    assert!(matches!(refused, Err(SendError::RecordTooLarge { max: 10_000, .. })), "{refused:?}");
    let refused = producer.send_batch("t", 0, vec![to(&large)]).await.unwrap_err();
    assert!(matches!(refused, DeliveryError::NotAccepted(_)), "{refused}");
    assert_eq!(offset(producer.send(to("fits")).await.unwrap()).await, Some(0));
    assert_eq!(peer.values("t", 0), ["fits"]);
}

#[tokio::test]
async fn send_batch_is_one_request_and_returns_the_first_offset() {
    let peer = Peer::with_topic("t", 2).await;
    let producer = producer(&peer, ProducerConfig::new().linger(HOUR).delivery_timeout(2 * HOUR)).await;
    assert_eq!(producer.send_batch("t", 1, Vec::new()).await.unwrap(), None);
    assert_eq!(peer.count(ApiKey::Produce), 0, "nothing to send");
    let records = |from: i32| (from..from + 10).map(to).collect::<Vec<_>>();
    assert_eq!(producer.send_batch("t", 1, records(0)).await.unwrap(), Some(0));
    assert_eq!(producer.send_batch("t", 1, records(10)).await.unwrap(), Some(10));
    assert_eq!(peer.count(ApiKey::Produce), 2);
    assert_eq!(peer.values("t", 1), (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_key_keeps_its_partition_and_a_routing_key_is_not_sent() {
    let peer = Peer::with_topic("t", 3).await;
    let producer = producer(&peer, ProducerConfig::new()).await;
    for _ in 0..20 {
        let delivery = producer.send(to(1).key("user-2")).await.unwrap();
        assert_eq!(delivery.topic_partition().partition, 2, "murmur2 of user-2 over 3, as Java picks");
    }
    let routed = producer.send(to(2).key("other").routing_key("user-2")).await.unwrap();
    assert_eq!(routed.topic_partition().partition, 2);
    let explicit = producer.send(to(3).key("user-2").partition(0)).await.unwrap();
    assert_eq!(explicit.topic_partition().partition, 0);
    producer.close().await.unwrap();
    let keys: Vec<_> = peer.stored("t", 2, |s| s.records.iter().map(|r| r.0.clone().unwrap()).collect());
    assert_eq!(keys.len(), 21);
    assert_eq!(keys[20], "other");
}

#[tokio::test]
async fn a_topic_may_appear_later_and_grow() {
    let peer = Peer::start().await;
    let config = client(&peer).metadata_max_age(Duration::from_millis(20));
    let producer = Producer::new(config, ProducerConfig::new().spread(Spread::RoundRobin)).await.unwrap();
    let (sent, ()) = tokio::join!(producer.send(to(0)), async {
        until(|| peer.count(ApiKey::Metadata) >= 3).await;
        peer.topic("t", 1);
    });
    assert_eq!(offset(sent.unwrap()).await, Some(0));
    let waits = producer.send(to(1).partition(1));
    let (sent, ()) = tokio::join!(waits, async { peer.topic("t", 2) });
    assert_eq!(sent.unwrap().topic_partition().partition, 1);
    producer.close().await.unwrap();
}

#[tokio::test]
async fn a_topic_is_created_when_the_broker_does_that_and_missed_otherwise() {
    let peer = Peer::start().await;
    let producer = producer(&peer, ProducerConfig::new()).await;
    let give_up = async |record, asked| {
        let asked_before_it_ends = async {
            until(|| peer.count(ApiKey::Metadata) > asked).await;
            jump(HOUR).await;
        };
        tokio::join!(producer.send(record), asked_before_it_ends).0.unwrap_err()
    };
    let missing = give_up(to(0), peer.count(ApiKey::Metadata) + 1).await;
    assert!(matches!(missing, SendError::UnknownTopic { code: Some(_), .. }), "{missing}");
    peer.auto_create(2);
    offset(producer.send(to(1)).await.unwrap()).await;
    let missing = give_up(to(0).partition(7), peer.count(ApiKey::Metadata) + 1).await;
    assert!(matches!(missing, SendError::UnknownPartition { count: 2, .. }), "{missing}");
}

#[tokio::test]
async fn a_full_producer_gives_the_record_back_and_send_waits() {
    let peer = Peer::with_topic("t", 1).await;
    let config = ProducerConfig::new().buffer_records(2).batch_records(1);
    let producer = producer(&peer, config).await;
    let hold = Arc::new(Notify::new());
    peer.script(ApiKey::Produce, [Reply::Hold(hold.clone())]);
    let first = producer.send(to(0)).await.unwrap();
    let second = producer.send(to(1)).await.unwrap();
    let TrySendError { record, reason } = producer.try_send(to(2)).unwrap_err();
    assert_eq!(reason, TrySendReason::Full);
    let mut waits = Box::pin(producer.send(record));
    let also_waits = Box::pin(producer.send(to("dropped")));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut waits).await.is_err());
    assert!(tokio::time::timeout(Duration::from_millis(20), also_waits).await.is_err());
    hold.notify_one();
    let third = waits.await.unwrap();
    for (n, delivery) in [first, second, third].into_iter().enumerate() {
        assert_eq!(offset(delivery).await, Some(n as i64));
    }
    producer.close().await.unwrap();
    assert_eq!(peer.values("t", 0), ["0", "1", "2"], "what was dropped while it waited was never accepted");
}

#[tokio::test]
async fn a_dropped_delivery_cancels_nothing() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new()).await;
    for n in 0..100 {
        let mut delivery = producer.send(to(n)).await.unwrap();
        if n % 2 == 0 {
            // Polled once, so that its waker is left behind.
            drop(tokio::time::timeout(Duration::ZERO, &mut delivery).await);
        }
    }
    assert_eq!(offset(producer.send(to(100)).await.unwrap()).await, Some(100));
    producer.close().await.unwrap();
    assert_eq!(peer.values("t", 0).len(), 101);
}

#[tokio::test]
async fn close_reports_what_failed_and_drop_tells_the_waiting() {
    let peer = Peer::with_topic("t", 1).await;
    let first = producer(&peer, ProducerConfig::new()).await;
    peer.script(ApiKey::Produce, [Reply::Error(29)]);
    drop(first.send(to(0)).await.unwrap());
    let report = first.close().await.unwrap_err();
    assert_eq!(report.failed, 1);
    assert!(matches!(report.first, DeliveryError::Refused { code: ErrorCode::TopicAuthorizationFailed, .. }));

    let second = producer(&peer, ProducerConfig::new()).await;
    peer.script(ApiKey::Produce, [Reply::Silence]);
    let sent = second.send(to(1)).await.unwrap();
    until(|| peer.script_left(ApiKey::Produce) == 0).await;
    let kept = second.send(to(2)).await.unwrap();
    drop(second);
    assert_eq!(sent.await, Err(DeliveryError::Dropped { possibly_written: true }));
    assert_eq!(kept.await, Err(DeliveryError::Dropped { possibly_written: false }));
}

#[tokio::test]
async fn a_producer_refused_for_good_says_so_to_everyone() {
    let peer = Peer::with_topic("t", 1).await;
    peer.script(ApiKey::InitProducerId, [Reply::Error(14), Reply::Error(31)]);
    let producer = producer(&peer, ProducerConfig::new()).await;
    let outcome = match producer.send(to(0)).await {
        Ok(delivery) => delivery.await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    assert!(outcome.unwrap_err().contains("CLUSTER_AUTHORIZATION_FAILED"));
    assert_eq!(
        producer.send(to(1)).await.unwrap_err(),
        SendError::Fatal(ErrorCode::ClusterAuthorizationFailed)
    );
}

#[tokio::test]
async fn log_append_time_is_reported() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = producer(&peer, ProducerConfig::new()).await;
    let written = producer.send(to(0).timestamp(5)).await.unwrap().await.unwrap();
    assert_eq!(written.timestamp, 5);
    peer.log_append_time(77);
    let written = producer.send(to(0).timestamp(5)).await.unwrap().await.unwrap();
    assert_eq!(written.timestamp, 77);
}

#[tokio::test]
async fn b127_b128_old_and_odd_brokers_are_understood() {
    let peer = Peer::with_topic("t", 1).await;
    peer.max_version(ApiKey::ApiVersions, 2);
    peer.max_version(ApiKey::Produce, 3);
    peer.max_version(ApiKey::Metadata, 1);
    let producer = producer(&peer, ProducerConfig::new()).await;
    assert_eq!(offset(producer.send(to(0)).await.unwrap()).await, Some(0));
    let versions: Vec<i16> =
        peer.seen().iter().filter(|(key, ..)| *key == ApiKey::ApiVersions).map(|(_, v, _)| *v).collect();
    assert_eq!(versions[..2], [4, 2], "refused, then in the version the broker names");
}

#[tokio::test]
async fn b127_a_broker_that_closes_on_a_newer_handshake_is_asked_in_older_versions() {
    let peer = Peer::with_topic("t", 1).await;
    peer.script(ApiKey::ApiVersions, [Reply::Close, Reply::Close]);
    let producer = producer(&peer, ProducerConfig::new()).await;
    assert_eq!(offset(producer.send(to(0)).await.unwrap()).await, Some(0));
    let versions: Vec<i16> = peer.seen().iter().take(3).map(|(_, v, _)| *v).collect();
    assert_eq!(versions, [4, 3, 0]);
}

#[tokio::test]
async fn a_dead_bootstrap_address_is_passed_over() {
    let peer = Peer::with_topic("t", 1).await;
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = ClientConfig::new(format!("{dead}, {}", peer.address()));
    let producer = Producer::new(config, ProducerConfig::new()).await.unwrap();
    assert_eq!(offset(producer.send(to(0)).await.unwrap()).await, Some(0));
}

#[tokio::test]
async fn a_garbled_metadata_answer_is_an_error_and_not_a_panic() {
    let peer = Peer::with_topic("t", 1).await;
    peer.script(ApiKey::Metadata, [Reply::Truncated, Reply::HalfFrame, Reply::WrongId]);
    let producer = producer(&peer, ProducerConfig::new()).await;
    assert_eq!(offset(producer.send(to(0)).await.unwrap()).await, Some(0));
}

#[tokio::test]
async fn two_topics_at_different_rates_share_a_producer() {
    let peer = Peer::with_topic("t", 1).await;
    peer.topic("u", 1);
    let config = ProducerConfig::new().linger(Duration::from_millis(1));
    let producer = Arc::new(producer(&peer, config).await);
    let rate = |topic: &'static str, every: u32| {
        let producer = producer.clone();
        async move {
            for n in 0..150 {
                let delivery = producer.send(ProducerRecord::to(topic).value(n.to_string())).await.unwrap();
                if n % every == 0 {
                    assert_eq!(offset(delivery).await, Some(i64::from(n)));
                }
            }
        }
    };
    tokio::join!(rate("t", 1), rate("u", 7));
    producer.flush().await.unwrap();
    assert_eq!(peer.values("t", 0).len(), 150);
    assert!(peer.count(ApiKey::Produce) > 100, "the timer sent them, not full batches");
}
