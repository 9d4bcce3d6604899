//! What goes to stdout: lines, JSON lines, tables. Nothing else in this program writes there.

use std::io::{self, ErrorKind, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

/// Prints one line and hands it on at once, so that a pipe sees it now.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
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
