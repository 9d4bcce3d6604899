//! Leaders that send a producer elsewhere.

use tramline_wire::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use tramline_wire::messages::*;

use super::*;

#[tokio::test(start_paused = true)]
async fn leaders_named_without_end_cost_a_producer_pauses_and_leave_no_connections() {
    let peer = peer("producing-elsewhere");
    let address = peer.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let (host, port) = (host.to_owned(), port.parse().unwrap());
    let count = Count::default();
    peer.answer::<ProduceRequest>(move |request, _| {
        let node_id = 100 + i32::try_from(next(&count)).unwrap();
        let row = PartitionProduceResponse {
            error_code: 6,
            current_leader: LeaderIdAndEpoch { leader_id: node_id, leader_epoch: node_id },
            ..Default::default()
        };
        let topic = &request.topic_data[0];
        let (name, topic_id) = (topic.name.clone(), topic.topic_id);
        ProduceResponse {
            throttle_time_ms: i32::MAX,
            responses: vec![TopicProduceResponse { name, topic_id, partition_responses: vec![row] }],
            node_endpoints: vec![NodeEndpoint { node_id, host: host.as_str().into(), port, rack: None }],
        }
    });
    let client = ClientConfig::new(peer.address()).metadata_max_age(10 * SECOND);
    let config = ProducerConfig::new().delivery_timeout(3600 * SECOND);
    let producer = Producer::new(client, config).await.unwrap();
    let delivery = producer.send(to("x")).await.unwrap();
    let asked = asked_within(100 * SECOND, &peer, ApiKey::Produce).await;
    assert!((50..200).contains(&asked), "{asked} times");
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 60, "{tasks} tasks after {asked} leaders");
    drop((delivery, producer));
}
