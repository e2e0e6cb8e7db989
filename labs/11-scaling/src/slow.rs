//! Three ways to be slow on purpose, to see on real ranks what task 2's counters show. None of them changes what is learned.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use clap::Args;
use tch::Tensor;

/// What slows a run down.
#[derive(Args)]
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
