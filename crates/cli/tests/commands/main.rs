//! Every command through the binary: what it prints, what it leaves behind, how it ends.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

#[path = "../common/mod.rs"]
mod common;

mod consume;
mod demo;
mod groups;
mod process;
mod produce;
mod serve;
mod shell;
mod tasks;
mod topics;

use shell::{Shell, run};

#[test]
fn wrong_usage_ends_with_2_and_says_how_to_go_on() {
    let lines: [&[&str]; 15] = [
        &[],
        &["nonsense"],
        &["topic"],
        &["topic", "create"],
        &["topic", "create", "t", "-p", "0"],
        &["topic", "create", "t", "-c", "x"],
        &["topic", "grow", "t"],
        &["consume", "t", "--from", "yesterday"],
        &["produce", "t", "--acks", "maybe"],
        &["group", "reset", "g", "--topic", "t", "--to", "-1"],
        &["serve"],
        &["process", "t", "-g", "g"],
        &["process", "t", "-g", "g", "--"],
        &["process", "t", "--", "true"],
        &["process", "t", "-g", "g", "--workers", "0", "--", "true"],
    ];
    for line in lines {
        let ended = run(line, b"");
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{line:?}");
        assert!(ended.err.contains("--help") || ended.err.contains("Commands:"), "{line:?}: {}", ended.err);
    }
}

#[test]
fn help_has_examples_and_ends_with_0() {
    let commands: [&[&str]; 19] = [
        &["task", "add"],
        &["task", "work"],
        &["task", "status"],
        &["task", "dead"],
        &["task", "retry"],
        &["demo"],
        &["serve"],
        &["produce"],
        &["consume"],
        &["process"],
        &["topic", "create"],
        &["topic", "list"],
        &["topic", "describe"],
        &["topic", "delete"],
        &["topic", "grow"],
        &["group", "list"],
        &["group", "describe"],
        &["group", "delete"],
        &["group", "reset"],
    ];
    for command in commands {
        let ended = run(&[command, &["--help"]].concat(), b"");
        assert_eq!(ended.code, 0, "{command:?}");
        let example = format!("tramline {}", command.join(" "));
        assert!(
            ended.out.contains("Examples:") && ended.out.contains(&example),
            "{command:?}: {}",
            ended.out
        );
    }
}

#[test]
fn the_broker_is_named_by_a_flag_on_either_side_or_by_the_environment() {
    let shell = Shell::new();
    let address = shell.address();
    shell.ok(&["topic", "create", "t"]);
    for line in
        [["-b", address, "topic", "list", "--json"], ["--json", "topic", "list", "--brokers", address]]
    {
        let ended = run(&line, b"");
        assert_eq!((ended.code, ended.out.as_str()), (0, "{\"topic\":\"t\",\"partitions\":1}\n"), "{line:?}");
    }
    let by_environment = shell::run_with(&["topic", "list", "--json"], b"", Some(address));
    assert_eq!(by_environment.out, "{\"topic\":\"t\",\"partitions\":1}\n");
    let flag_wins = shell::run_with(&["topic", "list", "-b", address, "--json"], b"", Some("127.0.0.1:1"));
    assert_eq!(flag_wins.code, 0, "{}", flag_wins.err);
}

#[test]
fn without_a_broker_each_command_fails_and_says_how_to_start_one() {
    let commands: [&[&str]; 5] = [
        &["topic", "list"],
        &["produce", "t"],
        &["consume", "t", "-e"],
        &["group", "describe", "g"],
        &["process", "t", "-g", "g", "--", "true"],
    ];
    // Side by side: each waits a few seconds for a broker that may be about to start.
    let ended: Vec<_> = std::thread::scope(|scope| {
        let runs =
            commands.map(|line| scope.spawn(move || run(&[&["-b", "127.0.0.1:1"], line].concat(), b"")));
        runs.map(|run| run.join().unwrap()).into()
    });
    for ended in ended {
        assert_eq!((ended.code, ended.out.as_str()), (1, ""));
        assert!(ended.err.contains("tramline serve --data DIR"), "{}", ended.err);
        assert_eq!(ended.err.matches("Connection refused").count(), 1, "{}", ended.err);
    }
    let ended = run(&["topic", "list", "-b", "nonsense"], b"");
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("HOST:PORT"), "{}", ended.err);
}
