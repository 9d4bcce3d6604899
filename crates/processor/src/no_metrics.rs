//! What stands for [`metrics`](crate) without the feature of that name: nothing is published.

use std::time::Duration;

use tramline_core::lanes::StopReason;
use tramline_wire::TopicPartition;

use crate::monitor::Registry;
use std::sync::Arc;

pub(crate) struct LaneMetrics;

impl LaneMetrics {
    pub(crate) const fn handled(&self, _: Duration, _: u32) {}
}

pub(crate) struct RunMetrics;

impl RunMetrics {
    pub(crate) const fn new(_: Option<&str>) -> Self {
        Self
    }

    pub(crate) const fn lane(&mut self, _: &TopicPartition) -> LaneMetrics {
        LaneMetrics
    }

    pub(crate) const fn publish(&mut self, _: &Arc<Registry>) {}

    pub(crate) const fn stopped(&self, _: StopReason, _: Duration) {}

    pub(crate) const fn released(&self, _: Duration) {}
}
