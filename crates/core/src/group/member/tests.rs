//! Tests of the member.
