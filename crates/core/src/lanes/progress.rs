//! What is completed above a frontier, as a text beside the committed offset.
//!
//! Without it a restart begins at the frontier and runs everything above it again, also what other keys had
//! completed while one was stuck. The text is written for one offset and believed only beside that offset; on
//! any doubt it is dropped, which costs records that run again and never one that does not run.
//!
//! ```text
//!   "tl1:" base64url( base  epoch+1  tag  kind  body  crc32c )
//!            varint ---^      ^       ^     ^     ^
//!            varint ----------'       |     |     |
//!            4 bytes, big endian -----'     |     |
//!            0 runs, 1 bits ----------------'     |
//!            runs: varint gap, varint length, ... |
//!            bits: from base on, lowest first ----'
//! ```

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use tramline_wire::checksum::crc32c;

use super::Frontier;

mod text;

/// What every text of this version begins with.
const PREFIX: &str = "tl1:";
/// What a text of any version begins with.
const ANY_VERSION: &str = "tl";
const RUNS: u8 = 0;
const BITS: u8 = 1;
const CRC_LEN: usize = 4;

/// What may be committed for a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The offset to commit.
    pub frontier: Frontier,
    /// What is completed at or above it: ranges of offsets, sorted and apart.
    pub done: Vec<Range<i64>>,
    /// The newest leader epoch among everything the lane has read, where it is known.
    pub newest_epoch: Option<i32>,
}

impl From<Frontier> for Progress {
    fn from(frontier: Frontier) -> Self {
        Self { frontier, done: Vec::new(), newest_epoch: None }
    }
}

/// Progress of an earlier lane, for its successor to pass over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedProgress {
    /// The offset it was made for: reading has to begin exactly there.
    pub base: i64,
    /// What was completed at or above it: sorted and apart.
    pub done: Vec<Range<i64>>,
    /// Records of a newer leader epoch were written later, and are not those that were completed.
    pub newest_epoch: Option<i32>,
    /// A mark of the topic that was read; none when it was not known.
    pub incarnation: Option<u32>,
}

impl From<Progress> for SavedProgress {
    fn from(progress: Progress) -> Self {
        let Progress { frontier, done, newest_epoch } = progress;
        Self { base: frontier.offset, done, newest_epoch, incarnation: None }
    }
}

/// Why a text is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// Not a text of this format.
    #[error("it was not written by this runtime")]
    Foreign,
    /// A version that is not known here.
    #[error("it is of a version that is not known here")]
    OtherVersion,
    /// It is cut, or was changed.
    #[error("it is damaged")]
    Damaged,
    /// It was made for another offset than the one that is committed.
    #[error("it was made for offset {0}, which is not the committed one")]
    OtherOffset(i64),
    /// It was made for a topic of the same name that is gone.
    #[error("it was made for an earlier topic of that name")]
    OtherTopic,
    /// It speaks of offsets that the log does not have.
    #[error("it reaches to offset {until}, but the log ends at {end}")]
    BeyondLog {
        /// Where its last range ends.
        until: i64,
        /// Where the log ends.
        end: i64,
    },
}

/// What is known about the offset beside which a text was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundAt {
    /// The committed offset.
    pub offset: i64,
    /// A mark of the topic, where it is known.
    pub incarnation: Option<u32>,
    /// The end of the log, where it is known.
    pub log_end: Option<i64>,
}

impl SavedProgress {
    /// Whether it can be believed where it was found.
    ///
    /// # Errors
    /// [`Unusable`], with the reason to drop it.
    pub fn checked(self, found: FoundAt) -> Result<Self, Unusable> {
        if self.base != found.offset {
            return Err(Unusable::OtherOffset(self.base));
        }
        if let (Some(then), Some(now)) = (self.incarnation, found.incarnation)
            && then != now
        {
            return Err(Unusable::OtherTopic);
        }
        let until = self.done.last().map_or(self.base, |range| range.end);
        match found.log_end {
            Some(end) if end < until => Err(Unusable::BeyondLog { until, end }),
            _ => Ok(self),
        }
    }
}

/// The progress as a text of at most `limit` bytes, all of them ASCII. Empty when nothing is completed above
/// the frontier, or not even the lowest range fits.
///
/// When not all fits, the lowest ranges are kept; nothing that is not completed is ever named.
#[must_use]
pub fn encode(progress: &Progress, incarnation: Option<u32>, limit: usize) -> String {
    let base = progress.frontier.offset;
    let Some(start) = u64::try_from(base).ok().filter(|_| !progress.done.is_empty()) else {
        return String::new();
    };
    let mut bytes = Vec::new();
    put(&mut bytes, start);
    let epoch = progress.newest_epoch.and_then(|epoch| u64::try_from(epoch).ok());
    put(&mut bytes, epoch.map_or(0, |epoch| epoch + 1));
    bytes.extend_from_slice(&incarnation.unwrap_or(0).to_be_bytes());
    let fits = text::decoded_len(limit.saturating_sub(PREFIX.len()));
    let Some(room) = fits.checked_sub(bytes.len() + 1 + CRC_LEN) else {
        return String::new();
    };
    let body = smallest(base, &progress.done, room);
    if body.covered == 0 {
        return String::new();
    }
    bytes.push(body.kind);
    bytes.extend_from_slice(&body.bytes);
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    let mut out = String::from(PREFIX);
    text::encode(&bytes, &mut out);
    out
}

/// Reads what [`encode`] wrote. Any other text is told from it, and none makes it panic.
///
/// # Errors
/// [`Unusable`], with the reason to drop it.
pub fn decode(text: &str) -> Result<SavedProgress, Unusable> {
    let Some(encoded) = text.strip_prefix(PREFIX) else {
        let version = text.strip_prefix(ANY_VERSION).and_then(|rest| rest.split_once(':'));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let ours = version.is_some_and(|(digits, _)| is_number(digits));
        return Err(if ours { Unusable::OtherVersion } else { Unusable::Foreign });
    };
    let bytes = text::decode(encoded).ok_or(Unusable::Damaged)?;
    let content = bytes.len().checked_sub(CRC_LEN).ok_or(Unusable::Damaged)?;
    let (content, crc) = bytes.split_at(content);
    if crc32c(content).to_be_bytes() != crc {
        return Err(Unusable::Damaged);
    }
    read(content).ok_or(Unusable::Damaged)
}

fn read(mut content: &[u8]) -> Option<SavedProgress> {
    let base = i64::try_from(take(&mut content)?).ok()?;
    let newest_epoch = match take(&mut content)? {
        0 => None,
        epoch => Some(i32::try_from(epoch - 1).ok()?),
    };
    let (tag, rest) = content.split_first_chunk::<4>()?;
    let (&kind, body) = rest.split_first()?;
    let done = match kind {
        RUNS => read_runs(base, body)?,
        BITS => read_bits(base, body)?,
        _ => return None,
    };
    let incarnation = Some(u32::from_be_bytes(*tag)).filter(|&tag| tag != 0);
    Some(SavedProgress { base, done, newest_epoch, incarnation })
}

/// One way to write the ranges down.
struct Body {
    kind: u8,
    bytes: Vec<u8>,
    /// How many offsets it names.
    covered: u64,
}

/// The shorter form when both hold everything, else the one that names more.
fn smallest(base: i64, done: &[Range<i64>], room: usize) -> Body {
    let (runs, all) = runs(base, done, room);
    let span = done.last().map_or(0, |range| range.end.saturating_sub(base));
    let bits_len = usize::try_from(span).unwrap_or(usize::MAX).div_ceil(8);
    if all && runs.bytes.len() <= bits_len {
        return runs;
    }
    let bits = bits(base, done, bits_len.min(room));
    if bits.covered > runs.covered || (bits.covered == runs.covered && bits.bytes.len() < runs.bytes.len()) {
        bits
    } else {
        runs
    }
}

/// The ranges as gaps and lengths, and whether all of them are in it.
fn runs(base: i64, done: &[Range<i64>], room: usize) -> (Body, bool) {
    let mut body = Body { kind: RUNS, bytes: Vec::new(), covered: 0 };
    let mut at = base;
    for range in done {
        let (Ok(gap), Ok(length)) = (u64::try_from(range.start - at), u64::try_from(range.end - range.start))
        else {
            return (body, false);
        };
        let before = body.bytes.len();
        put(&mut body.bytes, gap);
        put(&mut body.bytes, length);
        if body.bytes.len() > room {
            body.bytes.truncate(before);
            return (body, false);
        }
        body.covered += length;
        at = range.end;
    }
    (body, true)
}

fn read_runs(base: i64, mut body: &[u8]) -> Option<Vec<Range<i64>>> {
    let mut done = Vec::new();
    let mut at = base;
    while !body.is_empty() {
        let gap = i64::try_from(take(&mut body)?).ok()?;
        let length = i64::try_from(take(&mut body)?).ok().filter(|&length| length > 0)?;
        if gap == 0 && !done.is_empty() {
            return None;
        }
        let start = at.checked_add(gap)?;
        at = start.checked_add(length)?;
        done.push(start..at);
    }
    Some(done)
}

/// The ranges as a bit per offset in `len` bytes; what lies above is left out.
fn bits(base: i64, done: &[Range<i64>], len: usize) -> Body {
    let mut bytes = alloc::vec![0u8; len];
    let end = len.saturating_mul(8);
    let mut covered = 0;
    for range in done {
        let place = |offset: i64| usize::try_from(offset.saturating_sub(base)).unwrap_or(0).min(end);
        for bit in place(range.start)..place(range.end) {
            bytes[bit / 8] |= 1 << (bit % 8);
            covered += 1;
        }
    }
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(used);
    Body { kind: BITS, bytes, covered }
}

fn read_bits(base: i64, body: &[u8]) -> Option<Vec<Range<i64>>> {
    let mut done: Vec<Range<i64>> = Vec::new();
    let set = |place: &usize| body[place / 8] & (1 << (place % 8)) != 0;
    for place in (0..body.len() * 8).filter(set) {
        let offset = base.checked_add(i64::try_from(place).ok()?)?;
        let until = offset.checked_add(1)?;
        match done.last_mut().filter(|last| last.end == offset) {
            Some(last) => last.end = until,
            None => done.push(offset..until),
        }
    }
    Some(done)
}

/// Appends a number, seven bits a byte, the lowest first.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn take(input: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    // No number in a text has more than 63 bits.
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests;
