//! Claims, snapshots of them and headers of tasks.

use bytes::Bytes;
use tramline_core::claims::{ClaimRecord, Ledger, TaskMeta};
use tramline_wire::{Record, Str, TopicPartition};

use crate::counting::within;

/// The first byte says what follows: 0 lines, each a claims record in the order of the log; 1 a snapshot; 2 pairs of
/// names and values, the headers of a task.
pub(crate) fn check(data: &[u8]) -> bool {
    let Some((mode, rest)) = data.split_first() else { return false };
    match mode % 3 {
        0 => check_claims(rest),
        1 => check_snapshot(rest),
        _ => check_task(rest),
    }
}

/// The snapshot of a ledger, which must give the same ledger.
fn survives(ledger: &mut Ledger) {
    let snapshot = ledger.snapshot();
    let mut again = Ledger::restore(&snapshot.bytes).expect("a snapshot that was just taken");
    assert_eq!(again.snapshot(), snapshot);
}

fn check_claims(lines: &[u8]) -> bool {
    let mut ledger = Ledger::new(0, 0);
    for task in 0..20 {
        let key = (task % 3 != 0).then(|| Bytes::from(vec![b'a' + task as u8 % 3]));
        ledger.add_task(task, TaskMeta { key, ..TaskMeta::plain(1000) });
    }
    let (mut offset, mut time, mut accepted) = (0, 1000, false);
    for line in lines.split(|byte| *byte == b'\n') {
        let record = within(4 * line.len() + 1024, "a claims record", || ClaimRecord::decode(line));
        if let Some(record) = &record {
            accepted = true;
            let written = record.encode();
            let again = ClaimRecord::decode(written.as_bytes()).expect("a record that was just written");
            assert_eq!((again.task, again.encode()), (record.task, written), "{record:?}");
        }
        // Offsets have gaps and the broker's clock steps back.
        offset += 1 + i64::from(line.len() % 3 == 0);
        time += if line.len() % 5 == 0 { -200 } else { 700 };
        let _ = ledger.apply(offset, time, record.as_ref());
        let now = ledger.log_time();
        let _ = (ledger.state(now), ledger.next_due(), ledger.pick(now, Some(7), &Default::default()));
    }
    survives(&mut ledger);
    accepted
}

fn check_snapshot(bytes: &[u8]) -> bool {
    // A task of a few bytes stands in a handful of maps.
    let most = 64 * bytes.len() + (16 << 10);
    let Ok(mut ledger) = within(most, "a snapshot", || Ledger::restore(bytes)) else { return false };
    let now = ledger.log_time();
    let _ = (ledger.state(now), ledger.next_due(), ledger.first_needed());
    let _ = ledger.pick(now, None, &Default::default());
    let tasks: Vec<i64> = ledger.all_open().map(|(task, _)| task).chain(ledger.dead()).collect();
    survives(&mut ledger);
    for task in tasks {
        for text in ["claim task=T lease=9223372036854775807 n=1 w=x", "revived task=T w=x"] {
            let record = ClaimRecord::decode(text.replace('T', &task.to_string()).as_bytes());
            let _ = ledger.apply(ledger.claims_end(), now, record.as_ref());
        }
    }
    true
}

fn check_task(mut bytes: &[u8]) -> bool {
    const NAMES: [&str; 6] =
        ["tl-class", "tl-delay", "tl-not-before", "tl-max-attempts", "tl-unique", "tl-window"];
    let mut headers = Vec::new();
    while let Some((&[name, length], rest)) = bytes.split_first_chunk::<2>() {
        let (value, rest) = rest.split_at(usize::from(length).min(rest.len()));
        bytes = rest;
        let value = (length != 255).then(|| Bytes::copy_from_slice(value));
        headers.push((Str::from(NAMES[usize::from(name) % NAMES.len()]), value));
    }
    let record = |headers| {
        let key = Some(Bytes::from_static(b"k"));
        Record::from_parts(TopicPartition::new("q.tasks", 0), 3, 1000, key, None, headers)
    };
    let any = !headers.is_empty();
    let meta = TaskMeta::of(&record(headers));
    let written = meta.headers(0).into_iter().map(|(name, value)| (name.into(), Some(value)));
    assert_eq!(TaskMeta::of(&record(written.collect())), meta);
    any
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let story = b"\0claim task=1 lease=500 n=5 w=a\nrenew task=1 token=1 lease=900 w=a\nclaim task=2 lease=1 n=6 w=b\n\
        failed task=1 token=1 after=300 w=a cause=exit 1\nclaim task=2 lease=30000 n=7 w=a\n\
        release task=2 token=3 started=0 w=b\ndone task=2 token=5 w=a\nclaim task=4 lease=4 n=1 w=c\n\
        buried task=4 token=10 w=c cause=too often\nrevived task=4 w=d"
        .to_vec();
    let mut ledger = Ledger::new(0, 0);
    for task in 0..6 {
        let key = (task % 2 == 0).then(|| Bytes::from_static(b"k"));
        ledger.add_task(task, TaskMeta { key, ..TaskMeta::plain(1000) });
    }
    for (offset, line) in story[1..].split(|byte| *byte == b'\n').enumerate() {
        let _ = ledger.apply(offset as i64, 1000 + 100 * offset as i64, ClaimRecord::decode(line).as_ref());
    }
    let snapshot = [&[1], &ledger.snapshot().bytes[..]].concat();
    let headers = b"\x02\x00\x017\x01\x03250\x02\x041000\x03\x019\x04\x01u\x05\x0260".to_vec();
    vec![story, snapshot, headers]
}
