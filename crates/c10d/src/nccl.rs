//! NCCL for process groups, from a small library that the program carries within itself.
//!
//! The library is the part of the shim that needs `libtorch_cuda.so` (`shim/nccl.cpp`, built by the cargo feature `nccl`). Were
//! it linked, every run would load CUDA. As a file beside the program it could get lost, so its bytes are in the program, which
//! maps them from memory when the first NCCL group is made. Without the feature that is an error.
//!
//! What needs no GPU (compiling, linking, loading, errors) is tested everywhere; `tests/cuda.rs` says what a machine without one
//! could not verify.

#[cfg(feature = "nccl")]
pub(crate) use library::{make, prepare};
#[cfg(not(feature = "nccl"))]
pub(crate) use without::{make, prepare};

#[cfg(feature = "nccl")]
mod library {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::ptr::NonNull;
    use std::sync::OnceLock;

    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    use rustix::fs::{MemfdFlags, memfd_create};

    use crate::cuda::words;
    use crate::error::{Error, Fault, Result};
    use crate::ffi::{self, BackendHandle, Exception, Kind, Seat, Status};

    static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liblockstep_nccl.so"));
    static LIBRARY: OnceLock<Library> = OnceLock::new();

    /// `lc_backend_nccl` of `shim/nccl.cpp`.
    type Make = unsafe extern "C" fn(*const Seat, i32, *mut *mut BackendHandle) -> Status;

    /// Loads CUDA and the library, and looks whether the device is there.
    pub(crate) fn prepare(device: usize) -> Result<()> {
        crate::cuda::load()?;
        if LIBRARY.get().is_none() {
            let library = open().map_err(|detail| Error::with_fault(Fault::Internal, "load NCCL", detail))?;
            // Where two threads came here, the second library is dropped unused.
            let _ = LIBRARY.set(library);
        }
        let count = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
        if device < count {
            return Ok(());
        }
        let detail = format!(
            "device cuda:{device} is not there: libtorch sees {count} CUDA devices (nvidia-smi lists the machine's, \
             CUDA_VISIBLE_DEVICES hides them)"
        );
        Err(Error::bad_argument("init_process_group", detail))
    }

    /// Makes the backend of one rank. [`prepare`] comes first.
    pub(crate) fn make(seat: &Seat, device: usize) -> Result<NonNull<BackendHandle>, Exception> {
        let broken = |message: String| Exception { kind: Kind::Other, message };
        let library = LIBRARY.get().ok_or_else(|| broken("the NCCL library is not loaded".into()))?;
        let device = i32::try_from(device).map_err(|e| broken(e.to_string()))?;
        // SAFETY: `Make` is the function's type in the shim of the same build.
        let make = unsafe { library.get::<Make>(b"lc_backend_nccl") }.map_err(|e| broken(words(&e)))?;
        // SAFETY: the seat and what it points to outlive the call; `out` is ours to be written.
        ffi::made(|out| unsafe { make(seat, device, out) })
    }

    /// From a file that lives in memory: no folder has to be writable or allow programs, and nothing is left behind.
    fn open() -> Result<Library, String> {
        let memory = memfd_create("lockstep-nccl", MemfdFlags::CLOEXEC).map_err(|e| format!("no memory file: {e}"))?;
        let mut file = File::from(memory);
        file.write_all(BYTES).map_err(|e| format!("cannot fill a memory file: {e}"))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: built from this crate's own source; its only initialisers are a few constants of libtorch's headers.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| words(&e))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn carries_a_shared_library_that_was_linked_against_the_cuda_half() {
            assert_eq!(BYTES[..4], *b"\x7fELF");
            assert_eq!(BYTES[16], 3, "ET_DYN");
            let has = |name: &str| BYTES.windows(name.len()).any(|window| window == name.as_bytes());
            assert!(has("lc_backend_nccl") && has("libtorch_cuda.so"));
        }

        #[test]
        fn an_exception_in_the_library_arrives_as_an_error() {
            let there = crate::cuda::load().map_err(|error| error.to_string());
            match there.and_then(|()| if tch::Cuda::device_count() == 0 { Ok(()) } else { Err("a GPU is here".into()) })
            {
                Ok(()) => {
                    assert!(prepare(0).unwrap_err().detail().contains("device cuda:0 is not there"));
                    let store = crate::Store::hash().unwrap();
                    let (group_name, store) = (ffi::Bytes::new(b"0"), store.as_ptr());
                    let seat = Seat { store, group_name, rank: 0, size: 1, global_ranks: &0, timeout_ms: 1000 };
                    let exception = make(&seat, 0).unwrap_err();
                    assert!(
                        exception.message.contains("NVIDIA") || exception.message.contains("CUDA"),
                        "{exception:?}"
                    );
                }
                Err(why) => println!("not verified here: {why}"),
            }
        }
    }
}

#[cfg(not(feature = "nccl"))]
mod without {
    use std::ptr::NonNull;

    use crate::error::{Error, Result};
    use crate::ffi::{BackendHandle, Exception, Kind, Seat};

    const ABSENT: &str =
        "this program was built without NCCL: run scripts/setup.sh --nccl, then build with --features nccl";

    pub(crate) fn prepare(_device: usize) -> Result<()> {
        Err(Error::bad_argument("init_process_group", ABSENT))
    }

    pub(crate) fn make(_seat: &Seat, _device: usize) -> Result<NonNull<BackendHandle>, Exception> {
        Err(Exception { kind: Kind::Argument, message: ABSENT.into() })
    }
}
