//! The rules of the accumulator, one test each, on virtual time.
