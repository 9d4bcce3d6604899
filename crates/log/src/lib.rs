//! The durable partition log behind one small storage trait.
