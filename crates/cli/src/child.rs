//! A command run for one piece of work: bytes on its stdin, facts in its environment, and what its end means.
//!
//! Each child leads a process group of its own: a Ctrl-C at the terminal is for this program, which lets its children
//! finish, and when they may not, the whole group goes, so that no grandchild is left behind.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long the streams of a command that has ended are read on. What it wrote is in them already; only a process it
/// left behind keeps them open.
const AFTERWARDS: Duration = Duration::from_millis(250);
/// How much of a command's last line on stderr is kept as its last words, in bytes.
const LAST_WORDS: usize = 500;
/// How much of a line is held before it is passed on, in bytes.
const LONGEST_LINE: u64 = 64 << 10;

/// The process groups of the children that live. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Children(Arc<Mutex<Groups>>);

#[derive(Debug, Default)]
struct Groups {
    live: BTreeSet<i32>,
    /// Whoever comes now comes too late.
    ended: bool,
}

impl Children {
    fn groups(&self) -> MutexGuard<'_, Groups> {
        // Every change under the lock is a single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every child with all that it started, now and as they come.
    pub fn kill_all(&self) {
        let mut groups = self.groups();
        groups.ended = true;
        groups.live.iter().for_each(|&group| kill(group));
    }

    fn add(&self, child: &Child) -> Living {
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let mut groups = self.groups();
        groups.live.extend(group);
        if groups.ended {
            groups.live.iter().for_each(|&group| kill(group));
        }
        Living { children: self.clone(), group }
    }
}

fn kill(group: i32) {
    if let Some(group) = Pid::from_raw(group) {
        // It may have ended by itself.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A child that was not waited for yet. Dropped before that, it takes its group with it.
struct Living {
    children: Children,
    group: Option<i32>,
}

impl Living {
    /// The child was waited for: its number may belong to somebody else from now on.
    fn ended(mut self) {
        if let Some(group) = self.group.take() {
            self.children.groups().live.remove(&group);
        }
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            self.children.groups().live.remove(&group);
            kill(group);
        }
    }
}

/// Where a command's stdout goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdout {
    /// To ours.
    Inherit,
    /// To our stderr, since ours carries something else.
    Stderr,
    /// To ours, line by line through [`Paper`].
    Lines,
}

/// Takes the lines that commands write: the bytes, and whether they came from stderr.
pub type Paper = Arc<dyn Fn(&[u8], bool) + Send + Sync>;

/// Lines of commands on our own streams.
pub fn plain_paper() -> Paper {
    Arc::new(|line, is_error| {
        // A stream that takes nothing costs the line.
        let _ =
            if is_error { io::stderr().lock().write_all(line) } else { io::stdout().lock().write_all(line) };
    })
}

/// A command line that can be run.
#[derive(Clone)]
pub struct CommandLine {
    program: PathBuf,
    arguments: Vec<OsString>,
    children: Children,
    stdout: Stdout,
    paper: Paper,
}

/// Why a run of a command did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started, whatever the work.
    #[error("cannot start {}: {error}", program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// This piece of work cannot be told to a command.
    #[error("{0}")]
    Unsuitable(String),
    /// It ended otherwise than with status 0.
    #[error("{}{}", Ending(*status), Words(words))]
    Ended {
        /// How.
        status: ExitStatus,
        /// The last line it wrote to stderr.
        words: String,
    },
}

struct Ending(ExitStatus);

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(f, "exit status {code}"),
            (None, Some(_)) => write!(f, "ended by {}", self.0),
            (None, None) => write!(f, "{}", self.0),
        }
    }
}

struct Words<'a>(&'a str);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

impl CommandLine {
    /// Finds the program of this command line, so that a mistyped name is one error and not one for each record.
    ///
    /// # Errors
    /// There is no such program, or it cannot be run.
    pub fn find(words: &[OsString], children: Children, stdout: Stdout, paper: Paper) -> Result<Self> {
        let [program, arguments @ ..] = words else { bail!("there is no command to run") };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = find(program, &path)?;
        Ok(Self { program, arguments: arguments.to_vec(), children, stdout, paper })
    }

    /// Runs it with `input` on its stdin, and these variables set or, without a value, removed; waits for its end.
    /// Dropping the future ends the command with all that it started.
    ///
    /// # Errors
    /// [`ChildError`]; a command that does not read its input to the end is no error.
    pub async fn run(&self, input: &[u8], variables: &[(&str, Option<OsString>)]) -> Result<(), ChildError> {
        let mut child = self.spawn(variables)?;
        let living = self.children.add(&child);
        let stdin = child.stdin.take();
        let (out, err) = (child.stdout.take().map(BufReader::new), child.stderr.take().map(BufReader::new));
        let mut words = Vec::new();
        let status = {
            let feed = async {
                if let Some(mut stdin) = stdin {
                    // Who does not want its input, or ends before it has all, closes the pipe.
                    let _ = stdin.write_all(input).await;
                }
            };
            let mut streams = pin!(async {
                tokio::join!(feed, self.pass_on(out, false, None), self.pass_on(err, true, Some(&mut words)));
            });
            let mut all_read = false;
            let status = loop {
                tokio::select! {
                    status = child.wait() => break status,
                    () = &mut streams, if !all_read => all_read = true,
                }
            };
            living.ended();
            if !all_read {
                // Whatever still holds them open is not waited for.
                let _ = timeout(AFTERWARDS, streams).await;
            }
            status
        };
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                Err(ChildError::Ended { status, words: String::from_utf8_lossy(&words).into_owned() })
            }
            Err(error) => Err(ChildError::NotStarted { program: self.program.clone(), error }),
        }
    }

    fn spawn(&self, variables: &[(&str, Option<OsString>)]) -> Result<Child, ChildError> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        command.stdout(match self.stdout {
            Stdout::Inherit => Stdio::inherit(),
            Stdout::Lines => Stdio::piped(),
            Stdout::Stderr => {
                io::stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from)
            }
        });
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.spawn().map_err(|error| match error.kind() {
            ErrorKind::ArgumentListTooLong => {
                ChildError::Unsuitable("its key is too long for an environment variable".into())
            }
            _ => ChildError::NotStarted { program: self.program.clone(), error },
        })
    }

    /// Hands on what comes, a line at a time, and keeps the beginning of the last line that says something.
    async fn pass_on(
        &self,
        from: Option<impl AsyncBufRead + Unpin>,
        is_error: bool,
        mut last: Option<&mut Vec<u8>>,
    ) {
        use tokio::io::AsyncReadExt;
        let Some(mut from) = from else { return };
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut from).take(LONGEST_LINE).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = line.trim_ascii_end();
            if let (Some(last), false) = (&mut last, text.is_empty()) {
                last.clear();
                last.extend_from_slice(&text[..text.len().min(LAST_WORDS)]);
            }
            (self.paper)(&line, is_error);
        }
    }
}

/// The file that `name` means: itself when it is a path, else the first of that name in the folders of `path`.
fn find(name: &OsStr, path: &OsStr) -> Result<PathBuf> {
    let written = Path::new(name);
    let can_run = |file: &Path| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.is_empty() {
        bail!("the command is empty");
    }
    if written.components().count() > 1 || written.is_absolute() {
        if can_run(written) {
            return Ok(written.to_owned());
        }
        let why = if written.exists() { "is not a program that can be run" } else { "does not exist" };
        bail!("cannot run {}: it {why}", written.display());
    }
    let found = std::env::split_paths(path).map(|folder| folder.join(written)).find(|file| can_run(file));
    found.ok_or_else(|| {
        anyhow!(
            "there is no command {}: no folder of PATH has it (shell syntax needs a shell: -- sh -c 'COMMANDS')",
            written.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> CommandLine {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        CommandLine::find(&words, Children::default(), Stdout::Stderr, plain_paper()).unwrap()
    }

    #[tokio::test]
    async fn a_command_that_reads_nothing_of_a_large_input_is_no_failure() {
        let input = vec![b'x'; 8 << 20];
        line(&["true"]).run(&input, &[]).await.unwrap();
    }

    #[tokio::test]
    async fn a_process_left_behind_with_the_streams_open_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        // It holds all three streams until somebody writes into the fifo, which happens only afterwards.
        let script = format!("exec 3<&0; cat {} <&3 & exit 0", fifo.display());
        line(&["sh", "-c", &script]).run(&vec![b'x'; 1 << 20], &[]).await.unwrap();
        std::fs::write(fifo, "").unwrap();
    }

    #[tokio::test]
    async fn a_failure_carries_the_status_and_the_last_words() {
        let failed = line(&["sh", "-c", "echo first >&2; echo no such dish >&2; echo >&2; exit 3"]);
        assert_eq!(failed.run(b"", &[]).await.unwrap_err().to_string(), "exit status 3: no such dish");
        let killed = line(&["sh", "-c", "kill -KILL $$"]);
        assert_eq!(killed.run(b"", &[]).await.unwrap_err().to_string(), "ended by signal: 9 (SIGKILL)");
    }

    #[tokio::test]
    async fn variables_are_set_and_removed() {
        let check = line(&["sh", "-c", "test \"$ONE\" = 1 && test -z \"${HOME+set}\""]);
        check.run(b"", &[("ONE", Some("1".into())), ("HOME", None)]).await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_run_ends_the_command_and_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        // The writer's side of the fifo is held by a grandchild; the reader sees the end when nobody holds it.
        let script = format!("(echo up; sleep 600) > {} & wait", fifo.display());
        let command = line(&["sh", "-c", &script]);
        let (up, is_up) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut lines = io::BufRead::lines(io::BufReader::new(std::fs::File::open(fifo).unwrap()));
            up.send(lines.next().unwrap().unwrap()).unwrap();
            lines.next().is_none()
        });
        let running = tokio::spawn(async move { command.run(b"", &[]).await });
        assert_eq!(tokio::task::spawn_blocking(move || is_up.recv().unwrap()).await.unwrap(), "up");
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        assert!(tokio::task::spawn_blocking(|| reader.join().unwrap()).await.unwrap());
    }

    #[test]
    fn a_program_is_looked_for_before_it_is_needed() {
        let path = OsStr::new("/usr/bin:/bin");
        assert!(find(OsStr::new("sh"), path).is_ok());
        assert!(find(OsStr::new("/bin/sh"), path).is_ok());
        for (name, says) in [
            ("no-such-command", "PATH"),
            ("/no/such", "does not exist"),
            ("/etc/passwd", "can be run"),
            ("", "empty"),
        ] {
            let text = find(OsStr::new(name), path).unwrap_err().to_string();
            assert!(text.contains(says), "{name}: {text}");
        }
    }
}
