//! Draws pictures of ten kinds of things into CIFAR-10's binary files: the same pictures that the lab draws for itself, for other
//! programs to read.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use lockstep::data::Split;
use lockstep::exit;
use lockstep_vision::Objects;

/// Draw pictures into a folder, as CIFAR-10's binary files
#[derive(Parser)]
struct Args {
    /// The folder, which is created if it is missing
    #[arg(value_parser = lockstep::output::parse_folder)]
    folder: PathBuf,
    /// Pictures to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(5..))]
    samples: u32,
    /// Seed of the pictures
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    exit::main(|| {
        let Args { folder, samples, seed } = Args::parse();
        fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
        for (split, count) in [(Split::Train, samples), (Split::Test, samples.div_ceil(4))] {
            Objects::new(seed, split).first(count as usize).write_bin(&folder, split)?;
        }
        Ok(())
    })
}
