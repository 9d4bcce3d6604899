//! What goes to stdout (lines, JSON lines, tables) and to stderr (notes). Nothing else in this program writes there.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

/// Prints one line and hands it on at once, so that a pipe sees it now.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Says something on stderr. A stderr that takes nothing, such as a full disk or a closed pipe, costs the text and
/// nothing else: `eprintln!` would panic, and a broker must not die of a log line.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A count with its noun: `1 partition`, `6 partitions`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Prints one compact JSON object on a line of its own.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(&serde_json::to_string(value)?)?)
}

/// A table with these headings; the columns named in `numbers` stand right.
pub fn table(headings: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints a table without trailing blanks.
pub fn print_table(table: &Table) -> io::Result<()> {
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(|row| row.strip_prefix(' ').unwrap_or(row).trim_end()).collect();
    line(&lines.join("\n"))
}

/// Whether the reader of our stdout went away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = match cause.downcast_ref::<serde_json::Error>() {
            Some(error) => error.io_error_kind(),
            None => cause.downcast_ref::<io::Error>().map(io::Error::kind),
        };
        kind == Some(ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_one_has_no_plural() {
        assert_eq!((count(1, "member"), count(0, "member")), ("1 member".into(), "0 members".into()));
    }
}
