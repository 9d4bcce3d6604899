//! Which partition a record goes to: by its key as other Kafka clients decide, or without one.

mod keyless;

pub use keyless::{RoundRobin, Sticky};

use crate::checksum::crc32;

/// How a key picks its partition. Producers of one topic must agree on it, or records of a key part ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// 31 bits of murmur2, as the Java client (librdkafka: `murmur2`, franz-go: default).
    #[default]
    Murmur2,
    /// 32 bits of FNV-1a, unsigned (Sarama: `NewCustomHashPartitioner` with the unsigned option).
    Fnv1aUnsigned,
    /// The absolute value of signed FNV-1a modulo the count (Sarama: default, librdkafka: `fnv1a`).
    Fnv1aSarama,
    /// 32 bits of CRC-32, unsigned (librdkafka: `consistent`, its default for keyed records).
    Crc32,
}

impl Partitioner {
    /// The hash of a key, before it is folded into a partition.
    #[must_use]
    pub fn hash(self, key: &[u8]) -> u32 {
        match self {
            Self::Murmur2 => murmur2(key).cast_unsigned(),
            Self::Fnv1aUnsigned | Self::Fnv1aSarama => fnv1a(key),
            Self::Crc32 => crc32(key),
        }
    }

    /// The partition of `count` for a key, which may be empty. `None` when `count` is not positive.
    #[must_use]
    pub fn partition(self, key: &[u8], count: i32) -> Option<i32> {
        let unsigned = u32::try_from(count).ok().filter(|&count| count > 0)?;
        let hash = self.hash(key);
        let partition = match self {
            Self::Murmur2 => (hash & 0x7fff_ffff) % unsigned,
            Self::Fnv1aUnsigned | Self::Crc32 => hash % unsigned,
            // The remainder is smaller than the count, so its absolute value exists.
            Self::Fnv1aSarama => (hash.cast_signed() % count).unsigned_abs(),
        };
        Some(partition.cast_signed())
    }
}

/// MurmurHash2 with the seed and the reading order of the Java client.
#[must_use]
pub fn murmur2(key: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    // Keys are below 2 GiB, so that their length fits.
    let mut hash = SEED ^ key.len() as u32;
    let (words, tail) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (place, &byte) in tail.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    (hash ^ hash >> 15).cast_signed()
}

/// FNV-1a of 32 bits.
#[must_use]
pub fn fnv1a(key: &[u8]) -> u32 {
    key.iter().fold(0x811C_9DC5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
