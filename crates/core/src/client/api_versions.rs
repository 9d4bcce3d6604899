//! Which version of each request to speak on a connection: the highest that both ends know.
//!
//! The first request on every connection is ApiVersions in our newest version. A broker that does not know that
//! version answers error 35 in the shape of version 0, perhaps with the range it knows; some brokers close instead.
//! [`Handshake`] walks down until it is understood.

use alloc::collections::BTreeMap;

/// Inclusive versions of one API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest version.
    pub min: i16,
    /// The newest version.
    pub max: i16,
}

impl VersionRange {
    /// The versions from `min` to `max`.
    #[must_use]
    pub const fn new(min: i16, max: i16) -> Self {
        Self { min, max }
    }
}

/// There is no version of this API that both ends speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the broker does not speak API {key} in versions {} to {}", ours.min, ours.max)]
pub struct UnsupportedApi {
    /// The number of the API.
    pub key: i16,
    /// What we speak.
    pub ours: VersionRange,
    /// What the broker speaks, if it has the API at all.
    pub theirs: Option<VersionRange>,
}

/// What the broker at the other end speaks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiVersions {
    theirs: BTreeMap<i16, VersionRange>,
}

impl ApiVersions {
    /// What a broker advertised: (API, oldest, newest).
    pub fn new(advertised: impl IntoIterator<Item = (i16, i16, i16)>) -> Self {
        Self {
            theirs: advertised.into_iter().map(|(key, min, max)| (key, VersionRange { min, max })).collect(),
        }
    }

    /// The newest version of `key` that both ends speak.
    ///
    /// # Errors
    /// When there is none.
    pub fn negotiate(&self, key: i16, ours: VersionRange) -> Result<i16, UnsupportedApi> {
        let theirs = self.theirs.get(&key).copied();
        let refused = UnsupportedApi { key, ours, theirs };
        let range = theirs.ok_or(refused)?;
        let version = range.max.min(ours.max);
        if version >= range.min && version >= ours.min { Ok(version) } else { Err(refused) }
    }
}

/// The number of the ApiVersions API.
pub const API_VERSIONS_KEY: i16 = 18;
const UNSUPPORTED_VERSION: i16 = 35;

/// What follows an ApiVersions answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Both ends know each other.
    Done(ApiVersions),
    /// Ask again in this version.
    Ask(i16),
    /// The broker refused for good, with this error code.
    Refused(i16),
}

/// The conversation that finds out what a broker speaks.
#[derive(Debug, Clone)]
pub struct Handshake {
    version: i16,
}

impl Handshake {
    /// Starts with our newest version of ApiVersions.
    #[must_use]
    pub const fn new(newest: i16) -> Self {
        Self { version: newest }
    }

    /// The version to ask in.
    #[must_use]
    pub const fn version(&self) -> i16 {
        self.version
    }

    /// An answer arrived. An answer with error 35 has the shape of version 0, whatever was asked.
    pub fn handle_answer(
        &mut self,
        error_code: i16,
        advertised: impl IntoIterator<Item = (i16, i16, i16)>,
    ) -> Step {
        let versions = ApiVersions::new(advertised);
        match error_code {
            0 => Step::Done(versions),
            UNSUPPORTED_VERSION if self.version > 0 => {
                let known = versions.theirs.get(&API_VERSIONS_KEY).map_or(0, |range| range.max);
                self.version = known.clamp(0, self.version - 1);
                Step::Ask(self.version)
            }
            code => Step::Refused(code),
        }
    }

    /// The broker closed instead of answering: the version to try on a fresh connection, if an older one is left.
    pub fn handle_closed(&mut self) -> Option<i16> {
        let older = match self.version {
            4.. => 3,
            1..=3 => 0,
            _ => return None,
        };
        self.version = older;
        Some(older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        let broker = ApiVersions::new([(0, 0, 11), (1, 4, 16), (3, 9, 12)]);
        assert_eq!(broker.negotiate(0, VersionRange::new(3, 13)), Ok(11));
        assert_eq!(broker.negotiate(1, VersionRange::new(4, 12)), Ok(12));
        assert!(broker.negotiate(3, VersionRange::new(0, 8)).is_err(), "ours are all too old");
        assert!(broker.negotiate(0, VersionRange::new(12, 13)).is_err(), "ours are all too new");
        assert_eq!(broker.negotiate(68, VersionRange::new(0, 1)).unwrap_err().theirs, None);
    }

    #[test]
    fn error_35_is_answered_with_the_version_the_broker_names() {
        let mut handshake = Handshake::new(4);
        assert_eq!(handshake.handle_answer(35, [(18, 0, 2)]), Step::Ask(2));
        let done = handshake.handle_answer(0, [(18, 0, 2), (0, 0, 7)]);
        assert_eq!(done, Step::Done(ApiVersions::new([(18, 0, 2), (0, 0, 7)])));
    }

    #[test]
    fn error_35_without_a_range_falls_back_to_version_0_and_ends_there() {
        let mut handshake = Handshake::new(4);
        assert_eq!(handshake.handle_answer(35, []), Step::Ask(0));
        assert_eq!(handshake.handle_answer(35, []), Step::Refused(35));
    }

    #[test]
    fn a_broker_that_names_an_impossible_range_cannot_make_us_loop() {
        let mut handshake = Handshake::new(4);
        for _ in 0..4 {
            handshake.handle_answer(35, [(18, 0, 99)]);
        }
        assert_eq!(handshake.handle_answer(35, [(18, 0, 99)]), Step::Refused(35));
    }

    #[test]
    fn a_broker_that_closes_on_a_newer_version_is_asked_in_older_ones() {
        let mut handshake = Handshake::new(4);
        assert_eq!(handshake.handle_closed(), Some(3));
        assert_eq!(handshake.handle_closed(), Some(0));
        assert_eq!(handshake.handle_closed(), None);
    }
}
