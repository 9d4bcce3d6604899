//! Reads topics of the demo from their start to the end they have now, and takes their records apart.

use anyhow::{Context, Result};
use tramline::client::{ClientConfig, Consumer, StartOffset};
use tramline::wire::{Record, TopicPartition};

use super::fold::Done;
use super::verify::Stored;

/// Hands every record of the partition, up to its end of now, to `each`.
pub async fn partition(
    config: &ClientConfig,
    place: &TopicPartition,
    mut each: impl FnMut(&Record) -> Result<()>,
) -> Result<()> {
    let consumer =
        Consumer::builder(config.clone()).assign([(place.clone(), StartOffset::Earliest)]).build().await?;
    let ends = consumer.end_offsets(std::slice::from_ref(place)).await?;
    let end = ends.get(place).copied().unwrap_or(0);
    let start = consumer.beginning_offsets(std::slice::from_ref(place)).await?;
    let mut next = start.get(place).copied().unwrap_or(0);
    while next < end {
        let batch = consumer.next_batch().await?;
        for record in batch.records.iter().filter(|record| record.offset() < end) {
            each(record)?;
        }
        next = batch.next_offset;
    }
    consumer.close().await;
    Ok(())
}

/// The number of the input row a record of the events topic carries.
pub fn row(record: &Record) -> Option<u64> {
    let text = std::str::from_utf8(record.header("row")??).ok()?;
    text.parse().ok()
}

/// A record of the results topic.
pub fn done(record: &Record) -> Result<Done> {
    serde_json::from_slice(record.value().unwrap_or_default()).with_context(|| {
        format!("offset {} of {} is not a result of the demo", record.offset(), record.topic_partition())
    })
}

/// A record of the events topic.
pub fn stored(record: &Record) -> Stored {
    Stored {
        partition: record.partition(),
        offset: record.offset(),
        row: row(record),
        key: String::from_utf8_lossy(record.key().unwrap_or_default()).into_owned(),
        value: record.value().unwrap_or_default().to_vec(),
    }
}
