//! Fits a table of numbers into a width without breaking a word or a number.
//!
//! Of the forms that fit, the one with the fewest lines is taken: the table as it is; without columns that say the same in all rows,
//! which go below it; or with its first column as rows of their own above those that it groups. Where none fits, rows become columns, and
//! at last each row a list of lines.

use comfy_table::{CellAlignment, ColumnConstraint, LineStyle, Width};

use crate::formatting::{INDENT, LONGEST, length, plain, wrapped};
use crate::model::Table;
use crate::screen::TextStyle;

/// The empty columns around a cell, and between two cells.
const PADDING: usize = 2;
const BETWEEN: usize = 1;

pub fn numbers(table: &Table, style: TextStyle) -> String {
    let table = cleaned(table);
    let (short, common) = without_common(&table);
    let forms =
        [(Some(table.clone()), false), (grouped(&table), false), (Some(short.clone()), true), (grouped(&short), true)];
    let fitting =
        forms.into_iter().filter_map(|(form, is_short)| Some((form.filter(|form| fits(form, style))?, is_short)));
    let drawn = fitting.map(|(form, is_short)| {
        let text = drawn(&form, style);
        if is_short { with(text, &common) } else { text }
    });
    let shortest = drawn.min_by_key(|text| text.lines().count());
    shortest.unwrap_or_else(|| match transposed(&short) {
        turned if fits(&turned, style) => with(self::drawn(&turned, style), &common),
        _ => with(listed(&short, style), &common),
    })
}

fn with(text: String, notes: &[String]) -> String {
    std::iter::once(text).chain(notes.iter().cloned()).collect::<Vec<_>>().join("\n")
}

/// A table of texts in which no column without a constraint of its own breaks a word, unless it is longer than [`LONGEST`], such as a
/// path. Where the width is too small for that, each row becomes a list of lines.
pub fn whole_words(mut table: comfy_table::Table, style: TextStyle) -> String {
    let texts = |row: &comfy_table::Row| row.cell_iter().map(comfy_table::Cell::content).collect::<Vec<_>>();
    let headings = table.header().map(texts).unwrap_or_default();
    let rows: Vec<Vec<String>> = table.row_iter().map(texts).collect();
    let word = |row: &Vec<String>, place: usize| row.get(place).map_or(0, |cell| unbroken(cell).min(LONGEST));
    let column = |place: usize| rows.iter().chain([&headings]).map(|row| word(row, place)).max().unwrap_or(0).max(1);
    let least: Vec<usize> = (0..headings.len()).map(column).collect();
    if width_of(&least) > usize::from(style.width) {
        return listed(&Table { title: String::new(), headings, rows }, style);
    }
    let free = table.column_iter_mut().zip(least).filter(|(column, _)| column.constraint().is_none());
    free.for_each(|(column, width)| {
        column.set_constraint(lower_boundary(width));
    });
    table.to_string()
}

fn lower_boundary(width: usize) -> ColumnConstraint {
    ColumnConstraint::LowerBoundary(Width::Fixed(u16::try_from(width + PADDING).unwrap_or(u16::MAX)))
}

fn cleaned(table: &Table) -> Table {
    let all = |cells: &Vec<String>| cells.iter().map(|cell| plain(cell)).collect::<Vec<_>>();
    Table { title: String::new(), headings: all(&table.headings), rows: table.rows.iter().map(all).collect() }
}

fn fits(table: &Table, style: TextStyle) -> bool {
    width_of(&least(table)) <= usize::from(style.width)
}

fn width_of(columns: &[usize]) -> usize {
    columns.iter().map(|width| width + PADDING + BETWEEN).sum::<usize>().saturating_sub(BETWEEN)
}

/// The least width of each column in which nothing breaks.
fn least(table: &Table) -> Vec<usize> {
    let column = |(place, heading): (usize, &String)| {
        let cells = table.rows.iter().filter_map(|row| row.get(place));
        cells.map(|cell| unbroken(cell)).chain([longest_word(heading)]).max().unwrap_or(0).max(1)
    };
    table.headings.iter().enumerate().map(column).collect()
}

/// `200 ms`, `4 min 10 s`, `1.38 (1.03–1.58)`: no line ends inside.
fn is_number(cell: &str) -> bool {
    let numeric = cell.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit());
    let words = if cell.contains('–') { 3 } else { 2 };
    numeric && (length(cell) < "4 on 4 nodes".len() || cell.split(' ').count() <= words)
}

/// The least width of a text.
fn unbroken(text: &str) -> usize {
    if is_number(text) { length(text) } else { longest_word(text) }
}

/// With the text's indent.
fn longest_word(text: &str) -> usize {
    let indent = length(text) - length(text.trim_start());
    indent + text.split_whitespace().map(length).max().unwrap_or(0)
}

fn drawn(table: &Table, style: TextStyle) -> String {
    let mut shown = style.table(&table.headings.iter().map(String::as_str).collect::<Vec<_>>());
    shown.add_rows(&table.rows);
    shown.load_style(style.table_style().row_separator(LineStyle::none()));
    for ((place, column), width) in shown.column_iter_mut().enumerate().zip(least(table)) {
        let is_left =
            place == 0 && table.rows.iter().any(|row| row.first().is_some_and(|cell| cell.starts_with(INDENT)));
        column.set_cell_alignment(if is_left { CellAlignment::Left } else { CellAlignment::Right });
        column.set_constraint(lower_boundary(width));
    }
    shown.to_string()
}

/// The table without columns that have one text in several rows and no other, and those texts. Numbers are equal by chance.
fn without_common(table: &Table) -> (Table, Vec<String>) {
    let common = |place: usize| {
        let mut cells = table.rows.iter().filter_map(|row| row.get(place)).filter(|cell| !cell.is_empty());
        let first = cells.next()?;
        let mut others = cells.peekable();
        (place > 0 && !is_number(first) && others.peek().is_some() && others.all(|cell| cell == first))
            .then(|| first.clone())
    };
    let found: Vec<Option<String>> = (0..table.headings.len()).map(common).collect();
    let texts = found.iter().zip(&table.headings).filter_map(|(text, heading)| {
        let text = text.as_ref()?;
        Some(format!("in all rows: {heading} {text}"))
    });
    let texts = texts.collect();
    let kept = |cells: &Vec<String>| {
        cells.iter().zip(&found).filter(|(_, common)| common.is_none()).map(|(cell, _)| cell.clone()).collect()
    };
    let (headings, rows) = (kept(&table.headings), table.rows.iter().map(kept).collect());
    (Table { title: String::new(), headings, rows }, texts)
}

/// The table with its first column as rows; `None` if the second does not name what is in a row.
fn grouped(table: &Table) -> Option<Table> {
    let [first, second, rest @ ..] = &table.headings[..] else { return None };
    if table.rows.iter().any(|row| row.get(1).is_some_and(|cell| is_number(cell))) {
        return None;
    }
    let heading = if first.is_empty() { second.clone() } else { format!("{first} {second}") };
    let headings: Vec<String> = std::iter::once(heading).chain(rest.iter().cloned()).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut last = None;
    for row in &table.rows {
        let [group, name, cells @ ..] = &row[..] else { return None };
        if !group.is_empty() && last != Some(group) {
            let blank = vec![String::new(); headings.len() - 1];
            rows.push(std::iter::once(group.clone()).chain(blank).collect());
            last = Some(group);
        }
        rows.push(std::iter::once(format!("{INDENT}{name}")).chain(cells.iter().cloned()).collect());
    }
    Some(Table { title: String::new(), headings, rows })
}

/// The table with its rows as columns.
fn transposed(table: &Table) -> Table {
    let column = |place: usize| {
        std::iter::once(&table.headings).chain(&table.rows).filter_map(move |row| row.get(place).cloned()).collect()
    };
    let mut rows: Vec<Vec<String>> = (0..table.headings.len()).map(column).collect();
    let headings = if rows.is_empty() { Vec::new() } else { rows.remove(0) };
    Table { title: String::new(), headings, rows }
}

/// A line for each cell, below the name of its row; a row without a name is one more of the last that has one.
fn listed(table: &Table, style: TextStyle) -> String {
    let mut lines = Vec::new();
    for row in &table.rows {
        let named = row.first().is_some_and(|name| !name.is_empty());
        lines.extend(row.first().filter(|_| named).cloned());
        for (heading, cell) in table.headings.iter().zip(row).skip(1).filter(|(_, cell)| !cell.is_empty()) {
            let name = if heading.is_empty() { String::new() } else { format!("{heading}: ") };
            let text = wrapped(&format!("{name}{cell}"), style.width - INDENT.len() as u16);
            lines.extend(text.lines().map(|line| format!("{INDENT}{line}")));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let words = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        Table {
            title: String::new(),
            headings: words(&["", "", "median", "MB/s (bus)", "ratio to it", "lockstep is"]),
            rows: vec![
                words(&["exposed communication", "lockstep", "22.4 ms (19.2–23.9)", "310 (155)", "", ""]),
                words(&["", "lockstep-gloo", "5.03 ms (4.39–7.07)", "620 (310)", "3.94 (2.04–6.13)", "slower"]),
                words(&["processor time of the turn", "lockstep", "670 ms (645–685)", "1240 (620)", "", ""]),
                words(&["", "lockstep-gloo", "420 ms (385–435)", "99.1 (49.6)", "1.60 (1.51–1.76)", "slower"]),
            ],
        }
    }

    #[test]
    fn breaks_no_word_and_no_number_at_any_width() {
        let table = table();
        let cells = table.rows.iter().flatten().chain(&table.headings);
        let whole: Vec<&str> = cells
            .flat_map(|cell| if is_number(cell) { vec![cell.as_str()] } else { cell.split(' ').collect() })
            .collect();
        for width in 40..=200 {
            let text = numbers(&table, TextStyle { width, ..TextStyle::FILE });
            for word in &whole {
                assert!(text.contains(word), "{word} at {width} in\n{text}");
            }
            let longest = text.lines().map(length).max().unwrap();
            assert!(longest <= usize::from(width), "{longest} at {width} in\n{text}");
        }
    }

    #[test]
    fn keeps_its_columns_then_groups_its_rows_then_lists_them() {
        let at = |width| numbers(&table(), TextStyle { width, ..TextStyle::FILE });
        let wide = at(200);
        let has = |text: &str, words: &[&str]| {
            let line = |line: &str| line.split_whitespace().eq(words.iter().copied());
            text.lines().any(line)
        };
        assert!(has(&wide, &["exposed", "communication", "lockstep", "22.4", "ms", "(19.2–23.9)", "310", "(155)"]));
        assert!(wide.contains("lockstep is") && !wide.contains("in all rows"), "{wide}");
        let grouped = at(74);
        assert!(has(&grouped, &["lockstep", "22.4", "ms", "(19.2–23.9)", "310", "(155)"]), "{grouped}");
        assert!(grouped.ends_with("\nin all rows: lockstep is slower"), "{grouped}");
        assert!(at(40).contains("\n  ratio to it: 3.94 (2.04–6.13)\n"), "{}", at(40));
    }

    #[test]
    fn turns_a_table_of_few_rows_and_many_columns() {
        let words =
            |first: &str| std::iter::once(first.to_owned()).chain((0..9).map(|at| format!("{at}00 ms"))).collect();
        let headings =
            ["rank", "step", "forward", "backward", "waits", "optimizer", "all-reduces", "hidden", "last", "sum"];
        let headings = headings.map(str::to_owned).into();
        let table = Table { title: String::new(), headings, rows: vec![words("0"), words("1")] };
        let text = numbers(&table, TextStyle { width: 60, ..TextStyle::FILE });
        let has = |words: &[&str]| text.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
        assert!(has(&["rank", "0", "1"]) && has(&["all-reduces", "500", "ms", "500", "ms"]), "{text}");
    }

    #[test]
    fn gives_each_column_its_longest_word_and_breaks_only_what_has_no_end() {
        let path = format!("/{}", "long/".repeat(30));
        for width in [60, 80, 100, 200] {
            let style = TextStyle { width, ..TextStyle::FILE };
            let mut table = style.table(&["verdict", "understandable", "evidence"]);
            table.add_row(["passed", "collective-mismatch", &path]);
            table.add_row(["FAILED", "one", &"words and more of them ".repeat(10)]);
            let text = whole_words(table, style);
            for word in ["collective-mismatch", "understandable", "passed"] {
                assert!(text.contains(word), "{word} at {width} in\n{text}");
            }
            assert!(text.lines().all(|line| length(line) <= usize::from(width)), "{text}");
        }
    }
}
