//! Every run of these tests ends through the leak gate of `common`, which looks for lanes, bytes and tasks.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

/// The forms of a run. Each takes two things, which tells it from the adaptor of an iterator.
const FORMS: [&str; 3] = ["for_each", "for_each_batch", "lanes"];

/// Whether the call whose parenthesis was just opened has more than one argument.
fn takes_two(call: &str) -> bool {
    let call = call.trim_start();
    if call.starts_with('|') || call.starts_with("move |") {
        return false;
    }
    let mut depth = 0_i32;
    for letter in call.chars() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => return true,
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    false
}

fn runs_in(text: &str) -> usize {
    let of = |form: &&str| {
        let call = format!(".{form}(");
        text.match_indices(&call).filter(|(at, _)| takes_two(&text[at + call.len()..])).count()
    };
    FORMS.iter().map(of).sum()
}

#[test]
fn only_the_common_part_starts_runs_so_that_none_bypasses_the_gate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    assert_eq!(runs_in(&fs::read_to_string(folder.join("common/mod.rs")).unwrap()), FORMS.len());
    for file in fs::read_dir(&folder).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_some_and(|ending| ending == "rs") {
            let runs = runs_in(&fs::read_to_string(&file).unwrap());
            assert_eq!(runs, 0, "{} starts a run of its own", file.display());
        }
    }
}
