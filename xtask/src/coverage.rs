//! `cargo xtask coverage`: which scenario is shown by which test, written into the tables of the pages.
//!
//! The pages are the lists of what there is to show: rows of `| id | what | tests |`. The third cell is written by
//! this command from the tests whose names carry the id (`fn t046_...`); without a test it says `no test: ` and
//! why there cannot be one. Words between the tables are left alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tidy::{Source, rust_sources};

/// The pages, from the root of the repository.
const PAGES: &[&str] = &["docs/processing-coverage.md", "docs/traps.md"];
/// How a third cell begins that stands in for a test.
const REASON: &str = "no test: ";

/// Where an id is shown: file and test.
type Shown = BTreeMap<String, Vec<(String, String)>>;

/// What was found.
pub struct Coverage {
    /// What keeps the pages from being complete, one line each.
    pub findings: Vec<String>,
    /// How many rows have a test.
    pub shown: usize,
    /// How many rows have a reason instead.
    pub excused: usize,
}

/// Brings the pages up to date, or with `check` only says what differs.
///
/// # Errors
/// A page or a source file cannot be read or written.
pub fn run(root: &Path, check: bool) -> Result<Coverage> {
    let shown = tests(&rust_sources(root)?);
    let mut coverage = Coverage { findings: Vec::new(), shown: 0, excused: 0 };
    let mut known = BTreeMap::new();
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).with_context(|| (*page).to_owned())?;
        let written = rewrite(page, &text, &shown, &mut known, &mut coverage);
        if written == text {
            continue;
        }
        if check {
            coverage.findings.push(format!("{page}: not current; `cargo xtask coverage` writes it"));
        } else {
            fs::write(root.join(page), written).with_context(|| (*page).to_owned())?;
        }
    }
    for (id, tests) in &shown {
        if !known.contains_key(id) {
            let (path, name) = &tests[0];
            coverage.findings.push(format!("{path}: {name}: no page has a row for {id}"));
        }
    }
    Ok(coverage)
}

/// The page with the tests of each row filled in.
fn rewrite(
    page: &str,
    text: &str,
    shown: &Shown,
    known: &mut BTreeMap<String, usize>,
    coverage: &mut Coverage,
) -> String {
    let mut written = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let row = line.starts_with('|') && cells.first().is_some_and(|id| is_id(id));
        let [id, what, third @ ..] = &*cells else {
            written.push_str(line);
            written.push('\n');
            continue;
        };
        if !row {
            written.push_str(line);
            written.push('\n');
            continue;
        }
        if let Some(before) = known.insert((*id).to_owned(), number) {
            coverage.findings.push(format!("{page}:{number}: {id} has a row already, in line {before}"));
        }
        let third = third.join(" | ");
        let cell = if let Some(tests) = shown.get(*id) {
            coverage.shown += 1;
            cell(tests)
        } else {
            if third.strip_prefix(REASON).is_some_and(|why| why.len() > 10) {
                coverage.excused += 1;
            } else {
                coverage
                    .findings
                    .push(format!("{page}:{number}: {id} ({what}): no test, and no reason why not"));
            }
            if third.starts_with(REASON) { third } else { "-".to_owned() }
        };
        // Writing to a string cannot fail.
        let _ = writeln!(written, "| {id} | {what} | {cell} |");
    }
    written
}

fn cell(tests: &[(String, String)]) -> String {
    let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, name) in tests {
        files.entry(path).or_default().push(format!("`{name}`"));
    }
    files.iter().map(|(path, names)| format!("{path}: {}", names.join(", "))).collect::<Vec<_>>().join("; ")
}

fn is_id(word: &str) -> bool {
    word.len() == 4 && word.starts_with(['t', 'b']) && word[1..].bytes().all(|byte| byte.is_ascii_digit())
}

/// The ids in a name; `t020_to_t023` are four.
fn ids(name: &str) -> Vec<String> {
    let words: Vec<&str> = name.split('_').collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate().filter(|(_, word)| is_id(word)) {
        let from = match words.get(at.wrapping_sub(2)..at) {
            Some([first, "to"]) if is_id(first) && first[..1] == word[..1] => first,
            _ => word,
        };
        if let (Ok(from), Ok(to)) = (from[1..].parse::<u32>(), word[1..].parse::<u32>()) {
            found.extend((from..=to).map(|number| format!("{}{number:03}", &word[..1])));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn tests(sources: &[Source]) -> Shown {
    let mut shown = Shown::new();
    for source in sources {
        for (place, _) in source.code.match_indices("fn ") {
            let begin = source.code[..place].rfind(['{', '}', ';']).map_or(0, |at| at + 1);
            let before = &source.code[begin..place];
            let is_test = before.contains("#[test]") || before.contains("::test");
            if !is_test || before.contains("#[ignore") || before.ends_with(|c: char| c.is_alphanumeric()) {
                continue;
            }
            let name: String = source.code[place + 3..]
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            for id in ids(&name) {
                shown.entry(id).or_default().push((source.path.clone(), name.clone()));
            }
        }
    }
    shown.values_mut().for_each(|tests| tests.sort());
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(code: &str) -> Vec<String> {
        tests(&[Source::new("a.rs", code.to_owned())]).into_keys().collect()
    }

    #[test]
    fn a_name_shows_every_id_it_carries_and_a_range_all_between() {
        assert_eq!(ids("t163_a_stuck_one_and_t168_b005_more"), ["b005", "t163", "t168"]);
        assert_eq!(ids("t020_to_t023_b008_the_table"), ["b008", "t020", "t021", "t022", "t023"]);
        assert_eq!(ids("goes_to_t023"), ["t023"]);
        assert_eq!(ids("t1_t1234_b12_tab1"), [] as [&str; 0]);
    }

    #[test]
    fn only_tests_that_run_count() {
        assert_eq!(shown("#[test]\nfn t001_a() {}"), ["t001"]);
        assert_eq!(shown("#[tokio::test(start_paused = true)]\nasync fn t002_a() {}"), ["t002"]);
        assert_eq!(shown("#[test]\n#[ignore = \"long\"]\nfn t003_a() {}"), [] as [&str; 0]);
        assert_eq!(shown("fn t004_a() {}\n/* #[test] */ fn t005_a() {}"), [] as [&str; 0]);
        assert_eq!(shown("proptest! {\n #[test]\n fn t006_a(x in 0..1) {}\n}"), ["t006"]);
    }

    fn page(text: &str, code: &str) -> (String, Vec<String>) {
        let shown = tests(&[Source::new("a.rs", code.to_owned())]);
        let mut coverage = Coverage { findings: Vec::new(), shown: 0, excused: 0 };
        let written = rewrite("p", text, &shown, &mut BTreeMap::new(), &mut coverage);
        (written, coverage.findings)
    }

    #[test]
    fn rows_get_their_tests_and_what_has_neither_test_nor_reason_is_found() {
        let text = "# A\n| id | what | tests |\n|---|---|---|\n| t001 | one | old |\n| t002 | two | no test: there is no null in Rust |\n| t003 | three | b |\n";
        let (written, findings) = page(text, "#[test]\nfn t001_a() {}\n#[test]\nfn t001_b() {}\n");
        let expected = "# A\n| id | what | tests |\n|---|---|---|\n| t001 | one | a.rs: `t001_a`, `t001_b` |\n| t002 | two | no test: there is no null in Rust |\n| t003 | three | - |\n";
        assert_eq!(written, expected);
        assert_eq!(findings, ["p:6: t003 (three): no test, and no reason why not"]);
        assert_eq!(page(&written, "#[test]\nfn t001_a() {}\n#[test]\nfn t001_b() {}\n").0, written);
    }

    #[test]
    fn an_id_has_one_row() {
        let (_, findings) = page("| t001 | a | |\n| t001 | b | |\n", "#[test]\nfn t001_a() {}\n");
        assert_eq!(findings, ["p:2: t001 has a row already, in line 1"]);
    }
}
