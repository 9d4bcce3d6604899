//! The `tramline` command: parses, runs one subcommand, turns its outcome into an exit status.

// Both panic when their stream takes nothing; `output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod child;
mod cluster;
mod consume;
mod demo;
mod explain;
mod group;
mod output;
mod process;
mod produce;
mod serve;
mod stop;
mod task;
mod topic;

use std::process::ExitCode;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{Cli, Command};
use crate::stop::Stop;

/// How a subcommand that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Everything that was asked for is done.
    Done,
    /// It ran to its end and the answer is no; what is wrong has been printed.
    Failed,
}

fn main() -> ExitCode {
    let cli = Cli::from_command_line();
    log_to_stderr(cli.global.verbose);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::note(format_args!("error: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(run(cli));
    runtime.shutdown_background();
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        // Whoever reads us has had enough (`tramline consume t | head`): that is no failure of ours to report.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("error: {}", explain::text(&error)));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<Outcome> {
    let stop = Stop::on_signals()?;
    match cli.command {
        Command::Serve(args) => serve::run(args, stop).await,
        Command::Consume(args) => consume::run(args, &cli.global, stop).await,
        Command::Demo(args) => demo::run(args, &cli.global, stop).await,
        Command::DemoMember(args) => demo::member::run(args, &cli.global, stop).await,
        Command::Process(args) => process::run(args, &cli.global, stop).await,
        Command::Produce(args) => produce::run(args, &cli.global, stop).await,
        Command::Task(args) => task::run(args, &cli.global, stop).await,
        Command::Topic(args) => stop.or(topic::run(args, &cli.global)).await,
        Command::Group(args) => stop.or(group::run(args, &cli.global)).await,
    }
}

fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // Said on stderr with `eprintln!`, which panics when stderr takes nothing.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines).with(Targets::new().with_default(level)).init();
}
