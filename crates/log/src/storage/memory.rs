//! Storage in memory with a live and a durable image (body follows).

/// A file system in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage;
