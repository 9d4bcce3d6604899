//! What a worker has in hand, from the claim to the settled task.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Action, Held, Lost, Worker, WorkerConfig, millis};
use crate::claims::ledger::Verdict;
use crate::claims::record::{ClaimRecord, Kind};
use crate::time::Instant;

/// One task in hand.
#[derive(Debug)]
pub(super) struct Work {
    pub shard: i32,
    pub task: i64,
    pub attempt: u32,
    pub max_attempts: u32,
    pub phase: Phase,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// A claim was sent and not read back.
    Claiming { sent: Instant, until: Instant },
    /// It won.
    Holding {
        token: i64,
        /// Until when it is ours for certain, by our own clock: counted from before the claim or renewal was sent.
        until: Instant,
        renew_at: Instant,
        /// When the renewal was sent that was not read back.
        renewing: Option<Instant>,
    },
    /// What became of it was sent and not read back.
    Settling { token: i64 },
}

impl Work {
    pub fn token(&self) -> Option<i64> {
        match self.phase {
            Phase::Claiming { .. } => None,
            Phase::Holding { token, .. } | Phase::Settling { token } => Some(token),
        }
    }

    pub fn is(&self, shard: i32, task: i64, token: i64) -> bool {
        self.shard == shard && self.task == task && self.token() == Some(token)
    }

    pub fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Claiming { until, .. } => Some(until),
            Phase::Holding { until, renew_at, renewing: None, .. } => Some(until.min(renew_at)),
            Phase::Holding { until, .. } => Some(until),
            Phase::Settling { .. } => None,
        }
    }

    /// Sends a renewal; only while none is under way.
    pub fn renew(&mut self, config: &WorkerConfig, now: Instant) -> ClaimRecord {
        let token = self.token().unwrap_or(-1);
        if let Phase::Holding { renewing, .. } = &mut self.phase {
            *renewing = Some(now);
        }
        let kind = Kind::Renew { token, lease: millis(config.lease) };
        ClaimRecord { task: self.task, worker: config.name.clone(), kind }
    }

    fn renewed(&mut self, config: &WorkerConfig) {
        if let Phase::Holding { until, renew_at, renewing, .. } = &mut self.phase
            && let Some(sent) = renewing.take()
        {
            *until = sent + config.lease;
            *renew_at = sent + config.renew_after;
        }
    }

    pub fn renewal_failed(&mut self, now: Instant) {
        if let Phase::Holding { renew_at, renewing, .. } = &mut self.phase {
            *renewing = None;
            *renew_at = now;
        }
    }
}

impl Worker {
    /// Folds what can be folded of a shard, and takes what has become free.
    pub(super) fn fold(&mut self, number: i32, now: Instant) {
        while let Some(shard) = self.shards.get_mut(&number) {
            let Some((offset, appended, record)) = shard.waiting.front() else { break };
            let (offset, appended) = (*offset, *appended);
            // What lies before the end that was seen at the beginning may be our own, of an earlier visit.
            let live = shard.is_caught_up();
            let Ok(verdict) = shard.ledger.apply(offset, appended, record.as_ref()) else { break };
            let record = shard.waiting.pop_front().and_then(|(_, _, record)| record);
            if shard.is_caught_up() && verdict != Verdict::Replayed {
                shard.set_clock(now);
            }
            if let Some(record) = record {
                self.judge(number, offset, &record, &verdict, live);
                self.maybe_snapshot(number, &record, &verdict);
            }
        }
        self.sweep(number);
    }

    fn judge(&mut self, shard: i32, offset: i64, record: &ClaimRecord, verdict: &Verdict, live: bool) {
        if record.worker == self.config.name {
            if !live && !self.is_of_work(shard, record) {
                return;
            }
            match record.kind {
                Kind::Claim { nonce, .. } => self.own_claim(shard, offset, nonce, record.task, verdict),
                Kind::Renew { token, .. } => self.own_renewal(shard, record.task, token, verdict),
                Kind::Done { token } | Kind::Failed { token, .. } | Kind::Buried { token, .. } => {
                    self.own_settle(shard, record.task, token, verdict);
                }
                Kind::Release { .. } | Kind::Revived => {}
            }
        } else if matches!(verdict, Verdict::Granted { .. }) {
            self.taken_by_others(shard, record.task);
        }
    }

    /// Whether an own record is about something that is in hand.
    fn is_of_work(&self, shard: i32, record: &ClaimRecord) -> bool {
        match record.kind {
            Kind::Claim { nonce, .. } => self.work.contains_key(&nonce),
            Kind::Renew { token, .. }
            | Kind::Done { token }
            | Kind::Failed { token, .. }
            | Kind::Buried { token, .. } => self.work.values().any(|work| work.is(shard, record.task, token)),
            Kind::Release { .. } | Kind::Revived => false,
        }
    }

    /// Gives back what the log says is ours and is not in hand, once the replay has come to its end: what was claimed in an
    /// earlier visit and not settled then.
    fn sweep(&mut self, number: i32) {
        let Some(shard) = self.shards.get_mut(&number).filter(|shard| shard.is_caught_up() && !shard.swept)
        else {
            return;
        };
        shard.swept = true;
        let name = &self.config.name;
        let own = shard.ledger.all_open().filter_map(|(task, open)| {
            let lease = open.lease.as_ref().filter(|lease| lease.worker == *name)?;
            Some((task, lease.token))
        });
        let in_hand = |task, token| self.work.values().any(|work| work.is(number, task, token));
        let lost: Vec<(i64, i64)> = own.filter(|&(task, token)| !in_hand(task, token)).collect();
        for (task, token) in lost {
            self.stats.released += 1;
            self.append(number, task, Kind::Release { token, started: true });
        }
    }

    fn own_claim(&mut self, shard: i32, offset: i64, nonce: u64, task: i64, verdict: &Verdict) {
        let claiming = match self.work.get(&nonce).map(|work| &work.phase) {
            Some(Phase::Claiming { sent, .. }) => Some(*sent),
            _ => None,
        };
        match (verdict, claiming) {
            (Verdict::Granted { attempt, burial, .. }, Some(sent)) if !self.stopping => {
                self.stats.won += 1;
                self.won(nonce, offset, sent, *attempt, *burial);
            }
            (Verdict::Granted { .. }, claiming) => {
                // Given up before it was read back, or its append was repeated: nobody works on it.
                self.stats.won += u64::from(claiming.is_some());
                self.stats.released += 1;
                if claiming.is_some() {
                    self.drop_work(nonce);
                }
                self.append(shard, task, Kind::Release { token: offset, started: false });
            }
            (_, Some(_)) => {
                self.stats.refused += 1;
                self.drop_work(nonce);
            }
            _ => {}
        }
    }

    fn won(&mut self, id: u64, token: i64, sent: Instant, attempt: u32, burial: bool) {
        let Some(work) = self.work.get_mut(&id) else { return };
        let open = self.shards.get(&work.shard).and_then(|shard| shard.ledger.open(work.task));
        let Some(open) = open else { return };
        work.attempt = attempt;
        work.max_attempts = open.meta.max_attempts;
        work.phase = Phase::Holding {
            token,
            until: sent + self.config.lease,
            renew_at: sent + self.config.renew_after,
            renewing: None,
        };
        let held = Held {
            id,
            shard: work.shard,
            task: work.task,
            token,
            attempt,
            max_attempts: open.meta.max_attempts,
            causes: open.causes.clone(),
        };
        if burial {
            let cause = held.causes.last().cloned().unwrap_or_default();
            self.actions.push_back(Action::Bury { held, cause });
        } else {
            self.stats.started += 1;
            self.actions.push_back(Action::Start(held));
        }
    }

    /// The holder of `id` has found the task to be dead: its letter comes first.
    pub(super) fn bury(&mut self, id: u64, cause: String) {
        let Some(work) = self.work.get(&id) else { return };
        let open = self.shards.get(&work.shard).and_then(|shard| shard.ledger.open(work.task));
        let Some(token) = work.token() else { return };
        let held = Held {
            id,
            shard: work.shard,
            task: work.task,
            token,
            attempt: work.attempt,
            max_attempts: work.max_attempts,
            causes: open.map(|open| open.causes.clone()).unwrap_or_default(),
        };
        self.actions.push_back(Action::Bury { held, cause });
    }

    fn own_renewal(&mut self, shard: i32, task: i64, token: i64, verdict: &Verdict) {
        let Some((&id, work)) = self.work.iter_mut().find(|(_, work)| work.is(shard, task, token)) else {
            return;
        };
        if *verdict == Verdict::Renewed {
            self.stats.renewed += 1;
            work.renewed(&self.config);
        } else if matches!(work.phase, Phase::Holding { .. }) {
            self.stats.lost += 1;
            self.drop_work(id);
            self.actions.push_back(Action::Stop { id, why: Lost::Taken });
        }
    }

    fn own_settle(&mut self, shard: i32, task: i64, token: i64, verdict: &Verdict) {
        match verdict {
            Verdict::Done => self.stats.done += 1,
            Verdict::Failed { .. } => self.stats.failed += 1,
            Verdict::Buried => self.stats.buried += 1,
            Verdict::Late => self.stats.late += 1,
            _ => {}
        }
        let found = self.work.iter().find(|(_, work)| work.is(shard, task, token));
        if let Some(id) = found.map(|(&id, _)| id) {
            self.drop_work(id);
        }
    }

    fn taken_by_others(&mut self, shard: i32, task: i64) {
        let holds = |work: &Work| {
            work.shard == shard && work.task == task && matches!(work.phase, Phase::Holding { .. })
        };
        let found = self.work.iter().find(|(_, work)| holds(work));
        if let Some(id) = found.map(|(&id, _)| id) {
            self.stats.lost += 1;
            self.drop_work(id);
            self.actions.push_back(Action::Stop { id, why: Lost::Taken });
        }
    }

    /// After a jump over claims: what is in hand is ours only where the ledger still says so.
    pub(super) fn recheck(&mut self, shard: i32) {
        let Some(state) = self.shards.get_mut(&shard) else { return };
        let mut gone = BTreeMap::new();
        for (&id, work) in self.work.iter().filter(|(_, work)| work.shard == shard) {
            let lease = state.ledger.open(work.task).and_then(|open| open.lease.as_ref());
            match (work.token(), &work.phase) {
                (None, _) => {
                    state.in_hand.insert(work.task);
                }
                (Some(token), _) if lease.is_some_and(|lease| lease.token == token) => {
                    state.in_hand.insert(work.task);
                }
                // A claim newer than the snapshot may be ours and come with what is read next.
                (Some(token), _) if token >= state.ledger.claims_end() => {
                    state.in_hand.insert(work.task);
                }
                (Some(_), phase) => {
                    gone.insert(id, matches!(phase, Phase::Holding { .. }));
                }
            }
        }
        for (id, held) in gone {
            self.drop_work(id);
            if held {
                self.stats.lost += 1;
                self.actions.push_back(Action::Stop { id, why: Lost::Taken });
            }
        }
    }

    fn maybe_snapshot(&mut self, number: i32, record: &ClaimRecord, verdict: &Verdict) {
        let every = i64::from(self.config.snapshot_every);
        // Whoever wrote the record that reaches the mark writes the snapshot: one author, whom the log names.
        if every == 0 || record.worker != self.config.name || *verdict == Verdict::Replayed {
            return;
        }
        let Some(shard) = self.shards.get_mut(&number) else { return };
        // Rarer the more is open, so that snapshots never outweigh the claims they stand for.
        let open = shard.ledger.all_open().len() as u64;
        let stride = (open / every.unsigned_abs() + 1).next_power_of_two().cast_signed();
        if shard.ledger.claims_end() % every.saturating_mul(stride) == 0 {
            let snapshot = shard.ledger.snapshot();
            self.actions.push_back(Action::Snapshot { shard: number, snapshot });
        }
    }

    /// How many more tasks may be taken.
    pub(super) fn free(&self) -> usize {
        let settling = |work: &&Work| !matches!(work.phase, Phase::Settling { .. });
        self.config.concurrency.saturating_sub(self.work.values().filter(settling).count())
    }

    /// Claims as many tasks as may be taken, beginning with another shard each time.
    pub(super) fn fill(&mut self, now: Instant) {
        if self.stopping || self.shards.is_empty() {
            return;
        }
        let mut free = self.free();
        let numbers: Vec<i32> = self.shards.keys().copied().collect();
        let from = self.random.below(numbers.len() as u64) as usize;
        let mut dry = 0;
        for &number in numbers.iter().cycle().skip(from) {
            if free == 0 || dry == numbers.len() {
                return;
            }
            let random = (self.config.pick == super::Pick::Random).then(|| self.random.next_u64());
            let Some(task) = self.shards.get_mut(&number).and_then(|shard| shard.pick(random, now)) else {
                dry += 1;
                continue;
            };
            dry = 0;
            free -= 1;
            self.claim(number, task, now);
        }
    }

    fn claim(&mut self, number: i32, task: i64, now: Instant) {
        let id = self.next_id;
        self.next_id += 1;
        self.stats.claims += 1;
        let phase = Phase::Claiming { sent: now, until: now + self.config.settle_timeout };
        self.work.insert(id, Work { shard: number, task, attempt: 0, max_attempts: 0, phase });
        if let Some(shard) = self.shards.get_mut(&number) {
            shard.in_hand.insert(task);
        }
        self.append(number, task, Kind::Claim { lease: millis(self.config.lease), nonce: id });
    }

    pub(super) fn settle(&mut self, id: u64, kind: Kind) {
        let Some(work) = self.work.get_mut(&id) else { return };
        let Some(token) = work.token() else { return };
        work.phase = Phase::Settling { token };
        let (shard, task) = (work.shard, work.task);
        self.append(shard, task, kind);
    }

    /// Stops the handler and gives the task back, after every renewal that is still under way.
    pub(super) fn let_go(&mut self, id: u64, why: Lost) {
        let Some(work) = self.work.get(&id) else { return };
        let (shard, task, token) = (work.shard, work.task, work.token());
        self.drop_work(id);
        self.actions.push_back(Action::Stop { id, why });
        if let Some(token) = token {
            self.append(shard, task, Kind::Release { token, started: true });
        }
    }

    pub(super) fn drop_work(&mut self, id: u64) {
        let Some(work) = self.work.remove(&id) else { return };
        if let Some(shard) = self.shards.get_mut(&work.shard) {
            shard.in_hand.remove(&work.task);
        }
    }

    fn append(&mut self, shard: i32, task: i64, kind: Kind) {
        let record = ClaimRecord { task, worker: self.config.name.clone(), kind };
        self.actions.push_back(Action::Append { shard, record });
    }
}
