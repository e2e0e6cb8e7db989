//! Draws houses after a storm as JPEG files, in the folders that the lab reads: to look at, to count, to break.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use lockstep::exit;

/// Draw photographs of houses after a storm into Train/, Validation/ and Test/ of a folder
#[derive(Parser)]
struct Args {
    /// The folder, which is made if it is missing
    folder: PathBuf,
    /// Houses to draw for training; a quarter as many are drawn for validation, and as many for the test
    #[arg(long, default_value = "512")]
    samples: NonZeroUsize,
    /// Seed of the houses
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        Ok(())
    })
}
