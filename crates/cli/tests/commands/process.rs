//! `tramline process`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tramline::wire::{BatchBuilder, Compression, set_base_offset_and_epoch};

use crate::Shell;
use crate::common::signal;
use crate::shell::{Ended, wait};

/// A topic `t` and a folder in which commands leave what they saw.
struct Job {
    shell: Shell,
    folder: tempfile::TempDir,
}

impl Job {
    fn new(partitions: &str) -> Self {
        let shell = Shell::new();
        shell.ok(&["topic", "create", "t", "-p", partitions]);
        Self { shell, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `tramline process t -g g`, these flags, and a shell script, all in the folder.
    fn start(&self, flags: &[&str], script: &str) -> Child {
        let line = [&["process", "t", "-g", "g"], flags, &["--", "sh", "-c", script]].concat();
        self.shell.spawn_in(self.folder.path(), &line)
    }

    fn run(&self, flags: &[&str], script: &str) -> Ended {
        wait(self.start(flags, script))
    }

    /// The lines that commands left in `seen`.
    fn seen(&self) -> Vec<String> {
        let text = std::fs::read(self.path("seen")).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    fn committed(&self) -> Vec<Option<i64>> {
        let described = self.shell.ok(&["group", "describe", "g", "--json"]).json();
        described.iter().map(|line| line["committed"].as_i64()).collect()
    }
}

impl Drop for Job {
    /// Ends what a failed test, or a member it killed, left at work: whatever process is in the folder.
    fn drop(&mut self) {
        let Ok(folder) = self.folder.path().canonicalize() else { return };
        let is_ours = |process: &std::fs::DirEntry| {
            std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == folder)
        };
        // Again until none is left: a process may have started another meanwhile. Elsewhere than on Linux none is seen.
        loop {
            let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let left: Vec<_> = all.filter(is_ours).map(|process| process.file_name()).collect();
            // One that has just ended by itself makes `kill` complain, and the others are ended all the same.
            if left.is_empty()
                || Command::new("kill").arg("-KILL").args(left).stderr(Stdio::null()).status().is_err()
            {
                return;
            }
        }
    }
}

/// The events of this name, without their name.
fn events(ended: &Ended, name: &str) -> Vec<Value> {
    let mut all = ended.json();
    all.retain(|event| event["event"] == name);
    all.iter_mut().for_each(|event| drop(event.as_object_mut().unwrap().remove("event")));
    all
}

/// Reads lines of stdout until one has this in it.
fn read_until(out: &mut impl BufRead, has: &str) -> String {
    let mut line = String::new();
    while !line.contains(has) {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the output ended before {has}");
    }
    line
}

#[test]
fn a_command_gets_the_exact_value_and_the_place_of_its_record() {
    let job = Job::new("1");
    job.shell.produce(&["t", "-k", ":"], b"ann:2 tea\n\xff\xfe:\xff\x00\\n\n:empty key\nno key\n");
    let script = "cat > $TRAMLINE_OFFSET.value
        printf '%s %s %s %s [%s] ' $TRAMLINE_TOPIC $TRAMLINE_PARTITION $TRAMLINE_OFFSET $TRAMLINE_ATTEMPT \"$TRAMLINE_KEY\" >> seen
        echo \"${TRAMLINE_KEY+set} $TRAMLINE_KEY_BASE64 $TRAMLINE_NULL_VALUE\" >> seen; echo out; echo err >&2";
    let ended = job.run(&["-e"], script);
    assert_eq!((ended.code, ended.out.as_str()), (0, "out\n".repeat(4).as_str()), "{}", ended.err);
    assert!(ended.err.contains(&"err\n".repeat(4)) && ended.err.ends_with("4 done\n"), "{}", ended.err);
    let seen = std::fs::read(job.path("seen")).unwrap();
    let expected: &[u8] =
        b"t 0 0 1 [ann] set YW5u \nt 0 1 1 [\xff\xfe] set //4= \nt 0 2 1 [] set  \nt 0 3 1 []   \n";
    assert_eq!(seen, expected, "{}", String::from_utf8_lossy(&seen));
    for (offset, value) in [(0, &b"2 tea"[..]), (1, b"\xff\x00\\n"), (2, b"empty key"), (3, b"no key")] {
        assert_eq!(std::fs::read(job.path(&format!("{offset}.value"))).unwrap(), value);
    }
    assert_eq!(job.committed(), [Some(4)]);
}

#[test]
fn a_key_with_a_zero_byte_comes_in_base64_alone() {
    let job = Job::new("1");
    job.shell.produce(&["t", "-k", ":"], b"\x00\x07:x\n");
    let ended = job.run(&["-e"], "echo \"${TRAMLINE_KEY+set}.$TRAMLINE_KEY_BASE64\" > seen");
    assert_eq!((ended.code, job.seen()), (0, vec![".AAc=".to_owned()]), "{}", ended.err);
}

#[test]
fn records_of_a_key_stay_in_order_while_keys_run_side_by_side() {
    let job = Job::new("1");
    let input: String = (0..60).map(|n| format!("{}:{n}\n", ["ann", "bob", "cem"][n % 3])).collect();
    job.shell.produce(&["t", "-k", ":"], input.as_bytes());
    assert!(Command::new("mkfifo").arg(job.path("meet")).status().unwrap().success());
    // The first two keys wait for each other: one after the other they would never end.
    let script = "value=$(cat)
        case $value in 0) echo > meet;; 1) read met < meet;; esac
        echo $TRAMLINE_KEY $value >> seen";
    let ended = job.run(&["--order", "key", "--workers", "3", "-e"], script);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let seen = job.seen();
    for (at, key) in ["ann", "bob", "cem"].iter().enumerate() {
        let of_key: Vec<&str> =
            seen.iter().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).collect();
        let expected: Vec<String> = (0..20).map(|n| (n * 3 + at).to_string()).collect();
        assert_eq!(of_key, expected, "{key}");
    }
    assert_eq!(job.committed(), [Some(60)]);
}

#[test]
fn in_partition_order_records_follow_each_other_and_more_workers_are_said_to_be_of_no_use() {
    let job = Job::new("1");
    job.shell.produce(&["t"], b"0\n1\n2\n3\n4\n");
    let ended = job.run(&["--workers", "4", "-e"], "echo begin >> seen; cat >> seen; echo >> seen");
    assert!(
        ended.code == 0 && ended.err.contains("--workers counts in the orders key and none"),
        "{}",
        ended.err
    );
    let expected: Vec<String> = (0..5).flat_map(|n| ["begin".to_owned(), n.to_string()]).collect();
    assert_eq!(job.seen(), expected);
}

#[test]
fn a_record_that_fails_is_tried_again_and_the_command_knows_how_often() {
    let job = Job::new("1");
    job.shell.produce(&["t"], b"a\nb\n");
    let script = "echo $TRAMLINE_OFFSET $TRAMLINE_ATTEMPT >> seen
        [ $TRAMLINE_OFFSET = 1 ] || [ $TRAMLINE_ATTEMPT = 3 ] || { echo not yet >&2; exit 7; }";
    let ended = job.run(&["--retries", "2", "-e", "--json"], script);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(job.seen(), ["0 1", "0 2", "0 3", "1 1"]);
    let failed = |attempt| json!({"partition": 0, "offset": 0, "attempt": attempt, "error": "exit status 7: not yet", "then": "retry"});
    assert_eq!(events(&ended, "failed"), [failed(1), failed(2)]);
    let completed = |offset, attempt| json!({"partition": 0, "offset": offset, "attempt": attempt});
    assert_eq!(events(&ended, "completed"), [completed(0, 3), completed(1, 1)]);
    let end = json!({"reason": "end", "completed": 2, "retries": 2, "dead_lettered": 0, "error": null});
    assert_eq!(events(&ended, "end"), [end]);
    assert_eq!(events(&ended, "assigned")[0]["partitions"], json!([0]));
    assert_eq!(events(&ended, "committed").last().unwrap(), &json!({"partition": 0, "offset": 2}));
}

#[test]
fn a_record_out_of_attempts_ends_the_run_with_1_and_comes_again() {
    let job = Job::new("1");
    job.shell.produce(&["t"], b"good\nbad\nnever seen\n");
    let script = "echo $TRAMLINE_OFFSET >> seen; read value; [ \"$value\" != bad ] || kill -KILL $$";
    let ended = job.run(&["--retries", "1", "-e"], script);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains("failed on t-0 at offset 1: ended by signal: 9 (SIGKILL)"), "{}", ended.err);
    assert_eq!((job.seen(), job.committed()), (vec!["0".into(), "1".into(), "1".into()], vec![Some(1)]));
    let again = job.run(&["-e"], "echo $TRAMLINE_OFFSET >> again");
    assert_eq!(again.code, 0, "{}", again.err);
    assert_eq!(std::fs::read_to_string(job.path("again")).unwrap(), "1\n2\n");
    assert_eq!(job.committed(), [Some(3)]);
}

#[test]
fn a_dead_letter_carries_its_record_and_the_reason() {
    let job = Job::new("1");
    job.shell.produce(&["t", "-k", ":"], b"ann:good\nbob:bad\nann:good\n");
    let script = "read value; [ \"$value\" != bad ] || { echo no such dish >&2; exit 3; }";
    let ended = job.run(&["--retries", "1", "--dead-letter", "t-dead", "-e", "--json"], script);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(ended.err.contains("made the topic t-dead"), "{}", ended.err);
    assert_eq!(events(&ended, "failed")[1]["then"], "dead-letter");
    let aside = json!({"partition": 0, "offset": 1, "attempts": 2, "topic": "t-dead"});
    assert_eq!(events(&ended, "dead-lettered"), [aside]);
    let end = &events(&ended, "end")[0];
    assert_eq!((&end["completed"], &end["dead_lettered"]), (&json!(2), &json!(1)));
    assert_eq!(job.committed(), [Some(3)]);

    let letters = job.shell.ok(&["consume", "t-dead", "-e", "--json"]).json();
    assert_eq!((&letters[0]["key"], &letters[0]["value"]), (&json!("bob"), &json!("bad")));
    let header =
        |name: &str, value: &str| json!({"key": format!("tramline.dead-letter.{name}"), "value": value});
    let expected = [
        header("cause", "exit status 3: no such dish"),
        header("attempts", "2"),
        header("topic", "t"),
        header("partition", "0"),
        header("offset", "1"),
    ];
    let headers = letters[0]["headers"].as_array().unwrap();
    assert!(expected.iter().all(|header| headers.contains(header)), "{headers:?}");
}

#[test]
fn the_ends_are_those_of_the_start_and_an_empty_topic_has_none() {
    let job = Job::new("3");
    let ended = job.run(&["-e", "--json"], "exit 1");
    let end = json!({"reason": "end", "completed": 0, "retries": 0, "dead_lettered": 0, "error": null});
    assert_eq!((ended.code, events(&ended, "end")), (0, vec![end]), "{}", ended.err);
    // Each record makes another one, which is not of this run.
    job.shell.produce(&["t", "-k", ":"], b"a:1\nb:2\nc:3\nd:4\n");
    let script = format!(
        "value=$(cat); echo $value >> seen; echo more | {} -b {} produce t >&2",
        crate::common::TRAMLINE,
        job.shell.address()
    );
    let ended = job.run(&["-e"], &script);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let mut seen = job.seen();
    seen.sort_unstable();
    assert_eq!(seen, ["1", "2", "3", "4"]);
    assert_eq!(job.run(&["-e"], "echo x >> later").code, 0);
    assert_eq!(std::fs::read_to_string(job.path("later")).unwrap(), "x\n".repeat(4));
    assert_eq!(job.run(&["-e"], "exit 1").code, 0, "nothing is left");
}

/// Writes the end of a transaction behind what the log of a partition has, as a broker with transactions would.
fn append_marker(log: &Path, offset: i64) {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.producer(7, 0, -1).transactional(true).control(true);
    // Version 0, a commit; version 0, coordinator epoch 0.
    builder.append(0, Some(&[0, 0, 0, 1]), Some(&[0; 6]), &[]).unwrap();
    let mut marker = builder.build().to_vec();
    set_base_offset_and_epoch(&mut marker, offset, 0);
    let mut bytes = std::fs::read(log).unwrap();
    let mut end = 0;
    while let Some(length) = bytes.get(end + 8..end + 12) {
        match u32::from_be_bytes(length.try_into().unwrap()) {
            0 => break,
            length => end += 12 + length as usize,
        }
    }
    bytes.resize(bytes.len().max(end + marker.len()), 0);
    bytes[end..end + marker.len()].copy_from_slice(&marker);
    std::fs::write(log, bytes).unwrap();
}

#[test]
fn a_topic_that_ends_with_markers_is_done_when_they_are_passed() {
    let mut job = Job::new("2");
    // Both records are in one partition, and each partition ends with two markers.
    job.shell.produce(&["t", "-k", ":"], b"a:1\na:2\n");
    let killed = job.shell.kill();
    let logs = [0, 1].map(|p| job.shell.folder().join(format!("data/t-{p}/00000000000000000000.log")));
    let ends = logs.map(|log| {
        let first = if std::fs::read(&log).unwrap().iter().any(|byte| *byte != 0) { 2 } else { 0 };
        append_marker(&log, first);
        append_marker(&log, first + 1);
        Some(first + 2)
    });
    job.shell.is_back(killed.restart());
    let mut sorted = ends;
    sorted.sort_unstable();
    assert_eq!(sorted, [Some(2), Some(4)], "one partition has records");
    let ended = job.run(&["-e", "--json"], "cat >> seen; echo >> seen");
    assert_eq!((ended.code, job.seen()), (0, vec!["1".to_owned(), "2".to_owned()]), "{}", ended.err);
    assert_eq!(job.committed(), ends, "also what follows the last record, so that nothing is left to read");
    let again = job.run(&["-e", "--json"], "cat >> seen");
    let end = json!({"reason": "end", "completed": 0, "retries": 0, "dead_lettered": 0, "error": null});
    assert_eq!((again.code, events(&again, "end")), (0, vec![end]), "{}", again.err);
}

#[test]
fn a_large_value_does_not_need_a_command_that_reads_it() {
    let job = Job::new("1");
    job.shell.produce(&["t"], &[&vec![b'x'; 900_000][..], b"\n"].concat());
    assert_eq!(job.run(&["-e"], "exit 0").code, 0);
    job.shell.ok(&["group", "reset", "g", "--topic", "t", "--to", "start"]);
    let ended = job.run(&["-e"], "wc -c");
    assert_eq!((ended.code, ended.out.trim()), (0, "900000"), "{}", ended.err);
}

#[test]
fn a_command_that_cannot_be_run_is_one_error_and_no_dead_letter() {
    let job = Job::new("1");
    job.shell.produce(&["t"], b"1\n2\n3\n");
    let process = |words: &[&str]| {
        let flags = ["process", "t", "-g", "g", "--retries", "5", "--dead-letter", "dead", "-e", "--"];
        job.shell.run(&[&flags, words].concat(), b"")
    };
    for (words, says) in [(&["no-such-command"][..], "no folder of PATH"), (&["/no/such"], "does not exist")]
    {
        let ended = process(words);
        assert_eq!((ended.code, ended.out.as_str()), (1, ""));
        assert!(ended.err.contains(says) && ended.err.lines().count() == 1, "{}", ended.err);
    }
    // One that goes away while the run goes on.
    let own = job.path("own");
    std::fs::write(&own, "#!/bin/sh\nrm \"$0\"\n").unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ended = process(&[&own.to_string_lossy()]);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains(&format!("cannot start {}", own.display())), "{}", ended.err);
    assert_eq!(
        (job.committed(), job.shell.ok(&["consume", "dead", "-e"]).out),
        (vec![Some(1)], String::new())
    );
}

#[test]
fn a_topic_that_is_not_there_ends_with_1_and_the_next_step() {
    let job = Job::new("1");
    let ended = job.shell.run(&["process", "nope", "-g", "g", "--", "true"], b"");
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains("tramline topic list"), "{}", ended.err);
}

#[test]
fn a_signal_lets_running_commands_finish_and_commits_them() {
    let job = Job::new("1");
    assert!(Command::new("mkfifo").arg(job.path("go")).status().unwrap().success());
    for (name, offset) in [("TERM", 0), ("INT", 1)] {
        job.shell.produce(&["t"], b"one\n");
        let mut run = job.start(&[], "echo $TRAMLINE_OFFSET; read go < go; echo $TRAMLINE_OFFSET >> seen");
        let mut out = BufReader::new(run.stdout.take().unwrap());
        assert_eq!(read_until(&mut out, "\n"), format!("{offset}\n"));
        signal(&run, name);
        // The command was not ended: it still reads.
        std::fs::OpenOptions::new().write(true).open(job.path("go")).unwrap().write_all(b"\n").unwrap();
        let ended = wait(run);
        assert_eq!(ended.code, 0, "{}", ended.err);
        assert_eq!(job.committed(), [Some(offset + 1)], "{name}");
    }
    assert_eq!(job.seen(), ["0", "1"]);
}

#[test]
fn a_second_ctrl_c_ends_running_commands_too() {
    let job = Job::new("1");
    job.shell.produce(&["t"], b"0\n");
    assert!(Command::new("mkfifo").arg(job.path("held")).status().unwrap().success());
    // A grandchild holds the pipe for as long as it lives.
    let mut run = job.start(&[], "(echo up; sleep 600) > held & wait");
    let mut held = BufReader::new(std::fs::File::open(job.path("held")).unwrap());
    assert_eq!(read_until(&mut held, "up"), "up\n");
    while run.try_wait().unwrap().is_none() {
        signal(&run, "INT");
        std::thread::yield_now();
    }
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let mut rest = String::new();
    assert_eq!(held.read_line(&mut rest).unwrap(), 0, "nobody is left");
}

#[test]
fn a_live_run_is_described_by_its_group() {
    let job = Job::new("2");
    job.shell.produce(&["t", "-k", ":"], b"a:1\nb:2\nc:3\n");
    let mut run = job.start(&["--json"], "true");
    let mut out = BufReader::new(run.stdout.take().unwrap());
    for _ in 0..3 {
        read_until(&mut out, "\"completed\"");
    }
    let described = job.shell.ok(&["group", "describe", "g", "--json"]).json();
    assert_eq!(described.len(), 2);
    for line in &described {
        assert_eq!((&line["state"], &line["client"]), (&json!("Stable"), &json!("tramline-cli")));
        assert!(line["member"].is_string(), "{line}");
    }
    let refused = job.shell.run(&["group", "delete", "g"], b"");
    assert_eq!(refused.code, 1);
    signal(&run, "INT");
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let last: Value =
        serde_json::from_slice(rest.split(|byte| *byte == b'\n').rev().nth(1).unwrap()).unwrap();
    assert_eq!((&last["event"], &last["reason"]), (&json!("end"), &json!("stopped")));
    assert_eq!(wait(run).code, 0);
}

#[test]
fn a_member_that_is_killed_leaves_its_records_to_the_other_and_the_end_waits_for_them() {
    let job = Job::new("4");
    let input: String = (0..80).map(|n| format!("k{n}:{n}\n")).collect();
    job.shell.produce(&["t", "-k", ":"], input.as_bytes());
    // It holds every record it is given, and what it ran is nobody's child afterwards.
    let mut victim = job.start(&["--json"], "exec sleep 600");
    let mut out = BufReader::new(victim.stdout.take().unwrap());
    read_until(&mut out, "\"assigned\"");
    let survivor = job.start(&["-e", "--json"], "value=$(cat); echo $value >> seen");
    victim.kill().unwrap();
    victim.wait().unwrap();
    let ended = wait(survivor);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let mut seen: Vec<u32> = job.seen().iter().map(|line| line.parse().unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..80).collect::<Vec<_>>());
    assert_eq!(job.committed().into_iter().flatten().sum::<i64>(), 80);
}

#[test]
fn a_terminal_shows_what_each_lane_does_and_the_commands_lines_above() {
    let job = Job::new("2");
    job.shell.produce(&["t", "-k", ":"], b"a:1\nb:2\nc:3\nd:4\n");
    std::fs::write(
        job.path("run.sh"),
        format!(
            "stty cols 160 rows 40\nexec {} -b {} process t -g g -e -- sh -c 'echo line; until [ -e {} ]; do sleep 0.05; done'\n",
            crate::common::TRAMLINE,
            job.shell.address(),
            job.path("go").display()
        ),
    )
    .unwrap();
    let line = format!("sh {}", job.path("run.sh").display());
    let mut terminal = Command::new("script");
    terminal
        .current_dir(job.folder.path())
        .args(["-qefc", &line, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    terminal.stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(mut terminal) = terminal.spawn() else {
        // Part of every Linux, and of no other system.
        return;
    };
    let mut out = BufReader::new(terminal.stdout.take().unwrap());
    let mut drawn = String::new();
    let mut until = |all: &[&str]| {
        while !all.iter().all(|text| drawn.contains(text)) {
            let mut some = [0; 4096];
            let count = out.read(&mut some).unwrap();
            assert_ne!(count, 0, "the terminal ended with {drawn}");
            drawn += &String::from_utf8_lossy(&some[..count]);
        }
    };
    until(&["in 2 lanes", "t-0", "t-1", "line\r\n"]);
    std::fs::write(job.path("go"), "").unwrap();
    until(&["4 done\r\n"]);
    assert!(terminal.wait().unwrap().success());
}
