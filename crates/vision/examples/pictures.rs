//! Times passes over photographs in JPEG files and prints them as lines of JSON.
//!
//! The Rust side of `scripts/bench/pictures.py`, which requests a few passes at a time so that Rust and Python alternate, and
//! also contains the twin in Python. With `--draw` it draws the photographs and exits.

#[path = "../benches/support/photographs.rs"]
mod photographs;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use lockstep::data::Dataset;
use lockstep::exit;
use lockstep::loader::DataLoader;
use serde_json::json;
use tch::Kind;

/// Time passes over photographs: decode, AutoAugment, resize to 244, normalise
#[derive(Parser)]
struct Args {
    /// Folder with a folder of photographs per class
    #[arg(long)]
    folder: PathBuf,
    /// Draw this many photographs to the folder, in Train and Validation, and end
    #[arg(long)]
    draw: Option<usize>,
    /// Threads that load
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Loopback port of a driver that writes lines with numbers of passes, and reads a line of JSON for each
    #[arg(long, required_unless_present = "draw")]
    driver: Option<u16>,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        match (args.draw, args.driver) {
            (Some(count), _) => photographs::draw(&args.folder, count).map(drop),
            (None, port) => serve(&args.folder, args.workers, port.unwrap_or_default()),
        }
    })
}

fn serve(folder: &Path, workers: usize, port: u16) -> anyhow::Result<()> {
    tch::set_num_threads(1);
    let mean = mean(&photographs::set(folder, false)?)?;
    let set: Arc<dyn Dataset> = Arc::new(photographs::set(folder, true)?);
    let loader = photographs::loader(Arc::clone(&set), workers)?;
    pass(&loader, 0, set.len())?; // files and code are warm from here on
    let stream = TcpStream::connect(("127.0.0.1", port)).context("connect to the driver")?;
    let (mut orders, mut epoch) = (BufReader::new(stream), 0);
    loop {
        let mut line = String::new();
        orders.read_line(&mut line)?;
        if line.is_empty() {
            return Ok(()); // a driver that is gone wants no more
        }
        let passes: u64 = line.trim().parse().context("read the driver's number of passes")?;
        let seconds: Vec<f64> =
            (epoch..epoch + passes).map(|epoch| pass(&loader, epoch + 1, set.len())).collect::<anyhow::Result<_>>()?;
        epoch += passes;
        writeln!(orders.get_mut(), "{}", json!({"seconds": seconds, "loss": mean}))?;
    }
}

/// The seconds of a pass.
fn pass(loader: &DataLoader, epoch: u64, due: usize) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut seen = 0;
    for batch in loader.epoch(epoch) {
        seen += batch?.len();
    }
    ensure!(seen == due, "{seen} pictures came of {due}");
    Ok(begun.elapsed().as_secs_f64())
}

/// The mean of the first photographs' numbers without AutoAugment, which is equal on both sides if both do the same work.
fn mean(set: &dyn Dataset) -> anyhow::Result<f64> {
    let batch = set.batch(0, &(0..photographs::BATCH.min(set.len())).collect::<Vec<_>>())?;
    Ok(batch.inputs.abs().mean(Kind::Double).double_value(&[]))
}
