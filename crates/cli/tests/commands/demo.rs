//! `tramline demo` on small inputs.

use std::fmt::Write;

use serde_json::Value;

use crate::Shell;
use crate::shell::{Ended, run, run_with};

const FIELDS: [&str; 13] = [
    "records",
    "keys",
    "lost",
    "order_violations",
    "redelivered",
    "duplicated",
    "acked_forced_lost",
    "broker_kills",
    "member_kills",
    "acked_at_kill",
    "completed_at_kill",
    "seconds",
    "records_per_second",
];

/// A file of flights: columns in another order than the shipped one's, an aircraft that is `NA`, numbers that are.
fn input(rows: u32) -> tempfile::NamedTempFile {
    let mut text = String::from("dest,arr_delay,tailnum,distance\n");
    for row in 0..rows {
        let aircraft = if row % 9 == 8 { "NA".to_owned() } else { format!("N{}", row % 7) };
        let delay = if row % 5 == 4 { "NA".to_owned() } else { (i64::from(row) - 20).to_string() };
        writeln!(text, "\"A, {row}\",{delay},{aircraft},{}", 100 + row).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Checks the proof: fields in their order, zeros where zeros must be.
fn proof(ended: &Ended, rows: u64) -> Value {
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    let line = ended.out.lines().last().unwrap();
    let mut from = 0;
    for field in FIELDS {
        let name = format!("\"{field}\":");
        from += line[from..].find(&name).unwrap_or_else(|| panic!("{field} is not in its place: {line}"));
    }
    let value: Value = serde_json::from_str(line).unwrap();
    assert_eq!(value.as_object().unwrap().len(), FIELDS.len(), "{line}");
    assert_eq!(value["records"], rows, "{line}");
    for zero in ["lost", "order_violations", "duplicated", "acked_forced_lost"] {
        assert_eq!(value[zero], 0, "{line}");
    }
    assert_eq!(ended.out.lines().count(), 1, "stdout carries the proof alone: {}", ended.out);
    value
}

#[test]
fn the_proof_is_the_last_line_and_holds_across_the_kills() {
    let input = input(300);
    let ended = run(&["demo", "--json", "--input", &input.path().to_string_lossy()], b"");
    let value = proof(&ended, 300);
    assert_eq!(
        (&value["keys"], &value["broker_kills"], &value["member_kills"]),
        (&8.into(), &1.into(), &1.into())
    );
    let share = |field: &str| value[field].as_u64().unwrap() * 100 / 300;
    assert!((30..=70).contains(&share("acked_at_kill")), "{value}");
    assert!(share("completed_at_kill") >= 20, "{value}");
}

#[test]
fn inputs_too_small_for_a_run_under_way_are_proved_all_the_same() {
    for rows in [1, 10] {
        let input = input(rows);
        // An address in the environment is for the other commands: the demo has a broker of its own.
        let arguments = ["demo", "--json", "--input", &input.path().to_string_lossy()];
        proof(&run_with(&arguments, b"", Some("127.0.0.1:1")), u64::from(rows));
    }
}

#[test]
fn a_cluster_named_on_the_command_line_is_used_and_its_broker_left_alive() {
    let shell = Shell::new();
    let input = input(20);
    let path = input.path().to_string_lossy();
    let ended = run(&["-b", shell.address(), "demo", "--json", "--input", &path], b"");
    let value = proof(&ended, 20);
    assert_eq!((&value["broker_kills"], &value["member_kills"]), (&0.into(), &1.into()));
    assert_eq!(shell.ok(&["consume", "flights", "-e"]).out.lines().count(), 20);

    let again = run(&["-b", shell.address(), "demo", "--json", "--input", &path], b"");
    assert_eq!((again.code, again.out.as_str()), (1, ""));
    assert!(again.err.contains("tramline topic delete"), "{}", again.err);
}

#[test]
fn an_input_that_is_not_of_that_shape_ends_with_1_and_says_what_is_missing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_string_lossy();
    for (text, says) in [
        ("a,b\n1,2\n", "tailnum"),
        ("tailnum,distance,arr_delay\n", "no data rows"),
        ("", "tailnum"),
        ("tailnum,distance,arr_delay\nN1,far,1\n", "distance"),
        ("tailnum,distance,arr_delay\nN1,1\n", "fields"),
    ] {
        std::fs::write(file.path(), text).unwrap();
        let ended = run(&["demo", "--input", &path], b"");
        assert_eq!((ended.code, ended.out.as_str()), (1, ""), "{text}");
        assert!(ended.err.contains(says), "{text}: {}", ended.err);
    }
    assert_eq!(run(&["demo", "--input", "/no/such.csv"], b"").code, 1);
}
