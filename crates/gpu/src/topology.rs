//! The way between two devices, as `nvidia-smi topo -m` prints it, from NVML.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use libloading::os::unix::{Library, Symbol};

use crate::{Gpu, library};

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

/// None without NVML, or where it does not know.
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
