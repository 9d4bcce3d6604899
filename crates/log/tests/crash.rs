//! Power cuts at every storage call of random workloads, on a disk that keeps only what was forced, and on one that
//! keeps any part of the rest. What a ticket promised must be there once, in its place; nothing may be invented.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{EPOCH, NOW, Random, append, assert_contiguous, dir, force, read_all, sequenced};
use tramline_log::storage::MemoryStorage;
use tramline_log::{Append, AppendOutcome, Forced, Log, LogConfig, LogError, RecoveryMode, SyncTicket};

const SEEDS: u64 = 8;
const STEPS: usize = 40;

fn config(seed: u64) -> LogConfig {
    LogConfig {
        segment_bytes: 700,
        presize_bytes: 256,
        index_interval_bytes: 100,
        retention_bytes: seed.is_multiple_of(3).then_some(2500),
        recovery: if seed.is_multiple_of(2) { RecoveryMode::Tail } else { RecoveryMode::Full },
        ..LogConfig::default()
    }
}

/// What the workload has done so far, as far as a client could know.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Every record that was ever handed to the log, at the offset it would get.
    attempted: BTreeMap<i64, String>,
    /// Everything below was promised to survive.
    forced: i64,
    /// The log start may have been raised up to here.
    start: i64,
    /// The batches of producer 7: sequence, base offset, values.
    batches: Vec<(i32, i64, Vec<String>)>,
    serial: u32,
}

struct Workload {
    storage: MemoryStorage,
    config: LogConfig,
    random: Random,
    model: Model,
}

enum Barrier {
    None,
    Taken(SyncTicket),
    Forced(Forced),
}

impl Workload {
    /// Runs until the end or until the first refused call.
    fn run(&mut self, steps: usize) {
        let Ok((mut log, _)) = Log::open(self.storage.shared(), dir(), self.config.clone(), NOW) else {
            return;
        };
        let mut barrier = Barrier::None;
        for _ in 0..steps {
            let done = match self.random.below(20) {
                0..8 => self.append(&mut log),
                8..14 => self.advance(&mut log, &mut barrier),
                14..16 => log.checkpoint(),
                16 => self.retain(&mut log),
                17 => self.delete_records(&mut log),
                closes => {
                    barrier = Barrier::None;
                    // Or the process dies and the machine does not: nothing written is lost, nothing is forced.
                    let reopened = if closes == 18 { self.close(log) } else { self.reopen(log) };
                    let Ok(reopened) = reopened else { return };
                    log = reopened;
                    Ok(())
                }
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn append(&mut self, log: &mut Log) -> Result<(), LogError> {
        let mut group = Vec::new();
        let mut at = log.reader().log_end();
        for _ in 0..=self.random.below(3) {
            let mut values = Vec::new();
            let base = at;
            for _ in 0..=self.random.below(3) {
                // Equal lengths on purpose: bytes of one life then fit exactly over those of another.
                let value = format!("v{:05}", self.model.serial);
                self.model.serial += 1;
                self.model.attempted.insert(at, value.clone());
                values.push(value);
                at += 1;
            }
            let sequence = self.model.batches.last().map_or(0, |(first, _, held)| first + held.len() as i32);
            let refs: Vec<&str> = values.iter().map(String::as_str).collect();
            group.push(Append::check(sequenced(7, 0, sequence, &refs)).unwrap());
            self.model.batches.push((sequence, base, values));
        }
        let outcomes = log.append_group(group, EPOCH, NOW)?;
        assert!(
            outcomes.iter().all(|outcome| matches!(outcome, AppendOutcome::Appended { .. })),
            "{outcomes:?}"
        );
        Ok(())
    }

    /// The committer's three moments, with anything else possibly in between.
    fn advance(&mut self, log: &mut Log, barrier: &mut Barrier) -> Result<(), LogError> {
        *barrier = match std::mem::replace(barrier, Barrier::None) {
            Barrier::None => log.take_sync().map_or(Barrier::None, Barrier::Taken),
            Barrier::Taken(ticket) => Barrier::Forced(ticket.force().map_err(|_| LogError::Fenced)?),
            Barrier::Forced(forced) => {
                self.model.forced = self.model.forced.max(log.synced(forced)?);
                Barrier::None
            }
        };
        Ok(())
    }

    fn retain(&mut self, log: &mut Log) -> Result<(), LogError> {
        if self.config.retention_bytes.is_some() {
            // It removes whole forced segments only.
            self.model.start = self.model.start.max(log.barriered_up_to());
        }
        log.enforce_retention(NOW).map(drop)
    }

    fn delete_records(&mut self, log: &mut Log) -> Result<(), LogError> {
        let (start, end) = (log.reader().log_start(), log.reader().log_end());
        if !self.random.one_in(3) || start == end {
            return Ok(());
        }
        let before = start + self.random.below((end - start) as u64) as i64;
        self.model.start = self.model.start.max(before);
        log.delete_records(before)?;
        Ok(())
    }

    fn close(&mut self, log: Log) -> Result<Log, LogError> {
        let end = log.reader().log_end();
        log.close()?;
        self.model.forced = end;
        self.open()
    }

    fn reopen(&mut self, log: Log) -> Result<Log, LogError> {
        drop(log);
        self.open()
    }

    fn open(&mut self) -> Result<Log, LogError> {
        let (log, report) = Log::open(self.storage.shared(), dir(), self.config.clone(), NOW)?;
        assert!(report.cut_at.is_none(), "no power was lost, nothing is torn: {report}");
        // What a start has shown to readers must never vanish.
        self.model.forced = report.log_end;
        Ok(log)
    }
}

/// Opens what the power cut left and holds it against the model; returns the model of what is there now.
fn verify(storage: &MemoryStorage, config: &LogConfig, model: &Model, context: &str) -> Option<(Log, Model)> {
    let (log, report) = match Log::open(storage.shared(), dir(), config.clone(), NOW) {
        Ok(opened) => opened,
        Err(_) if storage.has_crashed() => return None,
        Err(error) => panic!("{context}: {error}"),
    };
    assert!(report.damaged.is_empty(), "{context}: {report}");
    let reader = log.reader();
    let (start, end) = (reader.log_start(), reader.log_end());
    assert!(start <= model.start, "{context}: the log starts at {start}, asked for was {}", model.start);
    assert!(end >= model.forced, "{context}: the log ends at {end}, promised was {}; {report}", model.forced);
    if storage.has_crashed() {
        return None;
    }
    let records: Vec<_> = read_all(&reader, 150).into_iter().filter(|(offset, _)| *offset >= start).collect();
    assert_contiguous(&records, start);
    assert_eq!(records.len() as i64, end - start, "{context}");
    for (offset, value) in &records {
        assert_eq!(
            model.attempted.get(offset),
            Some(value),
            "{context}: offset {offset} holds something else"
        );
    }
    let mut now = model.clone();
    now.attempted.split_off(&end);
    now.batches.retain(|(_, base, _)| *base < end);
    now.forced = end;
    Some((log, now))
}

/// Each of the last five batches is known; a new one goes on where the log ends.
fn go_on(log: &mut Log, model: &mut Model, context: &str) -> Result<(), LogError> {
    let kept: Vec<_> = model.batches.iter().rev().take(5).cloned().collect();
    for (sequence, base, values) in kept {
        let refs: Vec<&str> = values.iter().map(String::as_str).collect();
        let again = Append::check(sequenced(7, 0, sequence, &refs)).unwrap();
        let outcome = log.append_group(vec![again], EPOCH, NOW)?.remove(0);
        let is_known = matches!(outcome, AppendOutcome::Duplicate { base_offset, .. } if base_offset == base);
        assert!(is_known, "{context}: the retry of sequence {sequence} gave {outcome:?}, not {base}");
    }
    let end = log.reader().log_end();
    for n in 0..3 {
        let value = format!("n{n}{:04}", model.serial);
        model.serial += 1;
        model.attempted.insert(end + n, value.clone());
        let group = vec![Append::check(common::batch(&[&value])).unwrap()];
        log.append_group(group, EPOCH, NOW)?;
    }
    Ok(())
}

fn run(seed: u64, crash_at: Option<u64>) -> Workload {
    let storage = common::memory();
    if let Some(n) = crash_at {
        storage.crash_at(n);
    }
    let mut workload =
        Workload { storage, config: config(seed), random: Random::new(seed), model: Model::default() };
    workload.run(STEPS);
    workload
}

#[test]
fn what_was_forced_survives_a_power_cut_at_every_call() {
    for seed in 0..SEEDS {
        let calls = run(seed, None).storage.effects();
        assert!(calls > 60, "seed {seed} does too little to be worth it: {calls} calls");
        for n in 3..=calls {
            let workload = run(seed, Some(n));
            let context = format!("seed {seed}, power off at call {n}");
            let image = workload.storage.durable_image();
            let (mut log, mut now) = verify(&image, &workload.config, &workload.model, &context).unwrap();
            go_on(&mut log, &mut now, &context).unwrap();
            now.forced = force(&mut log);
            let again = image.durable_image();
            verify(&again, &workload.config, &now, &format!("{context}, then once more")).unwrap();
        }
    }
}

#[test]
fn what_was_forced_survives_torn_writes_at_every_call() {
    for seed in 0..SEEDS {
        let calls = run(seed, None).storage.effects();
        for n in 3..=calls {
            let workload = run(seed, Some(n));
            for tear in 0..4 {
                let context = format!("seed {seed}, power off at call {n}, tear {tear}");
                let image = workload.storage.torn_image(tear * 1000 + n);
                let (mut log, mut now) = verify(&image, &workload.config, &workload.model, &context).unwrap();
                go_on(&mut log, &mut now, &context).unwrap();
                // Not forced: what was cut a moment ago must not come back behind what is torn now.
                let again = image.torn_image(tear);
                verify(&again, &workload.config, &now, &format!("{context}, then once more")).unwrap();
            }
        }
    }
}

#[test]
fn recovery_itself_survives_a_power_cut_at_every_call() {
    for seed in 0..SEEDS {
        let calls = run(seed, None).storage.effects();
        for n in (3..=calls).step_by(7) {
            let workload = run(seed, Some(n));
            for k in 1.. {
                let context = format!("seed {seed}, power off at call {n} and at call {k} of the recovery");
                let image = workload.storage.torn_image(n);
                image.crash_at(k);
                let mut model = workload.model.clone();
                if let Some((mut log, mut now)) = verify(&image, &workload.config, &model, &context) {
                    let went_on = go_on(&mut log, &mut now, &context);
                    if went_on.is_ok()
                        && let Some(forced) = log.take_sync().and_then(|ticket| ticket.force().ok())
                        && let Ok(up_to) = log.synced(forced)
                    {
                        now.forced = up_to;
                    }
                    model = now;
                }
                if !image.has_crashed() {
                    break;
                }
                let after = image.torn_image(k);
                verify(&after, &workload.config, &model, &context).unwrap();
            }
        }
    }
}

#[test]
fn a_log_that_was_just_created_is_there_after_a_power_cut() {
    let storage = common::memory();
    let (mut log, _) = common::open(&storage.shared(), &LogConfig::default());
    append(&mut log, &["a", "b"]);
    force(&mut log);
    let image: Arc<dyn tramline_log::Storage> = storage.durable_image().shared();
    let (log, report) = common::open(&image, &LogConfig::default());
    assert_eq!(read_all(&log.reader(), 1000).len(), 2);
    assert_eq!(report.cut_at, None);
}
