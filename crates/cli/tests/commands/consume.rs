//! `tramline consume`.

use std::io::{BufRead, BufReader};

use crate::Shell;
use crate::common::signal;
use crate::shell::wait;

#[test]
fn json_lines_have_the_fields_of_a_record_in_order() {
    let shell = Shell::new();
    shell.produce(&["t", "-k", ":"], b"k:text\n\xffk:\xff\xfe\nnull key\n");
    let ended = shell.ok(&["consume", "t", "-e", "--json"]);
    let stamped: Vec<String> = ended
        .json()
        .iter()
        .zip(ended.out.lines())
        .map(|(value, line)| {
            assert!(value["timestamp"].as_i64().unwrap() > 1_600_000_000_000);
            line.replace(&format!("\"timestamp\":{}", value["timestamp"]), "\"timestamp\":0")
        })
        .collect();
    let expected = [
        r#"{"topic":"t","partition":0,"offset":0,"timestamp":0,"key":"k","value":"text","headers":[]}"#,
        r#"{"topic":"t","partition":0,"offset":1,"timestamp":0,"key":{"base64":"/2s="},"value":{"base64":"//4="},"headers":[]}"#,
        r#"{"topic":"t","partition":0,"offset":2,"timestamp":0,"key":null,"value":"null key","headers":[]}"#,
    ];
    assert_eq!(stamped, expected);
    assert_eq!(shell.ok(&["consume", "t", "-n", "1", "-k", " = "]).out, "k = text\n");
}

#[test]
fn it_starts_and_ends_where_it_is_told() {
    let shell = Shell::new();
    shell.produce(&["t"], b"0\n1\n2\n3\n4\n");
    let lines: [(&[&str], &str); 8] = [
        (&["-e"], "0\n1\n2\n3\n4\n"),
        (&["-n", "2"], "0\n1\n"),
        (&["--from", "3", "-e"], "3\n4\n"),
        (&["--from", "1", "-n", "2"], "1\n2\n"),
        (&["--from", "end", "-e"], ""),
        (&["--from", "5", "-e"], ""),
        (&["-n", "9", "-e"], "0\n1\n2\n3\n4\n"),
        (&["-n", "0"], ""),
    ];
    for (arguments, expected) in lines {
        assert_eq!(shell.ok(&[&["consume", "t"], arguments].concat()).out, expected, "{arguments:?}");
    }
    shell.ok(&["topic", "create", "empty", "-p", "3"]);
    assert_eq!(shell.ok(&["consume", "empty", "-e"]).out, "");
}

#[test]
fn a_place_or_a_topic_that_is_not_there_ends_with_1_and_the_next_step() {
    let shell = Shell::new();
    shell.produce(&["t"], b"0\n");
    for (arguments, says) in [
        (&["consume", "nope", "-e"][..], "tramline topic list"),
        (&["consume", "nope", "-g", "g"], "tramline topic list"),
        (&["consume", "t", "--from", "7"], "tramline topic describe"),
        (&["consume", "t", "-g", "g", "--from", "7"], "tramline group reset g --topic t"),
    ] {
        let ended = shell.run(arguments, b"");
        assert_eq!((ended.code, ended.out.as_str()), (1, ""), "{arguments:?}");
        assert!(ended.err.contains(says), "{arguments:?}: {}", ended.err);
    }
    let topics = shell.ok(&["topic", "list", "--json"]);
    assert_eq!(topics.json().len(), 1, "asking for a topic does not make it: {}", topics.out);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let shell = Shell::new();
    let input: String = (0..50_000).map(|n| format!("line {n}\n")).collect();
    shell.produce(&["t"], input.as_bytes());
    for extra in [&[][..], &["--json"], &["-g", "g"]] {
        let mut consumer = shell.spawn(&[&["consume", "t"], extra].concat());
        let mut out = BufReader::new(consumer.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(line.contains("line 0"), "{line}");
        drop(out);
        let ended = wait(consumer);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{extra:?}");
    }
}

#[test]
fn new_records_are_printed_as_they_come_until_a_signal() {
    let shell = Shell::new();
    shell.produce(&["t"], b"old\n");
    for name in ["INT", "TERM"] {
        let mut consumer = shell.spawn(&["consume", "t"]);
        let mut out = BufReader::new(consumer.stdout.take().unwrap());
        let mut next = || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line
        };
        assert_eq!(next(), "old\n");
        if name == "INT" {
            shell.produce(&["t"], b"new\n");
        }
        assert_eq!(next(), "new\n");
        signal(&consumer, name);
        assert_eq!(wait(consumer).code, 0, "{name}");
    }
}
