//! `tramline demo`: the main job end to end on real events, with a broker and a member killed while it runs, and a proof.

mod children;
mod fold;
mod folder;
mod follow;
mod input;
pub mod member;
mod produce;
mod replay;
mod run;
mod verify;
mod view;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tramline::client::{Admin, ClientConfig, NewTopic};

use crate::args::{Demo, Global};
use crate::stop::Stop;
use crate::{Outcome, output};
use children::BrokerProcess;
use folder::Folder;

const EVENTS: &str = "flights";
const RESULTS: &str = "flights.done";
const GROUP: &str = "flights-by-aircraft";
const PARTITIONS: i32 = 6;

/// Where the demo runs: on a broker of its own, or on a cluster that was there before.
pub struct Stage {
    // Before the folder: dropped in this order, so that nobody writes into a folder that is being removed.
    broker: Option<BrokerProcess>,
    folder: Folder,
    config: ClientConfig,
    address: String,
}

impl Stage {
    async fn build(global: &Global) -> Result<Self> {
        let folder = Folder::new()?;
        // Only a cluster named on this command line is used: an address in the environment is for the other commands.
        let (broker, address) = match global.explicit_brokers() {
            Some(address) => (None, address.to_owned()),
            None => {
                let broker = BrokerProcess::start(folder.path()).await;
                let broker = broker.map_err(|error| folder.blame(error))?;
                let address = broker.address().to_owned();
                (Some(broker), address)
            }
        };
        let config = ClientConfig::new(&address).client_id("tramline-demo");
        Ok(Self { broker, folder, config, address })
    }

    async fn create_topics(&self) -> Result<()> {
        let admin = Admin::new(self.config.clone());
        let topics = [NewTopic::new(EVENTS, PARTITIONS), NewTopic::new(RESULTS, PARTITIONS)];
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        for (name, created) in admin.create_topics(topics).await? {
            match created {
                Ok(_) => made.push(name),
                Err(error) => failed.push((name, error)),
            }
        }
        let Some((name, error)) = failed.first() else { return Ok(()) };
        if !made.is_empty() {
            // One without the other would stand in the way of the next run.
            let removed = admin.delete_topics(made).await;
            removed.context("cannot remove what was made of the demo's topics")?;
        }
        let deletions: Vec<String> = failed
            .iter()
            .map(|(name, _)| format!("tramline topic delete {name} -b {}", self.address))
            .collect();
        bail!(
            "cannot create the topic {name}: {error}; the demo makes its own, remove those of an earlier run: {}",
            deletions.join("; ")
        );
    }

    async fn strike(self, keep: bool) -> Result<()> {
        if let Some(broker) = self.broker {
            broker.stop().await?;
        }
        if keep {
            let folder: PathBuf = self.folder.keep();
            output::note(format_args!(
                "kept {}; look into it: tramline serve --data {}",
                folder.display(),
                folder.join("data").display()
            ));
        }
        Ok(())
    }
}

/// Runs the demo and prints its proof.
pub async fn run(args: Demo, global: &Global, stop: Stop) -> Result<Outcome> {
    let input = input::read(args.input.as_deref())?;
    let built = async {
        let stage = Stage::build(global).await?;
        stage.create_topics().await?;
        anyhow::Ok(stage)
    };
    let report = tokio::select! {
        stage = built => {
            let mut stage = stage?;
            let report = run::run(&mut stage, &input, &stop).await;
            let report = report.map_err(|error| stage.folder.blame(error));
            if let (Ok(Some(report)), Some(room)) = (&report, stage.folder.room())
                && !report.holds()
            {
                output::note(room);
            }
            let struck = stage.strike(args.keep).await;
            let report = report?;
            struck?;
            report
        }
        () = stop.asked() => None,
    };
    let Some(report) = report else {
        output::note("stopped before the end: there is no proof of half a run");
        return Ok(Outcome::Failed);
    };
    if global.json {
        output::json(&report)?;
    } else {
        view::print_report(&report)?;
    }
    if !report.holds() {
        output::note(format_args!(
            "error: the proof does not hold ({} aircraft with wrong totals)",
            report.wrong_totals
        ));
        return Ok(Outcome::Failed);
    }
    Ok(Outcome::Done)
}
