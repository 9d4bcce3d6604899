//! Idempotent producers: the last five batches of each, the sequence rules, and the snapshot file.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tramline_wire::BatchHeader;
use tramline_wire::checksum::crc32c;

use crate::config::Timestamp;
use crate::error::AppendError;

/// How many producers are remembered. Each takes about 300 bytes, and every snapshot holds all of them.
const MOST_PRODUCERS: usize = 50_000;
/// How many batches per producer are remembered: a client has at most this many requests in flight.
const REMEMBERED: usize = 5;
const SNAPSHOT_MAGIC: [u8; 4] = *b"TRPS";
const SNAPSHOT_VERSION: u16 = 1;

/// One batch of a producer that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredBatch {
    pub(crate) first_sequence: i32,
    pub(crate) last_sequence: i32,
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) timestamp: Timestamp,
}

/// An idempotent producer as its newest batch in a log shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    /// Its id.
    pub producer_id: i64,
    /// The newest epoch it has used.
    pub epoch: i16,
    /// The sequence of its newest record.
    pub last_sequence: i32,
    /// The largest timestamp of its newest batch.
    pub last_timestamp: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    /// When it was last heard of, by the broker's clock (at a start: the time of the start).
    last_seen: Timestamp,
    batches: VecDeque<StoredBatch>,
}

/// What the sequence rules say about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Append,
    Duplicate(StoredBatch),
}

/// All producers of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProducerState {
    producers: BTreeMap<i64, Producer>,
}

fn has_sequence(header: &BatchHeader) -> bool {
    header.has_producer() && header.base_sequence >= 0
}

impl ProducerState {
    pub(crate) fn len(&self) -> usize {
        self.producers.len()
    }

    /// The base offset of the newest batch of each producer.
    pub(crate) fn last_batches(&self) -> impl Iterator<Item = i64> {
        self.producers.values().filter_map(|producer| Some(producer.batches.back()?.base_offset))
    }

    /// The newest batch of each producer.
    pub(crate) fn newest(&self) -> impl Iterator<Item = ActiveProducer> {
        self.producers.iter().filter_map(|(id, producer)| {
            let newest = producer.batches.back()?;
            Some(ActiveProducer {
                producer_id: *id,
                epoch: producer.epoch,
                last_sequence: newest.last_sequence,
                last_timestamp: newest.timestamp,
            })
        })
    }

    /// Decides about a batch that is not in the log yet.
    pub(crate) fn check(&self, header: &BatchHeader) -> Result<Verdict, AppendError> {
        let known = self.producers.get(&header.producer_id);
        let Some(producer) = known.filter(|_| has_sequence(header)) else { return Ok(Verdict::Append) };
        let sequence = header.base_sequence;
        let epoch = header.producer_epoch;
        if epoch == producer.epoch {
            let repeated = producer.batches.iter().find(|stored| {
                stored.first_sequence == sequence && stored.last_sequence == header.last_sequence()
            });
            if let Some(stored) = repeated {
                return Ok(Verdict::Duplicate(*stored));
            }
        }
        if epoch < producer.epoch {
            return Err(AppendError::StaleProducerEpoch {
                producer_id: header.producer_id,
                epoch,
                latest: producer.epoch,
            });
        }
        let expected = match producer.batches.back() {
            Some(last) if epoch == producer.epoch => {
                if last.last_sequence == i32::MAX {
                    0
                } else {
                    last.last_sequence + 1
                }
            }
            _ => 0,
        };
        if sequence == expected {
            return Ok(Verdict::Append);
        }
        let producer_id = header.producer_id;
        Err(AppendError::OutOfOrderSequence { producer_id, epoch, sequence, expected })
    }

    /// Notes a batch that is in the log at `base_offset`; never refuses, so that it serves replay, too.
    pub(crate) fn appended(
        &mut self,
        header: &BatchHeader,
        base_offset: i64,
        timestamp: Timestamp,
        now: Timestamp,
    ) {
        if !has_sequence(header) {
            return;
        }
        let epoch = header.producer_epoch;
        if self.producers.len() >= MOST_PRODUCERS && !self.producers.contains_key(&header.producer_id) {
            self.forget_the_most_silent();
        }
        let producer = self.producers.entry(header.producer_id).or_insert_with(|| Producer {
            epoch,
            last_seen: now,
            batches: VecDeque::new(),
        });
        if producer.epoch != epoch {
            producer.epoch = epoch;
            producer.batches.clear();
        }
        producer.last_seen = producer.last_seen.max(now);
        if producer.batches.len() == REMEMBERED {
            producer.batches.pop_front();
        }
        producer.batches.push_back(StoredBatch {
            first_sequence: header.base_sequence,
            last_sequence: header.last_sequence(),
            base_offset,
            last_offset: base_offset + i64::from(header.last_offset_delta),
            timestamp,
        });
    }

    /// Makes room for others: of the producers an eighth goes, those whose newest batch is the oldest.
    fn forget_the_most_silent(&mut self) {
        let newest = |producer: &Producer| producer.batches.back().map_or(-1, |batch| batch.base_offset);
        let mut offsets: Vec<i64> = self.producers.values().map(newest).collect();
        let (_, limit, _) = offsets.select_nth_unstable(MOST_PRODUCERS / 8);
        let limit = *limit;
        self.producers.retain(|_, producer| newest(producer) >= limit);
    }

    /// Forgets producers not heard of for `silence`.
    pub(crate) fn expire(&mut self, now: Timestamp, silence: Duration) {
        let silence = i64::try_from(silence.as_millis()).unwrap_or(i64::MAX);
        self.producers.retain(|_, producer| now.saturating_sub(producer.last_seen) <= silence);
    }

    /// The snapshot file: the state after all batches below `offset`.
    pub(crate) fn encode(&self, offset: i64) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.producers.len() * 200);
        out.extend_from_slice(&SNAPSHOT_MAGIC);
        out.extend_from_slice(&SNAPSHOT_VERSION.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&(self.producers.len() as u64).to_be_bytes());
        for (id, producer) in &self.producers {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&producer.epoch.to_be_bytes());
            out.extend_from_slice(&producer.last_seen.to_be_bytes());
            out.extend_from_slice(&(producer.batches.len() as u16).to_be_bytes());
            for batch in &producer.batches {
                out.extend_from_slice(&batch.first_sequence.to_be_bytes());
                out.extend_from_slice(&batch.last_sequence.to_be_bytes());
                out.extend_from_slice(&batch.base_offset.to_be_bytes());
                out.extend_from_slice(&batch.last_offset.to_be_bytes());
                out.extend_from_slice(&batch.timestamp.to_be_bytes());
            }
        }
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// Reads a snapshot file; `None` when it is damaged, of another version, or not of `offset`.
    pub(crate) fn decode(bytes: &[u8], offset: i64) -> Option<Self> {
        let (content, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c(content) != u32::from_be_bytes(*crc) {
            return None;
        }
        let mut fields = Fields(content);
        if fields.take::<4>()? != SNAPSHOT_MAGIC || u16::from_be_bytes(fields.take()?) != SNAPSHOT_VERSION {
            return None;
        }
        if i64::from_be_bytes(fields.take()?) != offset {
            return None;
        }
        let count = u64::from_be_bytes(fields.take()?);
        let mut producers = BTreeMap::new();
        for _ in 0..count {
            let id = i64::from_be_bytes(fields.take()?);
            let epoch = i16::from_be_bytes(fields.take()?);
            let last_seen = i64::from_be_bytes(fields.take()?);
            let mut batches = VecDeque::with_capacity(REMEMBERED);
            for _ in 0..u16::from_be_bytes(fields.take()?) {
                batches.push_back(StoredBatch {
                    first_sequence: i32::from_be_bytes(fields.take()?),
                    last_sequence: i32::from_be_bytes(fields.take()?),
                    base_offset: i64::from_be_bytes(fields.take()?),
                    last_offset: i64::from_be_bytes(fields.take()?),
                    timestamp: i64::from_be_bytes(fields.take()?),
                });
            }
            producers.insert(id, Producer { epoch, last_seen, batches });
        }
        Some(Self { producers })
    }
}

/// Big-endian fields of a small file, taken from the front.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tramline_wire::{BatchBuilder, BatchHeader, Compression};

    use super::{MOST_PRODUCERS, ProducerState, Verdict};
    use crate::error::AppendError;

    fn header(producer: i64, epoch: i16, sequence: i32, records: usize) -> BatchHeader {
        let mut builder = BatchBuilder::new(Compression::None);
        for _ in 0..records {
            builder.append(1, None, Some(b"v"), &[]).unwrap();
        }
        builder.producer(producer, epoch, sequence);
        BatchHeader::parse(&builder.build()).unwrap()
    }

    fn state_with(batches: &[(i16, i32, usize)]) -> ProducerState {
        let mut state = ProducerState::default();
        let mut offset = 0;
        for (epoch, sequence, records) in batches {
            state.appended(&header(7, *epoch, *sequence, *records), offset, 1, 100);
            offset += *records as i64;
        }
        state
    }

    #[test]
    fn each_of_the_last_five_batches_is_recognised_and_the_sixth_is_not() {
        let state = state_with(&[(0, 0, 2), (0, 2, 2), (0, 4, 2), (0, 6, 2), (0, 8, 2), (0, 10, 2)]);
        for (n, sequence) in [2, 4, 6, 8, 10].into_iter().enumerate() {
            let Verdict::Duplicate(stored) = state.check(&header(7, 0, sequence, 2)).unwrap() else {
                panic!("sequence {sequence} was not recognised")
            };
            assert_eq!((stored.base_offset, stored.last_offset), (2 + 2 * n as i64, 3 + 2 * n as i64));
        }
        assert_eq!(state.check(&header(7, 0, 0, 2)).unwrap_err().code(), 45);
        assert_eq!(state.check(&header(7, 0, 10, 1)).unwrap_err().code(), 45, "same start, other end");
    }

    #[test]
    fn the_sequence_wraps_to_zero_after_the_largest() {
        let state = state_with(&[(0, i32::MAX - 1, 2)]);
        assert_eq!(state.check(&header(7, 0, 0, 1)), Ok(Verdict::Append));
        let wrapped = state_with(&[(0, i32::MAX, 3)]);
        assert_eq!(wrapped.check(&header(7, 0, 2, 1)), Ok(Verdict::Append));
        assert!(matches!(wrapped.check(&header(7, 0, i32::MAX, 3)), Ok(Verdict::Duplicate(_))));
    }

    #[test]
    fn a_gap_is_refused_and_says_what_was_expected() {
        let state = state_with(&[(0, 0, 5)]);
        let refused = state.check(&header(7, 0, 6, 1)).unwrap_err();
        assert_eq!(
            refused,
            AppendError::OutOfOrderSequence { producer_id: 7, epoch: 0, sequence: 6, expected: 5 }
        );
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_an_old_one_is_over() {
        let mut state = state_with(&[(3, 0, 5)]);
        assert_eq!(state.check(&header(7, 4, 5, 1)).unwrap_err().code(), 45);
        assert_eq!(state.check(&header(7, 2, 5, 1)).unwrap_err().code(), 47);
        assert_eq!(state.check(&header(7, 4, 0, 1)), Ok(Verdict::Append));
        state.appended(&header(7, 4, 0, 1), 5, 1, 100);
        assert_eq!(
            state.check(&header(7, 3, 0, 5)).unwrap_err().code(),
            47,
            "also for a batch that is in the log"
        );
    }

    #[test]
    fn an_unknown_producer_may_begin_anywhere() {
        assert_eq!(ProducerState::default().check(&header(9, 2, 77, 1)), Ok(Verdict::Append));
    }

    #[test]
    fn a_silent_producer_is_forgotten() {
        let mut state = state_with(&[(0, 0, 5)]);
        state.expire(1100, Duration::from_secs(1));
        assert_eq!(state.len(), 1);
        state.expire(1101, Duration::from_secs(1));
        assert_eq!(state.len(), 0);
    }

    #[test]
    fn a_snapshot_keeps_everything_and_a_damaged_one_is_ignored() {
        let state = state_with(&[(0, 0, 2), (0, 2, 2), (1, 0, 2)]);
        let bytes = state.encode(6);
        assert_eq!(ProducerState::decode(&bytes, 6), Some(state));
        assert_eq!(ProducerState::decode(&bytes, 7), None);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert_eq!(ProducerState::decode(&bad, 6), None, "flipped byte {at}");
            assert_eq!(ProducerState::decode(&bytes[..at], 6), None, "cut at {at}");
        }
    }

    /// A client can send each batch under another id.
    #[test]
    fn of_too_many_producers_the_most_silent_are_forgotten() {
        let mut state = ProducerState::default();
        let offset_of = |id: i64| i64::try_from(MOST_PRODUCERS).unwrap() * 2 + id;
        state.appended(&header(0, 0, 0, 1), 0, 1, 100);
        for id in 1..=2 * i64::try_from(MOST_PRODUCERS).unwrap() {
            if id % 1000 == 0 {
                // This one goes on, and is known whatever comes.
                let sequence = i32::try_from(id / 1000).unwrap();
                state.appended(&header(0, 0, sequence, 1), offset_of(id), 1, 100);
            }
            state.appended(&header(id, 0, 0, 1), offset_of(id), 1, 100);
            assert!(state.len() <= MOST_PRODUCERS);
        }
        let newest = 2 * i64::try_from(MOST_PRODUCERS).unwrap();
        let gap = |id| state.check(&header(id, 0, 50, 1)).is_err();
        assert!(gap(0) && gap(newest) && !gap(1), "who was heard of lately is known, the first is not");
        assert!(state.len() >= MOST_PRODUCERS * 3 / 4);
    }
}
