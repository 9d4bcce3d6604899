//! `tramline serve`: the embedded broker as a program of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use serde::Deserialize;
use tramline::broker::{Broker, BrokerConfig, StartError};

use crate::args::Serve;
use crate::stop::Stop;
use crate::{Outcome, output};

/// The settings file. Kafka's names where Kafka has the setting; an unknown key is an error.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    listen: Option<String>,
    advertised_host: Option<String>,
    advertised_port: Option<u16>,
    auto_create_topics: Option<bool>,
    default_partitions: Option<i32>,
    max_connections: Option<usize>,
    max_request_bytes: Option<usize>,
    max_message_bytes: Option<usize>,
    segment_bytes: Option<u64>,
    group_initial_rebalance_delay_ms: Option<u64>,
    group_min_session_timeout_ms: Option<u64>,
    group_max_session_timeout_ms: Option<u64>,
    insecure: Option<bool>,
}

impl File {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the settings {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in the settings {}", path.display()))
    }

    fn config(&self) -> BrokerConfig {
        let mut config = BrokerConfig::default();
        if let Some(host) = &self.advertised_host {
            config = config.advertised_host(host);
        }
        if let Some(port) = self.advertised_port {
            config = config.advertised_port(port);
        }
        if let Some(on) = self.auto_create_topics {
            config = config.auto_create_topics(on);
        }
        if let Some(partitions) = self.default_partitions {
            config = config.default_partitions(partitions);
        }
        if let Some(connections) = self.max_connections {
            config = config.max_connections(connections);
        }
        if let Some(bytes) = self.max_request_bytes {
            config = config.max_request_bytes(bytes);
        }
        if let Some(bytes) = self.max_message_bytes {
            config = config.max_message_bytes(bytes);
        }
        if let Some(bytes) = self.segment_bytes {
            config = config.segment_bytes(bytes);
        }
        if let Some(delay) = self.group_initial_rebalance_delay_ms {
            config = config.group_initial_rebalance_delay(Duration::from_millis(delay));
        }
        if self.group_min_session_timeout_ms.is_some() || self.group_max_session_timeout_ms.is_some() {
            let min = Duration::from_millis(self.group_min_session_timeout_ms.unwrap_or(1_000));
            let max = Duration::from_millis(self.group_max_session_timeout_ms.unwrap_or(1_800_000));
            config = config.group_session_timeouts(min, max);
        }
        config
    }
}

/// Serves until a stop is asked for, then stops cleanly.
pub async fn run(args: Serve, stop: Stop) -> Result<Outcome> {
    let file = args.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
    let listen = match (args.listen, &file.listen) {
        (Some(address), _) => address,
        (None, Some(address)) => address.clone(),
        (None, None) => "127.0.0.1:9092".to_owned(),
    };
    let broker = Broker::builder(&args.data)
        .listen(&listen)
        .insecure(args.insecure || file.insecure.unwrap_or(false))
        .config(file.config())
        .start()
        .await
        .map_err(explain)
        .with_context(|| format!("cannot serve {}", args.data.display()))?;
    output::line(&format!("listening on {}", broker.local_addr()))?;
    if args.stop_at_eof {
        stop.at_end_of_stdin();
    }
    stop.asked().await;
    broker.shutdown().await.context("the broker did not stop cleanly")?;
    Ok(Outcome::Done)
}

/// The broker's errors in the words of this command line and its settings file.
fn explain(error: StartError) -> Error {
    match error {
        StartError::Config { name, reason } => anyhow!("setting {}: {reason}", name.replace('_', "-")),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_setting_is_an_error_that_names_it() {
        let error = toml::from_str::<File>("segment-byte = 1").unwrap_err();
        assert!(error.to_string().contains("segment-byte"), "{error}");
    }

    #[test]
    fn settings_carry_the_names_of_the_documentation() {
        let file: File =
            toml::from_str("listen = '127.0.0.1:0'\nauto-create-topics = false\nsegment-bytes = 65536")
                .unwrap();
        assert_eq!((file.listen.as_deref(), file.auto_create_topics), (Some("127.0.0.1:0"), Some(false)));
    }
}
