//! Safe Rust over what lab 10 needs of CUDA's driver, NCCL and NVML: one method for each function, with the same terms.
//!
//! The functions come from [cudarc](https://docs.rs/cudarc), which loads NVIDIA's libraries when it first calls them. So this builds
//! and starts on any machine; [`open`] says what is missing. With `LOCKSTEP_GPU=simulated`, or after [`simulate`], it is the course's
//! simulated device instead, and [`Kind`] says so.
//!
//! cudarc has a safe layer of its own, which inserts events between streams automatically. This crate does not, because that is
//! the lesson.
//!
//! Streams run after the call that fills them has returned. A [`Buffer`] that is dropped waits for the device, as `cuMemFree` does, and
//! a [`Comm`] that is dropped is aborted.

mod comm;
mod gpu;
mod library;

pub use comm::{Call, Comm, Element, Issued, Reduction, UniqueId, group};
pub use gpu::{Buffer, Event, Gpu, Peer, Stream, host_waits};
pub use library::{Error, GPU, Kind, Result, SIMULATED, Tier, open, simulate};
pub use simgpu::COUNT as SIMULATED_COUNT;
