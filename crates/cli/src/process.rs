//! `tramline process`: a command for each record of a topic, in ordered lanes.

mod ends;
mod events;
mod handler;
mod source;
mod view;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use tokio_util::sync::CancellationToken;
use tramline::client::{
    Admin, AdminError, Consumer, NewTopic, OffsetReset, Producer, ProducerConfig, Refusal,
};
use tramline::processor::{
    Backoff, CommitPolicy, ErrorPolicy, Ordering, Partitioned, PartitionedExt, Retry, RunError, RunReport,
    StopPolicy,
};
use tramline::wire::ErrorCode;

use crate::args::{Global, OrderArg, Process};
use crate::child::{CommandLine, Paper, Stdout, plain_paper};
use crate::stop::Stop;
use crate::{Outcome, cluster, output};
use ends::Ends;
use events::{Event, Journal};
use handler::{Buried, RunCommand};
use source::Watched;
use view::View;

/// How often progress is committed.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// How soon the group gives the partitions of a member that died to another.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a command that runs when its partition is to go, or at a stop, may still take.
const LONGEST_COMMAND: Duration = Duration::from_secs(300);

/// Runs the command for each record until the ends, a stop, or a failure.
pub async fn run(args: Process, global: &Global, stop: Stop) -> Result<Outcome> {
    let view = View::new(&args.topic);
    let (stdout, paper) = streams(global, &view);
    let command = CommandLine::find(&args.command, stop.children(), stdout, paper)?;
    if args.dead_letter.as_deref() == Some(&*args.topic) {
        bail!("{} cannot be its own topic of dead letters: each would fail again", args.topic);
    }
    if args.workers > 1 && args.order == OrderArg::Partition {
        output::note(
            "--workers counts in the orders key and none: in partition order one command runs at a time",
        );
    }
    let job = stop.or(Job::prepare(args, global)).await?;
    job.work(command, view, stop).await
}

/// Where the commands' lines go: beside JSON lines and bars they must not stand in between.
fn streams(global: &Global, view: &View) -> (Stdout, Paper) {
    use std::io::IsTerminal;
    if global.json {
        (Stdout::Stderr, plain_paper())
    } else if view.is_drawn() && std::io::stdout().is_terminal() {
        (Stdout::Lines, view.paper())
    } else if view.is_drawn() {
        (Stdout::Inherit, view.paper())
    } else {
        (Stdout::Inherit, plain_paper())
    }
}

/// Everything that is asked of the cluster before the first record.
struct Job {
    args: Process,
    json: bool,
    admin: Admin,
    ends: Option<Ends>,
    producer: Option<Arc<Producer>>,
    consumer: Arc<Consumer>,
}

impl Job {
    async fn prepare(args: Process, global: &Global) -> Result<Self> {
        let config = cluster::config(global);
        let admin = Admin::new(config.clone());
        let what = || format!("cannot process {} at {}", args.topic, global.brokers());
        // A member would wait for the topic to appear, which looks like a hang to whoever mistyped its name.
        let topic = admin.describe_topic(&*args.topic).await.with_context(what)?;
        let ends =
            if args.end { Some(Ends::seen_by(&admin, &args.topic).await.with_context(what)?) } else { None };
        let producer = match &args.dead_letter {
            Some(name) => {
                make(&admin, name, topic.partitions.len())
                    .await
                    .with_context(|| format!("no topic {name}"))?;
                Some(Arc::new(Producer::new(config.clone(), ProducerConfig::new()).await?))
            }
            None => None,
        };
        let consumer = Consumer::builder(config)
            .group(&*args.group)
            .subscribe([&*args.topic])
            .offset_reset(OffsetReset::Earliest)
            .session_timeout(SESSION_TIMEOUT)
            .rebalance_timeout(LONGEST_COMMAND)
            .build()
            .await
            .with_context(what)?;
        Ok(Self { args, json: global.json, admin, ends, producer, consumer: Arc::new(consumer) })
    }

    async fn work(self, command: CommandLine, view: View, stop: Stop) -> Result<Outcome> {
        let journal = Arc::new(Journal::new(self.json, stop.token()));
        let broken = CancellationToken::new();
        let source = Watched::new(Arc::clone(&self.consumer), self.ends.clone(), Arc::clone(&journal));
        let handler = RunCommand::new(command, &self.args, Arc::clone(&journal), broken.clone());
        let unrunnable = handler.unrunnable();
        let buried = self.producer.clone().zip(self.args.dead_letter.as_deref());
        let buried = buried.map(|(producer, topic)| {
            Buried::new(producer, topic, Arc::clone(&journal), Arc::clone(&unrunnable))
        });
        let seen = source.seen();
        let run = configure(source, &self.args, buried)?;
        let monitor = run.monitor();
        let shutdown = async {
            tokio::select! {
                () = stop.asked() => {}
                () = broken.cancelled() => {}
                () = ends::reached(&self, &seen, &monitor) => journal.ends_reached(),
            }
        };
        let drawing = view.draw(run.monitor(), Arc::clone(&self.consumer));
        let (result, _source) = tokio::select! {
            ended = run.for_each(shutdown, handler) => ended,
            never = drawing => match never {},
        };
        view.clear();
        let unrunnable = unrunnable.get().map(|error| anyhow!("{error}"));
        let outcome = self.conclude(result, unrunnable, &journal);
        self.consumer.close().await;
        if let Some(producer) = self.producer.and_then(Arc::into_inner) {
            // Each dead letter was waited for by the record it is about.
            let _ = producer.close().await;
        }
        outcome
    }

    fn conclude(
        &self,
        result: Result<RunReport, RunError>,
        unrunnable: Option<Error>,
        journal: &Journal,
    ) -> Result<Outcome> {
        let (report, failed) = match &result {
            Ok(report) => (report, unrunnable),
            Err(error) => (error.report(), Some(unrunnable.unwrap_or_else(|| explain(error)))),
        };
        let dead_lettered = report.records_dead_lettered;
        let completed = report.records_completed - dead_lettered;
        let text = failed.as_ref().map(crate::explain::text);
        journal.write(&Event::End {
            reason: if failed.is_some() { "failed" } else { journal.reason() },
            completed,
            retries: report.retries,
            dead_lettered,
            error: text.as_deref(),
        });
        if !self.json {
            let mut summary = format!("{completed} done");
            if report.retries > 0 {
                summary += &format!(", {} tried again", report.retries);
            }
            if let (true, Some(topic)) = (dead_lettered > 0, &self.args.dead_letter) {
                summary += &format!(", {dead_lettered} put into {topic}");
            }
            output::note(summary);
        }
        journal.check()?;
        match failed {
            Some(error) => Err(error),
            None => Ok(Outcome::Done),
        }
    }
}

/// Makes the topic of dead letters, unless it is there.
async fn make(admin: &Admin, name: &str, partitions: usize) -> Result<()> {
    match admin.describe_topic(name).await {
        Ok(_) => return Ok(()),
        Err(AdminError::Refused(Refusal { code: ErrorCode::UnknownTopicOrPartition, .. })) => {}
        Err(error) => return Err(error.into()),
    }
    let partitions = i32::try_from(partitions).unwrap_or(1);
    for (_, made) in admin.create_topics([NewTopic::new(name, partitions)]).await? {
        match made {
            // Another member was quicker.
            Err(refusal) if refusal.code == ErrorCode::TopicAlreadyExists => {}
            made => drop(made?),
        }
    }
    output::note(format_args!("made the topic {name} for records that fail"));
    Ok(())
}

fn configure(source: Watched, args: &Process, buried: Option<Buried>) -> Result<Partitioned<Watched>> {
    let ordering = match args.order {
        OrderArg::Partition => Ordering::Partition,
        OrderArg::Key => Ordering::Key,
        OrderArg::None => Ordering::Unordered,
    };
    let workers = usize::from(args.workers);
    let last = buried.map_or(ErrorPolicy::StopRun, ErrorPolicy::dead_letter);
    let on_error = match args.retries {
        0 => last,
        retries => Retry::new(retries.saturating_add(1), Backoff::default()).then(last),
    };
    source
        .partitioned()
        .ordering(ordering)
        .max_concurrent_handlers(workers)
        .max_buffered_records(workers.max(256))
        .commit(CommitPolicy::Periodic(COMMIT_INTERVAL))
        // What runs is finished; what only waits comes again to whoever is next, instead of holding up the stop.
        .stop(StopPolicy::Cancel, LONGEST_COMMAND)
        .on_error(on_error)
        .build()
        .map_err(|error| anyhow!("{error}"))
}

fn explain(error: &RunError) -> Error {
    let at = |offset: &Option<i64>| offset.map_or_else(String::new, |offset| format!(" at offset {offset}"));
    match error {
        RunError::Handler { lane, offset, source, .. } => {
            anyhow!(
                "the command failed on {}{}: {source}; the record comes again",
                lane.topic_partition,
                at(offset)
            )
        }
        RunError::DeadLetter { lane, offset, source, cause, .. } => anyhow!(
            "the command failed on {}{}: {cause}; it could not be put aside either: {source}",
            lane.topic_partition,
            at(offset)
        ),
        RunError::StopTimeout { lanes, .. } => anyhow!(
            "{} did not end within {} s of being asked to and were killed; their records come again",
            output::count(lanes.len(), "command"),
            LONGEST_COMMAND.as_secs()
        ),
        error => anyhow!("{error}"),
    }
}
