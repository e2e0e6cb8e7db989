//! Times DDP steps on this machine's loopback and prints them as lines of JSON.
//!
//! The Rust side of `scripts/bench/against_python.py`, which requests a few steps at a time so that Rust and Python alternate;
//! `scripts/bench/ddp_step.py` is the twin in Python. Without `--driver` it times `--steps` steps and exits.

#[path = "../benches/support/mlp.rs"]
mod mlp;
#[path = "../benches/support/orders.rs"]
mod orders;

use std::process::ExitCode;
use std::rc::Rc;

use c10d::{GroupOptions, ProcessGroup, Rank};
use clap::Parser;
use lockstep::{DdpOptions, LaunchEnv, exit, init_process_group, spawn};
use mlp::{Trainer, ZeroGrad};
use orders::{Orders, time};
use serde::{Deserialize, Serialize};
use tch::Tensor;

/// Time DDP steps of an MLP 784-1024-1024-10 with SGD, batches of 64
#[derive(Parser, Serialize, Deserialize)]
struct Args {
    /// Processes to start, one thread each
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Steps before the clock starts
    #[arg(long, default_value_t = 30)]
    warmup: usize,
    /// Steps to time, without a driver
    #[arg(long, default_value_t = 200)]
    steps: usize,
    /// Loopback port of a driver that writes lines with numbers of steps, and reads a line of JSON for each
    #[arg(long)]
    driver: Option<u16>,
    /// Make gradients views into their buckets
    #[arg(long)]
    bucket_view: bool,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        Ok(spawn(args.ranks, &args, work)?)
    })
}

fn work(env: &LaunchEnv, args: Args) -> anyhow::Result<()> {
    tch::set_num_threads(1);
    let options = GroupOptions { compare_calls: Some(false), ..GroupOptions::default() };
    let group = Rc::new(init_process_group(env, tch::Device::Cpu, &options)?);
    let options = DdpOptions { gradient_as_bucket_view: args.bucket_view, ..DdpOptions::default() };
    let mut trainer = Trainer::together(Rc::clone(&group), &options, ZeroGrad::ToNone)?;
    time(|| trainer.step(), args.warmup)?;
    let mut orders = if env.rank.is_zero() { Some(Orders::open(args.driver, args.steps)?) } else { None };
    loop {
        let steps = agree(&group, orders.as_mut().map(Orders::next).transpose()?)?;
        if steps == 0 {
            return Ok(());
        }
        let line = time(|| trainer.step(), steps)?;
        orders.iter_mut().try_for_each(|orders| orders.answer(&line))?;
    }
}

/// Sends rank 0's number to all ranks.
fn agree(group: &ProcessGroup, steps: Option<usize>) -> anyhow::Result<usize> {
    let mut number = Tensor::from(steps.unwrap_or(0) as i64);
    group.broadcast(&mut number, Rank::ZERO)?;
    Ok(usize::try_from(number.int64_value(&[]))?)
}
