//! `cargo xtask tidy`: what the compiler and clippy do not check, as `path:line: what`.

mod layers;
mod source;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub use source::Source;

/// The most lines a file may have.
const MAX_LINES: usize = 600;
/// Files that may say `unsafe`.
const UNSAFE_ALLOWED: &[&str] = &["crates/fuzzing/src/counting.rs", "bench/src/bin/lanes.rs"];
/// Folders of the machines this is built on.
const MACHINE_PATHS: &[&str] = &[concat!("/wor", "k/"), concat!("/tm", "p/"), concat!("/hom", "e/")];
/// A default of Kafka's, which DescribeConfigs tells.
const KAFKAS_PATH: &str = concat!("/tm", "p/kafka-logs");
const ADDRESSES: &[&str] = &[concat!("http", "://"), concat!("https", "://")];
const LOCAL: &[&str] = &["127.0.0.1", "localhost", "[::1]", "{"];
const ARCHIVES: &[&str] = &[".zip", ".gz", ".tgz", ".jar", ".whl", ".csv", ".xz", ".zst"];

/// One thing to mend.
pub struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Reads every file of the repository and says what is to be mended, and how many files were read.
///
/// # Errors
/// git does not list the files, a file cannot be read, or a manifest is not one.
pub fn run(root: &Path) -> Result<(Vec<Finding>, usize)> {
    let paths = tracked(root)?;
    let mut sources = Vec::new();
    let mut findings = layers::check(root)?;
    for path in &paths {
        let bytes = fs::read(root.join(path)).with_context(|| path.clone())?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if path.ends_with(".rs") {
            sources.push(Source::new(path, text));
        } else if !path.ends_with(".csv") && !path.ends_with("Cargo.lock") {
            findings.extend(check_addresses(
                path,
                &text,
                path.starts_with("LICENSE") || path.ends_with(".md"),
            ));
            findings.extend(check_machine_paths(path, &text, |_| false));
        }
    }
    let tests: BTreeSet<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in &sources {
        check_source(source, tests.contains(&source.path), &mut findings);
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok((findings, paths.len()))
}

/// Every Rust file of the repository.
///
/// # Errors
/// git does not list the files, or a file cannot be read.
pub fn rust_sources(root: &Path) -> Result<Vec<Source>> {
    let paths = tracked(root)?.into_iter().filter(|path| path.ends_with(".rs"));
    let read = |path: String| {
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        Ok(Source::new(&path, text))
    };
    paths.map(read).collect()
}

/// The files git knows of, and the new ones it does not ignore.
fn tracked(root: &Path) -> Result<Vec<String>> {
    let listing = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git did not start")?;
    ensure!(listing.status.success(), "git ls-files: {}", listing.status);
    let text = String::from_utf8(listing.stdout)?;
    Ok(text.split_terminator('\0').filter(|path| root.join(path).is_file()).map(str::to_owned).collect())
}

fn check_source(source: &Source, is_test: bool, findings: &mut Vec<Finding>) {
    let mut add = |line: usize, what: &str| {
        findings.push(Finding { path: source.path.clone(), line, what: what.to_owned() });
    };
    if source.path.starts_with("crates/wire/src/messages") {
        return;
    }
    let lines = source.text.lines().count();
    if lines > MAX_LINES {
        add(lines, &format!("{lines} lines; a file has at most {MAX_LINES}"));
    }
    let first = source.text.lines().find(|line| !line.starts_with("#!"));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        add(1, "the first line says what the file is, with `//!`");
    }
    for place in source.idle_matches() {
        add(source.line_of(place), "a `matches!` whose answer nobody looks at");
    }
    let is_test = is_test || in_test_folder(&source.path);
    for (place, _) in source.code.match_indices(".unwrap()") {
        if !is_test && !source.in_test(place) {
            add(source.line_of(place), "`unwrap` outside of tests");
        }
    }
    if !UNSAFE_ALLOWED.contains(&source.path.as_str())
        && let Some(place) = source.word("unsafe")
    {
        add(source.line_of(place), "`unsafe` in a file that is not on the list");
    }
    findings.extend(check_addresses(&source.path, &source.text, false));
    findings
        .extend(check_machine_paths(&source.path, &source.text, |place| is_test || source.in_test(place)));
}

fn in_test_folder(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
}

fn line_at(text: &str, place: usize) -> usize {
    text[..place].matches('\n').count() + 1
}

/// Addresses on the network; in documents only those of files to download.
fn check_addresses(path: &str, text: &str, is_document: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for scheme in ADDRESSES {
        for (place, _) in text.match_indices(scheme) {
            let rest = &text[place + scheme.len()..];
            let end = rest.find(|c: char| c.is_whitespace() || "\"'`<>)".contains(c)).unwrap_or(rest.len());
            let address = &rest[..end];
            let harmless = match is_document {
                true => !ARCHIVES.iter().any(|archive| address.ends_with(archive)),
                false => address.is_empty() || LOCAL.iter().any(|local| address.starts_with(local)),
            };
            if !harmless {
                let what = format!("an address on the network: {address}");
                findings.push(Finding { path: path.to_owned(), line: line_at(text, place), what });
            }
        }
    }
    findings
}

/// Absolute paths of one machine, except where `allowed`.
fn check_machine_paths(path: &str, text: &str, allowed: impl Fn(usize) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in MACHINE_PATHS {
        for (place, _) in text.match_indices(folder) {
            let inside = text[..place].ends_with(|c: char| c.is_alphanumeric() || "._-*}".contains(c));
            if !inside && !text[place..].starts_with(KAFKAS_PATH) && !allowed(place) {
                let what = format!("a path of one machine: {folder}");
                findings.push(Finding { path: path.to_owned(), line: line_at(text, place), what });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_source(&Source::new(path, text.to_owned()), false, &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_in_order_gives_no_finding() {
        let text = "//! What it is.\n\nfn f() -> bool {\n    matches!(1, 1)\n}\n\n#[cfg(test)]\nmod tests {\n    fn g() { x.unwrap(); }\n}\n";
        assert!(findings("a.rs", text).is_empty());
        assert!(findings("a.rs", "#!/usr/bin/env x\n#![allow(dead_code)]\n//! What.\n").is_empty());
        assert!(findings("tests/a.rs", "//! What.\nfn f() { x.unwrap() }\n").is_empty());
    }

    #[test]
    fn each_rule_names_the_line_that_breaks_it() {
        let text = "fn f() {\n    matches!(x,\n        1);\n    y.unwrap();\n    unsafe { z }\n}\n";
        let expected = [
            "a.rs:1: the first line says what the file is, with `//!`",
            "a.rs:2: a `matches!` whose answer nobody looks at",
            "a.rs:4: `unwrap` outside of tests",
            "a.rs:5: `unsafe` in a file that is not on the list",
        ];
        assert_eq!(findings("a.rs", text), expected);
        let long = format!("//! Long.\n{}", "\n".repeat(600));
        assert_eq!(findings("a.rs", &long), ["a.rs:601: 601 lines; a file has at most 600"]);
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let text = "//! a.unwrap()\nconst A: &str = \"unsafe .unwrap()\"; // matches!(a, b);\n/* unsafe */ const B: char = '\"';\n";
        assert!(findings("a.rs", text).is_empty());
    }

    #[test]
    fn addresses_and_paths_of_one_machine_are_found() {
        let text = format!(
            "//! A.\nconst A: &str = \"{}x.org/a.jar\";\nconst B: &str = \"{}x\";\n",
            ADDRESSES[1], MACHINE_PATHS[1]
        );
        let expected = [
            "a.rs:2: an address on the network: x.org/a.jar".to_owned(),
            format!("a.rs:3: a path of one machine: {}", MACHINE_PATHS[1]),
        ];
        assert_eq!(findings("a.rs", &text), expected);
        let document = format!("see {}x.org/page and {}x.org/a.jar", ADDRESSES[1], ADDRESSES[1]);
        assert_eq!(check_addresses("README.md", &document, true).len(), 1);
        assert!(check_addresses("a.rs", &format!("{}127.0.0.1:9", ADDRESSES[0]), false).is_empty());
    }
}
