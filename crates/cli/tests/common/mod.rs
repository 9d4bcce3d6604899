//! What the tests of the whole program share: a broker as a child process, frames over a socket, seeded choices.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod frames;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The program under test.
pub const TRAMLINE: &str = env!("CARGO_BIN_EXE_tramline");

/// Longer than anything here takes; who waits this long waits for something that is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a signal, `TERM` or `INT`, to a process that is ours.
pub fn signal(child: &Child, name: &str) {
    let line = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success(), "{line}");
}

/// `tramline serve` on a folder. It is killed when dropped.
pub struct Serve {
    child: Child,
    folder: PathBuf,
    arguments: Vec<String>,
    /// Where it listens; a restart keeps it.
    pub address: String,
}

impl Serve {
    /// Starts a broker on any free port, with its log in `folder/data` and its stderr in `folder/stderr`.
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self::start_on(folder.to_owned(), "127.0.0.1:0", arguments)
    }

    fn command(folder: &Path, listen: &str, arguments: &[String]) -> Command {
        let mut command = Command::new(TRAMLINE);
        command.args(["-v", "serve", "--listen", listen, "--data"]).arg(folder.join("data")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn start_on(folder: PathBuf, listen: &str, arguments: Vec<String>) -> Self {
        let stderr = OpenOptions::new().create(true).append(true).open(folder.join("stderr")).unwrap();
        let mut child = Self::command(&folder, listen, &arguments).stderr(stderr).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            panic!("the broker said `{line}`; {}", last_words(&folder));
        };
        Self { address: address.to_owned(), child, folder, arguments }
    }

    /// SIGKILL. The folder is as it was left.
    pub fn kill(mut self) -> Killed {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Killed {
            folder: self.folder.clone(),
            arguments: self.arguments.clone(),
            address: self.address.clone(),
        }
    }

    /// SIGTERM, and the status it ends with.
    pub fn terminate(mut self) -> (ExitStatus, Killed) {
        signal(&self.child, "TERM");
        let status = self.child.wait().unwrap();
        let left = Killed {
            folder: self.folder.clone(),
            arguments: self.arguments.clone(),
            address: self.address.clone(),
        };
        (status, left)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A broker that is not there any more.
pub struct Killed {
    folder: PathBuf,
    arguments: Vec<String>,
    address: String,
}

impl Killed {
    /// Starts it again on the same folder and port.
    pub fn restart(self) -> Serve {
        Serve::start_on(self.folder, &self.address, self.arguments)
    }

    /// Starts it and kills it again, after it has said `lines` lines on stderr: in the middle of its recovery.
    pub fn start_and_kill(&self, lines: u64) {
        let mut command = Serve::command(&self.folder, &self.address, &self.arguments);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr: ChildStderr = child.stderr.take().unwrap();
        let mut stderr = BufReader::new(stderr);
        let mut said = OpenOptions::new().append(true).open(self.folder.join("stderr")).unwrap();
        for _ in 0..lines {
            let mut line = String::new();
            stderr.read_line(&mut line).unwrap();
            std::io::Write::write_all(&mut said, line.as_bytes()).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// The end of what the broker in this folder said on stderr.
pub fn last_words(folder: &Path) -> String {
    let Ok(file) = File::open(folder.join("stderr")) else { return String::new() };
    let lines: Vec<String> = BufReader::new(file).lines().map_while(Result::ok).collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Seeded choices (splitmix64).
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The seed from the environment, else one from the clock. Print it.
pub fn seed(variable: &str) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64,
    }
}
