//! The cluster the command line talks to.

use tramline::client::ClientConfig;

use crate::args::Global;

/// How to reach the brokers named on the command line.
pub fn config(global: &Global) -> ClientConfig {
    ClientConfig::new(global.brokers()).client_id("tramline-cli")
}
