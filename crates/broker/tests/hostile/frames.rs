//! Bytes that are no requests: each costs its own connection and nothing else.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tramline_broker::{Broker, BrokerConfig, StartError};
use tramline_wire::messages::MetadataRequest;
use tramline_wire::messages::{ApiVersionsRequest, HeartbeatRequest};
use tramline_wire::{ErrorCode, decode_response, encode_request};

use crate::common::{Client, PRODUCE, Stage, batch, produce};
use crate::{HANG, request};

#[tokio::test]
async fn s26_s27_what_is_no_request_closes_its_own_connection() {
    let stage = Stage::new().await;
    let mut bystander = stage.client().await;
    bystander.create_topic("t", 1).await;
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("http", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("tls", [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 300]].concat()),
        ("zero length", vec![0; 4]),
        ("negative length", vec![0xff; 4]),
        ("absurd length", i32::MAX.to_be_bytes().to_vec()),
        ("one above the limit", 104_857_601_i32.to_be_bytes().to_vec()),
        ("shorter than a header", [&3_i32.to_be_bytes()[..], &[0, 18, 0]].concat()),
        ("unknown key", request(999, 0, &[])),
        ("negative key", request(-1, 0, &[])),
        ("a key that is not served", request(24, 0, &[])),
        ("unknown version", request(3, 99, &[])),
        ("negative version", request(3, -1, &[])),
        ("produce below what is served", request(0, 2, &[0; 20])),
        ("a body that is cut off", request(3, 12, &[0])),
        ("a count beyond all bytes", request(3, 1, &[0x7f, 0xff, 0xff, 0xff])),
        (
            "a client id beyond the frame",
            [&10_i32.to_be_bytes()[..], &[0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff]].concat(),
        ),
    ];
    for (name, bytes) in hostile {
        let mut client = stage.client().await;
        client.stream.write_all(&bytes).await.unwrap();
        let answer = timeout(HANG, client.frame()).await;
        assert_eq!(answer.unwrap_or_else(|_| panic!("{name}: neither answered nor closed")), None, "{name}");
        assert_eq!(bystander.produce("t", 0, 1, batch(&["x"])).await.error_code, 0, "{name}");
    }
}

#[tokio::test]
async fn b158_an_unknown_version_of_api_versions_is_answered_in_its_oldest_form() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.stream.write_all(&request(18, 99, &[0])).await.unwrap();
    let frame = client.frame().await.unwrap();
    let (id, response) = decode_response::<ApiVersionsRequest>(frame, 0).unwrap();
    assert_eq!((id, response.error_code), (7, ErrorCode::UnsupportedVersion.code()));
    assert_eq!(response.api_keys.len(), 41);
    let again = client.call(4, &ApiVersionsRequest::default()).await;
    assert_eq!(again.error_code, 0, "the connection goes on");
}

#[tokio::test]
async fn the_versions_advertised_are_those_that_are_served() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let expected = [
        (0, 0, 11),
        (1, 4, 17),
        (2, 1, 10),
        (3, 0, 13),
        (8, 2, 9),
        (9, 1, 9),
        (10, 0, 5),
        (11, 0, 9),
        (12, 0, 4),
        (13, 0, 5),
        (14, 0, 5),
        (15, 0, 6),
        (16, 0, 5),
        (18, 0, 4),
        (19, 2, 7),
        (20, 1, 6),
        (21, 0, 2),
        (22, 0, 5),
        (23, 2, 4),
        (29, 1, 3),
        (30, 1, 3),
        (31, 1, 3),
        (32, 1, 4),
        (33, 0, 2),
        (35, 1, 4),
        (37, 0, 3),
        (42, 0, 2),
        (43, 0, 2),
        (44, 0, 1),
        (45, 0, 1),
        (46, 0, 0),
        (47, 0, 0),
        (48, 0, 1),
        (50, 0, 0),
        (55, 0, 2),
        (60, 0, 2),
        (61, 0, 0),
        (65, 0, 0),
        (66, 0, 2),
        (74, 0, 1),
        (75, 0, 0),
    ];
    for version in 0..=4 {
        let request = ApiVersionsRequest {
            client_software_name: "test".into(),
            client_software_version: "1".into(),
            ..ApiVersionsRequest::default()
        };
        let response = client.call(version, &request).await;
        let found: Vec<(i16, i16, i16)> =
            response.api_keys.iter().map(|api| (api.api_key, api.min_version, api.max_version)).collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn s26_a_frame_in_pieces_of_one_byte_is_served() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let request = produce("t", 0, -1, batch(&["piecemeal"]));
    let frame = tramline_wire::encode_request(1, None, PRODUCE, &request).unwrap().to_bytes();
    for byte in &frame {
        client.stream.write_all(&[*byte]).await.unwrap();
    }
    assert!(client.frame().await.is_some());
    assert_eq!(client.values("t", 0, 0).await, [(0, "piecemeal".into())]);
}

#[tokio::test]
async fn a_half_frame_is_closed_when_the_connection_has_been_idle_for_too_long() {
    let stage = Stage::with(BrokerConfig::new().idle_timeout(Duration::from_millis(200))).await;
    let mut slow = stage.client().await;
    slow.stream.write_all(&[0, 0, 0, 50, 0]).await.unwrap();
    assert_eq!(timeout(HANG, slow.frame()).await.unwrap(), None);
    let mut silent = stage.client().await;
    assert_eq!(timeout(HANG, silent.frame()).await.unwrap(), None);
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_the_others_go_on() {
    let stage = Stage::with(BrokerConfig::new().max_connections(2)).await;
    let (mut one, mut two) = (stage.client().await, stage.client().await);
    one.create_topic("t", 1).await;
    two.produce("t", 0, 1, batch(&["x"])).await;
    let mut three = stage.client().await;
    assert_eq!(timeout(HANG, three.frame()).await.unwrap(), None);
    assert_eq!(one.produce("t", 0, 1, batch(&["x"])).await.error_code, 0);
    drop(two);
    let served = async {
        loop {
            let mut again = Client::connect(stage.broker.local_addr()).await;
            again.send(4, &HeartbeatRequest::default()).await;
            if again.frame().await.is_some() {
                return;
            }
        }
    };
    timeout(HANG, served).await.expect("a place that became free is given to the next");
}

#[tokio::test]
async fn a_request_above_the_configured_size_is_refused_before_it_arrives() {
    let stage = Stage::with(BrokerConfig::new().max_request_bytes(1024)).await;
    let mut client = stage.client().await;
    client.stream.write_all(&1025_i32.to_be_bytes()).await.unwrap();
    assert_eq!(timeout(HANG, client.frame()).await.unwrap(), None);
}

#[tokio::test]
async fn an_address_that_others_can_reach_must_be_allowed_explicitly() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Broker::builder(dir.path()).listen("0.0.0.0:0").start().await;
    assert!(matches!(refused, Err(StartError::NotLoopback { .. })), "{refused:?}");
    let broker = Broker::builder(dir.path()).listen("0.0.0.0:0").insecure(true).start().await.unwrap();
    broker.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_directory_serves_one_broker_at_a_time() {
    let stage = Stage::new().await;
    let second = Broker::builder(stage.dir.path()).listen("127.0.0.1:0").start().await;
    assert!(matches!(second, Err(StartError::InUse { .. })), "{second:?}");
    let stage = stage.restart(BrokerConfig::default()).await;
    stage.kill_and_restart(BrokerConfig::default()).await.broker.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_taken_port_and_a_senseless_setting_are_told_apart() {
    let stage = Stage::new().await;
    let dir = tempfile::tempdir().unwrap();
    let taken = Broker::builder(dir.path()).listen(stage.broker.local_addr()).start().await;
    assert!(matches!(&taken, Err(error @ StartError::Bind { .. }) if error.is_retriable()), "{taken:?}");
    let senseless = Broker::builder(dir.path()).config(BrokerConfig::new().writer_threads(0)).start().await;
    assert!(matches!(senseless, Err(StartError::Config { name: "writer_threads", .. })), "{senseless:?}");
}

#[tokio::test]
async fn what_came_before_garbage_is_answered_and_ids_may_repeat() {
    let stage = Stage::new().await;
    let mut bystander = stage.client().await;
    bystander.create_topic("t", 1).await;
    let mut client = stage.client().await;
    let asked = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let frame = encode_request(-5, None, 9, &asked).unwrap().to_bytes();
    client.stream.write_all(&[&frame[..], &frame, &frame, &[0xff; 100]].concat()).await.unwrap();
    for _ in 0..3 {
        let (id, response) = decode_response::<MetadataRequest>(client.frame().await.unwrap(), 9).unwrap();
        assert_eq!((id, response.topics.len()), (-5, 2));
    }
    assert_eq!(timeout(HANG, client.frame()).await.unwrap(), None);
    assert_eq!(bystander.produce("t", 0, 1, batch(&["x"])).await.error_code, 0);
}

#[tokio::test]
async fn a_client_that_was_told_the_versions_and_uses_others_is_closed() {
    let stage = Stage::new().await;
    for (key, version) in [(0, 12), (1, 3), (1, 99), (11, 10), (18, -1)] {
        let mut client = stage.client().await;
        client.stream.write_all(&request(18, 99, &[0])).await.unwrap();
        assert!(client.frame().await.is_some());
        client.stream.write_all(&request(key, version, &[0; 40])).await.unwrap();
        let answer = timeout(HANG, client.frame()).await.unwrap();
        assert_eq!(answer.is_some(), key == 18, "key {key} in version {version}");
    }
}
