//! The broker's own settings: every one that Kafka has, with what is in force, and none that changes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Client, Stage};
use tramline_broker::BrokerConfig;
use tramline_wire::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::describe_configs_response::DescribeConfigsResourceResult;
use tramline_wire::messages::incremental_alter_configs_request as incremental;
use tramline_wire::messages::{AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest};

const BROKER: i8 = 4;
/// Of Apache Kafka 4.4, and the one that older tools look for.
const COUNT: usize = 350 + 1;

const STATIC: i8 = 4;
const DEFAULT: i8 = 5;

async fn rows(
    client: &mut Client,
    version: i16,
    keys: Option<&[&str]>,
) -> Vec<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource {
        resource_type: BROKER,
        resource_name: "1".into(),
        configuration_keys: keys.map(|keys| keys.iter().map(|key| (*key).into()).collect()),
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: version >= 3,
    };
    let mut response = client.call(version, &request).await;
    let result = response.results.remove(0);
    assert_eq!((result.error_code, result.resource_type, result.resource_name.as_str()), (0, BROKER, "1"));
    result.configs
}

async fn row(client: &mut Client, key: &str) -> DescribeConfigsResourceResult {
    rows(client, 4, Some(&[key])).await.remove(0)
}

/// Value, source and kind of a setting, and whether it has an effect here.
async fn told(client: &mut Client, key: &str) -> (Option<String>, i8, i8, bool) {
    let row = row(client, key).await;
    let acts = row.documentation.is_none();
    (row.value.map(|value| value.to_string()), row.config_source, row.config_type, acts)
}

#[tokio::test]
async fn every_setting_that_kafka_has_is_told_in_every_version_and_none_can_be_written() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    for version in 1..=4 {
        let rows = rows(&mut client, version, None).await;
        assert_eq!(rows.len(), COUNT);
        assert!(rows.is_sorted_by_key(|row| row.name.clone()));
        assert!(rows.iter().all(|row| row.read_only));
        let secret: Vec<_> = rows.iter().filter(|row| row.is_sensitive).collect();
        assert_eq!(secret.len(), 10);
        assert!(secret.iter().all(|row| row.value.is_none() && row.synonyms.is_empty()));
    }
    assert!(rows(&mut client, 4, Some(&[])).await.is_empty());
    assert!(rows(&mut client, 4, Some(&["no.such.setting"])).await.is_empty());
}

#[tokio::test]
async fn a_setting_at_kafkas_default_says_so_and_one_without_a_part_here_too() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let some = |value: &str| Some(value.to_owned());
    assert_eq!(told(&mut client, "message.max.bytes").await, (some("1048588"), DEFAULT, 3, true));
    assert_eq!(told(&mut client, "offsets.retention.minutes").await, (some("10080"), DEFAULT, 3, true));
    assert_eq!(told(&mut client, "log.retention.hours").await, (some("168"), DEFAULT, 3, true));
    assert_eq!(told(&mut client, "log.retention.ms").await, (None, DEFAULT, 5, true));
    assert_eq!(told(&mut client, "auto.create.topics.enable").await, (some("true"), DEFAULT, 1, true));
    assert_eq!(told(&mut client, "log.cleanup.policy").await, (some("delete"), DEFAULT, 7, true));
    assert_eq!(told(&mut client, "num.io.threads").await, (some("8"), DEFAULT, 3, false));
    assert_eq!(told(&mut client, "transaction.max.timeout.ms").await, (some("900000"), DEFAULT, 3, false));
    assert_eq!(
        told(&mut client, "sasl.kerberos.ticket.renew.jitter").await,
        (some("0.05"), DEFAULT, 6, false)
    );
    assert_eq!(told(&mut client, "ssl.keystore.password").await, (None, DEFAULT, 9, false));
    assert_eq!(told(&mut client, "replica.lag.time.max.ms").await, (some("30000"), DEFAULT, 5, false));
}

#[tokio::test]
async fn a_setting_that_is_not_at_kafkas_default_has_both_values() {
    let config = BrokerConfig::new()
        .retention(Some(Duration::from_mins(90)))
        .offsets_retention(Duration::from_hours(2))
        .max_connections(77);
    let stage = Stage::with(config).await;
    let mut client = stage.client().await;
    let expected = [
        ("log.retention.ms", "5400000", None),
        ("offsets.retention.minutes", "120", Some("10080")),
        ("max.connections", "77", Some("2147483647")),
        ("group.coordinator.rebalance.protocols", "classic", Some("classic,consumer,streams")),
        ("group.initial.rebalance.delay.ms", "0", Some("3000")),
        ("offsets.topic.num.partitions", "1", Some("50")),
        ("sasl.enabled.mechanisms", "", Some("GSSAPI")),
        ("node.id", "1", None),
    ];
    for (name, value, default) in expected {
        let row = row(&mut client, name).await;
        assert_eq!((row.value.as_deref(), row.config_source), (Some(value), STATIC), "{name}");
        let known: Vec<(&str, i8)> =
            row.synonyms.iter().map(|known| (known.value.as_deref().unwrap(), known.source)).collect();
        let expected: Vec<(&str, i8)> =
            [(value, STATIC)].into_iter().chain(default.map(|value| (value, DEFAULT))).collect();
        assert_eq!(known, expected, "{name}");
        assert!(row.synonyms.iter().all(|known| known.name.as_str() == name));
    }
}

async fn alter(client: &mut Client, broker: &str, edits: &[(&str, i8, &str)]) -> (i16, String) {
    let config = |(name, config_operation, value): &(&str, i8, &str)| incremental::AlterableConfig {
        name: (*name).into(),
        config_operation: *config_operation,
        value: Some((*value).into()),
    };
    let resource = incremental::AlterConfigsResource {
        resource_type: BROKER,
        resource_name: broker.into(),
        configs: edits.iter().map(config).collect(),
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let row = client.call(1, &request).await.responses.remove(0);
    (row.error_code, row.error_message.map(|text| text.to_string()).unwrap_or_default())
}

#[tokio::test]
async fn settings_of_the_broker_are_refused_by_kind_and_name() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let (set, remove, append) = (0, 1, 2);
    for broker in ["1", ""] {
        let refused = alter(&mut client, broker, &[("num.partitions", set, "3")]).await;
        assert_eq!(refused.0, 42);
        assert!(refused.1.contains("num.partitions is read only"), "{}", refused.1);
        assert_eq!(alter(&mut client, broker, &[("log.retention.ms", set, "5")]).await.0, 42);
        assert_eq!(alter(&mut client, broker, &[("sasl.enabled.mechanisms", append, "PLAIN")]).await.0, 42);
        assert_eq!(alter(&mut client, broker, &[("num.partitions", append, "3")]).await.0, 40);
        assert_eq!(alter(&mut client, broker, &[("no.such.setting", set, "3")]).await.0, 40);
        assert_eq!(alter(&mut client, broker, &[("num.partitions", remove, "")]).await.0, 0, "it is not set");
        let twice = [("num.partitions", remove, ""), ("num.partitions", remove, "")];
        assert_eq!(alter(&mut client, broker, &twice).await.0, 42);
        assert_eq!(alter(&mut client, broker, &[]).await.0, 0);
    }
    let refused = alter(&mut client, "7", &[]).await;
    assert_eq!((refused.0, refused.1.as_str()), (42, "this broker is 1 and not 7"));
    let setting = AlterableConfig { name: "num.partitions".into(), value: Some("3".into()) };
    for (configs, expected) in [(vec![setting], 42), (Vec::new(), 0)] {
        let resource = AlterConfigsResource { resource_type: BROKER, resource_name: "1".into(), configs };
        let request = AlterConfigsRequest { resources: vec![resource], validate_only: false };
        assert_eq!(client.call(2, &request).await.responses[0].error_code, expected);
    }
    assert_eq!(row(&mut client, "num.partitions").await.value.as_deref(), Some("1"));
}
