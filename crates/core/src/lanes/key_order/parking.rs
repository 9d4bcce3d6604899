//! Key lanes that stopped at a record that failed, and wait until somebody decides about it.

use super::{Dispatcher, HasKey, JobId, Phase};
use crate::lanes::Ticket;

impl<R> Dispatcher<R> {
    /// How many keys are parked.
    #[must_use]
    pub const fn parked_keys(&self) -> usize {
        self.parked_keys
    }

    /// How many records are parked: those that failed, and all behind them.
    #[must_use]
    pub const fn parked_records(&self) -> usize {
        self.parked_records
    }

    /// Whether as many keys, or as many of their records, are parked as may be.
    #[must_use]
    pub const fn parking_is_full(&self) -> bool {
        let limits = &self.config.parking;
        self.parked_keys >= limits.max_keys || self.parked_records >= limits.max_records
    }

    /// How many records may be admitted as long as any key is parked.
    pub(super) fn room_beside_parked(&self) -> usize {
        let limits = &self.config.parking;
        let whole_lane = self.together.is_some_and(|lane| self.lanes[lane as usize].phase == Phase::Parked);
        if whole_lane || (limits.holds_back && self.parked_keys >= limits.max_keys) {
            return 0;
        }
        limits.max_records.saturating_sub(self.parked_records)
    }

    /// The job stays as it is, and so do the later records of its key, until [`unpark`](Self::unpark),
    /// [`take_up`](Self::take_up) or [`give_up_parked`](Self::give_up_parked). Its worker is free. Parked
    /// records do not count as pending. How many may be parked is not looked at: what was admitted may fail.
    pub fn park(&mut self, job: JobId)
    where
        R: HasKey,
    {
        let Some(lane) = self.stop_running(job) else {
            return;
        };
        lane.phase = Phase::Parked;
        let (records, mut at) = (lane.held + lane.waiting.len, lane.waiting.head);
        self.parked_keys += 1;
        self.parked_records += records;
        self.pending -= records;
        while let Some(place) = self.places.get_mut(at as usize) {
            let copied = place.work.as_mut().and_then(|(record, _)| record.settle_down());
            self.copied.extend(copied.map(|bytes| (at, bytes)));
            at = place.next;
        }
    }

    /// Tells of every record that waits behind a parked one and became a copy since this was asked last: the
    /// bytes of the copy are what it keeps in memory now. To be asked after each parking and admission, while
    /// the records are still there.
    pub fn take_copied(&mut self, mut tell: impl FnMut(&mut Ticket, usize)) {
        for (at, bytes) in self.copied.drain(..) {
            if let Some((_, ticket)) = self.places.get_mut(at as usize).and_then(|place| place.work.as_mut())
            {
                tell(ticket, bytes);
            }
        }
    }

    /// A parked job stands in line again. False when it is not parked.
    pub fn unpark(&mut self, job: JobId) -> bool {
        let parked = self.is_parked(job);
        if parked {
            self.leave_parking(job.0);
            self.line_up(job.0);
        }
        parked
    }

    /// A parked job runs, whether a worker is free or not. False when it is not parked.
    pub fn take_up(&mut self, job: JobId) -> bool {
        let parked = self.is_parked(job);
        if parked {
            self.leave_parking(job.0);
            self.lanes[job.0 as usize].phase = Phase::Running;
            self.running += 1;
        }
        parked
    }

    /// The records of a running job are finished, and it runs on with the next ones of its key, which are given
    /// to `take`. False, and without effect, when there are none.
    pub fn go_on(&mut self, job: JobId, alone: impl Fn(&R) -> bool, take: impl FnMut(R, Ticket)) -> bool {
        let lane = self.lanes.get_mut(job.0 as usize).filter(|lane| lane.phase == Phase::Running);
        let Some(lane) = lane.filter(|lane| lane.waiting.len > 0) else {
            return false;
        };
        self.pending -= core::mem::take(&mut lane.held);
        self.hand_over(job.0, alone, take);
        true
    }

    /// Gives up every parked job, as [`give_up`](Self::give_up) does.
    pub fn give_up_parked(&mut self, mut given_up: impl FnMut(JobId)) {
        for lane in 0..self.lanes.len() {
            if self.parked_keys == 0 {
                return;
            }
            let job = JobId(super::lane_number(lane));
            if self.is_parked(job) {
                self.leave_parking(job.0);
                self.block(job.0);
                given_up(job);
            }
        }
    }

    /// How many records wait behind those of this job.
    #[must_use]
    pub fn behind(&self, job: JobId) -> usize {
        self.lanes.get(job.0 as usize).map_or(0, |lane| lane.waiting.len)
    }

    fn is_parked(&self, job: JobId) -> bool {
        self.lanes.get(job.0 as usize).is_some_and(|lane| lane.phase == Phase::Parked)
    }

    /// Its records are pending again.
    pub(super) fn leave_parking(&mut self, lane: u32) {
        let known = &mut self.lanes[lane as usize];
        let records = known.held + known.waiting.len;
        known.phase = Phase::Idle;
        self.parked_keys -= 1;
        self.parked_records -= records;
        self.pending += records;
    }
}
