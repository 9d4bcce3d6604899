//! Both ends of a group in memory, with jumping time: for tests.
