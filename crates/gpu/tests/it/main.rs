//! The documented semantics of CUDA and NCCL, as lab 10 relies on them.
//!
//! The tests run on the simulated device, and with `LOCKSTEP_GPU=real` on GPUs. What needs more GPUs than there are prints "not verified
//! here".

#![allow(clippy::unwrap_used)] // a test may

mod comms;
mod memory;
mod procs_comms;
mod procs_errors;
mod streams;

use std::process::{Child, Command, Stdio};

use lockstep_gpu::{Gpu, Kind, open_or};

/// The first devices, or none if there are fewer.
fn gpus(count: usize) -> Option<Vec<Gpu>> {
    open_or(Kind::Simulated).unwrap();
    let there = Gpu::count().unwrap();
    if there < count {
        println!("not verified here: {there} GPUs, and this test needs {count}");
        return None;
    }
    Some((0..count).map(|number| Gpu::open(number).unwrap()).collect())
}

/// The kind of device that the tests run on.
fn kind() -> Kind {
    open_or(Kind::Simulated).unwrap()
}

/// Starts this program once more for one test, with a variable that tells it what it is.
fn start_again(test: &str, name: &str, value: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(name, value);
    command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}
