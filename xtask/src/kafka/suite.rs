//! The tests that take `TRAMLINE_TEST_BROKERS`, and the demo, on Apache Kafka.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// What `tests/common` prints for each test that uses the given cluster.
const MARK: &str = "on the given cluster: ";

/// Runs them on the broker at `address`; the number of tests that used it.
///
/// # Errors
/// One fails, or none used the given cluster.
pub fn run(root: &Path, address: &str) -> Result<usize> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // The whole workspace, so that nothing is built with other features than for its own tests.
    let mut command = Command::new(&cargo);
    command.args(["test", "--quiet", "--workspace", "--no-fail-fast"]);
    for file in fs::read_dir(root.join("crates/tramline/tests"))? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            command.arg("--test").arg(path.file_stem().context("a file has a name")?);
        }
    }
    let output = command
        .args(["--", "--show-output"])
        .env("TRAMLINE_TEST_BROKERS", address)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "on Apache Kafka:\n{said}");
    let demo = Command::new(cargo)
        .args(["run", "--quiet", "--package", "tramline-cli", "--", "demo", "--brokers", address])
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    ensure!(demo.success(), "the demo on Apache Kafka: {demo}");
    let tests = on_the_cluster(&said);
    ensure!(tests > 0, "no test used the given cluster");
    Ok(tests)
}

fn on_the_cluster(said: &str) -> usize {
    said.lines().filter_map(|line| line.strip_prefix(MARK)).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_used_the_cluster_twice_is_one_test() {
        let said = format!("---- a stdout ----\n{MARK}a\n{MARK}a\n\n---- b stdout ----\n{MARK}b\nother\n");
        assert_eq!(on_the_cluster(&said), 2);
    }
}
