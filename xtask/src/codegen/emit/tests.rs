//! What the generator writes for each feature of the schema language, those no present message uses included.

use super::*;

fn emitted(fields: &str, more: &str) -> String {
    let text = format!(
        r#"{{ "type": "data", "name": "Sample", "validVersions": "1-5", "flexibleVersions": "3+", {more} "fields": [{fields}] }}"#
    );
    let code = module(&Schema::parse(&text).unwrap()).unwrap();
    code.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_field_is_guarded_only_in_the_versions_that_differ() {
    let cases = [
        ("0+", "m.a = r.i32()?;"),
        ("2+", "if version >= 2 { m.a = r.i32()?; }"),
        ("0-3", "if version <= 3 { m.a = r.i32()?; }"),
        ("2-4", "if (2..=4).contains(&version) { m.a = r.i32()?; }"),
        ("5+", "if version == 5 { m.a = r.i32()?; }"),
    ];
    for (versions, read) in cases {
        let code = emitted(&format!(r#"{{ "name": "A", "type": "int32", "versions": "{versions}" }}"#), "");
        assert!(code.contains(read), "{versions}: {code}");
        assert_eq!(code.contains("w.absent("), versions != "0+", "{code}");
    }
    let code = emitted(r#"{ "name": "A", "type": "int32", "versions": "2+", "ignorable": true }"#, "");
    assert!(!code.contains("absent"), "{code}");
}

#[test]
fn defaults_are_the_schemas() {
    let code = emitted(
        r#"{ "name": "A", "type": "int32", "versions": "0+", "default": "0x7fffffff" },
           { "name": "B", "type": "string", "versions": "0+", "nullableVersions": "2+" },
           { "name": "C", "type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null" },
           { "name": "D", "type": "bool", "versions": "0+", "default": "true" },
           { "name": "E", "type": "float64", "versions": "0+", "default": "1.5" },
           { "name": "F", "type": "records", "versions": "0+", "nullableVersions": "0+" },
           { "name": "G", "type": "[]int16", "versions": "0+", "nullableVersions": "0+" }"#,
        "",
    );
    let expected = "Self { a: 2147483647, b: Some(Str::new()), c: None, d: true, e: 1.5, f: None, g: Some(Vec::new()), }";
    assert!(code.contains(expected), "{code}");
    assert!(code.contains("m.b = r.opt_string(flexible, version >= 2)?;"), "{code}");
}

#[test]
fn a_tagged_field_is_refused_where_the_version_has_no_tags() {
    let code = emitted(
        r#"{ "name": "A", "type": "string", "versions": "3+", "nullableVersions": "3+", "default": "null",
             "taggedVersions": "3+", "tag": 4 }"#,
        "",
    );
    assert!(code.contains("4 => m.a = r.opt_string(true, true)?,"), "{code}");
    assert!(code.contains("if self.a.is_some() { tags.put(4, |w| w.opt_string("), "{code}");
    assert!(
        code.contains("if version < 3 { w.absent(\"Sample.a\", version, self.a.is_some())?; }"),
        "{code}"
    );
}

#[test]
fn a_struct_written_down_once_serves_several_fields() {
    let code = emitted(
        r#"{ "name": "One", "type": "Pair", "versions": "2+", "nullableVersions": "4+", "default": "null" },
           { "name": "Many", "type": "[]Pair", "versions": "4+" }"#,
        r#""commonStructs": [{ "name": "Pair", "versions": "0+", "fields": [
             { "name": "Type", "type": "uint32", "versions": "0+" },
             { "name": "Old", "type": "uint16", "versions": "0-1" },
             { "name": "Keys", "type": "[]bytes", "versions": "0+" }] }],"#,
    );
    assert_eq!(code.matches("pub struct Pair").count(), 1);
    assert!(code.contains("pub one: Option<Pair>,"), "{code}");
    assert!(code.contains("m.one = r.opt_struct(version >= 4, version)?;"), "{code}");
    assert!(code.contains("m.many = r.structs(true, version)?;"), "{code}");
    assert!(code.contains("m.r#type = r.u32()?;"), "{code}");
    assert!(code.contains("m.keys = r.array(flexible, 1, |r| r.bytes(flexible))?;"), "{code}");
    // The struct occurs from version 2 on, so a field that ended before is never there.
    assert!(!code.contains("m.old ="), "{code}");
}

#[test]
fn the_smallest_size_is_that_of_the_leanest_version() {
    let fields = r#"{ "name": "A", "type": "string", "versions": "0+" }, { "name": "B", "type": "int64", "versions": "0-2" },
                    { "name": "C", "type": "[]string", "versions": "0+" }"#;
    // Versions 1 and 2: 2 + 8 + 4; version 3 and up: 1 + 1 and the empty tagged fields.
    assert!(emitted(fields, "").contains("const MIN_SIZE: usize = 3;"));
}

#[test]
fn what_the_generator_does_not_know_is_an_error() {
    let cases = [
        r#"{ "name": "A", "type": "int128", "versions": "0+" }"#,
        r#"{ "name": "A", "type": "Missing", "versions": "0+" }"#,
        r#"{ "name": "A", "type": "string", "versions": "0+", "default": "x" }"#,
        r#"{ "name": "A", "type": "string", "versions": "0+", "default": "null" }"#,
        r#"{ "name": "A", "type": "[][]string", "versions": "0+" }"#,
        r#"{ "name": "A", "type": "int8", "versions": "3+", "taggedVersions": "4+", "tag": 0 }"#,
    ];
    for field in cases {
        let text = format!(
            r#"{{ "type": "data", "name": "S", "validVersions": "0-5", "flexibleVersions": "3+", "fields": [{field}] }}"#
        );
        assert!(Schema::parse(&text).and_then(|schema| module(&schema)).is_err(), "{field}");
    }
}

#[test]
fn names_become_snake_case_as_rust_writes_them() {
    for (name, snake) in
        [("TopicId", "topic_id"), ("ISRNodes", "isr_nodes"), ("KRaftVersion", "k_raft_version")]
    {
        assert_eq!(snake_case(name), snake);
    }
}
