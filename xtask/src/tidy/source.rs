//! A Rust file with its comments and the insides of its strings blanked out, and the parts that are tests.

/// One Rust file.
pub struct Source {
    /// The path below the root of the repository.
    pub path: String,
    /// The text as it is.
    pub text: String,
    /// The text with a space for every byte of a comment or inside of a string; places are the same in both.
    pub code: String,
    tests: Vec<std::ops::Range<usize>>,
    test_modules: Vec<String>,
}

impl Source {
    /// Looks through the text once.
    pub fn new(path: &str, text: String) -> Self {
        let code = blanked(&text);
        let mut source =
            Self { path: path.to_owned(), text, code, tests: Vec::new(), test_modules: Vec::new() };
        source.find_tests();
        source
    }

    /// The number of the line, from 1.
    pub fn line_of(&self, place: usize) -> usize {
        self.code[..place].matches('\n').count() + 1
    }

    /// Whether the place is inside of an item for tests.
    pub fn in_test(&self, place: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&place))
    }

    /// Where the word first stands in the code.
    pub fn word(&self, word: &str) -> Option<usize> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.code.match_indices(word).map(|(place, _)| place).find(|&place| {
            !self.code[..place].ends_with(is_part) && !self.code[place + word.len()..].starts_with(is_part)
        })
    }

    /// Where a `matches!` is a whole statement.
    pub fn idle_matches(&self) -> Vec<usize> {
        let mut idle = Vec::new();
        for (place, name) in self.code.match_indices("matches!(") {
            let before = self.code[..place].trim_end();
            let starts = before.is_empty() || before.ends_with([';', '{', '}']);
            let inside = place + name.len();
            let end = closing(&self.code, inside, '(', ')');
            if starts && self.code[end..].trim_start().starts_with(';') {
                idle.push(place);
            }
        }
        idle
    }

    /// The paths of the files that are compiled for tests only because this file says so.
    pub fn test_modules(&self) -> Vec<String> {
        self.test_modules.clone()
    }

    fn find_tests(&mut self) {
        for attribute in ["#[cfg(test)]", "#[cfg(any(test,"] {
            for (place, _) in self.code.match_indices(attribute) {
                let Some(stop) = self.code[place..].find(['{', ';']) else { continue };
                let stop = place + stop;
                if self.code[stop..].starts_with('{') {
                    self.tests.push(place..closing(&self.code, stop + 1, '{', '}'));
                } else if let Some(name) =
                    self.code[place..stop].rsplit_once("mod ").map(|(_, name)| name.trim())
                {
                    let file = self.path.trim_end_matches(".rs");
                    let folder = match file.rsplit_once('/') {
                        Some((folder, "mod" | "lib" | "main")) => folder,
                        _ => file,
                    };
                    self.test_modules.push(format!("{folder}/{name}.rs"));
                    self.test_modules.push(format!("{folder}/{name}/mod.rs"));
                }
            }
        }
    }
}

/// The place behind the bracket that closes the one before `from`.
fn closing(code: &str, from: usize, open: char, close: char) -> usize {
    let mut depth = 1;
    for (place, letter) in code[from..].char_indices() {
        if letter == open {
            depth += 1;
        } else if letter == close {
            depth -= 1;
            if depth == 0 {
                return from + place + close.len_utf8();
            }
        }
    }
    code.len()
}

/// The text with comments and the insides of strings and characters turned into spaces; line ends stay.
fn blanked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (skip, keep) = match rest {
            [b'/', b'/', ..] => (length_until(rest, b"\n", 0), 0),
            [b'/', b'*', ..] => (block_comment(rest), 0),
            [b'"', ..] => (quoted(rest, b'"'), 1),
            [b'r', b'"' | b'#', ..] if !ends_a_word(&bytes[..at]) => (raw_string(rest), 1),
            [b'\'', b'\\', ..] => (quoted(rest, b'\''), 1),
            [b'\'', ..] => (character(rest), 1),
            _ => (1, 1),
        };
        let skip = skip.max(1);
        let end = (at + skip).min(bytes.len());
        if skip > 1 {
            for byte in &mut out[at + keep..end.saturating_sub(keep).max(at + keep)] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end;
    }
    // Whole characters were blanked or kept, so this is the identity; anything else would shift places.
    String::from_utf8(out).unwrap_or_else(|_| " ".repeat(text.len()))
}

fn ends_a_word(before: &[u8]) -> bool {
    before.last().is_some_and(|byte| (byte.is_ascii_alphanumeric() && *byte != b'b') || *byte == b'_')
}

/// The bytes up to and with `end`, looked for from `from` on; all when it is not there.
fn length_until(rest: &[u8], end: &[u8], from: usize) -> usize {
    let found = rest.get(from..).and_then(|tail| tail.windows(end.len()).position(|window| window == end));
    found.map_or(rest.len(), |place| from + place + end.len())
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 && at < rest.len() {
        match rest[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 1;
    }
    let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
    length_until(rest, &end, 2 + hashes)
}

/// A character in quotes, or 1 for the quote of a lifetime.
fn character(rest: &[u8]) -> usize {
    let text = std::str::from_utf8(&rest[1..rest.len().min(6)])
        .or_else(|error| std::str::from_utf8(&rest[1..=error.valid_up_to()]));
    let letter = text.ok().and_then(|text| text.chars().next()).map_or(0, char::len_utf8);
    if letter > 0 && rest.get(1 + letter) == Some(&b'\'') { letter + 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_comments_and_characters_are_blank_and_lifetimes_are_not() {
        let cases = [
            ("a /* b /* c */ d */ e", "a                   e"),
            ("let x = r#\"a \" b\"#;", "let x = r        #;"),
            ("f::<'a>('\"', '\\'', 'é')", "f::<'a>(' ', '  ', '  ')"),
            ("b\"x\\\"y\" // z", "b\"    \"     "),
        ];
        for (text, code) in cases {
            assert_eq!(blanked(text), code);
        }
    }

    #[test]
    fn a_module_for_tests_only_is_found_by_its_declaration() {
        let source = Source::new("crates/a/src/b.rs", "#[cfg(test)]\npub(crate) mod c;\n".to_owned());
        assert!(source.test_modules().contains(&"crates/a/src/b/c.rs".to_owned()));
        let source = Source::new("crates/a/src/lib.rs", "#[cfg(test)]\nmod c;\nfn f() {}".to_owned());
        assert!(source.test_modules().contains(&"crates/a/src/c.rs".to_owned()));
        assert!(!source.in_test(30));
    }
}
