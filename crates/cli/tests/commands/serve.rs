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

#[test]
fn its_help_does_not_offer_brokers_to_talk_to() {
    let help = run(&["serve", "--help"], b"").out;
    assert!(!help.contains("--brokers") && help.contains("--listen"), "{help}");
    assert!(run(&["topic", "list", "--help"], b"").out.contains("--brokers"));
    // It is a global flag all the same: a line that gives it to every command is no wrong usage.
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").to_string_lossy().into_owned();
    for line in [
        &["-b", "127.0.0.1:1", "serve", "--data", &data, "--listen", "127.0.0.1:0"][..],
        &["serve", "-b", "127.0.0.1:1", "--data", &data, "--listen", "127.0.0.1:0"],
    ] {
        let mut broker = spawn(line, Some("127.0.0.1:1"));
        let mut out = String::new();
        BufReader::new(broker.stdout.take().unwrap()).read_line(&mut out).unwrap();
        assert!(out.starts_with("listening on "), "{out}");
        signal(&broker, "TERM");
        assert_eq!(wait(broker).code, 0);
    }
}

#[test]
fn a_folder_of_somebody_else_is_named_as_such_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("src/bin")).unwrap();
    let data = folder.path().to_string_lossy();
    let ended = run(&["serve", "--data", &data, "--listen", "127.0.0.1:0"], b"");
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains("\"src\"") && ended.err.contains("folder of its own"), "{}", ended.err);
    assert!(!ended.err.contains("damaged"), "{}", ended.err);
    std::fs::remove_dir_all(folder.path().join("src")).unwrap();
    std::fs::create_dir(folder.path().join("lost+found")).unwrap();
    let mut broker = spawn(&["serve", "--data", &data, "--listen", "127.0.0.1:0"], None);
    let mut line = String::new();
    BufReader::new(broker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "a fresh file system is empty: {line}");
    signal(&broker, "TERM");
    assert_eq!(wait(broker).code, 0);
}

/// Takes connections, reads, and answers each with these bytes; then says nothing more.
fn peer(answer: &'static [u8]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut some = [0; 64];
            let _ = stream.read(&mut some);
            let _ = std::io::Write::write_all(&mut stream, answer);
            kept.push(stream);
        }
    });
    address
}

#[test]
fn a_peer_that_is_no_broker_is_called_that() {
    for (answer, says) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "is not a Kafka broker: it answered as a web server"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "is not a Kafka broker: it speaks TLS"),
        (b"SSH-2.0-x\r\n", "is not a Kafka broker: its answer begins with \"SSH-2.0-x"),
        (b"", "it takes connections and does not answer"),
    ] {
        let ended = run(&["topic", "list", "-b", &peer(answer)], b"");
        assert_eq!((ended.code, ended.out.as_str()), (1, ""));
        assert!(ended.err.contains(says), "{says}: {}", ended.err);
    }
}
