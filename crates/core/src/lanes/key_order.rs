//! Which of one lane's records may run side by side, and which one is next.
//!
//! The owner admits delivered records while there is [`room`](Dispatcher::room), starts jobs while
//! [`start`](Dispatcher::start) gives any, and reports each as [`finish`](Dispatcher::finish)ed or at
//! [`rest`](Dispatcher::rest). Nothing here runs, waits or knows a clock.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;

use super::Ticket;
use super::key_table::KeyTable;
use crate::time::Instant;

/// What the dispatcher must know of a record in key order.
pub trait HasKey {
    /// The record's key as it is on the wire; no key and an empty key are two keys.
    fn key(&self) -> Option<&[u8]>;
    /// The key, to keep.
    fn key_bytes(&self) -> Option<Bytes>;
    /// The record will wait for long: let go of memory that is not its own. The bytes that the record keeps in
    /// use from then on, when it became a copy for that.
    fn settle_down(&mut self) -> Option<usize> {
        None
    }
}

impl HasKey for tramline_wire::Record {
    fn key(&self) -> Option<&[u8]> {
        Self::key(self)
    }

    fn key_bytes(&self) -> Option<Bytes> {
        Self::key_bytes(self)
    }

    fn settle_down(&mut self) -> Option<usize> {
        // A record as large as the rest of its batch together is not worth a copy.
        if self.pinned_bytes() <= 2 * self.payload_len() + SMALL {
            return None;
        }
        *self = self.detached();
        Some(self.pinned_bytes())
    }
}

/// What a record may keep in memory beside itself without being copied.
const SMALL: usize = 1024;

/// How much of one lane may run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatcherConfig {
    /// How many jobs run at once.
    pub workers: usize,
    /// How many records may be admitted and unfinished.
    pub max_pending: usize,
    /// How many records one job has at most.
    pub max_batch: usize,
    /// What the hashes of keys depend on. Secret, for keys may be made to collide by whoever produces them.
    pub seed: (u64, u64),
    /// How many keys, and how many of their records, may be parked.
    pub parking: ParkingConfig,
}

/// How much may be parked before the lane is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkingConfig {
    /// Parked keys.
    pub max_keys: usize,
    /// Records of parked keys, those that failed included.
    pub max_records: usize,
    /// Whether nothing more is admitted while as many keys are parked as may be.
    pub holds_back: bool,
}

impl DispatcherConfig {
    /// For a lane that buffers `max_buffered` records: no more workers than that, and batches small enough
    /// that every worker can have one.
    #[must_use]
    pub fn side_by_side(max_buffered: usize, handlers: usize, max_batch: usize, seed: (u64, u64)) -> Self {
        let max_pending = max_buffered.max(1);
        let workers = handlers.clamp(1, max_pending);
        let max_batch = max_batch.clamp(1, (max_pending / workers).max(1));
        Self { workers, max_pending, max_batch, seed, parking: ParkingConfig::default() }
    }

    /// One job at a time. A batch takes what is queued, up to `max_batch`.
    #[must_use]
    pub fn one_by_one(max_batch: usize) -> Self {
        let max_batch = max_batch.max(1);
        let parking = ParkingConfig::default();
        Self { workers: 1, max_pending: max_batch, max_batch, seed: (0, 0), parking }
    }

    /// With keys that may be parked.
    #[must_use]
    pub const fn with_parking(mut self, parking: ParkingConfig) -> Self {
        self.parking = parking;
        self
    }
}

/// Names a job from its start until it is finished or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u32);

/// A job to run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The records were just handed over.
    Fresh(JobId),
    /// A job whose rest is over; its records are where they were.
    Again(JobId),
}

/// No record.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Pending<R> {
    work: Option<(R, Ticket)>,
    /// The next record of the list, or the next free place.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No number of a key lane.
    Free,
    Idle,
    /// In the line of ready key lanes.
    Ready,
    Running,
    Resting(Instant),
    /// Its first record failed and stays where it is, with those behind it, until somebody decides.
    Parked,
    /// One of its records was given up: none after it may run.
    Blocked,
}

#[derive(Clone, Copy, Debug)]
struct KeyLane {
    phase: Phase,
    waiting: List,
    /// The records of the job that runs or rests.
    held: usize,
    /// Whether it goes with its last record.
    lasts: bool,
}

/// The records of one lane that were delivered and are not finished, in lines by key.
///
/// A key lane is one key's records in the order in which they were admitted; at most one job of it exists. Key
/// lanes with waiting records stand in line, each at most once, and go to the end after each job. A key lane
/// without records is forgotten. A finished record gives its place back at once, also behind an unfinished
/// earlier one.
#[derive(Debug)]
pub struct Dispatcher<R> {
    config: DispatcherConfig,
    keys: KeyTable,
    lanes: Vec<KeyLane>,
    places: Vec<Pending<R>>,
    free: u32,
    /// The one key lane of records that run one by one.
    together: Option<u32>,
    /// Records without any order.
    loose: List,
    ready: VecDeque<u32>,
    resting: BTreeSet<(Instant, u32)>,
    pending: usize,
    running: usize,
    parked_keys: usize,
    parked_records: usize,
    /// Places of parked records that became copies, with the bytes of each, until the owner was told.
    copied: Vec<(u32, usize)>,
}

impl<R> Dispatcher<R> {
    /// A dispatcher without records.
    #[must_use]
    pub fn new(config: DispatcherConfig) -> Self {
        Self {
            config,
            keys: KeyTable::new(config.seed),
            lanes: Vec::new(),
            places: Vec::new(),
            free: NONE,
            together: None,
            loose: List::EMPTY,
            ready: VecDeque::new(),
            resting: BTreeSet::new(),
            pending: 0,
            running: 0,
            parked_keys: 0,
            parked_records: 0,
            copied: Vec::new(),
        }
    }

    /// How many more records may be admitted.
    #[must_use]
    pub fn room(&self) -> usize {
        let room = self.config.max_pending.saturating_sub(self.pending);
        if self.parked_keys == 0 { room } else { room.min(self.room_beside_parked()) }
    }

    /// How many records are admitted, not finished and not parked.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.pending
    }

    /// How many jobs run.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running
    }

    /// How many key lanes there are: at most one per pending record, and those that are parked or were given up.
    #[must_use]
    pub fn key_lanes(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.phase != Phase::Free).count()
    }

    /// How many keys have records that are not finished, in key order.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The key of a job in key order, where no key is one, too; none without that order.
    #[must_use]
    pub fn key_of(&self, job: JobId) -> Option<Option<&[u8]>> {
        self.keys.key_at(job.0)
    }

    /// Admits a record that runs after all that were admitted this way before.
    pub fn admit_together(&mut self, record: R, ticket: Ticket) {
        let lane = if let Some(lane) = self.together {
            lane
        } else {
            let lane = self.keys.insert_alone();
            self.open(lane, true);
            self.together = Some(lane);
            lane
        };
        self.push(lane, record, ticket);
    }

    /// Admits a record that runs whenever a worker is free.
    pub fn admit_alone(&mut self, record: R, ticket: Ticket) {
        let place = self.place(record, ticket);
        append(&mut self.places, &mut self.loose, place);
        self.pending += 1;
    }

    /// Admits a record that runs after those with the same key.
    pub fn admit_by_key(&mut self, record: R, ticket: Ticket)
    where
        R: HasKey,
    {
        let lane = self.keys.find_or_insert(record.key(), || record.key_bytes());
        self.admit_to(lane, record, ticket);
    }

    /// Admits a record that runs after those that were admitted under an equal key.
    pub fn admit_under(&mut self, record: R, ticket: Ticket, key: Option<Bytes>)
    where
        R: HasKey,
    {
        let lane = self.keys.find_or_insert(key.as_deref(), || key.clone());
        self.admit_to(lane, record, ticket);
    }

    fn admit_to(&mut self, lane: u32, mut record: R, ticket: Ticket)
    where
        R: HasKey,
    {
        self.open(lane, false);
        let parked = self.lanes[lane as usize].phase == Phase::Parked;
        let copied = if parked { record.settle_down() } else { None };
        self.push(lane, record, ticket);
        if let Some(bytes) = copied {
            self.copied.push((self.lanes[lane as usize].waiting.tail, bytes));
        }
    }

    /// Sets up the key lane under a number that was just given to a key, if it was.
    fn open(&mut self, lane: u32, lasts: bool) {
        let fresh = KeyLane { phase: Phase::Idle, waiting: List::EMPTY, held: 0, lasts };
        match self.lanes.get_mut(lane as usize) {
            Some(known) if known.phase == Phase::Free => *known = fresh,
            Some(_) => {}
            None => {
                debug_assert_eq!(self.lanes.len(), lane as usize, "numbers are given in order");
                self.lanes.push(fresh);
            }
        }
    }

    fn push(&mut self, lane: u32, record: R, ticket: Ticket) {
        let phase = self.lanes[lane as usize].phase;
        if phase == Phase::Blocked {
            return;
        }
        let place = self.place(record, ticket);
        if phase == Phase::Parked {
            self.parked_records += 1;
        } else {
            self.pending += 1;
        }
        let known = &mut self.lanes[lane as usize];
        append(&mut self.places, &mut known.waiting, place);
        if known.phase == Phase::Idle {
            known.phase = Phase::Ready;
            self.ready.push_back(lane);
        }
    }

    fn place(&mut self, record: R, ticket: Ticket) -> u32 {
        let pending = Pending { work: Some((record, ticket)), next: NONE };
        if self.free == NONE {
            let place =
                u32::try_from(self.places.len()).expect("fewer records in flight than memory can hold");
            self.places.push(pending);
            return place;
        }
        let place = self.free;
        self.free = self.places[place as usize].next;
        self.places[place as usize] = pending;
        place
    }

    /// The next job, if a worker is free and any is ready. Its records, all of one key lane and in order, are
    /// given to `take`; those of a job that rested or was parked were given before. A record that `alone` is
    /// true for makes a job by itself.
    pub fn start(
        &mut self,
        now: Instant,
        alone: impl Fn(&R) -> bool,
        take: impl FnMut(R, Ticket),
    ) -> Option<Start> {
        self.end_rests(now);
        if self.running >= self.config.workers {
            return None;
        }
        let lane = match self.ready.pop_front() {
            Some(lane) => lane,
            None if self.loose.len > 0 => {
                let lane = self.keys.insert_alone();
                self.open(lane, false);
                lane
            }
            None => return None,
        };
        self.running += 1;
        let known = &mut self.lanes[lane as usize];
        known.phase = Phase::Running;
        if known.held > 0 {
            return Some(Start::Again(JobId(lane)));
        }
        self.hand_over(lane, alone, take);
        Some(Start::Fresh(JobId(lane)))
    }

    /// Gives the records of the lane's next job to `take`.
    fn hand_over(&mut self, lane: u32, alone: impl Fn(&R) -> bool, mut take: impl FnMut(R, Ticket)) {
        let known = &mut self.lanes[lane as usize];
        let from = if known.waiting.len > 0 { &mut known.waiting } else { &mut self.loose };
        while known.held < self.config.max_batch && from.len > 0 {
            let place = from.head;
            let pending = &mut self.places[place as usize];
            let by_itself = pending.work.as_ref().is_some_and(|(record, _)| alone(record));
            if by_itself && known.held > 0 {
                return;
            }
            from.head = pending.next;
            from.len -= 1;
            if from.len == 0 {
                from.tail = NONE;
            }
            known.held += 1;
            if let Some((record, ticket)) = pending.work.take() {
                take(record, ticket);
            }
            pending.next = self.free;
            self.free = place;
            if by_itself {
                return;
            }
        }
    }

    /// The job's records are finished, however that came.
    pub fn finish(&mut self, job: JobId) {
        let Some(lane) = self.stop_running(job) else {
            return;
        };
        self.pending -= core::mem::take(&mut lane.held);
        self.line_up(job.0);
    }

    /// The job is to be started again, not before `until`. Its worker is free, its key waits.
    pub fn rest(&mut self, job: JobId, until: Instant) {
        if let Some(lane) = self.stop_running(job) {
            lane.phase = Phase::Resting(until);
            self.resting.insert((until, job.0));
        }
    }

    /// The job is not run again, nor is any later record of its key, whenever that comes: their order must
    /// hold for whoever gets them next.
    pub fn give_up(&mut self, job: JobId) {
        if self.stop_running(job).is_some() {
            self.block(job.0);
        }
    }

    fn stop_running(&mut self, job: JobId) -> Option<&mut KeyLane> {
        let lane = self.lanes.get_mut(job.0 as usize).filter(|lane| lane.phase == Phase::Running)?;
        lane.phase = Phase::Idle;
        self.running -= 1;
        Some(lane)
    }

    fn block(&mut self, lane: u32) {
        let known = &mut self.lanes[lane as usize];
        known.phase = Phase::Blocked;
        self.pending -= core::mem::take(&mut known.held);
        let mut waiting = core::mem::replace(&mut known.waiting, List::EMPTY);
        self.drop_list(&mut waiting);
    }

    fn drop_list(&mut self, list: &mut List) {
        self.pending -= list.len;
        while list.head != NONE {
            let place = list.head;
            let pending = &mut self.places[place as usize];
            pending.work = None;
            list.head = pending.next;
            pending.next = self.free;
            self.free = place;
        }
        *list = List::EMPTY;
    }

    /// Puts an idle key lane where it belongs: in line, or away.
    fn line_up(&mut self, lane: u32) {
        let known = &mut self.lanes[lane as usize];
        if known.waiting.len > 0 || known.held > 0 {
            known.phase = Phase::Ready;
            self.ready.push_back(lane);
        } else if !known.lasts {
            known.phase = Phase::Free;
            self.keys.remove(lane);
        }
    }

    fn end_rests(&mut self, now: Instant) {
        while let Some(&(until, lane)) = self.resting.first() {
            if now < until {
                return;
            }
            self.resting.pop_first();
            self.line_up(lane);
        }
    }

    /// When the first rest is over. [`start`](Self::start) takes notice by itself.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.resting.first().map(|&(until, _)| until)
    }

    /// Gives up every job that rests, as [`give_up`](Self::give_up) does.
    pub fn give_up_resting(&mut self, mut given_up: impl FnMut(JobId)) {
        while let Some((_, lane)) = self.resting.pop_first() {
            self.block(lane);
            given_up(JobId(lane));
        }
        // Those whose rest is over and that wait for a worker.
        for at in 0..self.ready.len() {
            let lane = self.ready[at];
            if self.lanes[lane as usize].held > 0 {
                self.block(lane);
                given_up(JobId(lane));
            }
        }
        self.ready.retain(|&lane| self.lanes[lane as usize].phase == Phase::Ready);
    }

    /// Drops everything that does not run.
    pub fn drop_waiting(&mut self) {
        let mut loose = core::mem::replace(&mut self.loose, List::EMPTY);
        self.drop_list(&mut loose);
        self.ready.clear();
        self.resting.clear();
        for lane in 0..self.lanes.len() {
            let phase = self.lanes[lane].phase;
            if phase == Phase::Parked {
                self.leave_parking(lane_number(lane));
            }
            let known = &mut self.lanes[lane];
            let mut waiting = core::mem::replace(&mut known.waiting, List::EMPTY);
            match phase {
                Phase::Ready | Phase::Resting(_) | Phase::Parked => {
                    self.pending -= core::mem::take(&mut known.held);
                    known.phase = Phase::Idle;
                    self.drop_list(&mut waiting);
                    self.line_up(lane_number(lane));
                }
                _ => self.drop_list(&mut waiting),
            }
        }
    }
}

fn lane_number(at: usize) -> u32 {
    u32::try_from(at).expect("numbers of key lanes are this small")
}

fn append<R>(places: &mut [Pending<R>], list: &mut List, place: u32) {
    match list.tail {
        NONE => list.head = place,
        tail => places[tail as usize].next = place,
    }
    list.tail = place;
    list.len += 1;
}

mod parking;

#[cfg(test)]
mod tests;
