//! The cluster the command line talks to.

use std::time::Duration;

use tramline::client::ClientConfig;

use crate::args::Global;

/// A broker that was started a moment ago is waited for; a person who mistyped an address is not kept long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach the brokers named on the command line.
pub fn config(global: &Global) -> ClientConfig {
    ClientConfig::new(global.brokers()).client_id("tramline-cli").connect_timeout(CONNECT_TIMEOUT)
}
