//! Series: an operation's times by message size, and their text form: a table with columns as wide as their contents.

use std::fmt;

use super::{AlphaBeta, FitError, Spread};

/// One size's times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The message, in bytes.
    pub bytes: u64,
    /// Its times.
    pub time: Spread,
}

impl Point {
    /// Bytes divided by the median time, in MB/s: 10^6 bytes a second.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.time.median
    }
}

/// An operation's times by message size.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The operation, for the legend and the table's header.
    pub name: String,
    /// In ascending order of size.
    pub points: Vec<Point>,
}

impl Series {
    /// A series without points.
    pub fn new(name: impl Into<String>) -> Self {
        Series { name: name.into(), points: Vec::new() }
    }

    /// Adds a size's times.
    pub fn push(&mut self, bytes: u64, time: Spread) {
        self.points.push(Point { bytes, time });
    }

    /// The α–β model through the median times.
    pub fn fit(&self) -> Result<AlphaBeta, FitError> {
        AlphaBeta::fit(&self.samples())
    }

    /// The model in one line: latency, bandwidth, and its largest error; or why there is no model.
    pub fn fit_line(&self) -> String {
        match self.fit() {
            Ok(line) if line.beta == 0.0 => {
                format!(
                    "{}: the times do not grow with the size: measure longer messages, or on a quieter machine",
                    self.name
                )
            }
            Ok(line) => format!(
                "{}: t = α + β·n with α = {} µs, 1/β = {} MB/s; off by {:.0} % at most",
                self.name,
                number(line.alpha),
                number(line.bandwidth()),
                100.0 * line.worst(&self.samples())
            ),
            Err(error) => format!("{}: {error}", self.name),
        }
    }

    /// A row for each size: bytes, median, 10th and 90th percentile in µs, MB/s.
    pub fn table(&self) -> Table {
        let mut table = Table::new(["bytes", "median µs", "10 %", "90 %", "MB/s"]);
        for point in &self.points {
            let Spread { median, p10, p90 } = point.time;
            let cells = [median, p10, p90, point.bandwidth()].map(number);
            table.row([point.bytes.to_string()].into_iter().chain(cells));
        }
        table
    }

    fn samples(&self) -> Vec<(f64, f64)> {
        self.points.iter().map(|point| (point.bytes as f64, point.time.median)).collect()
    }
}

/// Several operations side by side: a row for each size that any of them has, with their median times in µs.
pub fn table_of(series: &[Series]) -> Table {
    let mut table =
        Table::new(std::iter::once("bytes".to_owned()).chain(series.iter().map(|s| format!("{} µs", s.name))));
    let mut sizes: Vec<u64> = series.iter().flat_map(|s| &s.points).map(|point| point.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for bytes in sizes {
        let cell =
            |s: &Series| s.points.iter().find(|p| p.bytes == bytes).map_or(String::new(), |p| number(p.time.median));
        table.row(std::iter::once(bytes.to_string()).chain(series.iter().map(cell)));
    }
    table
}

/// Three significant digits: 0.123, 12.3, 1230.
fn number(value: f64) -> String {
    let places = if value < 1.0 {
        3
    } else if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.places$}")
}

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

    fn line(name: &str, sizes: &[u64]) -> Series {
        let mut series = Series::new(name);
        for &bytes in sizes {
            let median = 10.0 + bytes as f64 / 100.0;
            series.push(bytes, Spread { median, p10: median * 0.9, p90: median * 1.1 });
        }
        series
    }

    #[test]
    fn shows_bytes_times_and_bandwidth_per_row() {
        let table = line("send", &[4, 1_000_000]).table().to_string();
        assert_eq!(table.lines().count(), 3, "{table}");
        assert_eq!(
            table.lines().last().unwrap().split_whitespace().collect::<Vec<_>>(),
            ["1000000", "10010", "9009", "11011", "99.9"]
        );
    }

    #[test]
    fn shows_operations_side_by_side_even_if_one_lacks_a_size() {
        let text = table_of(&[line("ring", &[4, 400]), line("engine", &[400])]).to_string();
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            cells,
            [vec!["bytes", "ring", "µs", "engine", "µs"], vec!["4", "10.0"], vec!["400", "14.0", "14.0"]]
        );
    }

    #[test]
    fn shows_the_model_or_why_there_is_no_model() {
        assert_eq!(
            line("send", &[4, 400, 40_000]).fit_line(),
            "send: t = α + β·n with α = 10.0 µs, 1/β = 100 MB/s; off by 0 % at most"
        );
        let text = line("send", &[4]).fit_line();
        assert!(text.contains("at least 2 message sizes, and there are 1"), "{text}");
        let mut flat = line("send", &[4]);
        flat.push(8, Spread { median: 1.0, p10: 1.0, p90: 1.0 });
        assert!(flat.fit_line().contains("do not grow with the size"), "{}", flat.fit_line());
    }

    #[test]
    fn aligns_columns_to_the_right_even_beyond_ascii() {
        let mut table = Table::new(["bytes", "µs"]);
        table.row(["4", "12.5"]);
        table.row(["1048576"]);
        assert_eq!(table.to_string(), "  bytes    µs\n      4  12.5\n1048576");
    }
}
