//! What is done for each record: the command, its attempts, and its dead letters.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio_util::sync::CancellationToken;
use tramline::client::Producer;
use tramline::processor::{DeadLetter, DeadLetterTopic, DeadLetters, Handler, Lane};
use tramline::wire::Record;

use super::events::{Event, Journal};
use crate::args::Process;
use crate::child::{ChildError, CommandLine};

/// Why a record is not done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

/// Why no command can be run at all, once that is known.
pub type Unrunnable = Arc<OnceLock<String>>;

/// Runs the command for a record.
pub struct RunCommand {
    command: CommandLine,
    journal: Arc<Journal>,
    /// How often a record is tried in all.
    last_attempt: u32,
    /// What happens after the last attempt.
    then: &'static str,
    unrunnable: Unrunnable,
    broken: CancellationToken,
}

impl RunCommand {
    /// Cancels `broken` when the command cannot be run at all.
    pub fn new(
        command: CommandLine,
        args: &Process,
        journal: Arc<Journal>,
        broken: CancellationToken,
    ) -> Self {
        Self {
            command,
            journal,
            last_attempt: args.retries.saturating_add(1),
            then: if args.dead_letter.is_some() { "dead-letter" } else { "stop" },
            unrunnable: Unrunnable::default(),
            broken,
        }
    }

    /// Why no command can be run at all.
    pub fn unrunnable(&self) -> Unrunnable {
        Arc::clone(&self.unrunnable)
    }
}

impl Handler for RunCommand {
    type Error = Failure;

    async fn handle(&self, record: Record, lane: Lane) -> Result<(), Failure> {
        if let Some(error) = self.unrunnable.get() {
            return Err(Failure(error.clone()));
        }
        let (partition, offset) = (record.partition(), record.offset());
        let attempt = lane.attempt();
        let input = record.value().unwrap_or_default();
        let error = match self.command.run(input, &variables(&record, &lane, attempt)).await {
            Ok(()) => {
                self.journal.write(&Event::Completed { partition, offset, attempt });
                return Ok(());
            }
            Err(error @ ChildError::NotStarted { .. }) => {
                // No fault of this record: it is neither tried again nor put aside.
                let text = self.unrunnable.get_or_init(|| error.to_string()).clone();
                self.broken.cancel();
                return Err(Failure(text));
            }
            Err(error) => error.to_string(),
        };
        let then = if attempt < self.last_attempt { "retry" } else { self.then };
        self.journal.write(&Event::Failed { partition, offset, attempt, error: &error, then });
        Err(Failure(error))
    }
}

/// What the command learns about its record.
fn variables(record: &Record, lane: &Lane, attempt: u32) -> [(&'static str, Option<OsString>); 8] {
    let number = |number: i64| Some(number.to_string().into());
    let key = record.key();
    [
        ("TRAMLINE_TOPIC", Some(record.topic().into())),
        ("TRAMLINE_PARTITION", number(record.partition().into())),
        ("TRAMLINE_OFFSET", number(record.offset())),
        ("TRAMLINE_ATTEMPT", number(attempt.into())),
        ("TRAMLINE_GENERATION", number(lane.generation().into())),
        // A variable is any bytes but zero.
        ("TRAMLINE_KEY", key.filter(|key| !key.contains(&0)).map(|key| OsString::from_vec(key.to_vec()))),
        ("TRAMLINE_KEY_BASE64", key.map(|key| BASE64.encode(key).into())),
        ("TRAMLINE_NULL_VALUE", record.value().is_none().then(|| "1".into())),
    ]
}

/// The topic of dead letters, which takes none when the command could not be run.
pub struct Buried {
    letters: DeadLetterTopic,
    topic: String,
    journal: Arc<Journal>,
    unrunnable: Unrunnable,
}

impl Buried {
    /// Writes to `topic` through `producer`.
    pub fn new(producer: Arc<Producer>, topic: &str, journal: Arc<Journal>, unrunnable: Unrunnable) -> Self {
        Self { letters: DeadLetterTopic::new(producer, topic), topic: topic.to_owned(), journal, unrunnable }
    }
}

impl DeadLetters for Buried {
    type Error = Failure;

    async fn write(&self, letter: DeadLetter) -> Result<(), Failure> {
        if let Some(error) = self.unrunnable.get() {
            return Err(Failure(error.clone()));
        }
        let (partition, offset, attempts) =
            (letter.record.partition(), letter.record.offset(), letter.attempts);
        self.letters.write(letter).await.map_err(|error| Failure(error.to_string()))?;
        self.journal.write(&Event::DeadLettered { partition, offset, attempts, topic: &self.topic });
        Ok(())
    }
}
