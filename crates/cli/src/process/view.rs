//! What a person sees of `process`: a line for each lane, while stderr is a terminal.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval};
use tramline::client::Consumer;
use tramline::processor::{LaneSnapshot, Monitor};
use tramline::wire::TopicPartition;

use crate::child::Paper;
use crate::output;

/// How often the lines are drawn.
const FRAME: Duration = Duration::from_millis(200);

/// The lines of the lanes; nothing when stderr is no terminal.
pub struct View {
    bars: MultiProgress,
    topic: String,
}

impl View {
    /// Lines for the lanes of `topic`.
    pub fn new(topic: &str) -> Self {
        Self { bars: MultiProgress::new(), topic: topic.to_owned() }
    }

    /// Whether there is a terminal to draw on.
    pub fn is_drawn(&self) -> bool {
        !self.bars.is_hidden()
    }

    /// Takes lines of commands and puts them above the bars.
    pub fn paper(&self) -> Paper {
        let bars = self.bars.clone();
        Arc::new(move |line, is_error| {
            bars.suspend(|| {
                // A stream that takes nothing costs the line.
                let _ = if is_error { io::stderr().write_all(line) } else { io::stdout().write_all(line) };
            });
        })
    }

    /// Draws what every lane does, until it is dropped.
    pub async fn draw(&self, monitor: Monitor, consumer: Arc<Consumer>) -> Infallible {
        if !self.is_drawn() {
            return std::future::pending().await;
        }
        let mut frame = interval(FRAME);
        frame.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut lines: BTreeMap<TopicPartition, ProgressBar> = BTreeMap::new();
        let head = self.line(&self.topic);
        loop {
            frame.tick().await;
            let lanes = monitor.snapshot();
            lines.retain(|place, line| {
                let lives = lanes.iter().any(|lane| lane.lane.topic_partition == *place);
                if !lives {
                    self.bars.remove(line);
                }
                lives
            });
            head.set_message(if lanes.is_empty() {
                "waits for partitions".to_owned()
            } else {
                let done = lanes.iter().map(|lane| lane.completed).sum();
                format!("{:>9} done in {}", HumanCount(done).to_string(), output::count(lanes.len(), "lane"))
            });
            for lane in &lanes {
                let place = &lane.lane.topic_partition;
                let line = lines.entry(place.clone()).or_insert_with(|| self.line(&place.to_string()));
                line.set_message(text(lane, behind(lane, &consumer)));
            }
        }
    }

    /// Takes the lines away.
    pub fn clear(&self) {
        // A terminal that cannot be written to keeps them.
        let _ = self.bars.clear();
    }

    fn line(&self, name: &str) -> ProgressBar {
        let line = self.bars.add(ProgressBar::new_spinner());
        let style = ProgressStyle::with_template("{prefix:>14} {msg}");
        line.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        line.set_prefix(name.to_owned());
        line
    }
}

/// How many offsets lie between what is done and the end the last fetch saw.
fn behind(lane: &LaneSnapshot, consumer: &Consumer) -> Option<i64> {
    let place = &lane.lane.topic_partition;
    let position = consumer.position(place)?;
    Some(consumer.lag(place)? + position - lane.frontier.unwrap_or(position))
}

fn text(lane: &LaneSnapshot, behind: Option<i64>) -> String {
    let mut text = format!("{:>9} done", HumanCount(lane.completed).to_string());
    if let Some(frontier) = lane.frontier {
        text += &format!("  up to {frontier}");
    }
    if let Some(behind) = behind.and_then(|behind| u64::try_from(behind).ok()) {
        text += &format!("  {} behind", HumanCount(behind));
    }
    // What a command or a broker said may have lines; the lane has one.
    text + "  " + &lane.waiting_for.to_string().replace(char::is_control, " ")
}
