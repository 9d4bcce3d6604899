//! Runs what other projects' clients have to say about our broker: `interop/NAME/run.py`, one ecosystem each.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::kafka::{self, Up};

/// The ecosystems in the order in which `all` runs them: the quick ones first.
pub const NAMES: [&str; 8] = ["kcat", "node", "python", "brokers", "groups", "go", "java", "librdkafka"];

/// What one ecosystem's closing line said.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Counts {
    /// Reads `NAME: N passed, N failed, N skipped`; none when the line is another one.
    fn parse(name: &str, line: &str) -> Option<Self> {
        let mut counts = Self::default();
        for part in line.strip_prefix(name)?.strip_prefix(": ")?.split(", ") {
            let (number, what) = part.split_once(' ')?;
            let number = number.parse().ok()?;
            match what {
                "passed" => counts.passed = number,
                "failed" => counts.failed = number,
                "skipped" => counts.skipped = number,
                _ => return None,
            }
        }
        Some(counts)
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Runs `name`, or every ecosystem for `all`, against `binary`.
///
/// # Errors
/// When a name is unknown, or something failed.
pub fn run(root: &Path, name: &str, smoke: bool, binary: &Path) -> Result<()> {
    let names: Vec<&str> = if name == "all" { NAMES.to_vec() } else { vec![name] };
    if let Some(unknown) = names.iter().find(|name| !NAMES.contains(name)) {
        bail!("no ecosystem {unknown}: all, {}", NAMES.join(", "));
    }
    let mut sum = Counts::default();
    for name in names {
        println!("== {name}");
        // The whole of `groups` wants Kafka's broker beside ours.
        let kafka = if name == "groups" && !smoke { Some(kafka::fresh(root)?) } else { None };
        let address = match &kafka {
            Some(Up::Listening(address)) => Some(&**address),
            _ => None,
        };
        let counts = one(root, name, smoke, binary, address);
        if kafka.is_some() {
            kafka::down(root)?;
        }
        sum.add(counts?);
    }
    if name == "all" && !smoke {
        println!("== kafka");
        match kafka::test(root)? {
            Some(tests) => sum.passed += u64::try_from(tests)?,
            None => sum.skipped += 1,
        }
    }
    println!("interop: {} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
    ensure!(sum.failed == 0, "{} failed", sum.failed);
    Ok(())
}

/// The given binary, or one built in release.
///
/// # Errors
/// It does not build.
pub fn binary(root: &Path, given: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(binary) = given {
        return Ok(binary);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo)
        .args(["build", "--quiet", "--release", "-p", "tramline-cli"])
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    ensure!(done.success(), "the broker does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    Ok(target.join("release/tramline"))
}

/// Runs one ecosystem's script, shows what it says as it comes, and reads its closing line.
fn one(root: &Path, name: &str, smoke: bool, binary: &Path, kafka: Option<&str>) -> Result<Counts> {
    use std::io::BufRead;

    let script = root.join("interop").join(name).join("run.py");
    let mut command = Command::new("python3");
    command.arg("-u").arg(script).arg(binary).stdout(std::process::Stdio::piped());
    if smoke {
        command.arg("--smoke");
    }
    if let Some(kafka) = kafka {
        command.args(["--kafka", kafka]);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no python3");
            return Ok(Counts { skipped: 1, ..Counts::default() });
        }
        Err(error) => return Err(error).context("cannot start python3"),
    };
    let output = child.stdout.take().context("the script's output is a pipe")?;
    let mut last = None;
    for line in std::io::BufReader::new(output).lines() {
        let line = line.context("cannot read what the script says")?;
        println!("{line}");
        last = Counts::parse(name, &line).or(last);
    }
    let status = child.wait().context("cannot wait for the script")?;
    let counts = last.with_context(|| format!("{name} ended without counts ({status})"))?;
    ensure!(status.success() || counts.failed > 0, "{name} ended with {status} though nothing failed");
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_read_and_no_other() {
        let counts = Counts { passed: 17, failed: 2, skipped: 1 };
        assert_eq!(Counts::parse("node", "node: 17 passed, 2 failed, 1 skipped"), Some(counts));
        assert_eq!(Counts::parse("node", "node: 17 records, 2 failed, 1 skipped"), None);
        assert_eq!(Counts::parse("node", "ok      node: 17 passed"), None);
    }
}
