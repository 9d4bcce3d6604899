//! Runs commands as a shell would, against a broker of the test's own.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{PATIENCE, Serve, TRAMLINE};

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Ended {
    /// The exit status; -1 when a signal ended it.
    pub code: i32,
    pub out: String,
    pub bytes: Vec<u8>,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            bytes: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// Every line of stdout as JSON.
    pub fn json(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Starts a command with all three streams piped.
pub fn spawn(arguments: &[&str], brokers: Option<&str>) -> Child {
    spawn_in(Path::new("."), arguments, brokers)
}

fn spawn_in(folder: &Path, arguments: &[&str], brokers: Option<&str>) -> Child {
    let mut command = Command::new(TRAMLINE);
    command.current_dir(folder).args(arguments).env_remove("TRAMLINE_BROKERS");
    if let Some(brokers) = brokers {
        command.env("TRAMLINE_BROKERS", brokers);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a command's end; one that does not end is killed and fails the test.
pub fn wait(child: Child) -> Ended {
    let id = child.id();
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match ended.recv_timeout(PATIENCE) {
        Ok(output) => output.unwrap().into(),
        Err(_) => {
            let _ = Command::new("sh").args(["-c", &format!("kill -KILL {id}")]).status();
            panic!("a command does not end; it said {:?}", ended.recv().map(|o| o.map(Ended::from)));
        }
    }
}

/// Runs a command to its end, `input` on its stdin.
pub fn run(arguments: &[&str], input: &[u8]) -> Ended {
    run_with(arguments, input, None)
}

/// The same, with a broker named in the environment.
pub fn run_with(arguments: &[&str], input: &[u8], brokers: Option<&str>) -> Ended {
    let mut child = spawn(arguments, brokers);
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that ends early does not read everything.
        scope.spawn(move || drop(stdin.write_all(input)));
        wait(child)
    })
}

/// A broker and a folder for one test.
pub struct Shell {
    serve: Option<Serve>,
    address: String,
    folder: TempDir,
}

impl Shell {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let serve = Serve::start(folder.path(), &[]);
        Self { address: serve.address.clone(), serve: Some(serve), folder }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a command against the broker.
    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Ended {
        run_with(arguments, input, Some(&self.address))
    }

    /// Starts a command against the broker.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.spawn_in(Path::new("."), arguments)
    }

    /// The same, in a folder.
    pub fn spawn_in(&self, folder: &Path, arguments: &[&str]) -> Child {
        spawn_in(folder, arguments, Some(&self.address))
    }

    /// Runs a command that must end with 0.
    pub fn ok(&self, arguments: &[&str]) -> Ended {
        let ended = self.run(arguments, b"");
        assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.err);
        ended
    }

    /// Sends lines, which must all arrive.
    pub fn produce(&self, arguments: &[&str], input: &[u8]) {
        let ended = self.run(&[&["produce"], arguments].concat(), input);
        assert_eq!(ended.code, 0, "{}", ended.err);
    }

    /// SIGKILL to the broker.
    pub fn kill(&mut self) -> crate::common::Killed {
        self.serve.take().unwrap().kill()
    }

    /// The broker that was started again.
    pub fn is_back(&mut self, serve: Serve) {
        self.serve = Some(serve);
    }
}
