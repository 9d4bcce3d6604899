//! One timed run of a workload, and the runs of several rounds.

use std::time::Duration;

use crate::served::Counters;

/// What one run did.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Records that were written or read.
    pub records: u64,
    /// From the first call to the last answer.
    pub wall: Duration,
    /// Processor seconds of this process.
    pub client_cpu: f64,
    /// Processor seconds of the broker's process.
    pub broker_cpu: f64,
    /// What the broker counted meanwhile.
    pub counted: Counters,
    /// How long each awaited record took, in any order; empty where none was awaited one by one.
    pub latencies: Vec<Duration>,
}

impl Sample {
    /// Records per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.records as f64 / self.wall.as_secs_f64()
    }

    fn per_million(&self, cpu: f64) -> f64 {
        cpu * 1e6 / self.records as f64
    }
}

/// The runs of one workload, a run per round.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<Sample>);

impl Series {
    /// Adds the run of a round.
    pub fn push(&mut self, mut sample: Sample) {
        sample.latencies.sort();
        self.0.push(sample);
    }

    /// The run whose rate is the median; what a table shows of a series is of this one run.
    #[must_use]
    pub fn median(&self) -> Sample {
        let mut runs: Vec<&Sample> = self.0.iter().collect();
        runs.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
        runs.get(runs.len() / 2).map_or_else(Sample::default, |run| (*run).clone())
    }

    /// The median rate, and the lowest and the highest.
    #[must_use]
    pub fn rates(&self) -> [String; 2] {
        let rates = self.0.iter().map(Sample::rate);
        let (low, high) =
            rates.fold((f64::MAX, 0.0_f64), |(low, high), rate| (low.min(rate), high.max(rate)));
        [count(self.median().rate()), format!("{}-{}", count(low), count(high))]
    }

    /// Median and 99th percentile of the awaited records, in milliseconds.
    #[must_use]
    pub fn percentiles(&self) -> [String; 2] {
        let latencies = self.median().latencies;
        [0.5, 0.99].map(|part| {
            let place = (latencies.len() as f64 * part) as usize;
            latencies.get(place).map_or("-".to_owned(), |spent| format!("{:.2}", spent.as_secs_f64() * 1e3))
        })
    }

    /// Processor seconds per million records: this process and the broker.
    #[must_use]
    pub fn cpu(&self) -> [String; 2] {
        let run = self.median();
        [run.client_cpu, run.broker_cpu].map(|cpu| format!("{:.2}", run.per_million(cpu)))
    }
}

/// A count or rate with thousands marked.
fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
