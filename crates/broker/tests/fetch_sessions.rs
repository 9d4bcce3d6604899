//! Fetch sessions (KIP-227): clients name changes only, and are told changes only.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Client, Stage, batch, fetch, values};
use tramline_wire::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use tramline_wire::messages::{DeleteTopicsRequest, FetchRequest, FetchResponse};

const SESSION_NOT_FOUND: i16 = 70;
const INVALID_SESSION_EPOCH: i16 = 71;
const TOPIC_ID_ERROR: i16 = 106;

fn partitions(offsets: &[(i32, i64)]) -> Vec<FetchTopic> {
    let partition = |(partition, fetch_offset): &(i32, i64)| FetchPartition {
        partition: *partition,
        fetch_offset: *fetch_offset,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    let partitions: Vec<FetchPartition> = offsets.iter().map(partition).collect();
    let topic = FetchTopic { topic: "t".into(), partitions, ..FetchTopic::default() };
    if offsets.is_empty() { Vec::new() } else { vec![topic] }
}

fn request(session_id: i32, session_epoch: i32, offsets: &[(i32, i64)]) -> FetchRequest {
    let topics = partitions(offsets);
    FetchRequest { session_id, session_epoch, topics, min_bytes: 0, ..fetch("t", 0, 0, 0, 0) }
}

/// Partition, error code and values of every row.
fn rows(response: &FetchResponse) -> Vec<(i32, i16, Vec<String>)> {
    let rows = response.responses.iter().flat_map(|topic| &topic.partitions);
    rows.map(|row| {
        let found = values(row.records.clone().unwrap()).into_iter().map(|(_, value)| value).collect();
        (row.partition_index, row.error_code, found)
    })
    .collect()
}

async fn call(client: &mut Client, request: &FetchRequest) -> FetchResponse {
    let response = client.call(12, request).await;
    assert_eq!(response.error_code, 0);
    response
}

fn text(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

#[tokio::test]
async fn a_session_tells_what_is_new_and_remembers_what_is_read() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 3).await;
    let opened = call(&mut client, &request(0, 0, &[(0, 0), (1, 0)])).await;
    let id = opened.session_id;
    assert!(id > 0);
    assert_eq!(rows(&opened), [(0, 0, text(&[])), (1, 0, text(&[]))]);
    let quiet = call(&mut client, &request(id, 1, &[])).await;
    assert_eq!((quiet.session_id, rows(&quiet)), (id, Vec::new()));
    client.produce("t", 1, -1, batch(&["a"])).await;
    client.produce("t", 2, -1, batch(&["not read"])).await;
    let news = call(&mut client, &request(id, 2, &[])).await;
    assert_eq!(rows(&news), [(1, 0, text(&["a"]))]);
    // Not moved on: told again, since bytes are always news. Then moved on, with another one.
    assert_eq!(rows(&call(&mut client, &request(id, 3, &[])).await), [(1, 0, text(&["a"]))]);
    let moved = call(&mut client, &request(id, 4, &[(1, 1), (2, 0)])).await;
    assert_eq!(rows(&moved), [(2, 0, text(&["not read"]))]);
    let mut forget = request(id, 5, &[]);
    forget.forgotten_topics_data =
        vec![ForgottenTopic { topic: "t".into(), partitions: vec![2], ..ForgottenTopic::default() }];
    assert_eq!(rows(&call(&mut client, &forget).await), []);
    forget = request(id, 6, &[]);
    forget.forgotten_topics_data =
        vec![ForgottenTopic { topic: "t".into(), partitions: vec![0, 1], ..ForgottenTopic::default() }];
    let emptied = call(&mut client, &forget).await;
    assert_eq!((emptied.session_id, rows(&emptied)), (0, Vec::new()));
    assert_eq!(client.call(12, &request(id, 7, &[])).await.error_code, SESSION_NOT_FOUND);
}

#[tokio::test]
async fn partitions_with_data_go_to_the_end_of_the_line() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 3).await;
    let id = call(&mut client, &request(0, 0, &[(0, 0), (1, 0), (2, 0)])).await.session_id;
    for partition in 0..3 {
        client.produce("t", partition, -1, batch(&["x"])).await;
    }
    let mut one = request(id, 1, &[]);
    one.max_bytes = 1;
    let first = call(&mut client, &one).await;
    let with_data = |response: &FetchResponse| {
        rows(response).iter().find(|(_, _, values)| !values.is_empty()).map(|(partition, _, _)| *partition)
    };
    assert_eq!(with_data(&first), Some(0));
    one.session_epoch = 2;
    assert_eq!(with_data(&call(&mut client, &one).await), Some(1), "0 was served and waits its turn");
}

#[tokio::test]
async fn wrong_epochs_unknown_ids_and_mixed_names_are_refused() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let id = call(&mut client, &request(0, 0, &[(0, 0)])).await.session_id;
    assert_eq!(client.call(12, &request(id, 2, &[])).await.error_code, INVALID_SESSION_EPOCH);
    assert_eq!(client.call(12, &request(id ^ 1, 1, &[])).await.error_code, SESSION_NOT_FOUND);
    assert_eq!(client.call(13, &request(id, 1, &[])).await.error_code, TOPIC_ID_ERROR);
    assert_eq!(call(&mut client, &request(id, 1, &[])).await.session_id, id);
    // Epoch -1 closes it, 0 with its id replaces it.
    let replaced = call(&mut client, &request(id, 0, &[(0, 0)])).await.session_id;
    assert!(replaced > 0);
    assert_eq!(client.call(12, &request(id, 2, &[])).await.error_code, SESSION_NOT_FOUND);
    assert_eq!(call(&mut client, &request(replaced, -1, &[(0, 0)])).await.session_id, 0);
    assert_eq!(client.call(12, &request(replaced, 1, &[])).await.error_code, SESSION_NOT_FOUND);
}

#[tokio::test]
async fn a_partition_that_failed_is_told_once_when_it_is_well_again() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let id = call(&mut client, &request(0, 0, &[(0, 0)])).await.session_id;
    let delete = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(client.call(5, &delete).await.responses[0].error_code, 0);
    for epoch in 1..3 {
        assert_eq!(rows(&call(&mut client, &request(id, epoch, &[])).await), [(0, 3, text(&[]))]);
    }
    client.create_topic("t", 1).await;
    assert_eq!(rows(&call(&mut client, &request(id, 3, &[])).await), [(0, 0, text(&[]))]);
    assert_eq!(rows(&call(&mut client, &request(id, 4, &[])).await), []);
}
