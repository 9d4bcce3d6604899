//! What every measurement shares: interleaved rounds, medians, the stand, aligned tables.
//!
//! The machine's speed drifts, so things to compare take turns in one run and each gets its median over the rounds;
//! compare figures of one line, not of two runs.

mod load;
mod sample;
mod served;
mod stand;

pub use load::{Client, awaited};
pub use sample::{Sample, Series};
pub use served::{Counters, Served, cpu_seconds, serve_if_asked};
pub use stand::{Barrier, Place, stand};

use std::time::{Duration, Instant};

/// One thing to measure: its work, and how many items a call of it handles.
pub struct Case<'a> {
    items: u64,
    work: Box<dyn FnMut() + 'a>,
}

impl<'a> Case<'a> {
    /// A case whose `work` handles `items` items a call. The result goes through a black box.
    pub fn new<T>(items: u64, mut work: impl FnMut() -> T + 'a) -> Self {
        Self {
            items,
            work: Box::new(move || {
                std::hint::black_box(work());
            }),
        }
    }

    /// Nanoseconds per item over at least `slice`.
    fn measure(&mut self, slice: Duration) -> f64 {
        let start = Instant::now();
        let mut items = 0;
        loop {
            (self.work)();
            items += self.items;
            let spent = start.elapsed();
            if spent >= slice {
                return spent.as_nanos() as f64 / items as f64;
            }
        }
    }
}

/// Lets the cases take turns for `rounds` rounds of `slice` each, after one round to warm up, and gives each its
/// median in nanoseconds per item.
pub fn interleave<const N: usize>(rounds: usize, slice: Duration, mut cases: [Case<'_>; N]) -> [f64; N] {
    let mut spent: [Vec<f64>; N] = std::array::from_fn(|_| Vec::with_capacity(rounds));
    for round in 0..=rounds {
        for (case, spent) in cases.iter_mut().zip(&mut spent) {
            let figure = case.measure(slice);
            if round > 0 {
                spent.push(figure);
            }
        }
    }
    spent.map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    })
}

/// Prints rows under a head, columns aligned: the first `left` to the left, the others to the right.
pub fn print_table(head: &[&str], left: usize, rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::len);
        cells.chain(head.get(column).map(|cell| cell.len())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    };
    line(&mut head.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}
