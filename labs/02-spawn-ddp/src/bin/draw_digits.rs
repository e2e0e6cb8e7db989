//! Draws digits into MNIST's four files: the same digits that the labs draw for themselves, for other programs to read.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use lockstep::data::Digits;
use lockstep::exit;

/// Draw digits into a folder, as MNIST's four files
#[derive(Parser)]
struct Args {
    /// The folder, which is created if it is missing
    #[arg(value_parser = lockstep::output::parse_folder)]
    folder: PathBuf,
    /// Digits to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Seed of the digits
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    exit::main(|| {
        let Args { folder, samples, seed } = Args::parse();
        let samples = samples as usize;
        Digits::write_idx(&folder, seed, samples, samples.div_ceil(4))
    })
}
