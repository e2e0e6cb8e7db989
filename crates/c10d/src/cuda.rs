//! Loads libtorch's CUDA libraries. Programs of this project do not link them: a run on the CPU starts faster without
//! them, and does not need NVIDIA's libraries.
//!
//! Not here: the choice of a device. `tch::Cuda` counts devices once the libraries are loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, ErrorKind, Result};
use crate::ffi;

const LOAD: &str = "load CUDA";

/// Loads `libtorch_cuda.so` and its dependencies (CUDA's runtime, cuBLAS, cuDNN, NCCL, …), so that libtorch sees the
/// machine's GPUs. Does nothing if they are already loaded.
///
/// Call it when a CUDA device is requested, before any libtorch call that depends on CUDA (such as
/// `tch::Cuda::is_available` or `tch::manual_seed`): libtorch looks for its CUDA libraries only once.
///
/// # Errors
/// `Internal`. The error names the missing library and the command that installs it, or says that libtorch already
/// looked for CUDA. The process can continue without CUDA.
pub fn load() -> Result<()> {
    static CUDA: OnceLock<Library> = OnceLock::new();
    if CUDA.get().is_none() {
        // If two threads get here, both have the same library, and dropping one handle does not unload it.
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
