//! The producer on the broker: what an ack means, what arrives, what is refused, what close promises.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{Stand, soon, tp, unique};
use tramline::broker::BrokerConfig;
use tramline::client::producer::{ProducerConfigError, ProducerStartError};
use tramline::client::{
    Acks, Compression, Consumer, DeliveryError, ErrorCode, NewTopic, ProducerConfig, ProducerRecord, Record,
    SendError, StartOffset,
};

/// Reads a partition from its beginning up to its end as of now.
async fn read_all(stand: &Stand, topic: &str, partition: i32) -> Vec<Record> {
    let tp = tp(topic, partition);
    let builder = Consumer::builder(stand.client()).assign([(tp.clone(), StartOffset::Earliest)]);
    let consumer = builder.build().await.unwrap();
    let end = soon(consumer.end_offsets(std::slice::from_ref(&tp))).await.unwrap()[&tp];
    let mut records = Vec::new();
    while consumer.position(&tp).is_none_or(|position| position < end) {
        records.extend(soon(consumer.next_batch()).await.unwrap().records);
    }
    soon(consumer.close()).await;
    records
}

fn text(record: &Record) -> &str {
    std::str::from_utf8(record.value().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ack_policy_delivers_and_only_none_leaves_the_offset_unknown() {
    let stand = Stand::start().await;
    for acks in [Acks::None, Acks::Written, Acks::Forced] {
        let topic = stand.topic(1).await;
        let producer = stand.producer(ProducerConfig::new().acks(acks)).await;
        let mut offsets = Vec::new();
        for n in 0..20 {
            let delivery =
                soon(producer.send(ProducerRecord::to(&*topic).value(n.to_string()))).await.unwrap();
            offsets.push(soon(delivery).await.unwrap().offset);
        }
        let batch = (20..25).map(|n| ProducerRecord::to(&*topic).value(n.to_string())).collect();
        let base = soon(producer.send_batch(&*topic, 0, batch)).await.unwrap();
        soon(producer.close()).await.unwrap();
        if acks == Acks::None {
            assert!(offsets.iter().all(Option::is_none) && base.is_none(), "{offsets:?} {base:?}");
            // Nobody acknowledged: ask until they are all there.
            let arrive = async { while read_all(&stand, &topic, 0).await.len() < 25 {} };
            soon(arrive).await;
        } else {
            assert_eq!(offsets, (0..20).map(Some).collect::<Vec<_>>(), "{acks:?}");
            assert_eq!(base, Some(20), "{acks:?}");
        }
        let values: Vec<_> =
            read_all(&stand, &topic, 0).await.iter().map(|record| text(record).to_owned()).collect();
        assert_eq!(values, (0..25).map(|n| n.to_string()).collect::<Vec<_>>(), "{acks:?}");
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_codec_is_read_back_byte_for_byte() {
    let stand = Stand::start().await;
    let codecs =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    let value = |n: usize| (0..n * 7).map(|byte| (byte * n) as u8).collect::<Vec<u8>>();
    for codec in codecs {
        let topic = stand.topic(1).await;
        let producer = stand.producer(ProducerConfig::new().compression(codec)).await;
        let records =
            (0..200).map(|n| ProducerRecord::to(&*topic).key(n.to_string()).value(value(n))).collect();
        soon(producer.send_batch(&*topic, 0, records)).await.unwrap();
        let single = ProducerRecord::to(&*topic).key("200").value(value(200));
        soon(soon(producer.send(single)).await.unwrap()).await.unwrap();
        soon(producer.close()).await.unwrap();
        let records = read_all(&stand, &topic, 0).await;
        assert_eq!(records.len(), 201, "{codec:?}");
        for (n, record) in records.iter().enumerate() {
            assert_eq!(record.key(), Some(n.to_string().as_bytes()), "{codec:?}");
            assert_eq!(record.value(), Some(&*value(n)), "{codec:?}");
        }
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b118_b119_null_and_empty_keys_values_and_headers_stay_what_they_were() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let producer = stand.producer(ProducerConfig::new()).await;
    let sent = [
        ProducerRecord::to(&*topic),
        ProducerRecord::to(&*topic).key("").value(""),
        ProducerRecord::to(&*topic).key("k").timestamp(1_234_567_890_123),
        ProducerRecord::to(&*topic)
            .value("v")
            .header("a", "1")
            .header("a", "2")
            .null_header("a")
            .header("", "")
            .null_header("b"),
    ];
    for record in sent {
        soon(soon(producer.send(record)).await.unwrap()).await.unwrap();
    }
    soon(producer.close()).await.unwrap();
    let records = read_all(&stand, &topic, 0).await;
    let seen: Vec<_> = records.iter().map(|record| (record.key(), record.value())).collect();
    let expected = [(None, None), (Some(&b""[..]), Some(&b""[..])), (Some(b"k"), None), (None, Some(b"v"))];
    assert_eq!(seen, expected);
    assert_eq!(records[2].timestamp(), 1_234_567_890_123);
    let headers: Vec<_> =
        records[3].headers().map(|(name, value)| (name.to_string(), value.map(<[u8]>::to_vec))).collect();
    let header = |name: &str, value: Option<&str>| (name.to_owned(), value.map(|v| v.as_bytes().to_vec()));
    let expected = [
        header("a", Some("1")),
        header("a", Some("2")),
        header("a", None),
        header("", Some("")),
        header("b", None),
    ];
    assert_eq!(headers, expected);
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_the_explicit_one_or_that_of_the_routing_key_or_that_of_the_key() {
    let stand = Stand::start().await;
    let topic = stand.topic(8).await;
    let producer = stand.producer(ProducerConfig::new()).await;
    let place = async |record: ProducerRecord| {
        soon(soon(producer.send(record)).await.unwrap()).await.unwrap().topic_partition.partition
    };
    for partition in 0..8 {
        let record = ProducerRecord::to(&*topic).key("same").routing_key("other").partition(partition);
        assert_eq!(place(record).await, partition);
    }
    let mut places = BTreeMap::new();
    for n in 0..40 {
        let key = format!("key-{n}");
        let by_key = place(ProducerRecord::to(&*topic).key(key.clone())).await;
        let routed = ProducerRecord::to(&*topic).key("of no matter").routing_key(key.clone());
        assert_eq!(place(routed).await, by_key, "{key}");
        let unkeyed = ProducerRecord::to(&*topic).value("v").routing_key(key.clone());
        assert_eq!(place(unkeyed).await, by_key, "{key}");
        places.insert(key, by_key);
    }
    assert!(places.values().collect::<std::collections::BTreeSet<_>>().len() > 4, "{places:?}");
    let record =
        soon(producer.send(ProducerRecord::to(&*topic).partition(0).routing_key("r"))).await.unwrap();
    soon(record).await.unwrap();
    soon(producer.close()).await.unwrap();
    let last = read_all(&stand, &topic, 0).await.pop().unwrap();
    assert_eq!(last.key(), None, "a routing key is not sent");
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_or_record_that_cannot_be_is_refused_by_type() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let config =
        ProducerConfig::new().max_request_bytes(100_000).delivery_timeout(Duration::from_millis(300));
    let producer = stand.producer(config).await;
    let large = ProducerRecord::to(&*topic).value(vec![7; 200_000]);
    let refused = soon(producer.send(large.clone())).await.unwrap_err();
    assert!(matches!(refused, SendError::RecordTooLarge { bytes, max: _ } if bytes > 200_000), "{refused:?}");
    let refused = soon(producer.send_batch(&*topic, 0, vec![large])).await.unwrap_err();
    assert!(
        matches!(&refused, DeliveryError::NotAccepted(why) if matches!(**why, SendError::RecordTooLarge { .. })),
        "{refused:?}"
    );
    let nowhere = soon(producer.send(ProducerRecord::to(&*topic).partition(3).value("v"))).await.unwrap_err();
    assert!(
        matches!(&nowhere, SendError::UnknownPartition { partition, count: 1 } if partition.partition == 3)
    );
    soon(producer.close()).await.unwrap();
    // The broker's own limit is another one, and its refusal is an answer.
    let topic = unique("small");
    let small = NewTopic::new(&topic, 1).config("max.message.bytes", "1000");
    let created = soon(stand.admin().create_topics([small])).await.unwrap();
    if created[&*topic].is_ok() {
        let producer = stand.producer(ProducerConfig::new()).await;
        let record = ProducerRecord::to(&*topic).value(vec![7; 5_000]);
        let refused = soon(soon(producer.send(record)).await.unwrap()).await.unwrap_err();
        assert!(matches!(refused, DeliveryError::Refused { .. }), "{refused:?}");
        assert!(!refused.is_possibly_written());
        let fine = soon(producer.send(ProducerRecord::to(&*topic).value("v"))).await.unwrap();
        assert_eq!(soon(fine).await.unwrap().offset, Some(0), "the connection lives, the sequence goes on");
        let told = soon(producer.close()).await.unwrap_err();
        assert_eq!(told.failed, 1, "close tells what failed since the last flush");
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_topic_is_made_where_the_broker_does_that_and_refused_where_not() {
    for on in [true, false] {
        let stand = Stand::embedded(BrokerConfig::new().auto_create_topics(on)).await;
        let config =
            ProducerConfig::new().delivery_timeout(Duration::from_millis(if on { 30_000 } else { 500 }));
        let producer = stand.producer(config).await;
        let sent = soon(producer.send(ProducerRecord::to("fresh").value("v"))).await;
        if on {
            assert_eq!(soon(sent.unwrap()).await.unwrap().offset, Some(0));
        } else {
            assert!(matches!(sent.unwrap_err(), SendError::UnknownTopic { .. }));
        }
        let names: Vec<_> = stand.admin().list_topics().await.unwrap().into_iter().map(|t| t.name).collect();
        assert_eq!(names.iter().any(|name| name == "fresh"), on, "{names:?}");
        soon(producer.close()).await.unwrap();
        stand.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_contradict_each_other_are_refused_before_anything_is_sent() {
    let stand = Stand::start().await;
    let start = async |config| tramline::client::Producer::new(stand.client(), config).await.unwrap_err();
    let error = start(ProducerConfig::new().acks(Acks::Written).idempotence(true)).await;
    assert!(matches!(error, ProducerStartError::Config(ProducerConfigError::IdempotenceNeedsForced)));
    let error = start(ProducerConfig::new().max_in_flight(6)).await;
    assert!(matches!(error, ProducerStartError::Config(ProducerConfigError::MaxInFlight(6))));
    stand.close().await;
}

/// Small batches, five requests in flight, an abort of the broker in the middle: every record is there once, and in the
/// order in which its partition was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_per_partition_survives_many_requests_in_flight_and_a_broker_that_dies() {
    let mut stand = Stand::embedded(BrokerConfig::new()).await;
    let topic = stand.topic(3).await;
    let producer = stand.producer(ProducerConfig::new().batch_records(3).max_in_flight(5)).await;
    let mut deliveries = Vec::new();
    for n in 0..1_500 {
        let record = ProducerRecord::to(&*topic).partition(n % 3).value(n.to_string());
        deliveries.push((n, soon(producer.send(record)).await.unwrap()));
        if n == 700 {
            // What is in flight now was written or not; the sequences decide on the retry.
            stand.restart(false).await;
        }
    }
    soon(producer.flush()).await.unwrap();
    let mut last = BTreeMap::new();
    for (n, delivery) in deliveries {
        let offset = soon(delivery).await.unwrap().offset.unwrap();
        assert_eq!(offset, last.insert(n % 3, offset).map_or(0, |last: i64| last + 1), "record {n}");
    }
    soon(producer.close()).await.unwrap();
    for partition in 0..3 {
        let values: Vec<i32> = read_all(&stand, &topic, partition)
            .await
            .iter()
            .map(|record| text(record).parse().unwrap())
            .collect();
        assert_eq!(values, (0..500).map(|n| n * 3 + partition).collect::<Vec<_>>());
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b194_close_under_load_loses_nothing_that_was_accepted() {
    let stand = Stand::start().await;
    let topic = stand.topic(4).await;
    for round in 1..=5_usize {
        let linger = Duration::from_secs(90);
        let producer = stand.producer(ProducerConfig::new().linger(linger).batch_records(50)).await;
        for n in 0..503 {
            let record = ProducerRecord::to(&*topic).key(format!("{n}")).value(n.to_string());
            // Nobody waits for these; close does.
            drop(soon(producer.send(record)).await.unwrap());
        }
        soon(producer.close()).await.unwrap();
        let mut count = 0;
        for partition in 0..4 {
            count += read_all(&stand, &topic, partition).await.len();
        }
        assert_eq!(count, 503 * round);
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_waits_for_what_was_sent_before_it_and_an_empty_batch_is_nothing() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let producer = stand.producer(ProducerConfig::new().linger(Duration::from_secs(90))).await;
    assert_eq!(soon(producer.send_batch(&*topic, 0, Vec::new())).await.unwrap(), None);
    soon(producer.flush()).await.unwrap();
    let delivery = soon(producer.send(ProducerRecord::to(&*topic).value("v"))).await.unwrap();
    assert_eq!(producer.in_flight(), 1);
    soon(producer.flush()).await.unwrap();
    assert_eq!((producer.in_flight(), soon(delivery).await.unwrap().offset), (0, Some(0)));
    soon(producer.close()).await.unwrap();
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b125_a_timestamp_in_microseconds_is_refused_by_type_and_spoils_no_retention() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let producer = stand.producer(ProducerConfig::new()).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let send = async |timestamp: u128| {
        let record = ProducerRecord::to(&*topic).value("v").timestamp(i64::try_from(timestamp).unwrap());
        soon(soon(producer.send(record)).await.unwrap()).await
    };
    let refused = send(now.as_micros()).await.unwrap_err();
    assert!(matches!(refused, DeliveryError::Refused { code: ErrorCode::InvalidTimestamp, .. }), "{refused}");
    assert_eq!(send(now.as_millis()).await.unwrap().offset, Some(0), "the next one is not held up by it");
    assert_eq!(soon(producer.close()).await.unwrap_err().failed, 1);
    stand.close().await;
}
