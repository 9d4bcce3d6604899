//! A cursor over the bytes of one frame.

use bytes::Bytes;

use super::MAX_STRING;
use crate::message::Wire;
use crate::{Str, Uuid};

/// The bytes are not what the schema says. Every variant is the peer's fault; `at` is the byte's place in the frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame ends inside of a value.
    #[error("byte {at}: {needed} bytes needed, {remaining} left")]
    Truncated {
        /// Where the value begins.
        at: usize,
        /// The bytes the value takes.
        needed: usize,
        /// The bytes that are there.
        remaining: usize,
    },
    /// A length or a count that cannot be true: negative, or more than the bytes that follow can hold.
    #[error("byte {at}: a length of {length} with {remaining} bytes left")]
    Length {
        /// Where the length stands.
        at: usize,
        /// The length.
        length: i64,
        /// The bytes that follow it.
        remaining: usize,
    },
    /// Null where this version has none.
    #[error("byte {at}: null where a value is needed")]
    Null {
        /// Where the length stands.
        at: usize,
    },
    /// More elements in arrays than the reader was told to take.
    #[error("byte {at}: {count} more elements where {left} are left")]
    Elements {
        /// Where the count stands.
        at: usize,
        /// The count.
        count: usize,
        /// What was left of the limit.
        left: usize,
    },
    /// A string that is not UTF-8.
    #[error("byte {at}: not UTF-8")]
    NotUtf8 {
        /// Where the string begins.
        at: usize,
    },
    /// A variable-length number of more than 32 bits.
    #[error("byte {at}: a variable-length number of more than 32 bits")]
    Varint {
        /// Where the number begins.
        at: usize,
    },
    /// The message has no such version.
    #[error("{message} has no version {version}")]
    Version {
        /// The name of the message.
        message: &'static str,
        /// The version that was asked for.
        version: i16,
    },
    /// The header names an API that Kafka does not have.
    #[error("unknown API key {0}")]
    UnknownApiKey(i16),
}

/// A cursor over the bytes of one frame. Strings and byte sequences are handed out as shared slices of it.
#[derive(Debug, Clone)]
pub struct Reader {
    buf: Bytes,
    at: usize,
    end: usize,
    /// Elements of arrays that may still come.
    elements: usize,
    /// Makes the reader invent what it reads, so that decoding builds a random value.
    #[cfg(test)]
    pub(super) sampler: Option<super::sampler::Sampler>,
}

impl From<Bytes> for Reader {
    fn from(buf: Bytes) -> Self {
        Self::new(buf)
    }
}

impl Reader {
    /// A cursor at the first of these bytes.
    #[must_use]
    pub fn new(buf: Bytes) -> Self {
        let end = buf.len();
        Self {
            buf,
            at: 0,
            end,
            elements: usize::MAX,
            #[cfg(test)]
            sampler: None,
        }
    }

    /// Takes at most `most` elements from here on, over all arrays. An element can take many times more room in memory
    /// than on the wire, and more again in what is answered to it: whoever knows how many make sense says so.
    pub fn limit_elements(&mut self, most: usize) {
        self.elements = most;
    }

    /// The number of bytes that were not read yet. What is left after a whole message was written by a newer peer
    /// or a broken one; nothing here refuses it.
    #[must_use]
    pub fn remaining(&self) -> usize {
        #[cfg(test)]
        if self.sampler.is_some() {
            return 1 << 20;
        }
        self.end - self.at
    }

    /// The place of the next byte, counted from the start of the frame.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// The bytes that were not read yet, shared.
    #[must_use]
    pub fn rest(&self) -> Bytes {
        self.buf.slice(self.at..self.end)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        #[cfg(test)]
        if let Some(sampler) = &mut self.sampler {
            return Ok(sampler.fixed());
        }
        let truncated = DecodeError::Truncated { at: self.at, needed: N, remaining: self.remaining() };
        let bytes = self.buf[self.at..self.end].first_chunk::<N>().ok_or(truncated)?;
        self.at += N;
        Ok(*bytes)
    }

    fn slice(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        #[cfg(test)]
        if let Some(sampler) = &mut self.sampler {
            return Ok(sampler.bytes(length));
        }
        let remaining = self.remaining();
        if length > remaining {
            return Err(DecodeError::Truncated { at: self.at, needed: length, remaining });
        }
        let slice = self.buf.slice(self.at..self.at + length);
        self.at += length;
        Ok(slice)
    }

    /// A byte that is zero for false.
    ///
    /// # Errors
    /// The frame ends here.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.fixed::<1>()? != [0])
    }

    /// An unsigned number of at most 32 bits in groups of seven, the lowest first.
    ///
    /// # Errors
    /// The frame ends here, or the number has more than 32 bits.
    pub fn varint(&mut self) -> Result<u32, DecodeError> {
        let at = self.at;
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.fixed()?;
            if shift == 28 && byte > 0x0f {
                return Err(DecodeError::Varint { at });
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Varint { at })
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// The frame ends here.
    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        Ok(Uuid::from_bytes(self.fixed()?))
    }

    /// A length that fits into the bytes left when each unit takes `unit` bytes; `None` for null.
    fn length(
        &mut self,
        compact: bool,
        nullable: bool,
        short: bool,
        unit: usize,
    ) -> Result<Option<usize>, DecodeError> {
        #[cfg(test)]
        if let Some(sampler) = &mut self.sampler {
            return Ok(sampler.length().or((!nullable).then_some(0)));
        }
        let at = self.at;
        let length = match (compact, short) {
            (true, _) => i64::from(self.varint()?) - 1,
            (false, true) => i64::from(self.i16()?),
            (false, false) => i64::from(self.i32()?),
        };
        let remaining = self.remaining();
        match usize::try_from(length) {
            Ok(units) if units <= remaining / unit => Ok(Some(units)),
            Err(_) if length == -1 && nullable => Ok(None),
            Err(_) if length == -1 => Err(DecodeError::Null { at }),
            _ => Err(DecodeError::Length { at, length, remaining }),
        }
    }

    /// A string, with a compact length or one of two bytes.
    ///
    /// # Errors
    /// Null, a length beyond the frame or beyond 32,767 bytes, or bytes that are not UTF-8.
    pub fn string(&mut self, compact: bool) -> Result<Str, DecodeError> {
        let at = self.at;
        self.opt_string(compact, false)?.ok_or(DecodeError::Null { at })
    }

    /// As [`string`](Self::string), or null where `nullable` allows it.
    ///
    /// # Errors
    /// As [`string`](Self::string).
    pub fn opt_string(&mut self, compact: bool, nullable: bool) -> Result<Option<Str>, DecodeError> {
        let at = self.at;
        let Some(length) = self.length(compact, nullable, true, 1)? else { return Ok(None) };
        if length > MAX_STRING {
            return Err(DecodeError::Length { at, length: length as i64, remaining: self.remaining() });
        }
        let text = self.slice(length)?;
        Str::from_utf8(text).map(Some).map_err(|_| DecodeError::NotUtf8 { at })
    }

    /// A sequence of bytes, with a compact length or one of four bytes.
    ///
    /// # Errors
    /// Null, or a length beyond the frame.
    pub fn bytes(&mut self, compact: bool) -> Result<Bytes, DecodeError> {
        let at = self.at;
        self.opt_bytes(compact, false)?.ok_or(DecodeError::Null { at })
    }

    /// As [`bytes`](Self::bytes), or null where `nullable` allows it.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn opt_bytes(&mut self, compact: bool, nullable: bool) -> Result<Option<Bytes>, DecodeError> {
        self.length(compact, nullable, false, 1)?.map(|length| self.slice(length)).transpose()
    }

    /// An array whose elements take at least `smallest` bytes each.
    ///
    /// # Errors
    /// Null, more elements than the frame can hold, or what `element` returns.
    pub fn array<T>(
        &mut self,
        compact: bool,
        smallest: usize,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let at = self.at;
        self.opt_array(compact, false, smallest, element)?.ok_or(DecodeError::Null { at })
    }

    /// As [`array`](Self::array), or null where `nullable` allows it.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn opt_array<T>(
        &mut self,
        compact: bool,
        nullable: bool,
        smallest: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        let at = self.at;
        let Some(count) = self.length(compact, nullable, false, smallest.max(1))? else { return Ok(None) };
        let left = self.elements;
        self.elements = left.checked_sub(count).ok_or(DecodeError::Elements { at, count, left })?;
        // An element can be many times larger in memory than on the wire, so the space is at first no more than
        // the bytes that are there, and grows with the elements that were really read.
        let first = self.remaining() / size_of::<T>().max(1) + 1;
        let mut items = Vec::with_capacity(count.min(first));
        for _ in 0..count {
            if items.len() == items.capacity() {
                items.reserve_exact(items.len().max(4).min(count - items.len()));
            }
            items.push(element(self)?);
        }
        Ok(Some(items))
    }

    /// An array of structs.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub(crate) fn structs<T: Wire>(&mut self, compact: bool, version: i16) -> Result<Vec<T>, DecodeError> {
        self.array(compact, T::MIN_SIZE, |r| T::read(r, version))
    }

    /// An array of structs, or null where `nullable` allows it.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub(crate) fn opt_structs<T: Wire>(
        &mut self,
        compact: bool,
        nullable: bool,
        version: i16,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        self.opt_array(compact, nullable, T::MIN_SIZE, |r| T::read(r, version))
    }

    /// A struct, or null where `nullable` allows it: a byte below zero.
    ///
    /// # Errors
    /// As the struct.
    #[allow(dead_code, reason = "part of the schema language; no message of the present list has one")]
    pub(crate) fn opt_struct<T: Wire>(
        &mut self,
        nullable: bool,
        version: i16,
    ) -> Result<Option<T>, DecodeError> {
        if nullable && self.i8()? < 0 {
            return Ok(None);
        }
        T::read(self, version).map(Some)
    }

    /// The tagged fields at the end of a struct. `field` is given each number and a cursor that ends with the field;
    /// what it leaves unread is skipped, and so an unknown number is skipped by doing nothing.
    ///
    /// # Errors
    /// A field beyond the frame, or what `field` returns.
    pub(crate) fn tags(
        &mut self,
        mut field: impl FnMut(u32, &mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        #[cfg(test)]
        if self.sampler.is_some() {
            return super::sampler::tags(self, field);
        }
        for _ in 0..self.varint()? {
            let tag = self.varint()?;
            let at = self.at;
            let size = self.varint()?;
            let remaining = self.remaining();
            let end = usize::try_from(size).ok().filter(|size| *size <= remaining).map(|size| self.at + size);
            let end = end.ok_or(DecodeError::Length { at, length: size.into(), remaining })?;
            let outer = std::mem::replace(&mut self.end, end);
            let read = field(tag, self);
            self.end = outer;
            read?;
            self.at = end;
        }
        Ok(())
    }

    /// The tagged fields at the end of a struct that has none.
    ///
    /// # Errors
    /// A field beyond the frame.
    pub fn skip_tags(&mut self) -> Result<(), DecodeError> {
        self.tags(|_, _| Ok(()))
    }
}

macro_rules! numbers {
    ($($name:ident)*) => {
        impl Reader {
            $(
                /// A number in network byte order.
                ///
                /// # Errors
                /// The frame ends here.
                pub fn $name(&mut self) -> Result<$name, DecodeError> {
                    Ok($name::from_be_bytes(self.fixed()?))
                }
            )*
        }
    };
}

numbers!(i8 i16 u16 i32 u32 i64);

impl Reader {
    /// A floating point number in network byte order.
    ///
    /// # Errors
    /// The frame ends here.
    pub fn f64(&mut self) -> Result<f64, DecodeError> {
        #[cfg(test)]
        if self.sampler.is_some() {
            // Not a number would not equal itself.
            return Ok(self.i32()?.into());
        }
        Ok(f64::from_be_bytes(self.fixed()?))
    }
}
