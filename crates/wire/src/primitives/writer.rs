//! Collecting the bytes of one message, large sequences by reference.

use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::MAX_STRING;
use crate::message::Wire;
use crate::{Str, Uuid};

/// From this size on a sequence of bytes becomes a chunk of its own instead of being copied.
const REFERENCED: usize = 1024;

/// The value cannot be written in this version. Every variant is the caller's mistake; `field` is
/// `Message.field` or `Message.Struct.field`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A field holds something, and the version has no place for it.
    #[error("{field} is set, and version {version} does not have it")]
    NotInVersion {
        /// The field.
        field: &'static str,
        /// The version that was asked for.
        version: i16,
    },
    /// Null where this version has none.
    #[error("{field} is null, and this version needs a value")]
    Null {
        /// The field.
        field: &'static str,
    },
    /// Longer than the length in front of it can say.
    #[error("{field}: a length of {length} is too much")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its bytes or elements.
        length: usize,
    },
    /// The message has no such version.
    #[error("{message} has no version {version}")]
    Version {
        /// The name of the message.
        message: &'static str,
        /// The version that was asked for.
        version: i16,
    },
}

/// Collects the bytes of one message. Sequences of 1 KiB and more are kept by reference.
#[derive(Debug, Default)]
pub struct Writer {
    small: BytesMut,
    /// Where in `small` each referenced sequence belongs, in order.
    large: Vec<(usize, Bytes)>,
    large_size: usize,
}

impl Writer {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With the length of the frame, to be filled in, in front.
    pub(crate) fn framed() -> Self {
        let mut small = BytesMut::with_capacity(256);
        small.put_i32(0);
        Self { small, ..Self::default() }
    }

    /// The number of bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.small.len() + self.large_size
    }

    /// Whether there are no bytes so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes as chunks, without a length in front.
    #[must_use]
    pub fn finish(self) -> Frame {
        let len = self.len();
        let small = self.small.freeze();
        let mut chunks = Vec::with_capacity(2 * self.large.len() + 1);
        let mut from = 0;
        for (to, large) in self.large {
            if from < to {
                chunks.push(small.slice(from..to));
            }
            chunks.push(large);
            from = to;
        }
        if from < small.len() {
            chunks.push(small.slice(from..));
        }
        Frame { chunks, first: 0, len }
    }

    /// All bytes of a writer made by [`framed`](Self::framed).
    pub(crate) fn finish_frame(mut self) -> Result<Frame, EncodeError> {
        let length = self.len() - 4;
        let short = i32::try_from(length).map_err(|_| EncodeError::TooLong { field: "frame", length })?;
        self.small[..4].copy_from_slice(&short.to_be_bytes());
        Ok(self.finish())
    }

    /// One byte, 1 for true.
    pub fn bool(&mut self, value: bool) {
        self.small.put_u8(u8::from(value));
    }

    /// Sixteen bytes.
    pub fn uuid(&mut self, value: Uuid) {
        self.small.put_slice(value.as_bytes());
    }

    /// An unsigned number in groups of seven bits, the lowest first.
    pub fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.small.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.small.put_u8(value as u8);
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &Bytes) {
        if bytes.len() < REFERENCED {
            self.small.put_slice(bytes);
        } else {
            self.large.push((self.small.len(), bytes.clone()));
            self.large_size += bytes.len();
        }
    }

    fn append(&mut self, other: Self) {
        let base = self.small.len();
        self.small.put_slice(&other.small);
        self.large.extend(other.large.into_iter().map(|(place, bytes)| (base + place, bytes)));
        self.large_size += other.large_size;
    }

    fn length(
        &mut self,
        field: &'static str,
        length: Option<usize>,
        compact: bool,
        nullable: bool,
        short: bool,
    ) -> Result<(), EncodeError> {
        let Some(length) = length else {
            match (nullable, compact, short) {
                (false, ..) => return Err(EncodeError::Null { field }),
                (true, true, _) => self.varint(0),
                (true, false, true) => self.i16(-1),
                (true, false, false) => self.i32(-1),
            }
            return Ok(());
        };
        let checked = match i32::try_from(length) {
            Ok(checked) if !short || length <= MAX_STRING => checked,
            _ => return Err(EncodeError::TooLong { field, length }),
        };
        match (compact, short) {
            (true, _) => self.varint(checked.cast_unsigned() + 1),
            (false, true) => self.i16(checked as i16),
            (false, false) => self.i32(checked),
        }
        Ok(())
    }

    /// A string, with a compact length or one of two bytes.
    ///
    /// # Errors
    /// More than 32,767 bytes.
    pub fn string(&mut self, field: &'static str, value: &Str, compact: bool) -> Result<(), EncodeError> {
        self.length(field, Some(value.as_bytes().len()), compact, false, true)?;
        self.raw(value.as_bytes());
        Ok(())
    }

    /// As [`string`](Self::string), or null where `nullable` allows it.
    ///
    /// # Errors
    /// As [`string`](Self::string), or null where this version has none.
    pub fn opt_string(
        &mut self,
        field: &'static str,
        value: &Option<Str>,
        compact: bool,
        nullable: bool,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => self.string(field, value, compact),
            None => self.length(field, None, compact, nullable, true),
        }
    }

    /// A sequence of bytes, with a compact length or one of four bytes.
    ///
    /// # Errors
    /// More than 2 GiB.
    pub fn bytes(&mut self, field: &'static str, value: &Bytes, compact: bool) -> Result<(), EncodeError> {
        self.length(field, Some(value.len()), compact, false, false)?;
        self.raw(value);
        Ok(())
    }

    /// As [`bytes`](Self::bytes), or null where `nullable` allows it.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), or null where this version has none.
    pub fn opt_bytes(
        &mut self,
        field: &'static str,
        value: &Option<Bytes>,
        compact: bool,
        nullable: bool,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => self.bytes(field, value, compact),
            None => self.length(field, None, compact, nullable, false),
        }
    }

    /// An array.
    ///
    /// # Errors
    /// More than 2^31-1 elements, or what `element` returns.
    pub fn array<T>(
        &mut self,
        field: &'static str,
        items: &[T],
        compact: bool,
        mut element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.length(field, Some(items.len()), compact, false, false)?;
        items.iter().try_for_each(|item| element(self, item))
    }

    /// As [`array`](Self::array), or null where `nullable` allows it.
    ///
    /// # Errors
    /// As [`array`](Self::array), or null where this version has none.
    pub fn opt_array<T>(
        &mut self,
        field: &'static str,
        items: &Option<Vec<T>>,
        compact: bool,
        nullable: bool,
        element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        match items {
            Some(items) => self.array(field, items, compact, element),
            None => self.length(field, None, compact, nullable, false),
        }
    }

    pub(crate) fn structs<T: Wire>(
        &mut self,
        field: &'static str,
        items: &[T],
        compact: bool,
        version: i16,
    ) -> Result<(), EncodeError> {
        self.array(field, items, compact, |w, item| item.write(w, version))
    }

    pub(crate) fn opt_structs<T: Wire>(
        &mut self,
        field: &'static str,
        items: &Option<Vec<T>>,
        compact: bool,
        nullable: bool,
        version: i16,
    ) -> Result<(), EncodeError> {
        self.opt_array(field, items, compact, nullable, |w, item| item.write(w, version))
    }

    #[allow(dead_code, reason = "part of the schema language; no message of the present list has one")]
    pub(crate) fn opt_struct<T: Wire>(
        &mut self,
        field: &'static str,
        value: &Option<T>,
        nullable: bool,
        version: i16,
    ) -> Result<(), EncodeError> {
        match value {
            None if !nullable => return Err(EncodeError::Null { field }),
            None => self.i8(-1),
            Some(value) => {
                if nullable {
                    self.i8(1);
                }
                value.write(self, version)?;
            }
        }
        Ok(())
    }

    /// Refuses a field that this version lacks, when it is `set`.
    pub(crate) fn absent(&self, field: &'static str, version: i16, set: bool) -> Result<(), EncodeError> {
        if set { Err(EncodeError::NotInVersion { field, version }) } else { Ok(()) }
    }

    /// The end of a struct without tagged fields.
    pub fn no_tags(&mut self) {
        self.small.put_u8(0);
    }

    /// The tagged fields at the end of a struct.
    pub fn tags(&mut self, tags: Tags) {
        self.varint(tags.count);
        self.append(tags.body);
    }
}

/// The tagged fields of one struct, in ascending order of their numbers.
#[derive(Debug, Default)]
pub struct Tags {
    count: u32,
    body: Writer,
}

impl Tags {
    /// Adds the field with this number.
    ///
    /// # Errors
    /// What `value` returns, or more than 2 GiB.
    pub fn put(
        &mut self,
        tag: u32,
        value: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut inner = Writer::new();
        value(&mut inner)?;
        let length = inner.len();
        let size =
            u32::try_from(length).map_err(|_| EncodeError::TooLong { field: "tagged field", length })?;
        self.count += 1;
        self.body.varint(tag);
        self.body.varint(size);
        self.body.append(inner);
        Ok(())
    }
}

macro_rules! numbers {
    ($($name:ident)*) => {
        impl Writer {
            $(
                /// A number in network byte order.
                pub fn $name(&mut self, value: $name) {
                    self.small.put_slice(&value.to_be_bytes());
                }
            )*
        }
    };
}

numbers!(i8 i16 u16 i32 u32 i64 f64);

/// The bytes of a message in chunks, ready for a vectored write. As a [`Buf`] it shrinks while it is written.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    chunks: Vec<Bytes>,
    first: usize,
    len: usize,
}

impl Frame {
    /// The bytes not yet written, over all chunks, with the length prefix where the frame has one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether everything was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks not yet written; none of them is empty.
    #[must_use]
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks[self.first..]
    }

    /// The chunks not yet written; none of them is empty.
    #[must_use]
    pub fn into_chunks(mut self) -> Vec<Bytes> {
        self.chunks.drain(..self.first);
        self.chunks
    }

    /// All bytes in one piece; copies unless there is one chunk.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match self.chunks() {
            [] => Bytes::new(),
            [only] => only.clone(),
            many => many.concat().into(),
        }
    }
}

impl Buf for Frame {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.chunks().first().map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slice, chunk) in slices.iter_mut().zip(self.chunks()) {
            *slice = IoSlice::new(chunk);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advanced {count} of {} bytes", self.len);
        self.len -= count;
        while count > 0 {
            let chunk = &mut self.chunks[self.first];
            let step = count.min(chunk.len());
            chunk.advance(step);
            count -= step;
            if chunk.is_empty() {
                self.first += 1;
            }
        }
    }
}
