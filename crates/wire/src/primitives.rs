//! Reading and writing the protocol's primitive types, with every length checked before it is believed.

mod reader;
#[cfg(test)]
pub(crate) mod sampler;
mod writer;

pub use reader::{DecodeError, Reader};
pub use writer::{EncodeError, Frame, Tags, Writer};

/// The longest string the protocol carries, in bytes, in either form of the length.
const MAX_STRING: usize = i16::MAX as usize;
