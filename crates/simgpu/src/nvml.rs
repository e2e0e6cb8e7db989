//! NVML's entry points for the topology of the simulated machine.
//!
//! Devices come in pairs that NVLink connects, pairs in fours under one host bridge, and fours on sockets of their own.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::options;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;

/// `NVML_TOPOLOGY_…` of nvml.h.
const HOST_BRIDGE: c_uint = 30;
const SYSTEM: c_uint = 50;
const INTERNAL: c_uint = 0;

/// `NVML_P2P_CAPS_INDEX_NVLINK`, and the statuses `OK` and `NOT_SUPPORTED`.
const NVLINK: c_uint = 2;
const P2P_OK: c_uint = 0;
const P2P_NOT_SUPPORTED: c_uint = 5;

/// The bus id of a device of the machine, as `cuDeviceGetPCIBusId` prints it.
pub(crate) fn bus_id(physical: usize) -> String {
    format!("0000:{:02X}:00.0", 0x10 + physical)
}

/// Returns true if NVLink connects two devices of the machine.
pub(crate) fn are_linked(one: usize, other: usize) -> bool {
    one != other && one / 2 == other / 2
}

fn physical(device: *mut c_void) -> Option<usize> {
    (device as usize).checked_sub(1)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut *mut c_void) -> c_int {
    if id.is_null() || device.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: NVML's contract: a string.
    let id = unsafe { CStr::from_ptr(id) }.to_string_lossy();
    let Some(found) = options::get().devices.iter().find(|physical| bus_id(**physical).eq_ignore_ascii_case(&id))
    else {
        return NOT_FOUND;
    };
    // SAFETY: NVML's contract: a handle to write.
    unsafe { device.write((found + 1) as *mut c_void) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    one: *mut c_void,
    other: *mut c_void,
    level: *mut c_uint,
) -> c_int {
    let (Some(one), Some(other), false) = (physical(one), physical(other), level.is_null()) else {
        return INVALID_ARGUMENT;
    };
    let found = match (one == other, one / 4 == other / 4) {
        (true, _) => INTERNAL,
        (_, true) => HOST_BRIDGE,
        _ => SYSTEM,
    };
    // SAFETY: NVML's contract: a level to write.
    unsafe { level.write(found) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: *mut c_void,
    other: *mut c_void,
    index: c_uint,
    status: *mut c_uint,
) -> c_int {
    let (Some(one), Some(other), false) = (physical(one), physical(other), status.is_null()) else {
        return INVALID_ARGUMENT;
    };
    let found = if index == NVLINK && are_linked(one, other) { P2P_OK } else { P2P_NOT_SUPPORTED };
    // SAFETY: NVML's contract: a status to write.
    unsafe { status.write(found) };
    SUCCESS
}
