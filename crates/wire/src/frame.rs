//! Length-prefixed frames out of a stream of bytes.

use bytes::{Buf, Bytes, BytesMut};

/// The length in front of a frame cannot be served. The stream behind it has no meaning: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Zero or less.
    #[error("a frame of {0} bytes")]
    NotPositive(i32),
    /// More than this end accepts.
    #[error("a frame of {length} bytes, the limit is {max}")]
    TooLong {
        /// The length the peer announced.
        length: usize,
        /// The longest frame this end accepts.
        max: usize,
    },
}

/// Cuts frames out of what arrives; knows nothing of their content.
#[derive(Debug, Clone, Copy)]
pub struct FrameDecoder {
    max: usize,
}

impl FrameDecoder {
    /// A decoder that refuses frames of more than `max` bytes, the four bytes of the length not counted.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { max }
    }

    /// The next whole frame without its length, `None` when more bytes must arrive first. The length is checked as
    /// soon as its four bytes are there; space for the rest of the frame is reserved only when some of it came.
    ///
    /// # Errors
    /// A length that is not positive or above the limit. `buf` is left as it is.
    pub fn decode(&self, buf: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = buf.first_chunk::<4>() else { return Ok(None) };
        let announced = i32::from_be_bytes(*prefix);
        let length = match usize::try_from(announced) {
            Ok(length) if length > 0 => length,
            _ => return Err(FrameError::NotPositive(announced)),
        };
        if length > self.max {
            return Err(FrameError::TooLong { length, max: self.max });
        }
        let missing = (length + 4).saturating_sub(buf.len());
        if missing > 0 {
            // Grows with what arrived: a peer that only announces a large frame costs nothing.
            buf.reserve(missing.min(buf.len().max(4096)));
            return Ok(None);
        }
        buf.advance(4);
        Ok(Some(buf.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        let stream = [&[0, 0, 0, 3, 1, 2, 3][..], &[0, 0, 0, 1, 9], &[0, 0, 0, 2, 7, 7]].concat();
        for step in 1..=stream.len() {
            let decoder = FrameDecoder::new(3);
            let (mut buf, mut frames) = (BytesMut::new(), Vec::new());
            for part in stream.chunks(step) {
                buf.extend_from_slice(part);
                while let Some(frame) = decoder.decode(&mut buf).unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames, [&[1, 2, 3][..], &[9], &[7, 7]]);
            assert!(buf.is_empty());
        }
    }

    #[test]
    fn an_absurd_length_is_refused_before_anything_is_reserved() {
        let decoder = FrameDecoder::new(100);
        let cases: [(&[u8], FrameError); 5] = [
            (&[0, 0, 0, 0], FrameError::NotPositive(0)),
            (&[0xff, 0xff, 0xff, 0xff], FrameError::NotPositive(-1)),
            (&[0, 0, 0, 101], FrameError::TooLong { length: 101, max: 100 }),
            (b"GET / HTTP/1.1\r\n", FrameError::TooLong { length: 0x4745_5420, max: 100 }),
            (&[0x16, 3, 1, 2, 0, 1], FrameError::TooLong { length: 0x1603_0102, max: 100 }),
        ];
        for (bytes, error) in cases {
            let mut buf = BytesMut::from(bytes);
            let capacity = buf.capacity();
            assert_eq!(decoder.decode(&mut buf), Err(error));
            assert_eq!(buf.capacity(), capacity);
        }
    }

    #[test]
    fn an_announced_frame_costs_no_memory_until_it_arrives() {
        let mut buf = BytesMut::from(&[0x05, 0, 0, 0][..]);
        assert_eq!(FrameDecoder::new(100 << 20).decode(&mut buf), Ok(None));
        assert!(buf.capacity() < 16 << 10, "{}", buf.capacity());
    }
}
