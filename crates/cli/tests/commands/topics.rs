//! `tramline topic`.

use serde_json::json;

use crate::Shell;

#[test]
fn a_topic_is_created_listed_described_grown_and_deleted() {
    let shell = Shell::new();
    let created = shell.ok(&["topic", "create", "orders", "-p", "2", "-c", "segment.bytes=1048576"]).out;
    assert!(created.starts_with("created orders with 2 partitions, id "), "{created}");
    shell.produce(&["orders", "-k", ":"], b"a:1\na:2\na:3\n");

    let list = shell.ok(&["topic", "list"]).out;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["TOPIC", "PARTITIONS", "ID"]);
    assert_eq!(rows[1][..2], ["orders", "2"]);
    assert_eq!(shell.ok(&["topic", "list", "--json"]).json(), [json!({"topic": "orders", "partitions": 2})]);

    let described = shell.ok(&["topic", "describe", "orders", "--json"]);
    let first = described.out.lines().next().unwrap();
    let place = r#"{"topic":"orders","partition":0,"leader":1,"leader_epoch":0,"start":0,"end":"#;
    assert!(first.starts_with(place), "{first}");
    let ends: i64 = described.json().iter().map(|line| line["end"].as_i64().unwrap()).sum();
    assert_eq!(ends, 3);
    let described = shell.ok(&["topic", "describe", "orders"]).out;
    assert!(described.starts_with("orders, id ") && described.contains("PARTITION  LEADER"), "{described}");

    assert_eq!(shell.ok(&["topic", "grow", "orders", "-p", "5"]).out, "orders has 5 partitions now\n");
    assert_eq!(shell.ok(&["topic", "describe", "orders", "--json"]).json().len(), 5);
    assert_eq!(shell.ok(&["topic", "delete", "orders"]).out, "deleted orders\n");
    let none = shell.ok(&["topic", "list"]);
    assert_eq!(none.out, "");
    assert!(none.err.contains("tramline topic create NAME"), "{}", none.err);
}

#[test]
fn what_the_broker_refuses_ends_with_1_and_the_next_step() {
    let shell = Shell::new();
    shell.ok(&["topic", "create", "t", "-p", "3"]);
    let refused: [(&[&str], &str); 7] = [
        (&["topic", "create", "t"], "exists"),
        (&["topic", "create", "no/slash"], "no/slash"),
        (&["topic", "create", "u", "-c", "no.such.setting=1"], "no.such.setting"),
        (&["topic", "grow", "t", "-p", "2"], "3 partitions already"),
        (&["topic", "grow", "nope", "-p", "2"], "tramline topic list"),
        (&["topic", "describe", "nope"], "tramline topic list"),
        (&["topic", "delete", "nope"], "tramline topic list"),
    ];
    for (line, says) in refused {
        let ended = shell.run(line, b"");
        assert_eq!((ended.code, ended.out.as_str()), (1, ""), "{line:?}");
        assert!(ended.err.starts_with("error: ") && ended.err.contains(says), "{line:?}: {}", ended.err);
    }
}
