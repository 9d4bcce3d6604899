//! `tramline produce`: a record for each line of stdin.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::time::timeout;
use tramline::client::{
    Acks, Admin, AdminError, Delivery, Producer, ProducerConfig, ProducerRecord, SendError,
};
use tramline::wire::ErrorCode;

use crate::args::{AcksArg, Global, Produce};
use crate::stop::Stop;
use crate::{Outcome, cluster, output};

/// Deliveries that may be open before the oldest is waited for. The producer bounds the memory; this bounds the list.
const OPEN: usize = 100_000;
/// The longest line that is held in memory, in bytes; far above what a broker takes as one record.
pub const LONGEST: usize = 64 << 20;
/// Failures that are printed one by one.
const SHOWN: u64 = 5;

/// How long the first record waits for its topic before anyone asks whether there is one: a broker that makes topics on
/// its own has made it by then.
const TOPIC_PATIENCE: Duration = Duration::from_secs(5);

/// The last line on stdout.
#[derive(Debug, Default, Serialize)]
struct Summary {
    produced: u64,
    failed: u64,
}

impl Summary {
    async fn settle(&mut self, (line, delivery): (u64, Delivery)) {
        match delivery.await {
            Ok(_) => self.produced += 1,
            Err(error) => self.fail(line, &error),
        }
    }

    fn fail(&mut self, line: u64, error: &dyn std::fmt::Display) {
        self.failed += 1;
        if self.failed <= SHOWN {
            output::note(format_args!("error: line {line}: {error}"));
        } else if self.failed == SHOWN + 1 {
            output::note(format_args!(
                "error: more records failed; only the first {SHOWN} reasons are shown"
            ));
        }
    }
}

/// Reads lines until stdin ends or a stop is asked for, and waits for every acknowledgement.
pub async fn run(args: Produce, global: &Global, stop: Stop) -> Result<Outcome> {
    let acks = match args.acks {
        AcksArg::None => Acks::None,
        AcksArg::Written => Acks::Written,
        AcksArg::Forced => Acks::Forced,
    };
    let producer = stop
        .or(async { Ok(Producer::new(cluster::config(global), ProducerConfig::new().acks(acks)).await?) })
        .await
        .with_context(|| format!("cannot produce to {}", global.brokers()))?;
    let mut summary = Summary::default();
    let mut open = VecDeque::new();
    let mut lines = BufReader::new(tokio::io::stdin());
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = tokio::select! {
            read = read_line(&mut lines, &mut line) => read.context("cannot read stdin")?,
            () = stop.asked() => 0,
        };
        if read == 0 {
            break;
        }
        if read > line.len() {
            summary.fail(number, &format_args!("a line of {read} bytes, at most {LONGEST} can be read"));
            continue;
        }
        let sent = if number == 1 {
            stop.or(send_first(&producer, record(&args, &line), &args.topic, global)).await?
        } else {
            producer.send(record(&args, &line)).await
        };
        match sent {
            Ok(delivery) => open.push_back((number, delivery)),
            Err(error) => summary.fail(number, &error),
        }
        if open.len() > OPEN
            && let Some(oldest) = open.pop_front()
        {
            summary.settle(oldest).await;
        }
    }
    // Every failure is counted by its own delivery, below.
    let _ = producer.flush().await;
    for delivery in open {
        summary.settle(delivery).await;
    }
    let _ = producer.close().await;
    output::json(&summary)?;
    Ok(if summary.failed == 0 { Outcome::Done } else { Outcome::Failed })
}

/// Sends a record whose topic may not be there: that is found out early, instead of by the end of all patience.
async fn send_first(
    producer: &Producer,
    record: ProducerRecord,
    topic: &str,
    global: &Global,
) -> Result<Result<Delivery, SendError>> {
    let mut sending = pin!(producer.send(record));
    if let Ok(sent) = timeout(TOPIC_PATIENCE, &mut sending).await {
        return Ok(sent);
    }
    match Admin::new(cluster::config(global)).describe_topic(topic).await {
        Err(AdminError::Refused(refusal)) if refusal.code == ErrorCode::UnknownTopicOrPartition => {
            Err(anyhow::Error::new(refusal)
                .context(format!("there is no topic {topic}, and the broker makes none")))
        }
        _ => Ok(sending.await),
    }
}

/// Reads up to and with the next line feed and answers how many bytes that took, 0 at the end. What goes over `LONGEST`
/// is read and not kept, so that input without line feeds does not eat the memory.
pub async fn read_line(from: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> io::Result<usize> {
    let mut read = 0;
    loop {
        let available = from.fill_buf().await?;
        let end = available.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(available.len());
        let room = LONGEST - line.len();
        line.extend_from_slice(&available[..taken.min(room)]);
        from.consume(taken);
        read += taken;
        if end.is_some() || taken == 0 {
            return Ok(read);
        }
    }
}

fn record(args: &Produce, line: &[u8]) -> ProducerRecord {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (key, value) = split(line, args.key_separator.as_deref().unwrap_or_default().as_bytes());
    let record = ProducerRecord::to(args.topic.as_str()).value(Bytes::copy_from_slice(value));
    match key {
        Some(key) => record.key(Bytes::copy_from_slice(key)),
        None => record,
    }
}

/// The text before the first separator and the text after it; no separator, no key.
pub fn split<'a>(line: &'a [u8], separator: &[u8]) -> (Option<&'a [u8]>, &'a [u8]) {
    if separator.is_empty() {
        return (None, line);
    }
    match line.windows(separator.len()).position(|window| window == separator) {
        Some(at) => (Some(&line[..at]), &line[at + separator.len()..]),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over_and_the_next_is_read() {
        let mut input = vec![b'x'; LONGEST + 5];
        input.extend_from_slice(b"\nnext\nlast");
        let (mut from, mut line) = (input.as_slice(), Vec::new());
        assert_eq!(read_line(&mut from, &mut line).await.unwrap(), LONGEST + 6);
        assert_eq!(line.len(), LONGEST);
        for (read, text) in [(5, &b"next\n"[..]), (4, b"last"), (0, b"")] {
            line.clear();
            assert_eq!(read_line(&mut from, &mut line).await.unwrap(), read);
            assert_eq!(line, text);
        }
    }

    #[test]
    fn the_key_is_the_text_before_the_first_separator() {
        assert_eq!(split(b"ann:1:2", b":"), (Some(&b"ann"[..]), &b"1:2"[..]));
        assert_eq!(split(b":1", b":"), (Some(&b""[..]), &b"1"[..]));
        assert_eq!(split(b"ann", b":"), (None, &b"ann"[..]));
        assert_eq!(split(b"a<=>b", b"<=>"), (Some(&b"a"[..]), &b"b"[..]));
        assert_eq!(split(b"ann:1", b""), (None, &b"ann:1"[..]));
    }
}
