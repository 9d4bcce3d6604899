//! Zigzag variable-length integers as records use them, and a cursor that reads them.

use super::RecordFlaw;

/// Reads fields out of one record; every read is bounded by its end.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, RecordFlaw> {
        let byte = *self.bytes.get(self.at).ok_or(RecordFlaw::RunsPastEnd)?;
        self.at += 1;
        Ok(byte)
    }

    /// A zigzag 32-bit integer of one to five bytes.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<i32, RecordFlaw> {
        // One and two bytes are nearly all there is, and go without a loop.
        let raw = match self.bytes.get(self.at..) {
            Some(&[first, ..]) if first < 0x80 => {
                self.at += 1;
                u32::from(first)
            }
            Some(&[first, second, ..]) if second < 0x80 => {
                self.at += 2;
                u32::from(first & 0x7f) | u32::from(second) << 7
            }
            _ => self.long_varint()?,
        };
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u32, RecordFlaw> {
        let mut raw = 0;
        for shift in [0u32, 7, 14, 21] {
            let byte = self.byte()?;
            raw |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(raw);
            }
        }
        let byte = self.byte()?;
        if byte > 0x0f {
            return Err(RecordFlaw::VarintOverflow);
        }
        Ok(raw | u32::from(byte) << 28)
    }

    /// A zigzag 64-bit integer of one to ten bytes.
    #[inline]
    pub(crate) fn varlong(&mut self) -> Result<i64, RecordFlaw> {
        let raw = match self.bytes.get(self.at..) {
            Some(&[first, ..]) if first < 0x80 => {
                self.at += 1;
                u64::from(first)
            }
            Some(&[first, second, ..]) if second < 0x80 => {
                self.at += 2;
                u64::from(first & 0x7f) | u64::from(second) << 7
            }
            _ => self.long_varlong()?,
        };
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    #[inline(never)]
    fn long_varlong(&mut self) -> Result<u64, RecordFlaw> {
        let mut raw = 0;
        for shift in (0u32..63).step_by(7) {
            let byte = self.byte()?;
            raw |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(raw);
            }
        }
        let byte = self.byte()?;
        if byte > 0x01 {
            return Err(RecordFlaw::VarintOverflow);
        }
        Ok(raw | u64::from(byte) << 63)
    }

    /// A length where -1 means null.
    #[inline]
    pub(crate) fn nullable_len(&mut self) -> Result<i32, RecordFlaw> {
        let len = self.varint()?;
        if len < -1 { Err(RecordFlaw::NegativeLength(len)) } else { Ok(len) }
    }

    /// A length or count that cannot be null.
    #[inline]
    pub(crate) fn len(&mut self) -> Result<usize, RecordFlaw> {
        let len = self.varint()?;
        usize::try_from(len).map_err(|_| RecordFlaw::NegativeLength(len))
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], RecordFlaw> {
        let end = self.at.checked_add(len).ok_or(RecordFlaw::RunsPastEnd)?;
        let taken = self.bytes.get(self.at..end).ok_or(RecordFlaw::RunsPastEnd)?;
        self.at = end;
        Ok(taken)
    }

    /// Skips the bytes of a nullable field.
    #[inline]
    pub(crate) fn skip_nullable(&mut self, len: i32) -> Result<(), RecordFlaw> {
        self.take(usize::try_from(len).unwrap_or(0)).map(|_| ())
    }

    /// The bytes of a nullable field, its length included.
    #[inline]
    pub(crate) fn nullable(&mut self) -> Result<Option<&'a [u8]>, RecordFlaw> {
        let len = self.nullable_len()?;
        usize::try_from(len).ok().map(|len| self.take(len)).transpose()
    }
}

#[inline]
fn zigzag32(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)).cast_unsigned()
}

#[inline]
fn zigzag64(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Bytes [`put_varint`] writes for `value`.
#[inline]
pub(crate) fn varint_len(value: i32) -> usize {
    (38 - zigzag32(value).leading_zeros() as usize).max(7) / 7
}

/// Bytes [`put_varlong`] writes for `value`.
#[inline]
pub(crate) fn varlong_len(value: i64) -> usize {
    (70 - zigzag64(value).leading_zeros() as usize).max(7) / 7
}

/// Appends `value`, which takes one to five bytes.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, value: i32) {
    put_varlong(out, i64::from(value));
}

/// Appends `value`, which takes one to ten bytes.
#[inline]
pub(crate) fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut raw = zigzag64(value);
    if raw < 0x80 {
        out.push(raw as u8);
        return;
    }
    if raw < 0x4000 {
        out.extend_from_slice(&[raw as u8 | 0x80, (raw >> 7) as u8]);
        return;
    }
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_of_integer_comes_back_and_has_the_predicted_size() {
        let mut values = vec![0i64, -1, 1, i64::MIN, i64::MAX, i64::from(i32::MIN), i64::from(i32::MAX)];
        for bit in 0..63 {
            let power = 1i64 << bit;
            values.extend([power - 1, power, power + 1, -power, -power - 1, -power + 1]);
        }
        for value in values {
            let mut out = Vec::new();
            put_varlong(&mut out, value);
            assert_eq!(out.len(), varlong_len(value), "{value}");
            let mut cursor = Cursor::new(&out, 0);
            assert_eq!(cursor.varlong(), Ok(value));
            assert_eq!(cursor.left(), 0);
            if let Ok(small) = i32::try_from(value) {
                let mut out = Vec::new();
                put_varint(&mut out, small);
                assert_eq!(out.len(), varint_len(small), "{small}");
                assert_eq!(Cursor::new(&out, 0).varint(), Ok(small));
            }
        }
    }

    #[test]
    fn an_integer_too_long_for_its_type_is_an_overflow() {
        let too_long = [0xff, 0xff, 0xff, 0xff, 0x10];
        assert_eq!(Cursor::new(&too_long, 0).varint(), Err(RecordFlaw::VarintOverflow));
        let too_long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(Cursor::new(&too_long, 0).varlong(), Err(RecordFlaw::VarintOverflow));
        assert_eq!(Cursor::new(&[0x80, 0x80], 0).varint(), Err(RecordFlaw::RunsPastEnd));
        assert_eq!(Cursor::new(&[], 0).varlong(), Err(RecordFlaw::RunsPastEnd));
    }

    #[test]
    fn a_padded_integer_is_read() {
        assert_eq!(Cursor::new(&[0x82, 0x80, 0x00], 0).varint(), Ok(1));
    }
}
