//! Finds the libraries: NVIDIA's, or the simulated device.
//!
//! cudarc asks the loader for `libcuda.so` and `libnccl.so`. The loader gives a library that is loaded already if its name is the one
//! that is asked for, wherever it came from. So the simulated device needs no LD_LIBRARY_PATH: this module loads it by its path, and
//! then two empty libraries of those names that depend on it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Error, Result, cuda};

/// The variable that chooses the device: `real`, the default, or [`SIMULATED`].
pub const GPU: &str = "LOCKSTEP_GPU";
/// The value of [`GPU`] that asks for the simulated device.
pub const SIMULATED: &str = "simulated";

const STUBS: [(&str, &[u8]); 2] = [
    ("libcuda.so", include_bytes!(concat!(env!("OUT_DIR"), "/libcuda.so"))),
    ("libnccl.so", include_bytes!(concat!(env!("OUT_DIR"), "/libnccl.so"))),
];

/// What stands behind CUDA's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// GPUs and NVIDIA's libraries.
    Real,
    /// The course's simulated device. Its times mean nothing.
    Simulated,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Kind::Real { "GPU" } else { "simulated GPU" })
    }
}

/// What stays loaded.
struct Loaded {
    kind: Kind,
    /// Where NVML's functions are, if it is there.
    nvml: Option<Library>,
    /// With their files: the loader knows a library by its path, and a closed file's number is given again.
    _others: Vec<(Library, File)>,
}

static LOADED: OnceLock<Result<Loaded>> = OnceLock::new();

/// Loads the libraries and initializes CUDA's driver, once for the process.
///
/// # Errors
/// [`Error::Library`] names the library that is missing and the way out; [`Error::Cuda`] is the driver's, such as
/// `CUDA_ERROR_NO_DEVICE`.
pub fn open() -> Result<Kind> {
    loaded(None).map(|loaded| loaded.kind)
}

/// As [`open`], but loads the simulated device, with this many devices. [`GPU`], [`SIMULATED_COUNT`](crate::SIMULATED_COUNT) and
/// `CUDA_VISIBLE_DEVICES` do not count. Call it before anything else: what is loaded stays.
///
/// # Errors
/// Those of [`open`].
pub fn simulate(devices: usize) -> Result<Kind> {
    loaded(Some(devices)).map(|loaded| loaded.kind)
}

pub(crate) fn nvml() -> Option<&'static Library> {
    loaded(None).ok()?.nvml.as_ref()
}

fn loaded(simulate: Option<usize>) -> Result<&'static Loaded> {
    LOADED.get_or_init(|| load(simulate)).as_ref().map_err(Clone::clone)
}

fn load(simulate: Option<usize>) -> Result<Loaded> {
    let loaded = match (simulate, std::env::var(GPU).as_deref()) {
        (Some(_), _) | (None, Ok(SIMULATED)) => simulated(simulate)?,
        (None, Ok("" | "real") | Err(_)) => real()?,
        (None, Ok(other)) => return Err(Error::Library(format!("{GPU}={other} is neither real nor {SIMULATED}"))),
    };
    // SAFETY: takes a number, and may be called at any time.
    cuda("cuInit", unsafe { cudarc::driver::sys::cuInit(0) })?;
    Ok(loaded)
}

fn real() -> Result<Loaded> {
    // SAFETY: loads NVIDIA's libraries, whose initializers are made for that.
    let (cuda, nccl) = unsafe { (cudarc::driver::sys::is_culib_present(), cudarc::nccl::sys::is_culib_present()) };
    let missing = |what: &str, why: &str| {
        Err(Error::Library(format!(
            "{what} is not there: {why}, or set {GPU}={SIMULATED} for the course's simulated device"
        )))
    };
    if !cuda {
        return missing(
            "libcuda.so, NVIDIA's driver,",
            "this machine has no GPU, or no driver for it (nvidia-smi tells)",
        );
    }
    if !nccl {
        return missing(
            "libnccl.so",
            "install NCCL, or put a link of this name to PyTorch's libnccl.so.2 into LD_LIBRARY_PATH",
        );
    }
    // SAFETY: NVIDIA's library, as above. Without it only the topology is unknown.
    let nvml = unsafe { Library::open(Some("libnvidia-ml.so.1"), RTLD_NOW | RTLD_LOCAL) }.ok();
    Ok(Loaded { kind: Kind::Real, nvml, _others: Vec::new() })
}

/// With as many devices as `count` says, or the environment.
fn simulated(count: Option<usize>) -> Result<Loaded> {
    let path = device()?;
    let failed = |what: &str, why: &dyn std::fmt::Display| Error::Library(format!("cannot load {what}: {why}"));
    // SAFETY: the course's own library; it has no initializers.
    let device = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let device = device.map_err(|error| failed(&path.display().to_string(), &error))?;
    if let Some(count) = count {
        // SAFETY: this is the function's signature.
        let set = unsafe { device.get::<unsafe extern "C" fn(u32)>(simgpu::SET_COUNT.to_bytes_with_nul()) };
        let set = set.map_err(|error| failed(&path.display().to_string(), &error))?;
        // SAFETY: takes any number.
        unsafe { set(u32::try_from(count).unwrap_or(u32::MAX)) };
    }
    let others = STUBS.iter().map(|(name, bytes)| {
        let memory = memfd_create(*name, MemfdFlags::CLOEXEC).map_err(|error| failed(name, &error))?;
        let mut file = File::from(memory);
        file.write_all(bytes).map_err(|error| failed(name, &error))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        // SAFETY: an empty library of this crate's build.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| failed(name, &error))?;
        Ok((library, file))
    });
    Ok(Loaded { kind: Kind::Simulated, _others: others.collect::<Result<_>>()?, nvml: Some(device) })
}

/// Cargo builds the device into `deps` of the folder of the programs.
fn device() -> Result<PathBuf> {
    let program = std::env::current_exe().map_err(|error| Error::Library(format!("where is this program? {error}")))?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = [folder.join("deps"), folder.to_path_buf()].map(|folder| folder.join(simgpu::SONAME));
    places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        Error::Library(format!("there is no {} in {}: run cargo build", simgpu::SONAME, folder.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stubs_depend_on_the_device_by_its_name() {
        for (name, bytes) in STUBS {
            let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            assert!(has(name) && has(simgpu::SONAME), "{name}");
        }
    }
}
