//! A plain-text table: columns as wide as their contents, numbers right-aligned.

use std::fmt;

/// Rows of cells below a header.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these column names.
    pub fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Table { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row. Missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }
}

/// One line per row, without a newline after the last.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for (place, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            write!(f, "{}{}", if place == 0 { "" } else { "\n" }, cells.join("  "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_columns_to_the_right_even_beyond_ascii() {
        let mut table = Table::new(["bytes", "µs"]);
        table.row(["4", "12.5"]);
        table.row(["1048576"]);
        assert_eq!(table.to_string(), "  bytes    µs\n      4  12.5\n1048576");
    }
}
