//! Finds the libraries: NVIDIA's, or the simulated device.
//!
//! cudarc asks the loader for `libcuda.so` and `libnccl.so`. If a library of the requested name is already loaded, the loader returns
//! it, wherever it came from. So the simulated device needs no LD_LIBRARY_PATH: this module loads it by its path, and then two empty
//! libraries of those names that depend on it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::driver::sys::{self as cuda, CUresult};
use cudarc::nccl::sys::{self as nccl, ncclResult_t};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{Gpu, library};

/// The variable that chooses the device: `real`, the default, or [`SIMULATED`].
pub const GPU: &str = "LOCKSTEP_GPU";
/// The value of [`GPU`] that asks for the simulated device.
pub const SIMULATED: &str = "simulated";

const STUBS: [(&str, &[u8]); 2] = [
    ("libcuda.so", include_bytes!(concat!(env!("OUT_DIR"), "/libcuda.so"))),
    ("libnccl.so", include_bytes!(concat!(env!("OUT_DIR"), "/libnccl.so"))),
];

/// What implements CUDA's functions.
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

struct Loaded {
    kind: Kind,
    /// Where NVML's functions are, if it is there.
    nvml: Option<Library>,
    /// With their files: the loader knows a library by its path, and the number of a closed file is reused.
    _others: Vec<(Library, File)>,
}

static LOADED: OnceLock<Result<Loaded>> = OnceLock::new();

/// Loads the libraries and initializes CUDA's driver, once for the process.
///
/// Errors: [`Error::Library`] names the library that is missing and the way out; [`Error::Cuda`] is the driver's, such as
/// `CUDA_ERROR_NO_DEVICE`.
pub fn open() -> Result<Kind> {
    loaded(None).map(|loaded| loaded.kind)
}

/// As [`open`], but loads the simulated device, with this many devices. [`GPU`], [`SIMULATED_COUNT`](crate::SIMULATED_COUNT) and
/// `CUDA_VISIBLE_DEVICES` are ignored. Call it before anything else: loaded libraries stay loaded.
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
            "this machine has no GPU, or no driver for it (nvidia-smi shows both)",
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

/// Loads the simulated device, with `count` devices or as many as the environment says.
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

/// Cargo builds the device into `deps`, in the folder of the programs.
fn device() -> Result<PathBuf> {
    let program = std::env::current_exe().map_err(|error| Error::Library(format!("where is this program? {error}")))?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = [folder.join("deps"), folder.to_path_buf()].map(|folder| folder.join(simgpu::SONAME));
    places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        Error::Library(format!("there is no {} in {}: run cargo build", simgpu::SONAME, folder.display()))
    })
}

// Errors: which function failed, and what the library says about it.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A library of NVIDIA's cannot be loaded.
    #[error("{0}")]
    Library(String),
    /// CUDA's driver reports an error: of this call, or of work that was issued before.
    #[error("{call} failed: {name}: {text}")]
    Cuda {
        call: &'static str,
        /// The error's name in cuda.h.
        name: String,
        /// The driver's text.
        text: String,
    },
    /// NCCL reports an error.
    #[error("{call} failed: {text}{}", .detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default())]
    Nccl {
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
    Grouped { call: &'static str },
    /// The communicator was aborted or destroyed.
    #[error("{call} failed: the communicator was aborted")]
    Aborted { call: &'static str },
}

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

// The way between two devices, as `nvidia-smi topo -m` prints it, from NVML.

/// The way between two devices, the fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// `NV`: NVLink, without the PCI bus.
    NvLink,
    /// `PIX`: one PCI switch.
    Pix,
    /// `PXB`: several PCI switches, but no host bridge.
    Pxb,
    /// `PHB`: a host bridge, that is the CPU.
    Phb,
    /// `NODE`: several host bridges of one NUMA node.
    Node,
    /// `SYS`: from one NUMA node to another.
    Sys,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Tier::NvLink => "NV",
            Tier::Pix => "PIX",
            Tier::Pxb => "PXB",
            Tier::Phb => "PHB",
            Tier::Node => "NODE",
            Tier::Sys => "SYS",
        })
    }
}

type Device = *mut c_void;
const SUCCESS: c_int = 0;
/// `NVML_P2P_CAPS_INDEX_NVLINK` and `NVML_P2P_STATUS_OK` of nvml.h.
const NVLINK: c_uint = 2;
const P2P_OK: c_uint = 0;

/// `None` without NVML, or if NVML does not know.
pub(crate) fn between(one: &Gpu, other: &Gpu) -> Option<Tier> {
    let nvml = library::nvml()?;
    // SAFETY: NVML's function, of this type; it may be called often.
    let init: Symbol<unsafe extern "C" fn() -> c_int> = unsafe { nvml.get(b"nvmlInit_v2") }.ok()?;
    // SAFETY: takes nothing.
    (unsafe { init() } == SUCCESS).then_some(())?;
    let (one, other) = (handle(nvml, one)?, handle(nvml, other)?);
    type Status = unsafe extern "C" fn(Device, Device, c_uint, *mut c_uint) -> c_int;
    // SAFETY: NVML's function, of this type.
    let status: Symbol<Status> = unsafe { nvml.get(b"nvmlDeviceGetP2PStatus") }.ok()?;
    let mut found = c_uint::MAX;
    // SAFETY: handles of NVML's, and a result that may be written.
    if unsafe { status(one, other, NVLINK, &mut found) } == SUCCESS && found == P2P_OK {
        return Some(Tier::NvLink);
    }
    type Ancestor = unsafe extern "C" fn(Device, Device, *mut c_uint) -> c_int;
    // SAFETY: NVML's function, of this type.
    let ancestor: Symbol<Ancestor> = unsafe { nvml.get(b"nvmlDeviceGetTopologyCommonAncestor") }.ok()?;
    // SAFETY: handles of NVML's, and a result that may be written.
    (unsafe { ancestor(one, other, &mut found) } == SUCCESS).then_some(())?;
    level(found)
}

fn handle(nvml: &Library, gpu: &Gpu) -> Option<Device> {
    type ByBusId = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
    // SAFETY: NVML's function, of this type.
    let by_bus_id: Symbol<ByBusId> = unsafe { nvml.get(b"nvmlDeviceGetHandleByPciBusId_v2") }.ok()?;
    let id = CString::new(gpu.bus_id()).ok()?;
    let mut device = std::ptr::null_mut();
    // SAFETY: a string, and a result that may be written.
    (unsafe { by_bus_id(id.as_ptr(), &mut device) } == SUCCESS).then_some(device)
}

/// `nvmlGpuTopologyLevel_t`. Two GPUs of one board count as one switch.
fn level(level: c_uint) -> Option<Tier> {
    Some(match level {
        0 | 10 => Tier::Pix,
        20 => Tier::Pxb,
        30 => Tier::Phb,
        40 => Tier::Node,
        50 => Tier::Sys,
        _ => return None,
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
