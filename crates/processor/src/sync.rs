//! The locks of code that threads share, in one place: tests compile the same code over locks that try out orders.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::AtomicBool;

pub(crate) use crate::lane::lock;
