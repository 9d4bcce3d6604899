//! What `tramline task` accepts.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct Task {
    #[command(subcommand)]
    pub command: TaskCommand,
}

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Add a task for each line of stdin
    #[command(after_help = "Examples:\n  \
        seq 1 1000 | tramline task add numbers\n  \
        printf 'ann:1\\nann:2\\n' | tramline task add mails -k :      in order for each key\n  \
        echo later | tramline task add mails --delay 90\n\n\
        Makes the queue when there is none. Exit status 1 unless every task was written. The last line is a summary:\n  \
        {\"added\":1000,\"failed\":0}")]
    Add(Add),
    /// Run a command for each task, its payload on stdin
    #[command(after_help = "Examples:\n  \
        tramline task work mails -- ./send-mail\n  \
        tramline task work mails --workers 8 --lease 60 -- sh -c 'curl -fsS --data-binary @- http://localhost/hook'\n  \
        tramline task work mails -e -- ./send-mail      stop when what is there now is done or dead\n\n\
        Exit status 0 of the command: done. 75, or a signal: tried again later, until its attempts are used up. Anything\n\
        else: failed, and dead. The command learns TRAMLINE_QUEUE, TRAMLINE_SHARD, TRAMLINE_TASK, TRAMLINE_TOKEN,\n\
        TRAMLINE_ATTEMPT and TRAMLINE_KEY (unset without a key). A task may run twice: give the token to what you write\n\
        to, and let it refuse smaller ones.")]
    Work(Work),
    /// Show how a queue stands, from one replay of its log
    #[command(after_help = "Examples:\n  \
        tramline task status mails\n  \
        tramline task status mails | tail -n 1      the sums as one line of JSON\n\n\
        The last line is\n  {\"ready\":N,\"claimed\":N,\"delayed\":N,\"done\":N,\"dead\":N}")]
    Status {
        /// The queue's name
        queue: String,
    },
    /// List the tasks that failed for good
    #[command(
        after_help = "Examples:\n  tramline task dead mails\n  tramline task dead mails --json | jq -r .cause"
    )]
    Dead {
        /// The queue's name
        queue: String,
    },
    /// Add the tasks that failed for good again
    #[command(after_help = "Examples:\n  tramline task retry mails\n\n\
        Exit status 1 unless every one was written. The last line is a summary:\n  {\"retried\":N,\"failed\":N}")]
    Retry {
        /// The queue's name
        queue: String,
    },
}

#[derive(Debug, Args)]
pub struct Add {
    /// The queue's name
    pub queue: String,
    /// Text before the first SEP of a line is the key; tasks of a key are worked on in order
    #[arg(short, long = "key", value_name = "SEP")]
    pub key_separator: Option<String>,
    /// Give the tasks to nobody for so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0", hide_default_value = true)]
    pub delay: Duration,
    /// How urgent: 0 is first, 9 is last
    #[arg(long, default_value_t = 5, value_name = "0-9", value_parser = clap::value_parser!(u8).range(..=9))]
    pub class: u8,
    /// How often a task is begun before it is dead
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_attempts: u32,
    /// Pass a line over when the same was added less than so many seconds ago
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub unique: Option<Duration>,
    /// How many shards the queue gets when it is made
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub shards: i32,
}

#[derive(Debug, Args)]
pub struct Work {
    /// The queue's name
    pub queue: String,
    /// How many commands run at once
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: u16,
    /// For how many seconds a task is taken; renewed while its command runs
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    pub lease: Duration,
    /// A name for people to know this worker by
    #[arg(long, default_value = "task", value_name = "NAME")]
    pub name: String,
    /// Stop when the tasks that are there now are done or dead
    #[arg(short, long)]
    pub end: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "expected a number of seconds".into())
}
