//! From a record's key to its key lane.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;

use super::key_hash::{KeyBytes, KeyHasher};

/// No entry.
const NONE: u32 = u32::MAX;
/// How many different keys may share a sampled hash before they are told apart by all of their bytes.
const CROWD: u32 = 8;

#[derive(Debug)]
struct Entry {
    /// None also for an entry that no key leads to.
    key: Option<Bytes>,
    sampled: u64,
    /// What the entry is filed under: the sampled hash, or the full one in a crowd.
    hash: u64,
    filed: Filed,
    /// The next entry of the bucket, or the next free one.
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filed {
    Free,
    /// In use, but no key leads to it.
    Nowhere,
    Sampled,
    Full,
}

/// The keys that have work now, each with a small number that stays the same while it has.
///
/// A chained hash table with one peculiarity: keys are filed under a hash of a sample. When eight different
/// ones share that hash, they, and later ones like them, are filed under a hash of all their bytes; other keys
/// are not touched. Equality always compares every byte.
#[derive(Debug)]
pub(super) struct KeyTable {
    hasher: KeyHasher,
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    free: u32,
    filed: usize,
    /// The sampled hashes that were too crowded, with the number of entries of each.
    crowds: BTreeMap<u64, u32>,
    #[cfg(test)]
    pub compared: u64,
}

impl KeyTable {
    pub(super) fn new(seed: (u64, u64)) -> Self {
        Self {
            hasher: KeyHasher::new(seed),
            buckets: vec![NONE; 16],
            entries: Vec::new(),
            free: NONE,
            filed: 0,
            crowds: BTreeMap::new(),
            #[cfg(test)]
            compared: 0,
        }
    }

    /// How many keys have an entry.
    pub(super) const fn len(&self) -> usize {
        self.filed
    }

    /// The key of an entry; none when it is not one of a key.
    pub(super) fn key_at(&self, at: u32) -> Option<KeyBytes<'_>> {
        let entry = self.entries.get(at as usize)?;
        matches!(entry.filed, Filed::Sampled | Filed::Full).then_some(entry.key.as_deref())
    }

    /// The number of the key's entry; `own` gives the key to keep when it has none yet.
    pub(super) fn find_or_insert(&mut self, key: KeyBytes<'_>, own: impl FnOnce() -> Option<Bytes>) -> u32 {
        let sampled = self.hasher.sampled(key);
        let mut crowded = self.crowds.contains_key(&sampled);
        let mut hash = if crowded { self.hasher.full(key) } else { sampled };
        let mut others = 0;
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.hash == hash {
                #[cfg(test)]
                {
                    self.compared += 1;
                }
                if entry.key.as_deref() == key {
                    return at;
                }
                others += 1;
            }
            at = entry.next;
        }
        if !crowded && others >= CROWD {
            self.spread(sampled);
            crowded = true;
            hash = self.hasher.full(key);
        }
        if crowded {
            *self.crowds.entry(sampled).or_default() += 1;
        }
        let filed = if crowded { Filed::Full } else { Filed::Sampled };
        let at = self.place(Entry { key: own(), sampled, hash, filed, next: NONE });
        self.filed += 1;
        if self.filed > self.buckets.len() {
            self.grow();
        } else {
            self.link(at);
        }
        at
    }

    /// A number that no key leads to.
    pub(super) fn insert_alone(&mut self) -> u32 {
        self.place(Entry { key: None, sampled: 0, hash: 0, filed: Filed::Nowhere, next: NONE })
    }

    /// Forgets the entry; its number is given to another.
    pub(super) fn remove(&mut self, at: u32) {
        let entry = &self.entries[at as usize];
        if matches!(entry.filed, Filed::Sampled | Filed::Full) {
            let (filed, sampled) = (entry.filed, entry.sampled);
            self.unlink(at);
            self.filed -= 1;
            if filed == Filed::Full
                && let Some(count) = self.crowds.get_mut(&sampled)
            {
                *count -= 1;
                if *count == 0 {
                    self.crowds.remove(&sampled);
                }
            }
        }
        let entry = &mut self.entries[at as usize];
        entry.key = None;
        entry.filed = Filed::Free;
        entry.next = self.free;
        self.free = at;
    }

    /// Files everything under this sampled hash by all of its bytes.
    fn spread(&mut self, sampled: u64) {
        let mut members = Vec::new();
        let mut at = self.buckets[self.bucket(sampled)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.filed == Filed::Sampled && entry.hash == sampled {
                members.push(at);
            }
            at = entry.next;
        }
        for &at in &members {
            self.unlink(at);
            let entry = &mut self.entries[at as usize];
            entry.hash = self.hasher.full(entry.key.as_deref());
            entry.filed = Filed::Full;
            self.link(at);
            *self.crowds.entry(sampled).or_default() += 1;
        }
    }

    fn place(&mut self, entry: Entry) -> u32 {
        if self.free == NONE {
            let at = u32::try_from(self.entries.len()).expect("fewer keys at work than memory can hold");
            self.entries.push(entry);
            return at;
        }
        let at = self.free;
        self.free = self.entries[at as usize].next;
        self.entries[at as usize] = entry;
        at
    }

    fn bucket(&self, hash: u64) -> usize {
        // The number of buckets is a power of two.
        let mask = self.buckets.len() as u64 - 1;
        usize::try_from(hash & mask).expect("below the number of buckets")
    }

    fn link(&mut self, at: u32) {
        let bucket = self.bucket(self.entries[at as usize].hash);
        self.entries[at as usize].next = self.buckets[bucket];
        self.buckets[bucket] = at;
    }

    fn unlink(&mut self, at: u32) {
        let bucket = self.bucket(self.entries[at as usize].hash);
        let next = self.entries[at as usize].next;
        if self.buckets[bucket] == at {
            self.buckets[bucket] = next;
            return;
        }
        let mut before = self.buckets[bucket];
        while before != NONE {
            if self.entries[before as usize].next == at {
                self.entries[before as usize].next = next;
                return;
            }
            before = self.entries[before as usize].next;
        }
    }

    fn grow(&mut self) {
        self.buckets = vec![NONE; self.buckets.len() * 2];
        for at in 0..self.entries.len() {
            if matches!(self.entries[at].filed, Filed::Sampled | Filed::Full) {
                self.link(u32::try_from(at).expect("numbers of entries are this small"));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn crowds(&self) -> usize {
        self.crowds.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn enter(table: &mut KeyTable, key: Option<&[u8]>) -> u32 {
        table.find_or_insert(key, || key.map(Bytes::copy_from_slice))
    }

    /// Long, and equal in every byte the sample reads.
    fn alike(number: u32) -> Vec<u8> {
        let mut key = vec![b'k'; 400];
        key[20..24].copy_from_slice(&number.to_be_bytes());
        key
    }

    #[test]
    fn t068_t071_ten_thousand_long_keys_equal_in_the_sample_cost_what_others_cost() {
        let mut table = KeyTable::new((11, 12));
        let keys: Vec<_> = (0..10_000).map(alike).collect();
        let unrelated = enter(&mut table, Some(b"unrelated"));
        let numbers: Vec<u32> = keys.iter().map(|key| enter(&mut table, Some(key))).collect();
        assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
        assert_eq!(table.crowds(), 1);
        let before = table.compared;
        for (key, &number) in keys.iter().zip(&numbers) {
            assert_eq!(enter(&mut table, Some(key)), number);
        }
        assert_eq!(table.compared - before, 10_000, "one comparison each");
        assert_eq!(enter(&mut table, Some(b"unrelated")), unrelated);
        for number in numbers {
            table.remove(number);
        }
        assert_eq!((table.len(), table.crowds()), (1, 0));
    }

    #[test]
    fn t068_seven_eight_and_nine_alike_keys_beside_others_have_one_lane_each() {
        for count in [7, 8, 9] {
            let mut table = KeyTable::new((1, count.into()));
            let mut keys: Vec<Option<Vec<u8>>> = (0..count).map(|number| Some(alike(number))).collect();
            keys.extend([None, Some(Vec::new()), Some(b"other".to_vec())]);
            let numbers: Vec<u32> = keys.iter().map(|key| enter(&mut table, key.as_deref())).collect();
            let again: Vec<u32> = keys.iter().map(|key| enter(&mut table, key.as_deref())).collect();
            assert_eq!(numbers, again);
            assert_eq!(table.len(), keys.len());
            assert_eq!(table.crowds(), usize::from(count > 8));
        }
    }

    #[test]
    fn a_crowd_that_shrinks_stays_told_apart_until_its_last_key_has_gone() {
        let mut table = KeyTable::new((11, 12));
        let keys: Vec<_> = (0..20).map(alike).collect();
        let mut numbers: Vec<u32> = keys.iter().map(|key| enter(&mut table, Some(key))).collect();
        for left in (1..20).rev() {
            table.remove(numbers.pop().unwrap());
            let again: Vec<u32> = keys[..left].iter().map(|key| enter(&mut table, Some(key))).collect();
            assert_eq!((&again, table.len(), table.crowds()), (&numbers, left, 1));
        }
        table.remove(numbers[0]);
        assert_eq!((table.len(), table.crowds()), (0, 0));
    }

    #[test]
    fn a_crowd_leaves_other_keys_of_its_bucket_where_they_are() {
        let mut table = KeyTable::new((11, 12));
        // Hashes that differ, and not in the bits that choose among the first sixteen buckets.
        table.hasher = table.hasher.with_mask(!15);
        let others = [&b"ann"[..], b"bob"].map(|key| enter(&mut table, Some(key)));
        (0..9).for_each(|number| {
            enter(&mut table, Some(&alike(number)));
        });
        assert_eq!((table.crowds(), table.len()), (1, 11));
        assert_eq!([&b"ann"[..], b"bob"].map(|key| enter(&mut table, Some(key))), others);
    }

    #[test]
    fn keys_spread_over_as_many_buckets_as_there_are_keys() {
        let mut table = KeyTable::new((1, 2));
        for (keys, buckets) in [(16, 16), (17, 32), (32, 32), (33, 64), (1000, 1024)] {
            for number in table.len()..keys {
                enter(&mut table, Some(&number.to_be_bytes()));
            }
            assert_eq!((table.len(), table.buckets.len()), (keys, buckets));
        }
        let used = table.buckets.iter().filter(|&&first| first != NONE).count();
        assert!(used > 500, "{used} of 1024 for 1000 keys");
    }

    #[test]
    fn t065_keys_that_share_every_hash_are_told_apart_by_equality() {
        let mut table = KeyTable::new((3, 4));
        table.hasher = table.hasher.with_mask(0);
        let keys: Vec<Option<Vec<u8>>> =
            [None, Some(Vec::new())].into_iter().chain((0..40).map(|number| Some(alike(number)))).collect();
        let numbers: Vec<u32> = keys.iter().map(|key| enter(&mut table, key.as_deref())).collect();
        assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
        for (key, &number) in keys.iter().zip(&numbers).rev() {
            assert_eq!(enter(&mut table, key.as_deref()), number);
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(
            mask in prop_oneof![Just(u64::MAX), Just(7), Just(0)],
            steps in prop::collection::vec((0..6_u32, 0..40_u32, any::<bool>()), 1..400),
        ) {
            let mut table = KeyTable::new((5, 6));
            table.hasher = table.hasher.with_mask(mask);
            let mut model: BTreeMap<Option<Vec<u8>>, u32> = BTreeMap::new();
            for (kind, number, remove) in steps {
                let key = match kind {
                    0 => None,
                    1 => Some(Vec::new()),
                    2 => Some(vec![b'a'; number as usize]),
                    _ => Some(alike(number)),
                };
                if remove {
                    if let Some(at) = model.remove(&key) {
                        table.remove(at);
                    }
                } else {
                    let at = enter(&mut table, key.as_deref());
                    if let Some(&known) = model.get(&key) {
                        prop_assert_eq!(at, known);
                    } else {
                        prop_assert!(model.values().all(|&other| other != at));
                        model.insert(key, at);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
