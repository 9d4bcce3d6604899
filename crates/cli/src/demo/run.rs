//! The run itself: members, production, the kill in the middle, and the replay that proves it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tramline::client::{Producer, ProducerConfig};
use tramline::wire::TopicPartition;

use super::children::{Process, start_member};
use super::follow::Follow;
use super::input::Event;
use super::produce::{self, Acked, Pace};
use super::verify::{Ack, Report, Run, verify};
use super::view::{self, View};
use super::{EVENTS, GROUP, PARTITIONS, RESULTS, Stage, replay};
use crate::stop::Stop;
use crate::{explain, output};

/// Without a single new result for this long the run is given up; the verifier then says what is missing.
const STALLED: Duration = Duration::from_secs(120);

/// How long the producer may take to send what is left when it is closed.
const GOODBYE: Duration = Duration::from_secs(2);

/// Runs the job to its end and proves it; `None` when a stop was asked for before there is a proof.
pub async fn run(stage: &mut Stage, input: &[Event], stop: &Stop) -> Result<Option<Report>> {
    let records = input.len() as u64;
    let follow = Follow::start(&stage.config, RESULTS, PARTITIONS as usize).await?;
    let view = View::new(records, PARTITIONS as usize);
    let mut members = Vec::new();
    for name in ["member-1", "member-2"] {
        members.push(start_member(name, stage.folder.path(), &stage.address, GROUP, (EVENTS, RESULTS))?);
    }
    let acked = Arc::new(Acked::default());
    let (release, released) = watch::channel(false);
    let begun = Instant::now();
    let producer = Producer::new(stage.config.clone(), ProducerConfig::new()).await?;
    let production =
        produce::run(&producer, EVENTS, input, &follow, pace(records), released, Arc::clone(&acked));
    let mut run = Run::default();
    let action = act(stage, &mut members, (&follow, &acked, records), release, &mut run, &view);
    let work = async { tokio::try_join!(production, action).map(drop) };
    // A run that fails half-way is proved all the same: the replay says what is missing.
    let stopped = tokio::select! {
        result = watched(work, &acked, &follow, &view) => {
            if let Err(error) = result {
                view.say(&format!("error: {}", explain::text(&error)));
            }
            false
        }
        () = stop.asked() => true,
    };
    run.seconds = follow.seen().last_completion.map_or(begun.elapsed(), |last| last - begun).as_secs_f64();
    view.clear();
    // Every delivery was awaited by the run, or nobody wants to know any more.
    let _ = timeout(GOODBYE, producer.close()).await;

    if stopped {
        for member in members {
            member.kill().await?;
        }
        return Ok(None);
    }
    for member in members {
        if let Err(error) = member.stop().await {
            output::note(format_args!("error: {}", explain::text(&error)));
        }
    }
    let spinner = view::spinner("replaying both topics against the input");
    let acks = acked.all();
    let report = tokio::select! {
        report = prove(stage, input, &acks, run) => report.map(Some),
        () = stop.asked() => Ok(None),
    };
    spinner.finish_and_clear();
    report
}

/// The kill comes when 45 % are acknowledged and a quarter is completed; production is held at 65 % until then, and is
/// never more than 15 % ahead of the results.
fn pace(records: u64) -> Pace {
    Pace { window: (records * 15 / 100).max(1), hold: (records * 65 / 100).max(1) }
}

/// The kill in the middle, then the wait for the last result.
async fn act(
    stage: &mut Stage,
    members: &mut Vec<Process>,
    (follow, acked, records): (&Follow, &Acked, u64),
    release: watch::Sender<bool>,
    run: &mut Run,
    view: &View,
) -> Result<()> {
    let mut tick = interval(Duration::from_millis(20));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut seen, mut since) = (0, Instant::now());
    while follow.completed() < records {
        tick.tick().await;
        let due = acked.count() * 100 >= records * 45 && follow.completed() * 100 >= records * 25;
        if run.member_kills == 0 && due {
            kill(stage, members, (follow, acked), run, view).await?;
            release.send_replace(true);
        }
        for member in &mut *members {
            member.check()?;
        }
        if let Some(broker) = &mut stage.broker {
            broker.check()?;
        }
        if follow.completed() != seen {
            (seen, since) = (follow.completed(), Instant::now());
        } else if since.elapsed() > STALLED {
            bail!("no new result for {} s: {seen} of {records} events are completed", STALLED.as_secs());
        }
    }
    Ok(())
}

async fn kill(
    stage: &mut Stage,
    members: &mut Vec<Process>,
    (follow, acked): (&Follow, &Acked),
    run: &mut Run,
    view: &View,
) -> Result<()> {
    run.acked_at_kill = acked.count();
    run.completed_at_kill = follow.completed();
    let victim = members.remove(0);
    let name = victim.name().to_owned();
    victim.kill().await?;
    run.member_kills += 1;
    if let Some(broker) = stage.broker.take() {
        view.say(&format!(
            "SIGKILL to the broker and {name}, {} events acknowledged and {} completed",
            run.acked_at_kill, run.completed_at_kill
        ));
        stage.broker = Some(broker.kill_and_restart().await?);
        run.broker_kills += 1;
        view.say("the broker is back on the same folder; member-3 joins when the group has missed member-1 for 6 s");
    } else {
        view.say(&format!("SIGKILL to {name}; member-3 joins when the group has missed it for 6 s"));
    }
    members.push(start_member("member-3", stage.folder.path(), &stage.address, GROUP, (EVENTS, RESULTS))?);
    Ok(())
}

/// Draws progress while `work` goes on.
async fn watched<T>(
    work: impl Future<Output = Result<T>>,
    acked: &Acked,
    follow: &Follow,
    view: &View,
) -> Result<T> {
    let mut work = pin!(work);
    let mut frame = interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            result = &mut work => {
                view.show(acked.count(), follow);
                return result;
            }
            _ = frame.tick() => view.show(acked.count(), follow),
        }
    }
}

/// Replays both topics, with nothing taken over from the run but the acknowledgements.
async fn prove(stage: &Stage, input: &[Event], acks: &[Ack], run: Run) -> Result<Report> {
    let (mut stored, mut done) = (Vec::new(), Vec::new());
    for partition in 0..PARTITIONS {
        let events = TopicPartition::new(EVENTS, partition);
        let results = TopicPartition::new(RESULTS, partition);
        replay::partition(&stage.config, &events, |record| {
            stored.push(replay::stored(record));
            Ok(())
        })
        .await
        .with_context(|| format!("cannot replay {events}"))?;
        replay::partition(&stage.config, &results, |record| {
            done.push(replay::done(record)?);
            Ok(())
        })
        .await
        .with_context(|| format!("cannot replay {results}"))?;
    }
    Ok(verify(input, acks, &stored, &done, run))
}
