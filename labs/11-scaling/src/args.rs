//! The command line: what a step can be made of, and three ways to be slow on purpose.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use c10d::{CommHook, ProcessGroup, ReduceOp};
use clap::{Parser, ValueEnum};
use lockstep::DdpOptions;
use lockstep::compress::Compression;
use lockstep::device::DeviceChoice;
use lockstep::measure::Sizes;
use lockstep::optim::schedule::Warmup;
use tch::Tensor;

/// Train MNIST with DDP, and show what a step costs
#[derive(Parser)]
pub(crate) struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// Samples of one rank in a step
    #[arg(long, default_value = "32")]
    pub(crate) batch_size: NonZeroUsize,
    /// Passes into which a rank divides its batch: each needs the memory of its own samples only, and one exchange follows the last
    #[arg(long, default_value_t = 1, value_name = "PASSES", value_parser = clap::value_parser!(i64).range(1..=4096))]
    pub(crate) accumulate: i64,
    /// Capacity of a bucket of gradients in MiB
    #[arg(long, default_value_t = 25.0, value_parser = mebibytes)]
    pub(crate) bucket_mb: f64,
    /// How gradients are compressed
    #[arg(long, value_enum, default_value_t)]
    pub(crate) hook: Hook,
    /// The rank of PowerSGD's matrices
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(i64).range(1..=64))]
    pub(crate) matrix_rank: i64,
    /// Learning rate
    #[arg(long, default_value_t = 0.01)]
    pub(crate) lr: f64,
    /// Scale the learning rate from this batch of all ranks to the actual one
    #[arg(long, value_name = "SAMPLES")]
    pub(crate) lr_for_batch: Option<NonZeroUsize>,
    /// Steps in which the rate rises from the given to the scaled one
    #[arg(long, default_value_t = 0, value_name = "STEPS", requires = "lr_for_batch")]
    pub(crate) warm_up: u64,
    /// Momentum of SGD
    #[arg(long, default_value_t = 0.9)]
    pub(crate) momentum: f64,
    /// Units of each of the network's two hidden layers
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(i64).range(1..=65536))]
    pub(crate) width: i64,
    /// First time all-reduces from a size to another, both powers of two, and fit α and β
    #[arg(long, value_name = "BYTES,BYTES", num_args = 0..=1, require_equals = true, default_missing_value = "1024,4194304", value_parser = sizes)]
    pub(crate) links: Option<Sizes>,
    #[command(flatten)]
    pub(crate) slow: Slow,
    /// Digits to draw
    #[arg(long, default_value = "2048")]
    pub(crate) samples: NonZeroUsize,
    /// A folder with MNIST's four files; without one, digits are drawn
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Seed of drawn digits, order and initial weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A folder in which each rank saves its weights at the end
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    pub(crate) weights: Option<PathBuf>,
    /// Threads of each rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) threads: i32,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
}

/// How gradients are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hook {
    /// As they are
    #[default]
    None,
    /// Half precision, in libtorch's reducer: it overlaps with the backward pass
    Fp16,
    /// bfloat16, after the backward pass
    Bf16,
    /// Two thin matrices in place of each large one, after the backward pass
    Powersgd,
}

impl Args {
    pub(crate) fn ddp(&self) -> DdpOptions {
        let comm_hook = (self.hook == Hook::Fp16).then_some(CommHook::Fp16Compress);
        // Fixed buckets: otherwise the first step has others than the rest, and one more exchange.
        DdpOptions { bucket_cap_mb: self.bucket_mb, comm_hook, fixed_buckets: true, ..Default::default() }
    }

    /// Compressions that libtorch's reducer lacks.
    pub(crate) fn compression(&self) -> Option<Compression> {
        match self.hook {
            Hook::None | Hook::Fp16 => None,
            Hook::Bf16 => Some(Compression::Bf16),
            Hook::Powersgd => Some(Compression::PowerSgd { rank: self.matrix_rank }),
        }
    }

    /// The learning rate by step.
    pub(crate) fn schedule(&self, world_size: usize) -> Result<Warmup> {
        Ok(match self.lr_for_batch {
            Some(base) => Warmup::linear_scaling(self.lr, base.get(), self.batch_size.get(), world_size, self.warm_up)?,
            None => Warmup::new(self.lr, 1.0, 0)?,
        })
    }
}

fn sizes(text: &str) -> Result<Sizes, String> {
    let (least, most) = text.split_once(',').ok_or("two sizes with a comma between them, as 1024,4194304")?;
    let bytes = |text: &str| text.parse().map_err(|error| format!("{text:?}: {error}"));
    Sizes::new(bytes(least)?, bytes(most)?).map_err(|error| error.to_string())
}

fn mebibytes(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if number > 0.0 && number <= 4096.0 { Ok(number) } else { Err("more than 0 and at most 4096".into()) }
}

/// What slows a run down, to see on real ranks what task 2's counters show. None of it changes what is learned.
#[derive(clap::Args)]
pub(crate) struct Slow {
    /// Exchange the loss in each step, with a barrier, as the program of task 3 does
    #[arg(long)]
    log_every_step: bool,
    /// Milliseconds that the last rank's loader takes longer for a batch
    #[arg(long, default_value_t = 0, value_name = "MS")]
    slow_loader: u64,
    /// Milliseconds that the last rank computes longer in a step
    #[arg(long, default_value_t = 0, value_name = "MS")]
    straggler: u64,
}

impl Slow {
    /// What the loader takes longer.
    pub(crate) fn load(&self, group: &ProcessGroup) {
        delay_last(group, self.slow_loader);
    }

    /// What computing takes longer.
    pub(crate) fn compute(&self, group: &ProcessGroup) {
        delay_last(group, self.straggler);
    }

    /// What the log exchanges.
    pub(crate) fn log(&self, group: &ProcessGroup, loss: f64) -> Result<()> {
        if self.log_every_step {
            let mut loss = Tensor::from_slice(&[loss]).to_device(group.device());
            group.all_reduce(&mut loss, ReduceOp::Sum)?;
            group.barrier()?;
        }
        Ok(())
    }
}

fn delay_last(group: &ProcessGroup, milliseconds: u64) {
    if group.rank().get() + 1 == group.size().get() {
        sleep(Duration::from_millis(milliseconds));
    }
}
