//! The processes of the demo: the broker and the members of the group, each killed or stopped by its own handle.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

/// Longer than any start or clean stop takes; only a broken child gets here.
const PATIENCE: Duration = Duration::from_secs(60);

/// One child process. It stops cleanly when its stdin ends, so it never outlives the demo.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Process {
    fn spawn(name: &str, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let log = folder.join(format!("{name}.log"));
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            // A Ctrl-C at the terminal is for the demo, which then stops its children in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        let stdin = child.stdin.take();
        Ok(Self { name: name.to_owned(), child, stdin, log })
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends it with SIGKILL and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill the {}", self.name))
    }

    /// Asks for a clean stop and waits for it.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.stdin.take());
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(std::process::ExitStatus::success) => Ok(()),
            Ok(status) => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                bail!("the {} ended with {status}{}", self.name, self.last_words())
            }
            Err(_) => {
                bail!("the {} did not stop within {} s{}", self.name, PATIENCE.as_secs(), self.last_words())
            }
        }
    }

    /// Fails when it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => bail!("the {} ended with {status}{}", self.name, self.last_words()),
            Err(error) => bail!("the {} cannot be watched: {error}", self.name),
        }
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        let mut words = String::new();
        for line in lines.into_iter().rev() {
            words.push_str("\n  ");
            words.push_str(line);
        }
        words
    }
}

/// `tramline serve` in a folder; a restart keeps the folder and the address.
#[derive(Debug)]
pub struct BrokerProcess {
    process: Process,
    address: String,
    folder: PathBuf,
}

impl BrokerProcess {
    /// Starts a broker on a free port.
    pub async fn start(folder: &Path) -> Result<Self> {
        Self::start_on(folder, "127.0.0.1:0").await
    }

    async fn start_on(folder: &Path, listen: &str) -> Result<Self> {
        let data = folder.join("data");
        let arguments = ["serve", "--data", &data.to_string_lossy(), "--listen", listen, "--stop-at-eof"];
        let mut process = Process::spawn("broker", folder, &arguments)?;
        let stdout = process.child.stdout.take().context("the broker has no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(PATIENCE, lines.next_line()).await;
        let Ok(Ok(Some(line))) = first else {
            bail!("the broker did not come up{}", process.last_words());
        };
        let address = line
            .strip_prefix("listening on ")
            .with_context(|| format!("the broker said `{line}` instead of where it listens"))?
            .to_owned();
        Ok(Self { process, address, folder: folder.to_owned() })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Kills it with SIGKILL and starts it again on the same folder and address.
    pub async fn kill_and_restart(self) -> Result<Self> {
        self.process.kill().await?;
        Self::start_on(&self.folder, &self.address).await
    }

    /// Fails when it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Stops it cleanly.
    pub async fn stop(self) -> Result<()> {
        self.process.stop().await
    }
}

/// Starts a member of the demo's group.
pub fn start_member(
    name: &str,
    folder: &Path,
    brokers: &str,
    group: &str,
    topics: (&str, &str),
) -> Result<Process> {
    let (source, results) = topics;
    let arguments = [
        "demo-member",
        "-b",
        brokers,
        "--name",
        name,
        "--group",
        group,
        "--source",
        source,
        "--results",
        results,
    ];
    Process::spawn(name, folder, &arguments)
}
