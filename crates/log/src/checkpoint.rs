//! The checkpoint file: the "barriered up to" mark, the log start and the leader epochs, replaced as a whole.

use tramline_wire::checksum::crc32c;

use crate::epochs::EpochList;
use crate::producer_state::Fields;
use crate::segment::LAST_OFFSET;

/// The name of the checkpoint in the log's directory.
pub(crate) const FILE_NAME: &str = "checkpoint";
const MAGIC: [u8; 4] = *b"TRCP";
const VERSION: u16 = 2;
/// Without the place up to which the log was compacted.
const FIRST_VERSION: u16 = 1;

/// What the checkpoint file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) log_start: i64,
    /// Everything below was durable before this was written.
    pub(crate) mark: i64,
    /// Compaction may have left gaps below; above, every offset has its place.
    pub(crate) compacted: i64,
    /// Compaction is done with everything below. Behind `compacted` while new files take the place of old ones.
    pub(crate) clean: i64,
    pub(crate) epochs: EpochList,
}

impl Checkpoint {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.log_start.to_be_bytes());
        out.extend_from_slice(&self.mark.to_be_bytes());
        out.extend_from_slice(&self.compacted.to_be_bytes());
        out.extend_from_slice(&self.clean.to_be_bytes());
        out.extend_from_slice(&(self.epochs.entries().len() as u32).to_be_bytes());
        for (epoch, start) in self.epochs.entries() {
            out.extend_from_slice(&epoch.to_be_bytes());
            out.extend_from_slice(&start.to_be_bytes());
        }
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// `None` when the bytes are damaged or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c(content) != u32::from_be_bytes(*crc) {
            return None;
        }
        let mut fields = Fields(content);
        let magic = fields.take::<4>()?;
        let version = u16::from_be_bytes(fields.take()?);
        if magic != MAGIC || !(FIRST_VERSION..=VERSION).contains(&version) {
            return None;
        }
        let log_start = i64::from_be_bytes(fields.take()?);
        let mark = i64::from_be_bytes(fields.take()?);
        let (compacted, clean) = match version {
            FIRST_VERSION => (0, 0),
            _ => (i64::from_be_bytes(fields.take()?), i64::from_be_bytes(fields.take()?)),
        };
        // Only what is durable is compacted: what a damaged file says beyond that would turn losses into gaps.
        let compacted = compacted.min(mark);
        let clean = clean.min(compacted);
        let mut epochs = Vec::new();
        for _ in 0..u32::from_be_bytes(fields.take()?) {
            epochs.push((i32::from_be_bytes(fields.take()?), i64::from_be_bytes(fields.take()?)));
        }
        let is_offset = |offset: &i64| (0..=LAST_OFFSET).contains(offset);
        // Both rise, or nothing that is looked up in them is right.
        if !epochs.is_sorted_by(|(epoch, start), (next, after)| epoch < next && start < after) {
            return None;
        }
        let mut offsets =
            [log_start, mark, compacted, clean].into_iter().chain(epochs.iter().map(|(_, start)| *start));
        offsets.all(|offset| is_offset(&offset)).then(|| Self {
            log_start,
            mark,
            compacted,
            clean,
            epochs: EpochList::from_entries(epochs),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Checkpoint;
    use crate::epochs::EpochList;

    #[test]
    fn a_checkpoint_is_read_back_and_a_damaged_one_is_not_believed() {
        let epochs = EpochList::from_entries(vec![(1, 0), (4, 17)]);
        let checkpoint =
            Checkpoint { log_start: 3, mark: 1 << 40, compacted: 1 << 33, clean: 1 << 32, epochs };
        let bytes = checkpoint.encode();
        assert_eq!(Checkpoint::decode(&bytes), Some(checkpoint));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Checkpoint::decode(&bad), None, "flipped byte {at}");
            assert_eq!(Checkpoint::decode(&bytes[..at]), None, "cut at {at}");
        }
    }
}
