//! A simulated GPU: the entry points of CUDA's driver, of NCCL and of NVML that lab 10 uses, in one shared library, on host memory.
//!
//! It is for learning and for tests on machines without a GPU. `lockstep-gpu` loads it when `LOCKSTEP_GPU=simulated` or its caller asks for
//! it; nothing else does. What it shows as the real ones do:
//!
//! - **streams** are queues with a thread each: work on one runs in order, work on two in no order, unless an event makes one;
//! - **errors of kernels** surface at a later call and stay with the context;
//! - **communicators**, between processes and within one: operations that do not match wait until the communicator is aborted.
//!
//! Work that nobody has asked for yet is late. By default a stream starts only what a wait, a query, an event or another rank of the
//! process asks for (or all of it, after [`PATIENCE`] without any call), so a missing event gives the same wrong data in each run. With
//! `LOCKSTEP_GPU_SEED` each operation starts by itself after a delay that is drawn from the seed.
//!
//! Not here: CUDA's runtime, `libcudart`. Neither the lab nor the command calls it: the lab uses the driver, under the runtime, and the
//! command asks `nvidia-smi`. libtorch does call it, but runs kernels of its own, cuBLAS's and cuDNN's, which are code for a GPU. So a
//! simulated runtime would have no caller. Nor here: speed. No time that passes on this device says anything about a GPU.

mod codes;
mod cuda;
mod events;
mod kernels;
mod memory;
mod nccl;
mod nvml;
mod options;
mod streams;
mod world;

pub use options::{COUNT, DEADLINE, MEMORY, SEED};
pub use world::PATIENCE;

/// The library's name for the loader.
pub const SONAME: &str = "libsimgpu.so";
/// A function that takes the number of devices (`u32`), in place of [`COUNT`] and `CUDA_VISIBLE_DEVICES`. It counts before all others.
pub const SET_COUNT: &std::ffi::CStr = c"simgpuSetCount";
/// The beginning of each device's name.
pub const DEVICE_NAME: &str = "Lockstep simulated device";
