//! `tramline produce`.

use std::io::Write;

use crate::Shell;
use crate::common::{Serve, signal};
use crate::shell::{run_with, wait};

#[test]
fn each_line_is_a_record_with_exactly_its_bytes() {
    let shell = Shell::new();
    // Empty lines, a carriage return, bytes that are no text, a key that is not asked for, no newline at the end.
    let input = b"one\n\ntwo\r\n\xff\xfe\x00\nkey:three\n\nlast";
    let ended = shell.run(&["produce", "t"], input);
    assert_eq!((ended.code, ended.out.as_str()), (0, "{\"produced\":7,\"failed\":0}\n"), "{}", ended.err);
    assert_eq!(shell.ok(&["consume", "t", "-e"]).bytes, [&input[..], b"\n"].concat());

    let nothing = shell.run(&["produce", "t"], b"");
    assert_eq!((nothing.code, nothing.out.as_str()), (0, "{\"produced\":0,\"failed\":0}\n"));
}

#[test]
fn the_text_before_the_first_separator_is_the_key() {
    let shell = Shell::new();
    shell.produce(&["t", "-k", "=>"], b"a=>1=>2\n=>empty\nnone\n");
    let lines = shell.ok(&["consume", "t", "-e", "--json"]).json();
    let pairs: Vec<_> = lines.iter().map(|line| (line["key"].as_str(), line["value"].as_str())).collect();
    assert_eq!(pairs, [(Some("a"), Some("1=>2")), (Some(""), Some("empty")), (None, Some("none"))]);
}

#[test]
fn every_acknowledgement_can_be_asked_for() {
    let shell = Shell::new();
    for acks in ["none", "written", "forced"] {
        let ended = shell.run(&["produce", "t", "--acks", acks], b"1\n2\n");
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (0, "{\"produced\":2,\"failed\":0}\n"),
            "{acks}: {}",
            ended.err
        );
    }
    assert_eq!(shell.ok(&["consume", "t", "-n", "6"]).out, "1\n2\n1\n2\n1\n2\n");
}

#[test]
fn a_line_too_long_for_a_record_fails_alone_and_is_named() {
    let shell = Shell::new();
    let long = vec![b'x'; 900_000];
    let too_long = vec![b'y'; 3_000_000];
    let input = [b"first\n", &long[..], b"\n", &too_long[..], b"\nlast\n"].concat();
    let ended = shell.run(&["produce", "t"], &input);
    assert_eq!((ended.code, ended.out.as_str()), (1, "{\"produced\":3,\"failed\":1}\n"));
    assert!(ended.err.contains("line 3") && ended.err.contains("at most"), "{}", ended.err);
    assert_eq!(shell.ok(&["consume", "t", "-e"]).bytes, [b"first\n", &long[..], b"\nlast\n"].concat());
}

#[test]
fn a_broker_that_dies_and_comes_back_costs_no_line_and_doubles_none() {
    let mut shell = Shell::new();
    let lines = |range: std::ops::Range<u32>| range.map(|n| format!("{n}\n")).collect::<String>();
    let mut producer = shell.spawn(&["produce", "t"]);
    let mut stdin = producer.stdin.take().unwrap();
    stdin.write_all(lines(0..3000).as_bytes()).unwrap();
    // Some of them are there: the kill meets a producer at work.
    shell.ok(&["consume", "t", "-n", "1"]);
    let killed = shell.kill();
    stdin.write_all(lines(3000..6000).as_bytes()).unwrap();
    shell.is_back(killed.restart());
    drop(stdin);
    let ended = wait(producer);
    assert_eq!((ended.code, ended.out.as_str()), (0, "{\"produced\":6000,\"failed\":0}\n"), "{}", ended.err);
    assert_eq!(shell.ok(&["consume", "t", "-e"]).out, lines(0..6000));
}

#[test]
fn a_topic_that_nobody_makes_is_a_failure_that_comes_soon_and_says_what_to_do() {
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(settings.path(), "auto-create-topics = false\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::start(folder.path(), &["--config", &settings.path().to_string_lossy()]);
    // Less than the two minutes a record is given to arrive: `wait` gives up before.
    let ended = run_with(&["produce", "nope"], b"1\n2\n", Some(&serve.address));
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains("there is no topic nope"), "{}", ended.err);
    assert!(ended.err.contains("tramline topic create"), "{}", ended.err);
}

#[test]
fn the_first_ctrl_c_sends_what_was_read() {
    let shell = Shell::new();
    let mut producer = shell.spawn(&["produce", "t"]);
    let mut stdin = producer.stdin.take().unwrap();
    stdin.write_all(b"1\n2\n").unwrap();
    shell.ok(&["topic", "create", "other"]);
    assert_eq!(shell.ok(&["consume", "t", "-n", "2"]).out, "1\n2\n");
    signal(&producer, "INT");
    let ended = wait(producer);
    assert_eq!((ended.code, ended.out.as_str()), (0, "{\"produced\":2,\"failed\":0}\n"), "{}", ended.err);
}

#[test]
fn a_second_ctrl_c_ends_at_once_with_130() {
    let mut shell = Shell::new();
    let mut producer = shell.spawn(&["produce", "t"]);
    let mut stdin = producer.stdin.take().unwrap();
    stdin.write_all(b"0\n").unwrap();
    shell.produce(&["t"], b"1\n");
    assert_eq!(shell.ok(&["consume", "t", "-n", "2"]).out.lines().count(), 2);
    let _killed = shell.kill();
    // More than a pipe holds: some of it was read, and waits for a broker.
    stdin.write_all(&b"waits for a broker\n".repeat(20_000)).unwrap();
    // Two signals sent together may be one; the process is asked until it goes, and without a broker it only goes by the
    // second it saw.
    while producer.try_wait().unwrap().is_none() {
        signal(&producer, "INT");
        std::thread::yield_now();
    }
    assert_eq!(producer.wait().unwrap().code(), Some(130));
}
