//! `tramline group`, and `tramline consume -g`.

use std::io::{BufRead, BufReader};

use serde_json::json;

use crate::Shell;
use crate::common::signal;
use crate::shell::wait;

/// What the group has committed in partition 0 of `t`.
fn committed(shell: &Shell, group: &str) -> Option<i64> {
    shell.ok(&["group", "describe", group, "--json"]).json()[0]["committed"].as_i64()
}

#[test]
fn a_group_goes_on_after_what_was_printed() {
    let shell = Shell::new();
    shell.produce(&["t"], b"0\n1\n2\n3\n4\n5\n6\n7\n");
    assert_eq!(shell.ok(&["consume", "t", "-g", "g", "-n", "3"]).out, "0\n1\n2\n");
    assert_eq!(committed(&shell, "g"), Some(3), "one more was fetched, none was committed unprinted");
    assert_eq!(shell.ok(&["consume", "t", "-g", "g", "-n", "1"]).out, "3\n");
    assert_eq!(shell.ok(&["consume", "t", "-g", "g", "-e"]).out, "4\n5\n6\n7\n");
    assert_eq!(shell.ok(&["consume", "t", "-g", "g", "-e"]).out, "");
    assert_eq!(shell.ok(&["consume", "t", "-g", "other", "--from", "end", "-e"]).out, "");
    assert_eq!(shell.ok(&["consume", "t", "-g", "third", "-e"]).out.lines().count(), 8);
}

#[test]
fn a_signal_commits_what_was_printed_and_a_kill_of_the_broker_forgets_no_commit() {
    let mut shell = Shell::new();
    shell.produce(&["t"], b"0\n1\n");
    let mut consumer = shell.spawn(&["consume", "t", "-g", "g"]);
    let mut out = BufReader::new(consumer.stdout.take().unwrap());
    for expected in ["0\n", "1\n"] {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, expected);
    }
    signal(&consumer, "TERM");
    assert_eq!(wait(consumer).code, 0);
    assert_eq!(committed(&shell, "g"), Some(2));
    let killed = shell.kill();
    shell.is_back(killed.restart());
    assert_eq!(committed(&shell, "g"), Some(2));
}

#[test]
fn groups_are_listed_described_and_deleted() {
    let shell = Shell::new();
    let none = shell.ok(&["group", "list"]);
    assert!(none.out.is_empty() && none.err.contains("tramline consume TOPIC -g GROUP"), "{}", none.err);
    shell.produce(&["t"], b"0\n1\n2\n");
    shell.ok(&["consume", "t", "-g", "g", "-n", "1"]);

    let listed = shell.ok(&["group", "list", "--json"]).out;
    assert_eq!(listed, "{\"group\":\"g\",\"state\":\"Empty\",\"type\":\"consumer\"}\n");
    assert!(shell.ok(&["group", "list"]).out.starts_with("GROUP  STATE  TYPE\n"));
    let described = shell.ok(&["group", "describe", "g", "--json"]).out;
    let expected = r#"{"group":"g","state":"Empty","topic":"t","partition":0,"committed":1,"end":3,"lag":2,"member":null,"client":null,"host":null}"#;
    assert_eq!(described.trim_end(), expected);
    let described = shell.ok(&["group", "describe", "g"]).out;
    assert!(described.starts_with("g: Empty, 0 members\n"), "{described}");

    assert_eq!(
        shell.ok(&["group", "delete", "g", "--json"]).json(),
        [json!({"group": "g", "deleted": true})]
    );
    for command in ["describe", "delete"] {
        let gone = shell.run(&["group", command, "g"], b"");
        assert_eq!(gone.code, 1, "{command}");
        assert!(gone.err.contains("tramline group list"), "{command}: {}", gone.err);
    }
}

#[test]
fn a_reset_moves_to_start_end_offset_and_time() {
    let shell = Shell::new();
    shell.produce(&["t"], b"0\n1\n2\n3\n");
    shell.ok(&["consume", "t", "-g", "g", "-e"]);
    for (to, offset) in [
        ("start", 0),
        ("end", 4),
        ("2", 2),
        ("99", 4),
        ("1970-01-01T00:00:00Z", 0),
        ("2200-01-01T00:00:00Z", 4),
    ] {
        let moved = shell.ok(&["group", "reset", "g", "--topic", "t", "--to", to, "--json"]);
        let expected = json!({"group": "g", "topic": "t", "partition": 0, "committed": offset});
        assert_eq!(moved.json(), [expected], "{to}");
        assert_eq!(committed(&shell, "g"), Some(offset), "{to}");
    }
    shell.ok(&["group", "reset", "g", "--topic", "t", "--to", "3"]);
    assert_eq!(shell.ok(&["consume", "t", "-g", "g", "-e"]).out, "3\n");
    // A group may be given a place before its first member comes.
    shell.ok(&["group", "reset", "new", "--topic", "t", "--to", "1"]);
    assert_eq!(shell.ok(&["consume", "t", "-g", "new", "-e"]).out, "1\n2\n3\n");
    let nowhere = shell.run(&["group", "reset", "g", "--topic", "nope", "--to", "start"], b"");
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.err.contains("tramline topic list"), "{}", nowhere.err);
}

#[test]
fn reset_and_delete_are_refused_while_members_live() {
    let shell = Shell::new();
    shell.produce(&["t"], b"0\n1\n");
    let mut consumer = shell.spawn(&["consume", "t", "-g", "g"]);
    let mut line = String::new();
    BufReader::new(consumer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let described = &shell.ok(&["group", "describe", "g", "--json"]).json()[0];
    assert_eq!((&described["state"], &described["client"]), (&json!("Stable"), &json!("tramline-cli")));
    assert!(described["member"].is_string() && described["host"].is_string(), "{described}");
    for arguments in
        [&["group", "reset", "g", "--topic", "t", "--to", "start"][..], &["group", "delete", "g"]]
    {
        let refused = shell.run(arguments, b"");
        assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{arguments:?}");
        assert!(refused.err.contains("stop"), "{arguments:?}: {}", refused.err);
    }
    signal(&consumer, "INT");
    assert_eq!(wait(consumer).code, 0);
    shell.ok(&["group", "reset", "g", "--topic", "t", "--to", "start"]);
    assert_eq!(committed(&shell, "g"), Some(0));
}

#[test]
fn two_members_share_the_partitions_and_print_each_record_once() {
    let shell = Shell::new();
    shell.ok(&["topic", "create", "t", "-p", "4"]);
    let mut consumers = [(); 2].map(|()| shell.spawn(&["consume", "t", "-g", "g"]));
    let outs = [0, 1].map(|n| BufReader::new(consumers[n].stdout.take().unwrap()));
    let (line, lines) = std::sync::mpsc::channel();
    for out in outs {
        let line = line.clone();
        std::thread::spawn(move || out.lines().map_while(Result::ok).for_each(|text| drop(line.send(text))));
    }
    let input: String = (0..400).map(|n| format!("k{}:{n}\n", n % 40)).collect();
    shell.produce(&["t", "-k", ":"], input.as_bytes());
    let mut printed: Vec<u32> = (0..400).map(|_| lines.recv().unwrap().parse().unwrap()).collect();
    printed.sort_unstable();
    assert_eq!(printed, (0..400).collect::<Vec<_>>());
    for consumer in consumers {
        signal(&consumer, "TERM");
        assert_eq!(wait(consumer).code, 0);
    }
    let lag: i64 = shell
        .ok(&["group", "describe", "g", "--json"])
        .json()
        .iter()
        .map(|p| p["lag"].as_i64().unwrap())
        .sum();
    assert_eq!((lag, lines.try_recv().ok()), (0, None));
}

#[test]
fn partitions_that_are_added_are_read_by_a_group_that_runs() {
    let shell = Shell::new();
    shell.ok(&["topic", "create", "t"]);
    let mut consumer = shell.spawn(&["consume", "t", "-g", "g", "--json"]);
    let mut out = BufReader::new(consumer.stdout.take().unwrap());
    shell.produce(&["t"], b"before\n");
    let mut next = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    assert_eq!(next()["value"], "before");
    shell.ok(&["topic", "grow", "t", "-p", "4"]);
    let input: String = (0..40).map(|n| format!("k{n}:after\n")).collect();
    shell.produce(&["t", "-k", ":"], input.as_bytes());
    // In the default of a client's settings this took five minutes.
    let partitions: std::collections::BTreeSet<_> = (0..40).map(|_| next()["partition"].as_i64()).collect();
    assert_eq!(partitions.len(), 4);
    signal(&consumer, "TERM");
    assert_eq!(wait(consumer).code, 0);
}
