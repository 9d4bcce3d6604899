//! Memory for what is read from logs, used again and again.
//!
//! An answer of a megabyte per partition is allocated and freed a hundred times a second. Fresh memory of that size comes
//! from the system page by page and zeroed, which costs about as much as the reading itself.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Smaller pieces are what the allocator is good at.
const SMALLEST: usize = 64 << 10;
/// Larger ones are rare, and too much to keep.
const LARGEST: usize = 4 << 20;
/// Bytes that are kept while nobody uses them.
const KEPT: usize = 16 << 20;

#[derive(Debug, Default)]
struct Idle {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Buffers that nobody uses now, at most [`KEPT`] bytes of them.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffers(Mutex<Idle>);

/// A buffer that goes home when the last view of it is gone.
struct Lent {
    buffer: Vec<u8>,
    used: usize,
    home: Arc<ReadBuffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.used]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut idle = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.bytes + self.buffer.len() <= KEPT {
            idle.bytes += self.buffer.len();
            idle.buffers.push(std::mem::take(&mut self.buffer));
        }
    }
}

impl ReadBuffers {
    /// Lets `fill` write `len` bytes, whatever they held before, and gives them as one piece.
    pub(crate) fn read(
        self: &Arc<Self>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> std::io::Result<()>,
    ) -> std::io::Result<Bytes> {
        if !(SMALLEST..=LARGEST).contains(&len) {
            let mut fresh = vec![0; len];
            fill(&mut fresh)?;
            return Ok(fresh.into());
        }
        let mut lent = Lent { buffer: self.take(), used: len, home: Arc::clone(self) };
        if lent.buffer.len() < len {
            lent.buffer.resize(len, 0);
        }
        fill(&mut lent.buffer[..len])?;
        Ok(Bytes::from_owner(lent))
    }

    fn take(&self) -> Vec<u8> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = idle.buffers.pop().unwrap_or_default();
        idle.bytes -= buffer.len();
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(buffers: &Arc<ReadBuffers>, len: usize, with: u8) -> Bytes {
        let fill = |out: &mut [u8]| {
            out.fill(with);
            Ok(())
        };
        buffers.read(len, fill).unwrap()
    }

    #[test]
    fn a_buffer_is_used_again_only_when_no_view_of_it_is_left() {
        let buffers = Arc::new(ReadBuffers::default());
        let first = filled(&buffers, 100_000, 1);
        let view = first.slice(10..20);
        drop(first);
        let second = filled(&buffers, 200_000, 2);
        assert_eq!((&view[..], second.len()), (&[1; 10][..], 200_000));
        let address = view.as_ptr();
        drop(view);
        let third = filled(&buffers, 70_000, 3);
        assert_eq!(third.as_ptr(), address.wrapping_sub(10));
        assert!(third.len() == 70_000 && third.iter().all(|byte| *byte == 3));
        assert!(second.iter().all(|byte| *byte == 2));
    }

    #[test]
    fn no_more_is_kept_than_allowed_and_a_failed_read_loses_nothing() {
        let buffers = Arc::new(ReadBuffers::default());
        drop((0..10).map(|_| filled(&buffers, LARGEST, 1)).collect::<Vec<_>>());
        drop(filled(&buffers, LARGEST + 1, 1));
        drop(filled(&buffers, SMALLEST - 1, 1));
        assert_eq!(buffers.0.lock().unwrap().bytes, KEPT);
        buffers.read(LARGEST, |_| Err(std::io::ErrorKind::Other.into())).unwrap_err();
        let idle = buffers.0.lock().unwrap();
        assert_eq!((idle.bytes, idle.buffers.len()), (KEPT, KEPT / LARGEST));
    }
}
