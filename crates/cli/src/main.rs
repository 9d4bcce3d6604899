//! The `tramline` command.

fn main() {}
