//! Loads libtorch's CUDA libraries, and NCCL for process groups. Programs of this project do not link them, so a run on the CPU starts faster
//! and does not need NVIDIA's libraries.
//!
//! Not here: the choice of a device. `tch::Cuda` counts devices once the libraries are loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, ErrorKind, Result};
use crate::ffi;

#[cfg(nccl)]
pub(crate) use library::{make as make_nccl, prepare as prepare_nccl};
#[cfg(not(nccl))]
pub(crate) use without::{make as make_nccl, prepare as prepare_nccl};

const LOAD: &str = "load CUDA";

/// Loads `libtorch_cuda.so` and its dependencies (CUDA's runtime, cuBLAS, cuDNN, NCCL, …), so that libtorch sees the
/// machine's GPUs. Does nothing if they are already loaded.
///
/// Call it when a CUDA device is requested, before any libtorch call that depends on CUDA (such as
/// `tch::Cuda::is_available` or `tch::manual_seed`): libtorch looks for its CUDA libraries only once.
///
/// # Errors
/// `Internal`. The error names the missing library and the command that installs it, or says that libtorch has already
/// looked for CUDA. The process can continue without CUDA.
pub fn load() -> Result<()> {
    static CUDA: OnceLock<Library> = OnceLock::new();
    if CUDA.get().is_none() {
        // If two threads get here, both have opened the same library, and dropping one handle does not unload it.
        let _ = CUDA.set(open(&libtorch_folder()?)?);
    }
    // SAFETY: takes nothing; looks for a registered class.
    if unsafe { ffi::lc_cuda_is_hooked() } {
        return Ok(());
    }
    Err(failed(
        "libtorch was asked about CUDA before its libraries were loaded, and has settled on there being none: call \
         c10d::cuda::load before tch::Cuda, tch::manual_seed and the like",
    ))
}

fn failed(detail: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Internal, LOAD, detail)
}

/// The folder of the libtorch that this process uses, with symbolic links resolved: its libraries find NVIDIA's by
/// relative paths.
fn libtorch_folder() -> Result<PathBuf> {
    let maps =
        fs::read_to_string("/proc/self/maps").map_err(|e| failed(format!("cannot read /proc/self/maps: {e}")))?;
    folder_in(&maps).ok_or_else(|| {
        failed("libtorch_cpu.so is not among this process's files (was it replaced while the program ran?)")
    })
}

/// The kernel names mapped files by their real paths, in the sixth field.
fn folder_in(maps: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let cpu = paths.into_iter().find(|path| path.ends_with("libtorch_cpu.so"))?;
    cpu.parent().map(Path::to_path_buf)
}

/// What to do without CUDA's libraries.
const FOR_CUDA: &str = "install the one for CUDA, in a checkout of Lockstep by scripts/setup.sh --cuda --force";

fn open(folder: &Path) -> Result<Library> {
    let path = folder.join("libtorch_cuda.so");
    if !path.exists() {
        let detail = "has no libtorch_cuda.so, it is a build for the CPU";
        return Err(failed(format!("the libtorch in {} {detail}: {FOR_CUDA}", folder.display())));
    }
    // SAFETY: this is libtorch's own library, of the same build as the loaded one. Its initializers add kernels to
    // libtorch's tables under a lock, and do not use a GPU. RTLD_GLOBAL makes its symbols available to the NCCL
    // library.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    library.map_err(|error| {
        let why = words(&error);
        let slim = why.contains("cannot open shared object file");
        let hint = if slim { format!(": this libtorch is the slim CPU install: {FOR_CUDA}") } else { String::new() };
        failed(format!("{}: {why}{hint}", path.display()))
    })
}

/// The loader's message, which libloading keeps in the error's source.
pub(crate) fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

// NCCL for process groups, from a small library that is embedded in the program.
//
// The library is the part of the shim that needs `libtorch_cuda.so` (`shim/nccl.cpp`, built where set-up has installed
// libtorch for CUDA). If it were linked, every run would load CUDA. A separate file could get lost, so the program embeds
// its bytes and maps them from memory when the first NCCL group is created. Without it, creating an NCCL group is an error.
//
// Everything that works without a GPU (compiling, linking, loading, errors) is tested everywhere; `tests/cuda.rs`
// prints what a machine without a GPU could not verify.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_folder_of_the_loaded_library_even_with_spaces_in_it() {
        let maps = "7f00-7f01 r--p 00000000 fe:00 12 /usr/lib/libc.so.6\n\
                    7f02-7f03 rw-p 00000000 00:00 0 [heap]\n\
                    7f04-7f05 r-xp 00000000 fe:00 13                 /home/a b/torch/lib/libtorch_cpu.so\n";
        assert_eq!(folder_in(maps).unwrap(), Path::new("/home/a b/torch/lib"));
        assert!(libtorch_folder().unwrap().join("libtorch_cpu.so").exists());
    }

    #[test]
    fn a_replaced_file_is_not_mistaken_for_the_loaded_one() {
        assert_eq!(folder_in("7f04-7f05 r-xp 0 fe:00 13 /torch/lib/libtorch_cpu.so (deleted)\n"), None);
    }

    #[test]
    fn a_cpu_libtorch_is_reported_with_the_command_that_fixes_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        let text = error.to_string();
        assert!(text.starts_with("load CUDA failed: the libtorch in "), "{text}");
        assert!(text.ends_with("scripts/setup.sh --cuda --force"), "{text}");
    }

    #[test]
    fn a_damaged_library_is_not_blamed_on_the_install_kind() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libtorch_cuda.so"), "not a library").unwrap();
        let text = open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("libtorch_cuda.so: ") && !text.contains("slim"), "{text}");
    }
}
