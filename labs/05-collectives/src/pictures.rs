//! Text pictures of what each rank holds. Rank 0 gathers the numbers from the ranks' tensors and draws them.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep::results::numbers;
use serde_json::{Value, json};
use tch::Tensor;

/// What one rank holds at one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// The numbers of one tensor.
    One(Vec<i64>),
    /// The numbers of several tensors, or of none.
    Several(Vec<Vec<i64>>),
}

impl Held {
    /// Copies the numbers of a tensor.
    pub(crate) fn tensor(tensor: &Tensor) -> Result<Self> {
        Ok(Held::One(whole(tensor)?))
    }

    /// Copies the numbers of several tensors.
    pub(crate) fn tensors(tensors: &[Tensor]) -> Result<Self> {
        Ok(Held::Several(tensors.iter().map(whole).collect::<Result<_>>()?))
    }

    /// A list of numbers for one tensor, or a list of lists for several.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Held::One(numbers) => json!(numbers),
            Held::Several(tensors) => json!(tensors),
        }
    }

    fn boxes(&self) -> Vec<Vec<i64>> {
        match self {
            Held::One(numbers) => vec![numbers.clone()],
            Held::Several(tensors) => tensors.clone(),
        }
    }
}

fn whole(tensor: &Tensor) -> Result<Vec<i64>> {
    Ok(numbers(tensor)?.into_iter().map(|number| number as i64).collect())
}

/// The boxes of numbers that a rank holds at each stage.
type Row = Vec<Vec<Vec<i64>>>;

/// Draws the stages of all ranks, one row per rank. Returns the picture on rank 0.
pub(crate) fn draw(group: &ProcessGroup, stages: &[(&str, Held)]) -> Result<Option<String>> {
    let row: Row = stages.iter().map(|(_, held)| held.boxes()).collect();
    let names: Vec<&str> = stages.iter().map(|(name, _)| *name).collect();
    Ok(collect(group, &row)?.map(|rows| grid(&names, &rows)))
}

/// Gathers every rank's row on rank 0. Rows differ in length, so each is sent as a tensor with the length of the longest one.
fn collect(group: &ProcessGroup, row: &Row) -> Result<Option<Vec<Row>>> {
    let mut mine = encode(row);
    let mut longest = Tensor::from(mine.len() as i64).to_device(group.device());
    group.all_reduce(&mut longest, ReduceOp::Max)?;
    mine.resize(longest.int64_value(&[]) as usize, 0);
    let mine = Tensor::from_slice(&mine).to_device(group.device());
    let places = if group.rank().is_zero() { group.size().get() } else { 0 };
    let mut all: Vec<Tensor> = (0..places).map(|_| mine.empty_like()).collect();
    group.gather(&mut all, &mine, Rank::ZERO)?;
    let decoded = all.iter().map(|codes| decode(&Vec::try_from(codes.to_device(tch::Device::Cpu))?));
    if group.rank().is_zero() { decoded.collect::<Result<_>>().map(Some) } else { Ok(None) }
}

/// Writes each list after its length.
fn encode(row: &Row) -> Vec<i64> {
    let mut codes = vec![row.len() as i64];
    for stage in row {
        codes.push(stage.len() as i64);
        for numbers in stage {
            codes.push(numbers.len() as i64);
            codes.extend(numbers);
        }
    }
    codes
}

fn decode(codes: &[i64]) -> Result<Row> {
    let mut codes = codes.iter().copied();
    let mut next = || codes.next().context("a rank's part of the picture is too short");
    let mut row = Vec::new();
    for _ in 0..next()? {
        let mut stage = Vec::new();
        for _ in 0..next()? {
            let length = next()?;
            stage.push((0..length).map(|_| next()).collect::<Result<_>>()?);
        }
        row.push(stage);
    }
    Ok(row)
}

/// The rows below the stages' names, with the boxes aligned.
fn grid(names: &[&str], rows: &[Row]) -> String {
    let columns: Vec<Vec<String>> = names.iter().enumerate().map(|(stage, name)| column(name, rows, stage)).collect();
    let label = |line: usize| if line == 0 { String::new() } else { format!("rank {}", line - 1) };
    let width = label(rows.len()).len();
    let line = |line: usize| {
        let cells: Vec<&str> = columns.iter().map(|column| column[line].as_str()).collect();
        let between = if line == 0 { "   " } else { " → " };
        format!("{:width$} {}", label(line), cells.join(between)).trim_end().to_owned()
    };
    (0..=rows.len()).map(line).collect::<Vec<_>>().join("\n")
}

/// One stage: its name, then each rank's boxes. All lines have the same width.
fn column(name: &str, rows: &[Row], stage: usize) -> Vec<String> {
    let digits =
        rows.iter().flat_map(|row| row[stage].iter().flatten()).map(|n| n.to_string().len()).max().unwrap_or(1);
    let text = |numbers: &Vec<i64>| match numbers[..] {
        [] => "·".to_owned(),
        _ => numbers.iter().map(|n| format!("{n:>digits$}")).collect::<Vec<_>>().join(" "),
    };
    let boxes = rows.iter().map(|row| row[stage].len()).max().unwrap_or(0).max(1);
    let cell = |row: &Row, place: usize| match row[stage].get(place) {
        Some(numbers) => text(numbers),
        None if place == 0 => "·".to_owned(),
        None => String::new(),
    };
    let widths: Vec<usize> =
        (0..boxes).map(|place| rows.iter().map(|row| cell(row, place).chars().count()).max().unwrap_or(1)).collect();
    let line = |row: &Row| {
        let cells: Vec<String> =
            widths.iter().enumerate().map(|(at, &width)| format!("{:width$}", cell(row, at))).collect();
        format!("│ {} │", cells.join(" │ "))
    };
    let mut lines: Vec<String> = std::iter::once(format!("  {name}")).chain(rows.iter().map(line)).collect();
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    lines.iter_mut().for_each(|line| *line = format!("{line:width$}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_beneath_each_other_and_who_holds_nothing_has_a_dot() {
        let rows = [vec![vec![vec![1, 2]], vec![vec![1], vec![11]]], vec![vec![vec![11, 12]], vec![]]];
        let wanted = ["         before      after", "rank 0 │  1  2 │ → │  1 │ 11 │", "rank 1 │ 11 12 │ → │ ·  │    │"];
        assert_eq!(grid(&["before", "after"], &rows).lines().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_row_of_any_form_survives_the_way_to_rank_0() {
        let row: Row = vec![vec![], vec![vec![]], vec![vec![-3, 4], vec![], vec![i64::MAX]]];
        let mut codes = encode(&row);
        codes.resize(codes.len() + 3, 0);
        assert_eq!(decode(&codes).unwrap(), row);
        let end = encode(&row).len();
        for cut in 0..end {
            assert!(decode(&codes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
