//! A batch with fewer records, as compaction leaves it: at the same place, with the same offsets and producer.

use bytes::Bytes;

use super::{BatchBuilder, complete};
use crate::batch::header::{HEADER_LEN, PREFIX_LEN};
use crate::batch::{BatchError, RecordBatch, TimestampType};
use crate::compression::Compression;
use crate::record::Record;

impl RecordBatch {
    /// This batch with only the records that `keep` wants. Base offset, last offset, leader epoch and producer stay, so
    /// a reader goes on behind it as before and a producer's sequences stay known; with no record left the batch is a
    /// header. `delete_horizon` (ms since the epoch) says from when on its tombstones may go; `None` keeps what the
    /// batch says of that.
    ///
    /// # Errors
    /// [`BatchError::Full`] when the batch does not fit into 2 GiB any more.
    pub fn thinned(
        &self,
        mut keep: impl FnMut(&Record) -> bool,
        delete_horizon: Option<i64>,
    ) -> Result<Bytes, BatchError> {
        let mut header = *self.header();
        if let Some(horizon) = delete_horizon {
            header = header.with_delete_horizon(horizon);
        }
        let mut builder = BatchBuilder::new(header.compression()?);
        builder.base_timestamp = Some(header.base_timestamp);
        for record in self.iter().filter(|record| keep(record)) {
            // The distance was read from an i32.
            builder.append_at((record.offset() - header.base_offset) as i32, &record)?;
        }
        header.record_count = builder.count;
        let (codec, mut batch) = if builder.is_empty() {
            (Compression::None, vec![0; HEADER_LEN])
        } else {
            if header.timestamp_type() == TimestampType::CreateTime {
                header.max_timestamp = builder.max_timestamp;
            }
            builder.compressed()
        };
        header.batch_length = (batch.len() - PREFIX_LEN) as i32;
        complete(&mut batch, &header.with_codec(codec));
        Ok(batch.into())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::batch::{BatchBuilder, HEADER_LEN, RecordBatch, set_base_offset_and_epoch};
    use crate::compression::Compression;
    use crate::types::TopicPartition;

    fn batch(codec: Compression) -> RecordBatch {
        let mut builder = BatchBuilder::new(codec);
        for n in 0..10i64 {
            let value = (n != 4).then(|| vec![b'v'; 20 + usize::try_from(n).unwrap_or(0)]);
            builder.append(1000 + n, Some(&[n as u8]), value.as_deref(), &[("h".into(), None)]).unwrap();
        }
        let mut bytes = builder.producer(7, 2, 40).build().to_vec();
        set_base_offset_and_epoch(&mut bytes, 500, 9);
        decode(bytes.into())
    }

    fn decode(bytes: Bytes) -> RecordBatch {
        RecordBatch::decode(TopicPartition::new("t", 0), bytes).unwrap()
    }

    /// Offset, time, key, value, number of headers.
    type Parts = (i64, i64, Option<Bytes>, Option<Bytes>, usize);

    fn records(batch: &RecordBatch) -> Vec<Parts> {
        let parts = |r: crate::Record| {
            (r.offset(), r.timestamp(), r.key_bytes(), r.value_bytes(), r.raw_headers().len())
        };
        batch.iter().map(parts).collect()
    }

    #[test]
    fn what_is_kept_keeps_its_offset_its_time_and_its_producer() {
        for codec in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let full = batch(codec);
            let wanted = |offset: i64| matches!(offset, 501 | 504 | 507);
            let mut expected = records(&full);
            expected.retain(|record| wanted(record.0));
            for horizon in [None, Some(77_000)] {
                let thin = decode(full.thinned(|record| wanted(record.offset()), horizon).unwrap());
                assert_eq!(records(&thin), expected);
                let (old, new) = (full.header(), thin.header());
                assert_eq!((new.base_offset, new.last_offset()), (500, 509));
                assert_eq!((new.partition_leader_epoch, new.max_timestamp), (9, 1007));
                assert_eq!((new.producer_id, new.producer_epoch, new.base_sequence), (7, 2, 40));
                assert_eq!((old.last_sequence(), new.last_sequence()), (49, 49));
                assert_eq!(new.compression().unwrap(), codec);
                assert_eq!(new.has_delete_horizon(), horizon.is_some());
                assert_eq!(new.base_timestamp, horizon.unwrap_or(1000));
            }
        }
    }

    #[test]
    fn a_batch_of_which_nothing_is_kept_is_a_header_that_still_covers_its_offsets() {
        let bytes = batch(Compression::Gzip).thinned(|_| false, None).unwrap();
        assert_eq!(bytes.len(), HEADER_LEN);
        let empty = decode(bytes);
        assert!(empty.is_empty());
        assert_eq!((empty.header().last_offset(), empty.header().last_sequence()), (509, 49));
    }

    #[test]
    fn thinning_twice_is_thinning_once() {
        let full = batch(Compression::Snappy);
        let once = decode(full.thinned(|r| r.offset() % 2 == 0, Some(5)).unwrap());
        let twice = decode(once.thinned(|r| r.offset() % 4 == 0, None).unwrap());
        let direct = decode(full.thinned(|r| r.offset() % 4 == 0, Some(5)).unwrap());
        assert_eq!(records(&twice), records(&direct));
        assert!(twice.header().has_delete_horizon());
    }
}
