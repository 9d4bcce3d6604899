//! Every message at every version against itself, against another codec, and against bytes worked out by hand.

use bytes::{Buf, BytesMut};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable, Message as TheirMessage};
use proptest::prelude::*;

use super::*;
use crate::messages::{self as ours, ALL};
use crate::{decode_request_header, decode_response, encode_request, encode_response};

fn encoded<M: Message>(message: &M, version: i16) -> Bytes {
    let mut out = Writer::new();
    message.encode(&mut out, version).unwrap();
    out.finish().to_bytes()
}

fn decoded<M: Message>(bytes: Bytes, version: i16) -> M {
    let mut reader = Reader::new(bytes);
    let message = M::decode(&mut reader, version).unwrap();
    assert_eq!(reader.remaining(), 0, "{} {version} leaves bytes", M::NAME);
    message
}

/// A random message of this version goes through our codec and then through both.
fn round_trip<Ours: Message, Theirs: TheirMessage + Encodable + Decodable>(seed: u64) {
    let shared = Ours::MIN_VERSION.max(Theirs::VERSIONS.min)..=Ours::MAX_VERSION.min(Theirs::VERSIONS.max);
    assert!(!shared.is_empty(), "{}", Ours::NAME);
    for version in Ours::MIN_VERSION..=Ours::MAX_VERSION {
        let message = Ours::decode(&mut Reader::sampling(seed), version).unwrap();
        let bytes = encoded(&message, version);
        assert_eq!(decoded::<Ours>(bytes.clone(), version), message, "{} {version}", Ours::NAME);
        if !shared.contains(&version) {
            continue;
        }
        let mut buf = bytes;
        let foreign = Theirs::decode(&mut buf, version).unwrap();
        assert!(!buf.has_remaining(), "{} {version} leaves them bytes", Ours::NAME);
        let mut back = BytesMut::new();
        foreign.encode(&mut back, version).unwrap();
        assert_eq!(decoded::<Ours>(back.freeze(), version), message, "{} {version}", Ours::NAME);
    }
}

macro_rules! both_codecs {
    ($($name:ident)*) => {
        const COMPARED: &[&str] = &[$(ours::$name::NAME),*];

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(64))]
            #[test]
            fn a_message_survives_both_codecs_in_every_version(seed: u64) {
                $(round_trip::<ours::$name, theirs::$name>(seed);)*
            }
        }
    };
}

both_codecs! {
    AlterConfigsRequest AlterConfigsResponse AlterPartitionReassignmentsRequest
    AlterPartitionReassignmentsResponse ApiVersionsRequest ApiVersionsResponse
    ConsumerProtocolAssignment ConsumerProtocolSubscription CreateAclsRequest CreateAclsResponse
    CreatePartitionsRequest CreatePartitionsResponse CreateTopicsRequest CreateTopicsResponse
    DeleteAclsRequest DeleteAclsResponse DeleteGroupsRequest DeleteGroupsResponse DeleteRecordsRequest
    DeleteRecordsResponse DeleteTopicsRequest DeleteTopicsResponse DescribeAclsRequest
    DescribeAclsResponse DescribeClientQuotasRequest DescribeClientQuotasResponse DescribeClusterRequest
    DescribeClusterResponse DescribeConfigsRequest DescribeConfigsResponse DescribeGroupsRequest
    DescribeGroupsResponse DescribeLogDirsRequest DescribeLogDirsResponse DescribeProducersRequest
    DescribeProducersResponse DescribeQuorumRequest DescribeQuorumResponse
    DescribeTopicPartitionsRequest DescribeTopicPartitionsResponse DescribeTransactionsRequest
    DescribeTransactionsResponse DescribeUserScramCredentialsRequest
    DescribeUserScramCredentialsResponse ElectLeadersRequest ElectLeadersResponse FetchRequest
    FetchResponse FindCoordinatorRequest FindCoordinatorResponse HeartbeatRequest HeartbeatResponse
    IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse InitProducerIdRequest
    InitProducerIdResponse JoinGroupRequest JoinGroupResponse LeaveGroupRequest LeaveGroupResponse
    ListConfigResourcesRequest ListConfigResourcesResponse ListGroupsRequest ListGroupsResponse
    ListOffsetsRequest ListOffsetsResponse ListPartitionReassignmentsRequest
    ListPartitionReassignmentsResponse ListTransactionsRequest ListTransactionsResponse MetadataRequest
    MetadataResponse OffsetCommitRequest OffsetCommitResponse OffsetDeleteRequest OffsetDeleteResponse
    OffsetFetchRequest OffsetFetchResponse OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse
    ProduceRequest ProduceResponse RequestHeader ResponseHeader SyncGroupRequest SyncGroupResponse
}

#[test]
fn the_random_messages_reach_nulls_tags_and_large_records() {
    let (mut nulls, mut endpoints, mut large, mut moved) = (0, 0, 0, 0);
    for seed in 0..500 {
        let message = ours::FetchResponse::decode(&mut Reader::sampling(seed), 16).unwrap();
        endpoints += message.node_endpoints.len();
        for partition in message.responses.iter().flat_map(|topic| &topic.partitions) {
            nulls += usize::from(partition.records.is_none());
            large += usize::from(partition.records.as_ref().is_some_and(|records| records.len() > 1024));
            moved += usize::from(partition.current_leader != Default::default());
        }
    }
    assert!(nulls > 50 && endpoints > 50 && large > 5 && moved > 50, "{nulls} {endpoints} {large} {moved}");
}

#[test]
fn no_message_escapes_the_comparison() {
    let names: Vec<&str> = ALL.iter().map(|schema| schema.name).collect();
    assert_eq!(names, COMPARED);
}

#[test]
fn a_message_of_defaults_can_be_written_in_every_version_and_reads_back() {
    for schema in ALL {
        for version in schema.min_version..=schema.max_version {
            let blank = schema.blank(version).unwrap().to_bytes();
            let again = schema.recode(&mut Reader::new(blank.clone()), version).unwrap().unwrap();
            assert_eq!(again.to_bytes(), blank, "{} {version}", schema.name);
        }
    }
}

#[test]
fn a_version_that_does_not_exist_is_refused_both_ways() {
    for schema in ALL {
        for version in [i16::MIN, -1, schema.min_version - 1, schema.max_version + 1, i16::MAX] {
            assert!(matches!(schema.blank(version), Err(EncodeError::Version { .. })));
            let read = schema.recode(&mut Reader::new(Bytes::from_static(&[0; 64])), version);
            assert!(matches!(read, Err(DecodeError::Version { .. })));
        }
    }
}

#[test]
fn the_unstable_last_version_is_not_offered() {
    assert_eq!(ours::InitProducerIdRequest::MAX_VERSION, 5);
    assert_eq!(ours::ListOffsetsRequest::MAX_VERSION, 11);
}

#[test]
fn api_versions_requests_have_the_bytes_of_the_protocol_guide() {
    let request = ours::ApiVersionsRequest::default();
    let frame = encode_request(7, Some("ab"), 0, &request).unwrap();
    // Length; key 18, version 0, correlation id 7, client id with a length of two bytes; no body.
    assert_eq!(frame.to_bytes(), &[0, 0, 0, 12, 0, 18, 0, 0, 0, 0, 0, 7, 0, 2, b'a', b'b'][..]);

    let request = ours::ApiVersionsRequest {
        client_software_name: "me".into(),
        client_software_version: "1".into(),
        ..Default::default()
    };
    let frame = encode_request(-2, None, 3, &request).unwrap();
    // The client id keeps its length of two bytes, then the header's empty tagged fields, then two compact strings
    // and the body's empty tagged fields.
    let expected =
        [0, 0, 0, 17, 0, 18, 0, 3, 0xff, 0xff, 0xff, 0xfe, 0xff, 0xff, 0, 3, b'm', b'e', 2, b'1', 0];
    assert_eq!(frame.to_bytes(), &expected[..]);

    let (header, mut body) = decode_request_header(frame.to_bytes().slice(4..)).unwrap();
    assert_eq!((header.request_api_key, header.request_api_version, header.correlation_id), (18, 3, -2));
    assert_eq!(header.client_id, None);
    assert_eq!(ours::ApiVersionsRequest::decode(&mut body, 3).unwrap(), request);
}

#[test]
fn all_topics_and_no_topics_differ_by_version_as_the_protocol_guide_says() {
    let all = ours::MetadataRequest { topics: None, ..Default::default() };
    let none = ours::MetadataRequest { topics: Some(Vec::new()), ..Default::default() };
    assert_eq!(encoded(&all, 1), &[0xff; 4][..]);
    assert_eq!(encoded(&none, 1), &[0; 4][..]);
    // Version 0 has no null: an empty array asks for all topics there.
    let mut out = Writer::new();
    assert_eq!(all.encode(&mut out, 0), Err(EncodeError::Null { field: "MetadataRequest.topics" }));
    let error =
        ours::MetadataRequest::decode(&mut Reader::new(Bytes::from_static(&[0xff; 4])), 0).unwrap_err();
    assert_eq!(error, DecodeError::Null { at: 0 });
    // Version 9: compact null array, auto-creation, two authorized-operations flags, no tagged fields.
    assert_eq!(encoded(&all, 9), &[0, 1, 0, 0, 0][..]);
}

#[test]
fn a_tagged_field_is_left_out_when_it_is_the_default_and_unknown_ones_are_skipped() {
    let plain = ours::FetchRequest::default();
    let named = ours::FetchRequest { cluster_id: Some("c".into()), ..Default::default() };
    let bytes = encoded(&plain, 12);
    assert_eq!(bytes.last(), Some(&0));
    let head = &bytes[..bytes.len() - 1];
    assert_eq!(encoded(&named, 12), [head, &[1, 0, 2, 2, b'c']].concat());
    let unknown = [head, &[2, 0, 2, 2, b'c', 99, 3, 0xff, 0xff, 0xff]].concat();
    assert_eq!(decoded::<ours::FetchRequest>(unknown.into(), 12), named);
    let beyond = [head, &[1, 99, 4, 0xff, 0xff, 0xff]].concat();
    let error = ours::FetchRequest::decode(&mut Reader::new(beyond.into()), 12).unwrap_err();
    assert!(matches!(error, DecodeError::Length { length: 4, remaining: 3, .. }), "{error}");
    // A known field that claims fewer bytes than it needs does not read its neighbour's.
    let short = [head, &[1, 0, 1, 5, b'c', b'c', b'c', b'c', b'c']].concat();
    assert!(ours::FetchRequest::decode(&mut Reader::new(short.into()), 12).is_err());
}

#[test]
fn a_value_without_a_place_in_the_version_is_an_error_unless_it_may_be_ignored() {
    let mut out = Writer::new();
    let static_member = ours::HeartbeatRequest { group_instance_id: Some("i".into()), ..Default::default() };
    let error = static_member.encode(&mut out, 2).unwrap_err();
    assert_eq!(error, EncodeError::NotInVersion { field: "HeartbeatRequest.group_instance_id", version: 2 });
    assert_eq!(
        error.to_string(),
        "HeartbeatRequest.group_instance_id is set, and version 2 does not have it"
    );
    let ignorable = ours::FetchRequest { rack_id: "r".into(), ..Default::default() };
    assert_eq!(encoded(&ignorable, 10), encoded(&ours::FetchRequest::default(), 10));
}

#[test]
fn a_string_longer_than_its_length_can_say_is_an_error() {
    let request = ours::HeartbeatRequest { group_id: "x".repeat(32768).into(), ..Default::default() };
    for version in [0, 4] {
        let error = request.encode(&mut Writer::new(), version).unwrap_err();
        assert_eq!(error, EncodeError::TooLong { field: "HeartbeatRequest.group_id", length: 32768 });
    }
}

#[test]
fn records_are_referenced_and_not_copied_in_both_directions() {
    let records = Bytes::from(vec![7; 5000]);
    let partition = ours::produce_request::PartitionProduceData { index: 3, records: Some(records.clone()) };
    let topic = ours::produce_request::TopicProduceData {
        name: "t".into(),
        partition_data: vec![partition.clone(), partition],
        ..Default::default()
    };
    let request = ours::ProduceRequest { acks: -1, topic_data: vec![topic], ..Default::default() };
    for version in [3, 9, 12] {
        let frame = encode_request(1, None, version, &request).unwrap();
        let shared = frame.chunks().iter().filter(|chunk| chunk.as_ptr() == records.as_ptr()).count();
        assert_eq!((shared, frame.chunks().len()), (2, if version == 3 { 4 } else { 5 }));
        let bytes = frame.to_bytes();
        assert_eq!(bytes.len(), frame.len());
        assert_eq!(
            usize::try_from(i32::from_be_bytes(*bytes.first_chunk().unwrap())).unwrap(),
            frame.len() - 4
        );
        let (_, mut body) = decode_request_header(bytes.slice(4..)).unwrap();
        let read = ours::ProduceRequest::decode(&mut body, version).unwrap();
        assert_eq!(read, request);
        let inside = read.topic_data[0].partition_data[1].records.as_ref().unwrap();
        assert!(bytes.as_ptr_range().contains(&inside.as_ptr()));
    }
}

#[test]
fn a_response_carries_its_correlation_id_and_api_versions_keeps_the_old_header() {
    let response = ours::ApiVersionsResponse { error_code: 35, ..Default::default() };
    let frame = encode_response::<ours::ApiVersionsRequest>(9, 4, &response).unwrap().to_bytes();
    // Length, correlation id and no tagged fields behind it, error code, empty compact array, throttle time, tags.
    assert_eq!(frame, &[0, 0, 0, 12, 0, 0, 0, 9, 0, 35, 1, 0, 0, 0, 0, 0][..]);
    assert_eq!(crate::response_correlation_id(&frame.slice(4..)).unwrap(), 9);
    let body = frame.slice(4..);
    assert_eq!(decode_response::<ours::ApiVersionsRequest>(body, 4).unwrap(), (9, response));

    let response = ours::HeartbeatResponse { error_code: 27, ..Default::default() };
    let frame = encode_response::<ours::HeartbeatRequest>(9, 4, &response).unwrap().to_bytes();
    assert_eq!(frame, &[0, 0, 0, 12, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 27, 0][..]);
}

#[test]
fn bytes_behind_a_body_stay_in_the_reader() {
    let bytes = [&encoded(&ours::HeartbeatResponse::default(), 0)[..], &[1, 2, 3]].concat();
    let mut reader = Reader::new(bytes.into());
    ours::HeartbeatResponse::decode(&mut reader, 0).unwrap();
    assert_eq!((reader.remaining(), reader.position()), (3, 2));
    assert_eq!(reader.rest(), &[1, 2, 3][..]);
}

#[test]
fn a_frame_can_be_written_in_pieces_of_any_size() {
    let records = Bytes::from((0..=255).cycle().take(3000).collect::<Vec<u8>>());
    for step in [1, 3, 7, 1000, 5000] {
        let mut out = Writer::new();
        out.i32(1);
        out.raw(&records);
        out.raw(&records.slice(..10));
        out.raw(&records);
        let mut frame = out.finish();
        let (whole, mut written) = (frame.to_bytes(), Vec::new());
        while frame.has_remaining() {
            let take = step.min(frame.chunk().len());
            written.extend_from_slice(&frame.chunk()[..take]);
            frame.advance(take);
            assert_eq!(frame.chunks().iter().map(Bytes::len).sum::<usize>(), frame.len());
        }
        assert_eq!(written, whole);
        assert!(frame.into_chunks().is_empty());
    }
}

#[test]
fn a_described_message_prints_its_fields() {
    let schema = ALL.iter().find(|schema| schema.name == "RequestHeader").unwrap();
    let header = encoded(&ours::RequestHeader { client_id: Some("kcat".into()), ..Default::default() }, 1);
    let shown = format!("{:?}", schema.describe(&mut Reader::new(header), 1).unwrap());
    assert!(shown.contains("client_id: Some(\"kcat\")"), "{shown}");
}
