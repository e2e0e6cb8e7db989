//! The data, rows of numbers in a CSV file; a network that predicts one column from the others; the loss.
//!
//! Every fifth row is held out. Columns are scaled to mean 0 and variance 1 over the other rows.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use lockstep::data::{Batch, Dataset, check_indices};
use lockstep::metrics::Evaluation;
use lockstep::models::RunUnit;
use lockstep::optim::AdamWOptions;
use tch::nn::{ModuleT, Path, SequentialT, linear, seq_t};
use tch::{Kind, Reduction, Tensor};

pub(crate) const EPOCHS: u64 = 20;
pub(crate) const BATCH_SIZE: &str = "32";
pub(crate) const LR: f64 = 3e-3;

#[derive(clap::Args)]
pub(crate) struct DataArgs {
    /// A CSV file of numbers, whose first line names the columns; without it, a table is computed
    #[arg(long)]
    data: Option<PathBuf>,
    /// The column to predict; without it, the last one
    #[arg(long)]
    target: Option<String>,
}

/// Columns with their names, and rows of as many numbers.
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<f32>>,
}

impl Table {
    fn read(path: &FilePath) -> Result<Self> {
        let file = path.display();
        let unreadable = || format!("cannot read {file}");
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_path(path).with_context(unreadable)?;
        let columns: Vec<String> = reader.headers().with_context(unreadable)?.iter().map(str::to_owned).collect();
        let first = columns.join(",");
        let others = [(';', "semicolons"), ('\t', "tabs"), ('|', "bars"), (' ', "spaces")];
        let is_other = |(sign, _): &(char, &str)| first.contains(*sign) && (*sign != ' ' || columns.len() == 1);
        if let Some((_, signs)) = others.into_iter().find(is_other) {
            bail!("{file} has {signs} between its columns: save it with commas, and with points in its numbers");
        }
        let are_names = columns.iter().any(|column| column.parse::<f32>().is_err());
        ensure!(
            are_names,
            "{file} has only numbers in its first line: add a line with the names of the columns before it"
        );
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.with_context(unreadable)?;
            let line = record.position().map_or(0, csv::Position::line);
            let number = |(text, column): (&str, &String)| {
                let number: Option<f32> = text.parse().ok().filter(|number: &f32| number.is_finite());
                number.with_context(|| {
                    format!(
                        "{file}, line {line}, column {column}: {text:?} is not a number; remove the row, or the column"
                    )
                })
            };
            rows.push(record.iter().zip(&columns).map(number).collect::<Result<_>>()?);
        }
        Ok(Table { columns, rows })
    }

    /// z of x and y, on a grid of 30 × 30 points.
    fn computed() -> Self {
        let row = |number: u16| {
            // 31 and 29 have no divisor in common with 30 and 900, so that neighbours in number are far from each other.
            let number = u32::from(number) * 389 % 900;
            let (x, y) = ((number % 30) as f32 / 10.0, (number / 30) as f32 / 10.0);
            vec![x, y, x.sin() * y + 0.5 * x]
        };
        Table { columns: ["x", "y", "z"].map(str::to_owned).to_vec(), rows: (0..900).map(row).collect() }
    }
}

/// Scaled rows; the target is taken out.
struct Rows {
    inputs: Vec<Vec<f32>>,
    targets: Vec<f32>,
}

impl Dataset for Rows {
    fn len(&self) -> usize {
        self.targets.len()
    }

    /// Inputs: `Float [n, columns]`; targets: `Float [n, 1]`.
    fn batch(&self, _epoch: u64, indices: &[usize]) -> Result<Batch> {
        check_indices(self.len(), indices)?;
        let (n, columns) = (indices.len() as i64, self.inputs[0].len() as i64);
        let inputs: Vec<f32> = indices.iter().flat_map(|&index| self.inputs[index].iter().copied()).collect();
        let targets: Vec<f32> = indices.iter().map(|&index| self.targets[index]).collect();
        let targets = Tensor::from_slice(&targets).view([n, 1]);
        Ok(Batch { inputs: Tensor::from_slice(&inputs).view([n, columns]), targets })
    }
}

pub(crate) struct Data {
    pub(crate) train: Arc<dyn Dataset>,
    pub(crate) test: Arc<dyn Dataset>,
    columns: i64,
}

impl Data {
    pub(crate) fn load(args: &DataArgs, _seed: u64) -> Result<Self> {
        let name = args.data.as_ref().map_or("the computed table".to_owned(), |path| path.display().to_string());
        let Table { columns, rows } = args.data.as_deref().map_or_else(|| Ok(Table::computed()), Table::read)?;
        ensure!(columns.len() >= 2, "{name} has {} column; it needs a target and another", columns.len());
        ensure!(rows.len() >= 5, "{name} has {} rows; it needs 5, of which one is held out", rows.len());
        let target = match &args.target {
            None => columns.len() - 1,
            Some(target) => columns.iter().position(|column| column == target).with_context(|| {
                format!("{name} has no column {target:?} to predict; its columns are {}", columns.join(", "))
            })?,
        };
        let (train, test): (Vec<_>, Vec<_>) = rows.into_iter().enumerate().partition(|(number, _)| number % 5 != 4);
        let scales: Vec<(f64, f64)> =
            (0..columns.len()).map(|at| scale(train.iter().map(|(_, row)| row[at]))).collect();
        let set = |rows: Vec<(usize, Vec<f32>)>| {
            let scaled = |(_, row): (usize, Vec<f32>)| {
                let of =
                    |(value, (mean, deviation)): (f32, &(f64, f64))| ((f64::from(value) - mean) / deviation) as f32;
                let mut row: Vec<f32> = row.into_iter().zip(&scales).map(of).collect();
                let target = row.remove(target);
                (row, target)
            };
            let (inputs, targets) = rows.into_iter().map(scaled).unzip();
            Arc::new(Rows { inputs, targets })
        };
        Ok(Data { train: set(train), test: set(test), columns: columns.len() as i64 - 1 })
    }
}

/// Mean and standard deviation of a column; 1 in place of a deviation of 0.
fn scale(values: impl Iterator<Item = f32> + Clone) -> (f64, f64) {
    let n = values.clone().count() as f64;
    let mean = values.clone().map(f64::from).sum::<f64>() / n;
    let variance = values.map(|value| (f64::from(value) - mean).powi(2)).sum::<f64>() / n;
    (mean, if variance > 0.0 { variance.sqrt() } else { 1.0 })
}

pub(crate) type Network = SequentialT;
pub(crate) type Rule = AdamWOptions;

/// Rows, shape `[n, columns]`, to predictions, shape `[n, 1]`.
pub(crate) fn network(vs: &Path<'_>, data: &Data) -> Result<Network> {
    let hidden = 64;
    Ok(seq_t()
        .add(linear(vs / "0", data.columns, hidden, Default::default()))
        .add_fn(|x| x.tanh())
        .add(linear(vs / "1", hidden, hidden, Default::default()))
        .add_fn(|x| x.tanh())
        .add(linear(vs / "2", hidden, 1, Default::default())))
}

pub(crate) fn optimizer(lr: f64) -> Rule {
    AdamWOptions { lr, ..Default::default() }
}

/// Prefixes of the names of parameters that fully sharded training gathers together: here one, for all.
pub(crate) fn units(_net: &Network) -> Vec<String> {
    vec![String::new()]
}

pub(crate) fn forward(net: &Network, inputs: &Tensor, train: bool, run: &RunUnit<'_>) -> Tensor {
    run("", inputs, &|inputs| net.forward_t(inputs, train))
}

/// How many targets of a batch count.
pub(crate) fn count(targets: &Tensor) -> i64 {
    targets.numel() as i64
}

/// The sum of their squared errors. Divided by the number of rows, 1 is the loss of always predicting the mean.
pub(crate) fn loss(outputs: &Tensor, targets: &Tensor) -> c10d::Result<Tensor> {
    let (here, there) = (outputs.size(), targets.size());
    if here != there {
        // libtorch would repeat the smaller one.
        let why = format!("outputs of shape {here:?} with targets of shape {there:?}: make them equal");
        return Err(c10d::Error::bad_argument("compute the squared error", why));
    }
    let squares = outputs.f_mse_loss(targets, Reduction::Sum);
    squares.map_err(|error| c10d::Error::of_torch("compute the squared error", &error))
}

/// Adds the squared errors of a batch that is held out.
pub(crate) fn score(all: &mut Evaluation, outputs: &Tensor, targets: &Tensor) -> c10d::Result<()> {
    all.add_loss(loss(outputs, targets)?.to_kind(Kind::Double).double_value(&[]), targets.numel());
    Ok(())
}

/// A last line to print, if there is something to show.
pub(crate) fn show(_net: &Network, _data: &Data) -> Result<Option<String>> {
    Ok(None)
}
