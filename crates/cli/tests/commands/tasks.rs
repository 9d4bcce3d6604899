//! `tramline task`.

use serde_json::{Value, json};

use crate::Shell;
use crate::common::signal;
use crate::shell::wait;

/// The last line of `task status`.
fn status(shell: &Shell, queue: &str) -> Value {
    let ended = shell.ok(&["task", "status", queue]);
    serde_json::from_str(ended.out.lines().last().unwrap()).unwrap()
}

/// Adds a task for each line.
fn add(shell: &Shell, arguments: &[&str], lines: &[u8]) -> String {
    let ended = shell.run(&[&["task", "add"], arguments].concat(), lines);
    assert_eq!(ended.code, 0, "{}", ended.err);
    ended.out
}

fn sums(ready: u64, claimed: u64, delayed: u64, done: u64, dead: u64) -> Value {
    json!({"ready": ready, "claimed": claimed, "delayed": delayed, "done": done, "dead": dead})
}

#[test]
fn tasks_are_added_worked_on_and_counted() {
    let shell = Shell::new();
    let added = add(&shell, &["q"], b"one\ntwo\nthree\n");
    assert_eq!(added, "{\"added\":3,\"failed\":0}\n");
    assert_eq!(status(&shell, "q"), sums(3, 0, 0, 0, 0));
    let worked = shell.ok(&["task", "work", "q", "-e", "--", "cat"]);
    let mut letters: Vec<char> = worked.out.chars().collect();
    letters.sort_unstable();
    let mut expected: Vec<char> = "onetwothree".chars().collect();
    expected.sort_unstable();
    assert_eq!(letters, expected, "each payload once, without an added newline");
    assert_eq!(status(&shell, "q"), sums(0, 0, 0, 3, 0));
    let last = shell.ok(&["task", "status", "q"]).out.lines().last().unwrap().to_owned();
    assert_eq!(last, "{\"ready\":0,\"claimed\":0,\"delayed\":0,\"done\":3,\"dead\":0}");
    let shards = shell.ok(&["task", "status", "q", "--json"]).json();
    assert_eq!((shards.len(), &shards[4]), (5, &sums(0, 0, 0, 3, 0)), "a line for each shard, then the sums");
}

#[test]
fn exit_75_is_tried_again_and_anything_else_is_dead_and_can_be_added_again() {
    let shell = Shell::new();
    add(&shell, &["q"], b"again\nnever\n");
    // The first attempt of `again` asks for another.
    let script =
        "p=$(cat); case $p in never) echo no such >&2; exit 3;; esac; test $TRAMLINE_ATTEMPT = 2 || exit 75";
    let worked = shell.ok(&["task", "work", "q", "-e", "--json", "--", "sh", "-c", script]).json();
    let events: Vec<&str> = worked.iter().map(|line| line["event"].as_str().unwrap()).collect();
    let count = |event| events.iter().filter(|seen| **seen == event).count();
    assert_eq!((count("retry"), count("failed"), count("done"), count("end")), (1, 1, 1, 1), "{worked:?}");
    assert_eq!(status(&shell, "q"), sums(0, 0, 0, 1, 1));

    let dead = shell.ok(&["task", "dead", "q", "--json"]).json();
    assert_eq!(dead.len(), 1);
    let letter = (&dead[0]["payload"], &dead[0]["cause"], &dead[0]["attempts"]);
    assert_eq!(letter, (&json!("never"), &json!("exit status 3: no such"), &json!(1)));
    assert!(shell.ok(&["task", "dead", "q"]).out.contains("never"));

    let retried = shell.ok(&["task", "retry", "q"]);
    assert_eq!(retried.out.lines().last(), Some("{\"retried\":1,\"failed\":0}"));
    assert_eq!(status(&shell, "q"), sums(1, 0, 0, 1, 0));
    assert_eq!(shell.ok(&["task", "dead", "q", "--json"]).out, "");
    shell.ok(&["task", "work", "q", "-e", "--", "true"]);
    assert_eq!(status(&shell, "q"), sums(0, 0, 0, 2, 0));
}

#[test]
fn a_command_learns_its_task_and_tasks_of_a_key_run_in_order() {
    let shell = Shell::new();
    add(&shell, &["q", "-k", ":"], b"ann:1\nann:2\nann:3\nann:4\n");
    let script = "echo $TRAMLINE_QUEUE $TRAMLINE_KEY $(cat) $TRAMLINE_ATTEMPT ${TRAMLINE_TOKEN:+token}";
    let worked = shell.ok(&["task", "work", "q", "-e", "--workers", "4", "--", "sh", "-c", script]);
    let expected: String = (1..5).map(|n| format!("q ann {n} 1 token\n")).collect();
    assert_eq!(worked.out, expected);
}

#[test]
fn delayed_and_claimed_tasks_are_shown_as_such() {
    let shell = Shell::new();
    add(&shell, &["q", "--delay", "3600"], b"later\n");
    assert_eq!(status(&shell, "q"), sums(0, 0, 1, 0, 0));
    add(&shell, &["q"], b"now\n");
    // Says that it runs, and then waits to be ended.
    let mut worker =
        shell.spawn(&["task", "work", "q", "--name", "bob", "--", "sh", "-c", "echo up; exec sleep 600"]);
    let mut line = String::new();
    let mut out = std::io::BufReader::new(worker.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "up\n");
    assert_eq!(status(&shell, "q"), sums(0, 1, 1, 0, 0));
    let held = shell.ok(&["task", "status", "q", "--json"]).json();
    let held = held.iter().find(|line| line.get("worker").is_some()).unwrap();
    assert!(held["worker"].as_str().unwrap().starts_with("bob-"), "{held}");
    assert_eq!((&held["token"], &held["attempt"]), (&json!(0), &json!(1)));
    signal(&worker, "TERM");
    signal(&worker, "INT");
    assert_eq!(wait(worker).code, 130);
}

#[test]
fn a_queue_that_is_not_there_is_named() {
    let shell = Shell::new();
    for command in ["status", "dead", "retry"] {
        let ended = shell.run(&["task", command, "none"], b"");
        assert_eq!((ended.code, ended.out.as_str()), (1, ""));
        assert!(ended.err.contains("there is no queue none"), "{}", ended.err);
    }
    let ended = shell.run(&["task", "work", "q", "--", "no-such-command"], b"");
    assert!(ended.code == 1 && ended.err.contains("no-such-command"), "{}", ended.err);
}
