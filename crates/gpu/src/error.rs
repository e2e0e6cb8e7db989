//! Errors: which function failed, and what the library says of it.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{self as cuda, CUresult};
use cudarc::nccl::sys::{self as nccl, ncclResult_t};

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A library of NVIDIA's cannot be loaded.
    #[error("{0}")]
    Library(String),
    /// CUDA's driver reports an error: of this call, or of work that was issued before.
    #[error("{call} failed: {name}: {text}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// The error's name in cuda.h.
        name: String,
        /// The driver's text.
        text: String,
    },
    /// NCCL reports an error.
    #[error("{call} failed: {text}{}", .detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default())]
    Nccl {
        /// The function.
        call: &'static str,
        /// The text of `ncclGetErrorString`.
        text: String,
        /// The text of `ncclGetLastError`.
        detail: Option<String>,
    },
    /// The call cannot be part of a group.
    #[error(
        "{call} failed: a group is open on this thread, and {call} cannot wait for its end: call it before or after the group"
    )]
    Grouped {
        /// The function.
        call: &'static str,
    },
    /// The communicator was aborted or destroyed.
    #[error("{call} failed: the communicator was aborted")]
    Aborted {
        /// The function.
        call: &'static str,
    },
}

/// A result with the crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns true if CUDA's driver gave the error of this name, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn is_cuda(&self, error: &str) -> bool {
        matches!(self, Error::Cuda { name, .. } if name == error)
    }
}

/// A text of the library, which is static, or valid until its next error.
fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: CUDA and NCCL give strings that end with a zero; it is copied before any other call of this thread.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    Some(text).filter(|text| !text.is_empty())
}

pub(crate) fn cuda(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    let mut words = std::ptr::null();
    // SAFETY: both results may be written; they stay null for an error that the driver does not know.
    unsafe {
        let _ = cuda::cuGetErrorName(result, &mut name);
        let _ = cuda::cuGetErrorString(result, &mut words);
    }
    let name = text(name).unwrap_or_else(|| format!("{result:?}"));
    Err(Error::Cuda { call, name, text: text(words).unwrap_or_else(|| "an unknown error".into()) })
}

pub(crate) fn nccl(call: &'static str, result: ncclResult_t) -> Result<()> {
    if matches!(result, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) {
        return Ok(());
    }
    // SAFETY: takes any result and gives a static text.
    let words = text(unsafe { nccl::ncclGetErrorString(result) }).unwrap_or_else(|| format!("{result:?}"));
    // SAFETY: without a communicator it gives this thread's last error.
    let detail = text(unsafe { nccl::ncclGetLastError(std::ptr::null_mut()) });
    Err(Error::Nccl { call, text: words, detail })
}
