//! Requests that ask for much in few bytes.

use std::collections::HashSet;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tramline_broker::BrokerConfig;
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::describe_producers_request::TopicRequest;
use tramline_wire::messages::fetch_request::FetchPartition;
use tramline_wire::messages::metadata_request::MetadataRequestTopic;
use tramline_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use tramline_wire::messages::{
    DescribeConfigsRequest, DescribeGroupsRequest, DescribeProducersRequest, InitProducerIdRequest,
    MetadataRequest, OffsetFetchRequest,
};
use tramline_wire::{ErrorCode, Str};

use crate::common::{FETCH, Stage, batch, fetch};
use crate::{HANG, request};

const TIMES: usize = 1000;

#[tokio::test]
async fn more_elements_than_there_can_be_things_close_the_connection() {
    let stage = Stage::new().await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let empty_names = |count: usize| {
        let count_field = i32::try_from(count).unwrap().to_be_bytes();
        request(3, 1, &[&count_field[..], &vec![0; 2 * count]].concat())
    };
    for (count, answered) in [(100_000, true), (100_001, false), (2_000_000, false)] {
        let mut client = stage.client().await;
        // It may be closed before all of it was sent.
        let _ = client.stream.write_all(&empty_names(count)).await;
        let answer = timeout(HANG, client.frame()).await.unwrap();
        assert_eq!(answer.is_some(), answered, "{count}");
        assert_eq!(good.produce("t", 0, 1, batch(&["x"])).await.error_code, 0);
    }
}

#[tokio::test]
async fn what_is_named_again_and_again_is_answered_once() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 2).await;
    let broker =
        DescribeConfigsResource { resource_type: 4, resource_name: "1".into(), configuration_keys: None };
    let topic = DescribeConfigsResource { resource_type: 2, resource_name: "t".into(), ..broker.clone() };
    let resources = [vec![broker; TIMES], vec![topic; TIMES]].concat();
    let asked = DescribeConfigsRequest { resources, ..DescribeConfigsRequest::default() };
    assert_eq!(client.call(4, &asked).await.results.len(), 2);

    let groups = [vec!["g".into(); TIMES], vec!["h".into(); TIMES]].concat();
    let asked = DescribeGroupsRequest { groups, ..DescribeGroupsRequest::default() };
    let named: Vec<Str> = client.call(5, &asked).await.groups.into_iter().map(|row| row.group_id).collect();
    assert_eq!(named, ["g", "h"]);

    let row = TopicRequest { name: "t".into(), partition_indexes: [0, 1].repeat(TIMES) };
    let asked = DescribeProducersRequest { topics: vec![row.clone(), row] };
    let topics = client.call(0, &asked).await.topics;
    assert_eq!(topics.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 2);

    let row = OffsetFetchRequestTopic { name: "t".into(), partition_indexes: [0, 1].repeat(TIMES) };
    let topics = Some(vec![row; 2]);
    let asked = OffsetFetchRequest { group_id: "g".into(), topics, ..OffsetFetchRequest::default() };
    let topics = client.call(7, &asked).await.topics;
    assert_eq!(topics.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 2);
    let row =
        OffsetFetchRequestTopics { name: "t".into(), partition_indexes: vec![1, 1], ..Default::default() };
    let group =
        OffsetFetchRequestGroup { group_id: "g".into(), topics: Some(vec![row]), ..Default::default() };
    let asked = OffsetFetchRequest { groups: vec![group; TIMES], ..OffsetFetchRequest::default() };
    let groups = client.call(9, &asked).await.groups;
    assert_eq!((groups.len(), groups[0].topics[0].partitions.len()), (1, 1));

    let mut asked = fetch("t", 0, 0, 0, 1);
    asked.topics[0].partitions = vec![FetchPartition::default(); TIMES];
    assert_eq!(client.call(FETCH, &asked).await.responses[0].partitions.len(), 1);
}

#[tokio::test]
async fn there_are_as_many_fetch_sessions_as_allowed_and_without_one_a_fetch_is_answered_too() {
    let stage = Stage::new().await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    good.produce("t", 0, 1, batch(&["x"])).await;
    let mut asked = fetch("t", 0, 0, 0, 1);
    asked.session_epoch = 0;
    let mut hostile = stage.client().await;
    let mut ids = HashSet::new();
    for _ in 0..1100 {
        ids.insert(hostile.call(FETCH, &asked).await.session_id);
    }
    assert_eq!((ids.len(), ids.contains(&0)), (1001, true));
    let answer = good.call(FETCH, &asked).await;
    assert_eq!((answer.session_id, answer.responses[0].partitions[0].error_code), (0, 0));
    assert_eq!(good.values("t", 0, 0).await, [(0, "x".to_owned())]);
}

#[tokio::test]
async fn topics_are_made_for_whoever_names_them_only_up_to_the_limit() {
    let stage = Stage::with(BrokerConfig::new().max_partitions(20)).await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let topics =
        (0..100).map(|n| MetadataRequestTopic { name: Some(format!("t{n}").into()), ..Default::default() });
    let asked = MetadataRequest { topics: Some(topics.collect()), ..MetadataRequest::default() };
    let asked = MetadataRequest { allow_auto_topic_creation: true, ..asked };
    let mut hostile = stage.client().await;
    let made = hostile.call(9, &asked).await.topics.iter().filter(|topic| topic.error_code == 0).count();
    assert!(made < 20, "{made}");
    assert_eq!(good.produce("t", 0, -1, batch(&["x"])).await.error_code, 0);
}

#[tokio::test]
async fn producer_ids_are_given_to_anybody_and_transactions_to_nobody() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let mut ids = HashSet::new();
    for n in 0..TIMES {
        let transactional_id = (n % 2 == 0).then(|| Str::from("x".repeat(30_000)));
        let asked = InitProducerIdRequest { transactional_id, ..InitProducerIdRequest::default() };
        let answer = client.call(4, &asked).await;
        if n % 2 == 0 {
            assert_eq!(ErrorCode::from(answer.error_code), ErrorCode::UnsupportedVersion);
        } else {
            assert!(answer.error_code == 0 && ids.insert(answer.producer_id));
        }
    }
}
