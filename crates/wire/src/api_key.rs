//! The APIs of the protocol by number and name.

use std::fmt;

macro_rules! api_keys {
    ($($number:literal $name:ident $flexible:expr;)*) => {
        /// An API of the protocol. Knowing its name does not mean that its messages are in this crate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        #[non_exhaustive]
        pub enum ApiKey {
            $(
                #[doc = concat!("API key ", stringify!($number), ".")]
                $name = $number,
            )*
        }

        impl ApiKey {
            /// Every API, by ascending number.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name in Kafka's schema.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The first version with compact lengths and tagged fields; `i16::MAX` when no version has them.
            #[must_use]
            pub const fn flexible_from(self) -> i16 {
                match self {
                    $(Self::$name => $flexible,)*
                }
            }
        }

        impl TryFrom<i16> for ApiKey {
            type Error = crate::DecodeError;

            fn try_from(key: i16) -> Result<Self, Self::Error> {
                match key {
                    $($number => Ok(Self::$name),)*
                    _ => Err(crate::DecodeError::UnknownApiKey(key)),
                }
            }
        }
    };
}

pub(crate) use api_keys;

pub use crate::messages::api_keys::ApiKey;

impl ApiKey {
    /// The version of the header in front of a request of this version.
    #[must_use]
    pub const fn request_header_version(self, version: i16) -> i16 {
        if version >= self.flexible_from() { 2 } else { 1 }
    }

    /// The version of the header in front of a response of this version. The answer to `ApiVersions` always has the
    /// oldest header, since its reader does not know yet what the broker speaks.
    #[must_use]
    pub const fn response_header_version(self, version: i16) -> i16 {
        match self {
            Self::ApiVersions => 0,
            _ if version >= self.flexible_from() => 1,
            _ => 0,
        }
    }
}

impl From<ApiKey> for i16 {
    fn from(key: ApiKey) -> Self {
        key as i16
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_gives_its_key_and_the_others_are_refused() {
        for key in i16::MIN..=i16::MAX {
            match ApiKey::try_from(key) {
                Ok(found) => assert_eq!(found as i16, key),
                Err(error) => assert_eq!(error, crate::DecodeError::UnknownApiKey(key)),
            }
        }
        assert_eq!(ApiKey::ALL.len(), 95);
        assert_eq!(ApiKey::StreamsGroupDescribe as i16, 89);
        assert_eq!(ApiKey::OffsetForLeaderEpoch.to_string(), "OffsetForLeaderEpoch");
    }

    #[test]
    fn the_answer_to_api_versions_always_has_the_oldest_header() {
        for version in 0..=5 {
            assert_eq!(ApiKey::ApiVersions.response_header_version(version), 0);
        }
        assert_eq!(ApiKey::ApiVersions.request_header_version(2), 1);
        assert_eq!(ApiKey::ApiVersions.request_header_version(3), 2);
        assert_eq!(ApiKey::Produce.request_header_version(8), 1);
        assert_eq!(ApiKey::Produce.response_header_version(8), 0);
        assert_eq!(ApiKey::Produce.response_header_version(9), 1);
        assert_eq!(ApiKey::SaslHandshake.request_header_version(1), 1);
        assert_eq!(ApiKey::OffsetDelete.response_header_version(0), 0);
    }
}
