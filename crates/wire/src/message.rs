//! What every message can do, and the macro that ties a generated struct to it.

use std::fmt::Debug;

pub(crate) use bytes::Bytes;

use crate::api_key::ApiKey;
use crate::primitives::Frame;
pub(crate) use crate::primitives::{DecodeError, EncodeError, Reader, Tags, Writer};
pub(crate) use crate::{Str, Uuid};

/// A message of the protocol, in all of its versions at once.
pub trait Message: Sized + Default + Clone + Debug + PartialEq + Send + Sync + 'static {
    /// The name in Kafka's schema.
    const NAME: &'static str;
    /// The lowest version that can be read and written.
    const MIN_VERSION: i16;
    /// The highest version that can be read and written.
    const MAX_VERSION: i16;

    /// Reads the message in this version. Bytes behind it stay in the reader.
    ///
    /// # Errors
    /// The bytes are not this message, or it has no such version.
    fn decode(buf: &mut Reader, version: i16) -> Result<Self, DecodeError>;

    /// Writes the message in this version.
    ///
    /// # Errors
    /// The version does not exist or cannot carry what the message holds.
    fn encode(&self, out: &mut Writer, version: i16) -> Result<(), EncodeError>;
}

/// A message that a client sends.
pub trait Request: Message {
    /// The API.
    const KEY: ApiKey;
    /// What the broker answers, in the same version.
    type Response: Message;
}

/// A struct inside of a message, without a check of the version.
pub(crate) trait Wire: Sized {
    /// The fewest bytes it takes in any version.
    const MIN_SIZE: usize;

    fn read(r: &mut Reader, version: i16) -> Result<Self, DecodeError>;

    fn write(&self, w: &mut Writer, version: i16) -> Result<(), EncodeError>;
}

macro_rules! message {
    ($name:ident, $first:literal ..= $last:literal $(request $key:ident -> $response:path)?) => {
        impl Message for $name {
            const NAME: &'static str = stringify!($name);
            const MIN_VERSION: i16 = $first;
            const MAX_VERSION: i16 = $last;

            fn decode(buf: &mut Reader, version: i16) -> Result<Self, DecodeError> {
                match version {
                    $first..=$last => Self::read(buf, version),
                    _ => Err(DecodeError::Version { message: Self::NAME, version }),
                }
            }

            fn encode(&self, out: &mut Writer, version: i16) -> Result<(), EncodeError> {
                match version {
                    $first..=$last => self.write(out, version),
                    _ => Err(EncodeError::Version { message: Self::NAME, version }),
                }
            }
        }

        $(
            impl Request for $name {
                const KEY: crate::ApiKey = crate::ApiKey::$key;
                type Response = $response;
            }
        )?
    };
}

pub(crate) use message;

type Described = Result<Box<dyn Debug>, DecodeError>;
type Recoded = Result<Result<Frame, EncodeError>, DecodeError>;

/// A message type as a value, for tools that handle all messages alike.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// The name in Kafka's schema.
    pub name: &'static str,
    /// The lowest version that can be read and written.
    pub min_version: i16,
    /// The highest version that can be read and written.
    pub max_version: i16,
    describe: fn(&mut Reader, i16) -> Described,
    recode: fn(&mut Reader, i16) -> Recoded,
    blank: fn(i16) -> Result<Frame, EncodeError>,
}

impl Schema {
    /// The type `M` as a value.
    #[must_use]
    pub const fn of<M: Message>() -> Self {
        Self {
            name: M::NAME,
            min_version: M::MIN_VERSION,
            max_version: M::MAX_VERSION,
            describe: |reader, version| Ok(Box::new(M::decode(reader, version)?)),
            recode: |reader, version| {
                let message = M::decode(reader, version)?;
                let mut out = Writer::new();
                Ok(message.encode(&mut out, version).map(|()| out.finish()))
            },
            blank: |version| {
                let mut out = Writer::new();
                M::default().encode(&mut out, version)?;
                Ok(out.finish())
            },
        }
    }

    /// Reads the message and gives it as something that can be printed.
    ///
    /// # Errors
    /// As [`Message::decode`].
    pub fn describe(&self, buf: &mut Reader, version: i16) -> Result<Box<dyn Debug>, DecodeError> {
        (self.describe)(buf, version)
    }

    /// Reads the message and writes it again.
    ///
    /// # Errors
    /// As [`Message::decode`]; inside as [`Message::encode`].
    pub fn recode(&self, buf: &mut Reader, version: i16) -> Result<Result<Frame, EncodeError>, DecodeError> {
        (self.recode)(buf, version)
    }

    /// The bytes of a message with nothing but defaults.
    ///
    /// # Errors
    /// As [`Message::encode`].
    pub fn blank(&self, version: i16) -> Result<Frame, EncodeError> {
        (self.blank)(version)
    }
}

#[cfg(test)]
mod tests;
