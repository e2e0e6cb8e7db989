//! A simulated GPU: the entry points of CUDA's driver, of NCCL and of NVML that lab 10 uses, in one shared library, on host memory.
//!
//! It is for learning and for tests on machines without a GPU. `lockstep-gpu` loads it when `LOCKSTEP_GPU=simulated` or its caller asks for
//! it; nothing else does. Like the real libraries, it shows that:
//!
//! - **streams** are queues with a thread each: work on one stream runs in order; work on two streams has no order unless an
//!   event defines one;
//! - **errors of kernels** surface at a later call and stay with the context;
//! - **communicators**, between processes and within one: operations that do not match wait until the communicator is aborted.
//!
//! Work is delayed until something asks for it. By default a stream starts only what a wait, a query, an event or another rank of the
//! process asks for (or all of it, after [`PATIENCE`] without any call), so a missing event gives the same wrong data in each run. With
//! `LOCKSTEP_GPU_SEED` each operation starts by itself after a delay that is drawn from the seed.
//!
//! Not here: CUDA's runtime, `libcudart`. Neither the lab nor the command calls it: the lab uses the driver, under the runtime, and the
//! command asks `nvidia-smi`. libtorch does call it, but runs kernels of its own, cuBLAS's and cuDNN's, which are code for a GPU. So a
//! simulated runtime would have no caller. Speed is not simulated either: times on this device say nothing about a GPU.

mod cuda;
mod nccl;
mod streams;
mod world;

use std::ffi::CStr;

pub use world::{COUNT, DEADLINE, MEMORY, PATIENCE, SEED};

/// The library's name for the loader.
pub const SONAME: &str = "libsimgpu.so";
/// A function that takes the number of devices (`u32`), in place of [`COUNT`] and `CUDA_VISIBLE_DEVICES`. Call it before all others.
pub const SET_COUNT: &CStr = c"simgpuSetCount";
/// The beginning of each device's name.
pub const DEVICE_NAME: &str = "Lockstep simulated device";

// Results of CUDA's driver and of NCCL, with their texts.

/// A result of CUDA's driver, `CUresult` of cuda.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Cuda(pub(crate) u32);

macro_rules! results {
    ($($id:ident = $code:literal, $name:literal, $text:literal;)*) => {
        impl Cuda {
            $(pub(crate) const $id: Cuda = Cuda($code);)*

            /// The name in cuda.h and the text that the driver has for it.
            pub(crate) fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
                match self.0 {
                    $($code => Some(($name, $text)),)*
                    _ => None,
                }
            }
        }
    };
}

results! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    NO_BINARY_FOR_GPU = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device";
    PEER_ACCESS_UNSUPPORTED = 217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    LAUNCH_TIMEOUT = 702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
}

impl From<Result<(), Cuda>> for Cuda {
    fn from(result: Result<(), Cuda>) -> Cuda {
        result.err().unwrap_or(Cuda::SUCCESS)
    }
}

/// A result of NCCL, `ncclResult_t` of nccl.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Nccl(pub(crate) u32);

impl Nccl {
    pub(crate) const SUCCESS: Nccl = Nccl(0);
    pub(crate) const UNHANDLED_CUDA_ERROR: Nccl = Nccl(1);
    pub(crate) const SYSTEM_ERROR: Nccl = Nccl(2);
    pub(crate) const INVALID_ARGUMENT: Nccl = Nccl(4);
    pub(crate) const INVALID_USAGE: Nccl = Nccl(5);
    pub(crate) const REMOTE_ERROR: Nccl = Nccl(6);

    /// The text of `ncclGetErrorString`.
    pub(crate) fn text(self) -> &'static CStr {
        match self.0 {
            0 => c"no error",
            1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
            3 => c"internal error - please report this issue to the NCCL developers",
            4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
            5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
            6 => c"remote process exited or there was a network error",
            7 => c"NCCL operation in progress",
            _ => c"unknown result code",
        }
    }
}

impl From<Result<(), Nccl>> for Nccl {
    fn from(result: Result<(), Nccl>) -> Nccl {
        result.err().unwrap_or(Nccl::SUCCESS)
    }
}
