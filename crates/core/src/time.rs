//! Time as an argument: monotonic instants for deadlines, wall-clock milliseconds for what is written down.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point on the driver's monotonic clock, counted from a start only the driver knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The start of the driver's clock.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The instant `since_start` after the start of the driver's clock.
    #[must_use]
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// How long after the start of the driver's clock this is.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this instant; zero when `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(after))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

/// Wall-clock milliseconds since 1970, as records and commits carry them.
pub type Timestamp = i64;
