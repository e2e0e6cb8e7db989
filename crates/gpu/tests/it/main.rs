//! The documented semantics of CUDA and NCCL, as lab 10 relies on them.
//!
//! The tests run on the simulated device, and with `LOCKSTEP_GPU=real` on GPUs. What needs more GPUs than there are prints "not verified
//! here".

mod comms;
mod memory;
mod procs_comms;
mod streams;

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
