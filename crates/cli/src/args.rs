//! What the command line accepts: one struct a subcommand, with the examples its help ends with.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Ordered work, in parallel, over a partitioned log.
#[derive(Debug, Parser)]
#[command(
    name = "tramline",
    version,
    styles = STYLES,
    propagate_version = true,
    disable_help_subcommand = true,
    after_help = "Begin with `tramline demo`: it needs nothing but this program.\n\
                  Results go to stdout, everything else to stderr.\n\
                  Exit status: 0 done, 1 failed, 2 wrong usage, 130 on a second Ctrl-C."
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that stand before or after the subcommand.
#[derive(Debug, Args, Clone)]
pub struct Global {
    /// Brokers to begin with, HOST:PORT[,HOST:PORT...] [default: 127.0.0.1:9092]
    #[arg(
        short,
        long,
        global = true,
        value_name = "ADDR",
        env = "TRAMLINE_BROKERS",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub brokers: Option<String>,
    /// Print results as JSON, one compact object a line
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Say more on stderr (-v: what happens, -vv: also every request)
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub verbose: u8,
    /// Whether `--brokers` stood on the command line.
    #[arg(skip)]
    pub explicit: bool,
}

impl Cli {
    /// Parses the command line of this process; wrong usage prints why and ends the process with 2.
    pub fn from_command_line() -> Self {
        let matches = Self::command().get_matches();
        let explicit = deepest_says_explicit(&matches);
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        cli.global.explicit = explicit;
        cli
    }
}

/// Whether `--brokers` stands anywhere on the command line: a global flag shows up at each level below it.
fn deepest_says_explicit(matches: &ArgMatches) -> bool {
    matches.value_source("brokers") == Some(ValueSource::CommandLine)
        || matches.subcommand().is_some_and(|(_, below)| deepest_says_explicit(below))
}

impl Global {
    /// The brokers named on the command line; an address in the environment does not count.
    pub fn explicit_brokers(&self) -> Option<&str> {
        self.explicit.then(|| self.brokers())
    }

    /// The brokers to begin with.
    pub fn brokers(&self) -> &str {
        self.brokers.as_deref().unwrap_or("127.0.0.1:9092")
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the main job end to end on real events: kill, resume, proof
    Demo(Demo),
    /// Run the embedded broker
    Serve(Serve),
    /// Create, list, describe, delete and grow topics
    Topic(Topic),
    /// List, describe, delete and reset consumer groups
    Group(Group),
    /// Send a record for each line of stdin
    Produce(Produce),
    /// Print the records of a topic
    Consume(Consume),
    /// Run a command for each record, in ordered lanes
    Process(Process),
    /// Add tasks to a queue, work on them, see how it stands
    Task(crate::task::args::Task),
    /// One member of the demo's group; started by `demo`
    #[command(hide = true)]
    DemoMember(DemoMember),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tramline demo\n  \
    tramline demo --input flights-2013.csv     a whole year instead of the month that ships with it\n  \
    tramline demo -b 127.0.0.1:9092            on a running cluster; its broker is not killed\n  \
    tramline demo --json | tail -n 1           the proof as one line")]
pub struct Demo {
    /// A CSV of flights with a header row [default: the month that ships with the program]
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Keep the broker's folder and say where it is
    #[arg(long)]
    pub keep: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tramline serve --data ./data\n  \
    tramline serve --data ./data --listen 127.0.0.1:0      any free port; the bound address is printed\n  \
    tramline serve --data ./data --config broker.toml\n\n\
    Prints `listening on ADDR` on stdout when ready. Ctrl-C or SIGTERM stops it cleanly.\n\
    An address that is not loopback needs --insecure: there is no TLS or SASL yet.")]
pub struct Serve {
    /// The folder that holds the log; created when missing
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The address to listen on [default: 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Settings of the broker as TOML; flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Allow an address that is not loopback without TLS and SASL
    #[arg(long)]
    pub insecure: bool,
    /// Stop cleanly when stdin ends: for a program that starts a broker as its child
    #[arg(long)]
    pub stop_at_eof: bool,
    /// The global flag, which names whom to talk to: not shown here, since a broker talks to nobody.
    #[arg(short, long, value_name = "ADDR", hide = true)]
    pub brokers: Option<String>,
}

#[derive(Debug, Args)]
pub struct Topic {
    #[command(subcommand)]
    pub command: TopicCommand,
}

#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create a topic
    #[command(after_help = "Examples:\n  \
        tramline topic create orders -p 6\n  \
        tramline topic create audit -p 1 -c retention.ms=-1 -c segment.bytes=1048576")]
    Create {
        /// The topic's name
        name: String,
        /// How many partitions
        #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
        partitions: i32,
        /// A setting of the topic; may stand several times
        #[arg(short = 'c', long = "config", value_name = "KEY=VALUE", value_parser = key_value)]
        configs: Vec<(String, String)>,
    },
    /// List the topics
    #[command(after_help = "Examples:\n  tramline topic list\n  tramline topic list --json")]
    List,
    /// Show the partitions of a topic: leader, first offset, end
    #[command(after_help = "Examples:\n  tramline topic describe orders")]
    Describe {
        /// The topic's name
        name: String,
    },
    /// Delete a topic and its records
    #[command(after_help = "Examples:\n  tramline topic delete orders")]
    Delete {
        /// The topic's name
        name: String,
    },
    /// Add partitions to a topic
    #[command(after_help = "Examples:\n  tramline topic grow orders -p 12     now 12 in all\n\n\
        Keys that hash to another partition afterwards are no longer in order with their past.")]
    Grow {
        /// The topic's name
        name: String,
        /// How many partitions the topic has afterwards
        #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
        partitions: i32,
    },
}

#[derive(Debug, Args)]
pub struct Group {
    #[command(subcommand)]
    pub command: GroupCommand,
}

#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List the consumer groups
    #[command(after_help = "Examples:\n  tramline group list")]
    List,
    /// Show a group: members, committed offsets, lag
    #[command(after_help = "Examples:\n  tramline group describe billing")]
    Describe {
        /// The group's name
        group: String,
    },
    /// Delete a group and its offsets
    #[command(after_help = "Examples:\n  tramline group delete billing\n\nRefused while members live.")]
    Delete {
        /// The group's name
        group: String,
    },
    /// Move a group's committed offsets
    #[command(after_help = "Examples:\n  \
        tramline group reset billing --topic orders --to start\n  \
        tramline group reset billing --topic orders --to 2026-01-31T12:00:00Z\n\n\
        Refused while members live.")]
    Reset {
        /// The group's name
        group: String,
        /// The topic whose offsets move
        #[arg(long, value_name = "T")]
        topic: String,
        /// Where to: start, end, an offset, or a time (RFC 3339)
        #[arg(long, value_name = "start|end|OFFSET|TIME")]
        to: ResetTo,
    },
}

/// Where `group reset` moves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetTo {
    Start,
    End,
    Offset(i64),
    /// Milliseconds since 1970.
    Time(i64),
}

impl std::str::FromStr for ResetTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            _ => {
                if let Ok(offset) = text.parse::<i64>() {
                    return if offset < 0 {
                        Err("an offset is not negative".into())
                    } else {
                        Ok(Self::Offset(offset))
                    };
                }
                text.parse::<jiff::Timestamp>().map(|time| Self::Time(time.as_millisecond())).map_err(|_| {
                    "expected start, end, an offset or a time such as 2026-01-31T12:00:00Z".into()
                })
            }
        }
    }
}

/// What an acknowledgement means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AcksArg {
    /// The broker answers nothing
    None,
    /// In the log; survives a killed process
    Written,
    /// Behind a disk barrier; survives a power cut
    Forced,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    seq 1 1000 | tramline produce numbers\n  \
    printf 'ann:1\\nbob:2\\n' | tramline produce orders -k :\n\n\
    Exit status 1 unless every record was acknowledged. The last line is a summary:\n  \
    {\"produced\":1000,\"failed\":0}")]
pub struct Produce {
    /// The topic
    pub topic: String,
    /// Text before the first SEP of a line is the key; no SEP, no key
    #[arg(short, long = "key", value_name = "SEP")]
    pub key_separator: Option<String>,
    /// What to wait for
    #[arg(long, value_enum, default_value_t = AcksArg::Forced, value_name = "none|written|forced", hide_possible_values = true)]
    pub acks: AcksArg,
}

/// Where `consume` begins without a committed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Start,
    End,
    Offset(i64),
}

impl std::str::FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            _ => match text.parse::<i64>() {
                Ok(offset) if offset >= 0 => Ok(Self::Offset(offset)),
                _ => Err("expected start, end or an offset".into()),
            },
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tramline consume numbers -e               all that is there, then stop\n  \
    tramline consume orders -g billing        from the group's commit on; commits what it printed\n  \
    tramline consume orders --from end -k :   new records as KEY:VALUE\n  \
    tramline consume orders -e --json | jq .key")]
pub struct Consume {
    /// The topic
    pub topic: String,
    /// Read as a member of this group, from its commit on
    #[arg(short, long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Where to begin without a commit: start, end or an offset
    #[arg(long, default_value = "start", value_name = "start|end|OFFSET")]
    pub from: From,
    /// Stop after N records
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
    /// Stop at the ends seen at the start; what comes later is not printed
    #[arg(short, long)]
    pub end: bool,
    /// Print the key and SEP before the value
    #[arg(short, long = "key", value_name = "SEP")]
    pub key_separator: Option<String>,
}

/// How far `process` runs records of one partition side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// One after the other
    Partition,
    /// Records of one key one after the other, different keys side by side
    Key,
    /// All side by side
    None,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tramline process orders -g kitchen -- ./cook.sh\n  \
    tramline process orders -g kitchen --order key --workers 8 --retries 3 --dead-letter orders-dead -- ./cook.sh\n  \
    tramline process orders -g mail -e -- sh -c 'mail -s \"order $TRAMLINE_OFFSET\" cook@example.com'\n\n\
    The command gets the exact bytes of the value on stdin and ends with 0 when the record is done; only then is its\n\
    offset committed. In its environment:\n  \
    TRAMLINE_TOPIC, TRAMLINE_PARTITION, TRAMLINE_OFFSET   where the record is\n  \
    TRAMLINE_ATTEMPT       1 the first time, 2 when it failed once ...\n  \
    TRAMLINE_KEY           the exact bytes of the key; unset without a key, or when the key has a zero byte\n  \
    TRAMLINE_KEY_BASE64    the key in base64; unset without a key\n  \
    TRAMLINE_NULL_VALUE    1 when there is no value, which looks like an empty one on stdin\n  \
    TRAMLINE_GENERATION    grows with each owner of the partition: a store can refuse an older one\n\n\
    A record that fails is tried again after a while, --retries times; then it goes to --dead-letter, with the reason in\n\
    its headers, or the run ends with 1 and the record comes again the next time. The first Ctrl-C or SIGTERM lets\n\
    running commands finish and commits; a second Ctrl-C ends them too. With -e the run ends when the group has\n\
    committed everything up to the ends.\n\n\
    --json prints one event a line, and the commands' own output goes to stderr:\n  \
    {\"event\":\"assigned\",\"generation\":1,\"partitions\":[0,1]}       also revoked, lost\n  \
    {\"event\":\"completed\",\"partition\":0,\"offset\":7,\"attempt\":1}\n  \
    {\"event\":\"failed\",\"partition\":0,\"offset\":8,\"attempt\":1,\"error\":\"exit status 3\",\"then\":\"retry\"}       or dead-letter, stop\n  \
    {\"event\":\"dead-lettered\",\"partition\":0,\"offset\":8,\"attempts\":2,\"topic\":\"orders-dead\"}\n  \
    {\"event\":\"committed\",\"partition\":0,\"offset\":9}\n  \
    {\"event\":\"end\",\"reason\":\"end\",\"completed\":8,\"retries\":1,\"dead_lettered\":1,\"error\":null}       or stopped, failed")]
pub struct Process {
    /// The topic
    pub topic: String,
    /// The group that shares the partitions and keeps the commits
    #[arg(short, long, value_name = "GROUP")]
    pub group: String,
    /// What runs side by side within a partition
    #[arg(long, value_enum, default_value_t = OrderArg::Partition, value_name = "partition|key|none", hide_possible_values = true)]
    pub order: OrderArg,
    /// How many commands run at once for each partition, in the orders key and none
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: u16,
    /// How often a record that failed is tried again
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..1_000_000))]
    pub retries: u32,
    /// Where records go that failed for good; made when missing
    #[arg(long, value_name = "TOPIC")]
    pub dead_letter: Option<String>,
    /// Stop at the ends seen at the start
    #[arg(short, long)]
    pub end: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct DemoMember {
    /// The name written into each result
    #[arg(long)]
    pub name: String,
    /// The consumer group
    #[arg(long)]
    pub group: String,
    /// The topic of events
    #[arg(long)]
    pub source: String,
    /// The topic of results
    #[arg(long)]
    pub results: String,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_stand_before_or_after_the_subcommand() {
        for line in [["tramline", "-b", "a:1", "topic", "list"], ["tramline", "topic", "list", "-b", "a:1"]] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!(cli.global.brokers(), "a:1");
        }
    }

    #[test]
    fn a_reset_takes_names_offsets_and_times() {
        assert_eq!("start".parse(), Ok(ResetTo::Start));
        assert_eq!("17".parse(), Ok(ResetTo::Offset(17)));
        assert_eq!("1970-01-01T00:00:01.5Z".parse(), Ok(ResetTo::Time(1500)));
        assert!("-3".parse::<ResetTo>().is_err());
        assert!("yesterday".parse::<ResetTo>().is_err());
    }
}
