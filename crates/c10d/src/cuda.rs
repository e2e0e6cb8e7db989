//! Loading libtorch's CUDA half, which no program of this project is linked with: a run on the CPU starts faster without it, and
//! needs none of NVIDIA's libraries.
//!
//! Leaves out choosing a device: `tch::Cuda` counts them once the libraries are there.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Fault, Result};
use crate::ffi;

const LOAD: &str = "load CUDA";

/// Loads `libtorch_cuda.so` and with it what it needs (CUDA's runtime, cuBLAS, cuDNN, NCCL, …), so that libtorch sees the
/// machine's GPUs. Does nothing when they are loaded already.
///
/// To be called when a CUDA device is asked for, and before libtorch does anything that depends on there being one (such as
/// `tch::Cuda::is_available` or `tch::manual_seed`): it looks for its CUDA half once, then never again.
///
/// # Errors
/// `Internal`, naming the library that is missing and the command that installs it, or saying that libtorch was asked about
/// CUDA before. The process goes on without CUDA.
pub fn load() -> Result<()> {
    static CUDA: OnceLock<Library> = OnceLock::new();
    if CUDA.get().is_none() {
        // Where two threads came here, both have the same library, and dropping one handle unloads nothing.
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
    Error::with_fault(Fault::Internal, LOAD, detail)
}

/// The folder of the libtorch that this process runs with, symbolic links resolved: its libraries find NVIDIA's by paths
/// relative to their own.
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

fn open(folder: &Path) -> Result<Library> {
    let path = folder.join("libtorch_cuda.so");
    if !path.exists() {
        let detail = "has no libtorch_cuda.so, it is a build for the CPU: run scripts/setup.sh --cuda --force";
        return Err(failed(format!("the libtorch in {} {detail}", folder.display())));
    }
    // SAFETY: libtorch's own library, of the same build as the half that runs. Its initialisers add kernels to libtorch's tables,
    // which take a lock, and touch no GPU. RTLD_GLOBAL lets the NCCL library find its symbols.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    library.map_err(|error| {
        let why = words(&error);
        let hint = ": this libtorch is the slim CPU install: run scripts/setup.sh --cuda --force";
        let hint = if why.contains("cannot open shared object file") { hint } else { "" };
        failed(format!("{}: {why}{hint}", path.display()))
    })
}

/// What the loader said: libloading keeps it in the source.
pub(crate) fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_folder_of_the_library_that_runs_also_with_spaces_in_it() {
        let maps = "7f00-7f01 r--p 00000000 fe:00 12 /usr/lib/libc.so.6\n\
                    7f02-7f03 rw-p 00000000 00:00 0 [heap]\n\
                    7f04-7f05 r-xp 00000000 fe:00 13                 /home/a b/torch/lib/libtorch_cpu.so\n";
        assert_eq!(folder_in(maps).unwrap(), Path::new("/home/a b/torch/lib"));
        assert!(libtorch_folder().unwrap().join("libtorch_cpu.so").exists());
    }

    #[test]
    fn a_file_that_was_replaced_is_not_taken_for_the_one_that_runs() {
        assert_eq!(folder_in("7f04-7f05 r-xp 0 fe:00 13 /torch/lib/libtorch_cpu.so (deleted)\n"), None);
    }

    #[test]
    fn a_libtorch_for_the_cpu_is_told_with_the_command_that_mends_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.fault(), Fault::Internal);
        let text = error.to_string();
        assert!(text.starts_with("load CUDA failed: the libtorch in "), "{text}");
        assert!(text.ends_with("run scripts/setup.sh --cuda --force"), "{text}");
    }

    #[test]
    fn a_damaged_library_is_not_blamed_on_the_install_kind() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libtorch_cuda.so"), "not a library").unwrap();
        let text = open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("libtorch_cuda.so: ") && !text.contains("slim"), "{text}");
    }
}
