//! The checksums of the protocol: CRC-32C over batches, CRC-32 for one partitioner.

/// CRC-32C (Castagnoli), as a record batch carries it.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// CRC-32 (IEEE 802.3, reflected), as zlib and librdkafka's `consistent` partitioner compute it.
///
/// Keys are short, so it goes bit by bit: no table, about 8 steps a byte.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let mask = (crc & 1).wrapping_neg();
            crc = (crc >> 1) ^ (POLYNOMIAL & mask);
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_equals_the_golden_vectors() {
        let all: Vec<u8> = (0..=255).collect();
        let vectors: [(&[u8], u32); 8] = [
            (b"", 0),
            (b"a", 0xC1D0_4330),
            (b"123456789", 0xE306_9283),
            (&[0x80, 0x81, 0xfe, 0xff], 0x299D_8860),
            (&[0; 32], 0x8A91_36AA),
            (&[0xff; 32], 0x62A8_AB43),
            (&all, 0x9C44_184B),
            // The Russian word for "event" in UTF-8.
            (
                &[0xd1, 0x81, 0xd0, 0xbe, 0xd0, 0xb1, 0xd1, 0x8b, 0xd1, 0x82, 0xd0, 0xb8, 0xd0, 0xb5],
                0xA1A9_B4E7,
            ),
        ];
        for (bytes, expected) in vectors {
            assert_eq!(crc32c(bytes), expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn crc32_equals_the_check_value_of_its_definition_and_of_zlib() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        // zlib.crc32 of CPython.
        assert_eq!(crc32(b"user-1"), 0x7e26_4614);
        assert_eq!(crc32(&(0..=255).collect::<Vec<u8>>()), 0x2905_8C73);
    }
}
