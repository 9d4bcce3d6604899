//! What the demo computes per aircraft, and the result record that carries it.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The running totals of one aircraft.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub flights: u64,
    /// Miles.
    pub distance: i64,
    /// Minutes, early arrivals negative.
    pub delay: i64,
}

/// The numbers of one event; a row without them counts as a flight only.
#[derive(Debug, Deserialize)]
struct Numbers {
    distance: Option<i64>,
    #[serde(rename = "arr_delay")]
    delay: Option<i64>,
}

impl Totals {
    /// These totals after one more event, given as the JSON of its row.
    pub fn after(self, event: &[u8]) -> Result<Self> {
        let numbers: Numbers =
            serde_json::from_slice(event).context("an event is not the JSON of a flight")?;
        Ok(Self {
            flights: self.flights + 1,
            distance: self.distance.saturating_add(numbers.distance.unwrap_or(0)),
            delay: self.delay.saturating_add(numbers.delay.unwrap_or(0)),
        })
    }
}

/// One record of the results topic: which member completed which event, and the fold up to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub member: String,
    pub generation: i32,
    pub partition: i32,
    pub offset: i64,
    pub row: u64,
    pub key: String,
    #[serde(flatten)]
    pub totals: Totals,
}

/// The running totals of the aircraft of one partition.
#[derive(Debug, Default)]
pub struct Folds(HashMap<String, (i64, Totals)>);

impl Folds {
    /// Takes an earlier result over when it is the newest of its aircraft below offset `before`.
    pub fn restore(&mut self, done: &Done, before: i64) {
        if done.offset >= before {
            return;
        }
        let newest = self.0.entry(done.key.clone()).or_insert((-1, Totals::default()));
        if done.offset > newest.0 {
            *newest = (done.offset, done.totals);
        }
    }

    /// Folds the event at `offset` in and answers the totals after it.
    pub fn add(&mut self, key: &str, offset: i64, event: &[u8]) -> Result<Totals> {
        let before = self.0.get(key).map_or_else(Totals::default, |(_, totals)| *totals);
        let totals = before.after(event)?;
        self.0.insert(key.to_owned(), (offset, totals));
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(offset: i64, flights: u64) -> Done {
        let totals = Totals { flights, ..Totals::default() };
        Done { member: "a".into(), generation: 1, partition: 0, offset, row: 1, key: "N1".into(), totals }
    }

    #[test]
    fn a_row_without_numbers_counts_as_a_flight_only() {
        let totals = Totals::default().after(br#"{"distance":10,"arr_delay":-3}"#).unwrap();
        let totals = totals.after(br#"{"distance":null,"arr_delay":null}"#).unwrap();
        assert_eq!(totals, Totals { flights: 2, distance: 10, delay: -3 });
    }

    #[test]
    fn a_new_owner_goes_on_from_the_newest_result_below_its_first_offset() {
        let mut folds = Folds::default();
        // The old owner got further than its commit, and one of its results is there twice.
        for result in [done(3, 1), done(5, 2), done(9, 3), done(5, 2)] {
            folds.restore(&result, 9);
        }
        assert_eq!(folds.add("N1", 9, br#"{"distance":1,"arr_delay":null}"#).unwrap().flights, 3);
    }
}
