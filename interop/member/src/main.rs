//! `tramline-member BROKERS TOPIC GROUP range|cooperative-sticky [INSTANCE]`: one member of a group that says what happens
//! to it, a JSON object on each line, and commits whatever it has said before it asks for more. Ends well on SIGTERM.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tramline_client::{
    Assignor, ClientConfig, Consumer, Event, Events, Fetched, OffsetAndMetadata, OffsetReset, TopicPartition,
};

fn say(event: &str, partitions: &[TopicPartition]) {
    let numbers: Vec<String> = partitions.iter().map(|tp| tp.partition.to_string()).collect();
    println!(r#"{{"event": "{event}", "partitions": [{}]}}"#, numbers.join(", "));
}

async fn member(arguments: &[String]) -> Result<Consumer> {
    let [brokers, topic, group, strategy, instance @ ..] = arguments else {
        bail!("tramline-member BROKERS TOPIC GROUP range|cooperative-sticky [INSTANCE]")
    };
    let assignor = match strategy.as_str() {
        "range" => Assignor::Range,
        "cooperative-sticky" => Assignor::CooperativeSticky,
        other => bail!("no strategy {other}"),
    };
    let mut builder = Consumer::builder(ClientConfig::new(brokers))
        .group(group.as_str())
        .subscribe([topic.as_str()])
        .assignors([assignor])
        .offset_reset(OffsetReset::Earliest)
        .session_timeout(Duration::from_secs(30))
        .heartbeat_interval(Duration::from_millis(300))
        .fetch_max_wait(Duration::from_millis(200));
    if let Some(instance) = instance.first() {
        builder = builder.instance_id(instance.as_str());
    }
    Ok(builder.build().await?)
}

async fn take(consumer: &Consumer, fetched: Fetched) -> Result<()> {
    if let Some((first, last)) = fetched.records.first().zip(fetched.records.last()) {
        println!(
            r#"{{"event": "records", "partition": {}, "first": {}, "last": {}}}"#,
            fetched.topic_partition.partition,
            first.offset(),
            last.offset()
        );
    }
    consumer.commit([(fetched.topic_partition, OffsetAndMetadata::new(fetched.next_offset))]).await?;
    Ok(())
}

fn happened(event: Event) {
    match event {
        Event::Assigned { partitions, .. } => say("assigned", &partitions),
        Event::Revoked(revocation) => say("revoked", revocation.partitions()),
        Event::Lost { partitions, .. } => say("lost", &partitions),
        other => eprintln!("{other:?}"),
    }
}

async fn drain(mut events: Events) {
    while let Some(event) = events.next().await {
        happened(event);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let consumer = member(&arguments).await?;
    let mut events = consumer.events();
    let mut asked = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = asked.recv() => break,
            event = events.next() => happened(event.context("the consumer ended")?),
            fetched = consumer.next_batch() => take(&consumer, fetched?).await?,
        }
    }
    tokio::join!(consumer.close(), drain(events));
    Ok(())
}
