//! What a person sees of the demo: bars and lanes while it runs, a table at the end.

use std::time::Duration;

use anyhow::Result;
use comfy_table::Table;
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressStyle};

use super::follow::Follow;
use super::verify::Report;
use crate::output;

/// Progress on stderr when that is a terminal, nothing otherwise.
pub struct View {
    bars: MultiProgress,
    acked: ProgressBar,
    completed: ProgressBar,
    lanes: Vec<ProgressBar>,
}

impl View {
    /// Bars for `records` events over `partitions` lanes.
    pub fn new(records: u64, partitions: usize) -> Self {
        let bars = MultiProgress::new();
        let bar = |name: &'static str| {
            let bar = bars.add(ProgressBar::new(records));
            bar.set_style(style("{prefix:>10} {bar:36.cyan/dim} {human_pos:>9} / {human_len} {msg}"));
            bar.set_prefix(name);
            bar
        };
        let (acked, completed) = (bar("acked"), bar("completed"));
        let lane = |partition: usize| {
            let lane = bars.add(ProgressBar::new_spinner());
            lane.set_style(style("{prefix:>10} {msg}"));
            lane.set_prefix(format!("lane {partition}"));
            lane
        };
        let lanes = (0..partitions).map(lane).collect();
        Self { bars, acked, completed, lanes }
    }

    /// A line above the bars.
    pub fn say(&self, text: &str) {
        if self.bars.is_hidden() {
            // Bars that are not drawn swallow the line, and it may be the only word on what went wrong.
            output::note(text);
        } else {
            // A terminal that cannot be written to costs nothing but the line.
            let _ = self.bars.println(text);
        }
    }

    /// Draws how far everything is.
    pub fn show(&self, acked: u64, follow: &Follow) {
        self.acked.set_position(acked);
        self.completed.set_position(follow.completed());
        let seen = follow.seen();
        for (bar, lane) in self.lanes.iter().zip(&seen.lanes) {
            let text = if lane.member.is_empty() {
                "waiting for its first record".to_owned()
            } else {
                let done = HumanCount(lane.completed);
                format!(
                    "{:<9} generation {:<3} {done:>9} done, at offset {}",
                    lane.member, lane.generation, lane.offset
                )
            };
            bar.set_message(text);
        }
    }

    /// Takes the bars away.
    pub fn clear(&self) {
        // As in `say`.
        let _ = self.bars.clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A bar that only turns, with a text, for work without a known length.
pub fn spinner(text: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(text);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// The report as a table with a verdict a person can read.
pub fn print_report(report: &Report) -> Result<()> {
    let must_be_zero = [
        ("lost", report.lost, "events without a result"),
        ("order violations", report.order_violations, "first completions of an aircraft out of input order"),
        ("duplicated", report.duplicated, "events stored more than once"),
        ("acked, then lost", report.acked_forced_lost, "acknowledged places that do not hold their event"),
        ("wrong totals", report.wrong_totals, "aircraft whose totals differ from the file's"),
    ];
    let mut proof: Table = output::table(&["proof", "count", "", "what it counts"], &[1]);
    for (name, count, meaning) in must_be_zero {
        let verdict = if count == 0 { "ok" } else { "WRONG" };
        proof.add_row([
            name.to_owned(),
            HumanCount(count).to_string(),
            verdict.to_owned(),
            meaning.to_owned(),
        ]);
    }
    let redelivered = HumanCount(report.redelivered).to_string();
    proof.add_row([
        "redelivered",
        &redelivered,
        "",
        "events done again after the kill; not committed yet when it came",
    ]);

    let mut run: Table = output::table(&["run", ""], &[1]);
    let count = |number: u64| HumanCount(number).to_string();
    run.add_row(["events".to_owned(), count(report.records)]);
    run.add_row(["aircraft".to_owned(), count(report.keys)]);
    run.add_row(["brokers killed".to_owned(), report.broker_kills.to_string()]);
    run.add_row(["members killed".to_owned(), report.member_kills.to_string()]);
    run.add_row(["acknowledged at the kill".to_owned(), count(report.acked_at_kill)]);
    run.add_row(["completed at the kill".to_owned(), count(report.completed_at_kill)]);
    run.add_row(["seconds".to_owned(), format!("{:.1}", report.seconds)]);
    run.add_row(["events per second".to_owned(), count(report.records_per_second as u64)]);

    output::print_table(&run)?;
    output::line("")?;
    output::print_table(&proof)?;
    output::line("")?;
    output::line(if report.holds() {
        "Nothing lost, nothing doubled, every aircraft in order."
    } else {
        "The proof does not hold: see the lines marked WRONG."
    })?;
    Ok(())
}
