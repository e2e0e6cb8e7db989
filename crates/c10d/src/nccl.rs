//! NCCL for process groups, from a small library that is embedded in the program.
//!
//! The library is the part of the shim that needs `libtorch_cuda.so` (`shim/nccl.cpp`, built where set-up has installed
//! libtorch for CUDA). If it were linked, every run would load CUDA. A separate file could get lost, so the program embeds
//! its bytes and maps them from memory when the first NCCL group is created. Without it, creating an NCCL group is an error.
//!
//! Everything that works without a GPU (compiling, linking, loading, errors) is tested everywhere; `tests/cuda.rs`
//! prints what a machine without a GPU could not verify.

#[cfg(nccl)]
pub(crate) use library::{make, prepare};
#[cfg(not(nccl))]
pub(crate) use without::{make, prepare};

#[cfg(nccl)]
mod library {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::ptr::NonNull;
    use std::sync::OnceLock;

    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    use rustix::fs::{MemfdFlags, memfd_create};

    use crate::cuda::words;
    use crate::error::{Error, ErrorKind, Result};
    use crate::ffi::{self, BackendHandle, Exception, Kind, MemberConfig, Status};

    static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liblockstep_nccl.so"));
    static LIBRARY: OnceLock<Library> = OnceLock::new();

    /// `lc_backend_nccl` of `shim/nccl.cpp`.
    type Make = unsafe extern "C" fn(*const MemberConfig, i32, *mut *mut BackendHandle) -> Status;

    /// Loads CUDA and the library, and checks that the device exists.
    pub(crate) fn prepare(device: usize) -> Result<()> {
        crate::cuda::load()?;
        if LIBRARY.get().is_none() {
            let library = open().map_err(|detail| Error::with_kind(ErrorKind::Internal, "load NCCL", detail))?;
            // If two threads get here, the second library is dropped unused.
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

    /// Creates the backend of one rank. Call [`prepare`] first.
    pub(crate) fn make(member: &MemberConfig, device: usize) -> Result<NonNull<BackendHandle>, Exception> {
        let broken = |message: String| Exception { kind: Kind::Other, message };
        let library = LIBRARY.get().ok_or_else(|| broken("the NCCL library is not loaded".into()))?;
        let device = i32::try_from(device).map_err(|e| broken(e.to_string()))?;
        // SAFETY: `Make` is the function's type in the shim of the same build.
        let make = unsafe { library.get::<Make>(b"lc_backend_nccl") }.map_err(|e| broken(words(&e)))?;
        // SAFETY: the member's configuration and everything it points to outlive the call; `out` may be written.
        ffi::made(|out| unsafe { make(member, device, out) })
    }

    /// Opens the library from a file in memory: this needs no folder that is writable or allows execution, and leaves
    /// no file behind.
    fn open() -> Result<Library, String> {
        let memory = memfd_create("lockstep-nccl", MemfdFlags::CLOEXEC).map_err(|e| format!("no memory file: {e}"))?;
        let mut file = File::from(memory);
        file.write_all(BYTES).map_err(|e| format!("cannot fill a memory file: {e}"))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: built from this crate's own source; its only initializers are those of constants in libtorch's headers.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| words(&e))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn embeds_a_shared_library_that_was_linked_against_the_cuda_libraries() {
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
                    let member =
                        MemberConfig { store, group_name, rank: 0, size: 1, global_ranks: &0, timeout_ms: 1000 };
                    let exception = make(&member, 0).unwrap_err();
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

#[cfg(not(nccl))]
mod without {
    use std::ptr::NonNull;

    use crate::error::{Error, Result};
    use crate::ffi::{BackendHandle, Exception, Kind, MemberConfig};

    const ABSENT: &str = "this program was built without NCCL: install libtorch for CUDA (in a checkout of Lockstep: scripts/setup.sh --cuda), then build it again";

    pub(crate) fn prepare(_device: usize) -> Result<()> {
        Err(Error::bad_argument("init_process_group", ABSENT))
    }

    pub(crate) fn make(_member: &MemberConfig, _device: usize) -> Result<NonNull<BackendHandle>, Exception> {
        Err(Exception { kind: Kind::Argument, message: ABSENT.into() })
    }
}
