//! Developer commands of the workspace: `cargo xtask COMMAND`.

mod codegen;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

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
}

fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("xtask is a folder of the workspace")?.to_owned())
}

fn main() -> Result<()> {
    let root = root()?;
    match Arguments::parse().command {
        Task::Codegen { check } => match codegen::run(&root, check)? {
            codegen::Outcome::Skipped(tool) => println!("skipped: no {tool}"),
            codegen::Outcome::Done(files) if check => println!("{files} generated files are up to date"),
            codegen::Outcome::Done(files) => println!("{files} files written"),
        },
    }
    Ok(())
}
