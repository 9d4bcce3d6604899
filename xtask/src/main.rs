//! Developer commands of the workspace: `cargo xtask COMMAND`.

mod codegen;
mod compatibility;
mod coverage;
mod interop;
mod kafka;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of the workspace", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the messages of the wire crate from Kafka's schemas
    Codegen {
        /// Write nothing; fail with the names of the files that differ
        #[arg(long)]
        check: bool,
    },
    /// Write which test shows which scenario into the tables of the documents
    Coverage {
        /// Write nothing; fail when a scenario has no test or reason, a test no scenario, or a page is old
        #[arg(long)]
        check: bool,
    },
    /// Run other projects' clients against our broker
    Interop {
        /// The ecosystem (a folder of `interop/`), or `all`
        name: String,
        /// Only what is quick
        #[arg(long)]
        smoke: bool,
        /// A built `tramline`; without it one is built in release
        #[arg(long)]
        binary: Option<PathBuf>,
        /// With `all`: write docs/compatibility.md from what was found
        #[arg(long, conflicts_with = "smoke")]
        write: bool,
    },
    /// Bring the table of APIs in docs/compatibility.md up to date
    Compatibility {
        /// Write nothing; fail when the table is not what the broker serves
        #[arg(long)]
        check: bool,
        /// A built `tramline`; without it one is built in release
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// Start or end one Apache Kafka on loopback, for the tests that take `TRAMLINE_TEST_BROKERS`
    Kafka {
        #[arg(value_enum)]
        what: Kafka,
    },
    /// Check file lengths, first lines, layers and what else the compiler does not
    Tidy,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kafka {
    /// Start it with empty data, and say `listening on ADDRESS` when it serves
    Up,
    /// End what `up` started
    Down,
    /// Start it, run the tests that take a given cluster and the demo on it, end it
    Test,
    /// Start it, write the names and defaults of its settings into the broker crate, end it
    Keys,
}

fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("xtask is a folder of the workspace")?.to_owned())
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    let root = root()?;
    match task {
        Task::Codegen { check } => match codegen::run(&root, check)? {
            codegen::Outcome::Skipped(tool) if check => println!("skipped: no {tool}"),
            codegen::Outcome::Skipped(tool) => bail!("no {tool} to fetch the schemas with"),
            codegen::Outcome::Done(files) if check => println!("{files} generated files are up to date"),
            codegen::Outcome::Done(files) => println!("{files} files written"),
        },
        Task::Coverage { check } => {
            let coverage = coverage::run(&root, check)?;
            coverage.findings.iter().for_each(|finding| println!("{finding}"));
            ensure!(coverage.findings.is_empty(), "{} things to mend", coverage.findings.len());
            println!("{} scenarios shown, {} excused", coverage.shown, coverage.excused);
        }
        Task::Interop { name, smoke, binary, write } => {
            let binary = interop::binary(&root, binary)?;
            let ran = interop::run(&root, &name, smoke, &binary);
            if write {
                compatibility::write(&root, &binary)?;
            }
            ran?;
        }
        Task::Compatibility { check, binary } => {
            let binary = interop::binary(&root, binary)?;
            if check {
                compatibility::check(&root, &binary)?;
                println!("the table of APIs is up to date");
            } else {
                compatibility::write_apis(&root, &binary)?;
            }
        }
        Task::Kafka { what } => kafka_command(&root, what)?,
        Task::Tidy => {
            let (findings, files) = tidy::run(&root)?;
            findings.iter().for_each(|finding| println!("{finding}"));
            ensure!(findings.is_empty(), "{} things to mend", findings.len());
            println!("{files} files are tidy");
        }
    }
    Ok(())
}

fn kafka_command(root: &Path, what: Kafka) -> Result<()> {
    match what {
        Kafka::Up => match kafka::up(root)? {
            kafka::Up::Listening(address) => println!("listening on {address}"),
            kafka::Up::Skipped(tool) => println!("skipped: no {tool}"),
        },
        Kafka::Down => println!("{}", if kafka::down(root)? { "ended" } else { "nothing runs" }),
        Kafka::Test => {
            if let Some(tests) = kafka::test(root)? {
                println!("{tests} tests and the demo ran on Apache Kafka");
            }
        }
        Kafka::Keys => {
            if let Some(rows) = kafka::keys::write(root)? {
                println!("{rows} settings written");
            }
        }
    }
    Ok(())
}
