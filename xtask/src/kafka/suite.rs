//! The tests that take `TRAMLINE_TEST_BROKERS`, and the demo, on Apache Kafka.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// The package whose tests take a given cluster.
const PACKAGE: &str = "crates/tramline";

/// What `tests/common` prints for each test that uses the given cluster.
const MARK: &str = "on the given cluster: ";

/// The adapter of rdkafka, whose transaction needs a cluster that has them.
const ADAPTER: &str = "adapters/rdkafka";

/// Runs them on the broker at `address`; the number of tests that used it.
///
/// # Errors
/// One fails, or none used the given cluster.
pub fn run(root: &Path, address: &str) -> Result<usize> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut used = BTreeSet::new();
    for program in programs(root, &cargo)? {
        let output = Command::new(&program)
            .arg("--show-output")
            .env("TRAMLINE_TEST_BROKERS", address)
            .current_dir(root.join(PACKAGE))
            .output()
            .with_context(|| format!("cannot start {program}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "on Apache Kafka:\n{said}");
        used.extend(on_the_cluster(&said));
    }
    transaction(root, &cargo, address)?;
    let demo = Command::new(cargo)
        .args(["run", "--quiet", "--package", "tramline-cli", "--", "demo", "--brokers", address])
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    ensure!(demo.success(), "the demo on Apache Kafka: {demo}");
    ensure!(!used.is_empty(), "no test used the given cluster");
    Ok(used.len())
}

/// Lanes over rdkafka's consumer, with outputs and offsets in transactions of its producer. Not counted among the tests of
/// the package, since it is built outside the workspace, and only where librdkafka can be.
fn transaction(root: &Path, cargo: &OsStr, address: &str) -> Result<()> {
    if let Some(missing) = ["cc", "make"].into_iter().find(|tool| !super::installed(tool)) {
        println!("skipped: no {missing} (the transaction of {ADAPTER})");
        return Ok(());
    }
    let begun = Instant::now();
    let output = Command::new(cargo)
        .args(["test", "--quiet", "--test", "transaction", "--", "--show-output"])
        .env("TRAMLINE_TEST_BROKERS", address)
        .current_dir(root.join(ADAPTER))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && !said.contains("skipped:"), "{ADAPTER} on Apache Kafka:\n{said}");
    println!("the transaction of {ADAPTER} was built and run in {} s", begun.elapsed().as_secs());
    Ok(())
}

/// The built test programs of the package, one for each file.
fn programs(root: &Path, cargo: &OsStr) -> Result<Vec<String>> {
    // Of the whole workspace, so that nothing is built with other features than for its own tests; only files of these
    // names, since the rest is not wanted here.
    let ours = root.join(PACKAGE).join("tests");
    let mut command = Command::new(cargo);
    command.args(["test", "--quiet", "--workspace", "--no-run", "--message-format=json"]).current_dir(root);
    for file in fs::read_dir(&ours)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            command.arg("--test").arg(path.file_stem().context("a file has a name")?);
        }
    }
    let built = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(built.status.success(), "the tests do not build");
    let messages = built.stdout.split(|byte| *byte == b'\n');
    let program = |message: serde_json::Value| {
        let source = Path::new(message["target"]["src_path"].as_str()?).starts_with(&ours);
        message["executable"].as_str().filter(|_| source).map(str::to_owned)
    };
    Ok(messages.filter_map(|line| serde_json::from_slice(line).ok()).filter_map(program).collect())
}

fn on_the_cluster(said: &str) -> impl Iterator<Item = String> {
    said.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_used_the_cluster_twice_is_one_test() {
        let said = format!("---- a stdout ----\n{MARK}a\n{MARK}a\n\n---- b stdout ----\n{MARK}b\nother\n");
        assert_eq!(on_the_cluster(&said).collect::<BTreeSet<_>>().len(), 2);
    }
}
