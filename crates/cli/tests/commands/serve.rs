//! `tramline serve`.

use std::io::{BufRead, BufReader, Read};

use crate::common::{Serve, signal};
use crate::shell::{Shell, run, spawn, wait};

#[test]
fn it_says_where_it_listens_and_stops_cleanly_on_a_signal() {
    for name in ["TERM", "INT"] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut broker =
            spawn(&["serve", "--data", &data.to_string_lossy(), "--listen", "127.0.0.1:0"], None);
        let mut out = BufReader::new(broker.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap();
        assert!(!address.ends_with(":0"), "the bound port is told: {address}");
        assert_eq!(run(&["topic", "create", "t", "-b", address], b"").code, 0);
        signal(&broker, name);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let ended = wait(broker);
        assert_eq!((ended.code, rest.as_str(), ended.err.as_str()), (0, "", ""), "{name}");
    }
}

#[test]
fn a_stop_keeps_records_topics_and_commits() {
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::start(folder.path(), &[]);
    let address = serve.address.clone();
    assert_eq!(run(&["produce", "t", "-b", &address], b"1\n2\n3\n").code, 0);
    assert_eq!(run(&["consume", "t", "-g", "g", "-n", "1", "-b", &address], b"").out, "1\n");
    let (status, left) = serve.terminate();
    assert!(status.success());
    let _serve = left.restart();
    assert_eq!(run(&["consume", "t", "-g", "g", "-e", "-b", &address], b"").out, "2\n3\n");
}

#[test]
fn it_stops_when_stdin_ends_if_it_was_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut broker = spawn(
        &["serve", "--data", &data.to_string_lossy(), "--listen", "127.0.0.1:0", "--stop-at-eof"],
        None,
    );
    drop(broker.stdin.take());
    let ended = wait(broker);
    assert_eq!(ended.code, 0, "{}", ended.err);
}

#[test]
fn a_port_or_folder_in_use_ends_with_1_and_says_what_to_do() {
    let shell = Shell::new();
    let data = shell.folder().join("data");
    let taken = run(&["serve", "--data", &data.to_string_lossy(), "--listen", "127.0.0.1:0"], b"");
    assert_eq!((taken.code, taken.out.as_str()), (1, ""));
    assert!(
        taken.err.contains("in use by another broker") && taken.err.contains("--data DIR"),
        "{}",
        taken.err
    );

    let other = shell.folder().join("other");
    let taken = run(&["serve", "--data", &other.to_string_lossy(), "--listen", shell.address()], b"");
    assert_eq!((taken.code, taken.out.as_str()), (1, ""));
    assert!(
        taken.err.contains(shell.address()) && taken.err.contains("--listen 127.0.0.1:0"),
        "{}",
        taken.err
    );
    assert_eq!(taken.err.matches("in use").count(), 1, "each cause is said once: {}", taken.err);
}

#[test]
fn an_address_that_others_reach_needs_the_word_insecure() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let refused = run(&["serve", "--data", &data.to_string_lossy(), "--listen", "0.0.0.0:0"], b"");
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    assert!(refused.err.contains("--insecure"), "{}", refused.err);
    assert!(!data.exists(), "nothing was made before the refusal");

    let mut broker =
        spawn(&["serve", "--data", &data.to_string_lossy(), "--listen", "0.0.0.0:0", "--insecure"], None);
    let mut line = String::new();
    BufReader::new(broker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on 0.0.0.0:"), "{line}");
    signal(&broker, "TERM");
    assert_eq!(wait(broker).code, 0);
}

#[test]
fn the_settings_file_is_read_and_its_mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = folder.path().join("broker.toml");
    let serve = |text: &str| {
        std::fs::write(&settings, text).unwrap();
        let (data, settings) = (data.to_string_lossy(), settings.to_string_lossy());
        spawn(&["serve", "--data", &data, "--listen", "127.0.0.1:0", "--config", &settings], None)
    };
    for (text, names) in [
        ("segment-byte = 1048576\n", "segment-byte"),
        ("segment-bytes = 'many'\n", "segment-bytes"),
        ("segment-bytes = 1\n", "segment"),
        ("listen = \n", "line 1"),
    ] {
        let ended = wait(serve(text));
        assert_eq!((ended.code, ended.out.as_str()), (1, ""), "{text}");
        assert!(ended.err.contains(names), "{text}: {}", ended.err);
    }
    let missing = run(&["serve", "--data", &data.to_string_lossy(), "--config", "/no/such.toml"], b"");
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("/no/such.toml"), "{}", missing.err);

    let mut broker = serve("auto-create-topics = false\ndefault-partitions = 3\n");
    let mut line = String::new();
    BufReader::new(broker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on ").unwrap();
    assert_eq!(run(&["consume", "t", "-e", "-b", address], b"").code, 1);
    assert_eq!(run(&["topic", "list", "--json", "-b", address], b"").out, "");
    signal(&broker, "TERM");
    assert_eq!(wait(broker).code, 0);
}
