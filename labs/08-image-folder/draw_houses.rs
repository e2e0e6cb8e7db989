//! Draws houses after a storm as JPEG files into the folders that the lab reads, for you to inspect or damage.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use lockstep::exit;
use lockstep_vision::DrawnHouses;
use lockstep_vision::houses::CLASSES;

/// The sizes of the drawings: a folder of real photographs has several, too.
const SIZES: [(u32, u32); 3] = [(320, 240), (240, 320), (256, 192)];

/// This many consecutive houses contain each class once. The lab rejects a class without a photograph.
const EACH_CLASS: usize = CLASSES.len();

/// Draw photographs of houses after a storm into Train/ and Validation/ of a folder
#[derive(Parser)]
struct Args {
    /// The folder, which is created if it is missing
    #[arg(value_parser = lockstep::output::parse_folder)]
    folder: PathBuf,
    /// Houses to draw for training; a quarter as many are drawn for validation, and one of each class at least
    #[arg(long, default_value = "512", value_parser = clap::value_parser!(u32).range(EACH_CLASS as i64..))]
    samples: u32,
    /// Seed of the houses
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    exit::main(|| {
        let Args { folder, samples, seed } = Args::parse();
        let samples = samples as usize;
        DrawnHouses::write(&folder, seed, (samples, samples.div_ceil(4).max(EACH_CLASS)), &SIZES)
    })
}
