//! Times training steps of ResNet-18 on one thread and prints them as lines of JSON.
//!
//! The Rust side of `scripts/bench/against_python.py --step resnet`, which requests a few steps at a time so that Rust and
//! Python alternate; `scripts/bench/resnet_step.py` is the twin in Python. Without `--driver` it times `--steps` steps and
//! exits.

#[path = "../benches/support/orders.rs"]
mod orders;
#[path = "../benches/support/resnet.rs"]
mod resnet;

use std::process::ExitCode;

use clap::Parser;
use lockstep::exit;
use lockstep::models::Norm;
use orders::{Orders, time};
use resnet::Trainer;

/// Time training steps of ResNet-18 with SGD, batches of 32 pictures of 32 x 32, on one thread
#[derive(Parser)]
struct Args {
    /// Steps before the clock starts
    #[arg(long, default_value_t = 3)]
    warmup: usize,
    /// Steps to time, without a driver
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Loopback port of a driver that writes lines with numbers of steps, and reads a line of JSON for each
    #[arg(long)]
    driver: Option<u16>,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        tch::set_num_threads(1);
        let mut trainer = Trainer::new(Norm::Batch)?;
        time(|| trainer.step(), args.warmup)?;
        let mut orders = Orders::open(args.driver, args.steps)?;
        loop {
            match orders.next()? {
                0 => return Ok(()),
                steps => orders.answer(&time(|| trainer.step(), steps)?)?,
            }
        }
    })
}
