//! The entry points of CUDA's driver, with the signatures of cuda.h. Handles are numbers; none is a pointer to the device's own memory.

mod work;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::world::{self, Guard, World};
use crate::{Cuda, DEVICE_NAME};

thread_local! {
    /// The device whose primary context is this thread's.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The device of this thread's context.
pub(crate) fn current() -> Option<usize> {
    CURRENT.get()
}

pub(crate) fn make_current(device: Option<usize>) {
    CURRENT.set(device);
}

/// Makes `device` the thread's while `run` runs.
pub(crate) fn on_device<R>(device: usize, run: impl FnOnce() -> R) -> R {
    let before = CURRENT.replace(Some(device));
    let result = run();
    CURRENT.set(before);
    result
}

fn context(device: usize) -> *mut c_void {
    (device + 1) as *mut c_void
}

fn device_of(context: *mut c_void) -> Option<usize> {
    (context as usize).checked_sub(1)
}

/// The world and the thread's device, unless the device has an error.
fn here() -> Result<(Guard, usize), Cuda> {
    let mut world = world::call();
    let device = CURRENT.get().ok_or(Cuda::INVALID_CONTEXT)?;
    world.healthy(device)?;
    Ok((world, device))
}

/// The world, and the stream of a handle.
fn stream(handle: *mut c_void) -> Result<(Guard, u64), Cuda> {
    let mut world = world::call();
    let stream = world.stream_of(handle as u64, CURRENT.get())?;
    Ok((world, stream))
}

/// Writes a result that the caller has asked for.
///
/// # Safety
/// `to` is null or may be written, as CUDA's functions require of their results.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Cuda> {
    if to.is_null() {
        return Err(Cuda::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's to write.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a text of at most `len` bytes with its final zero.
///
/// # Safety
/// `to` has room for `len` bytes.
unsafe fn give_text(to: *mut c_char, len: c_int, text: &str) -> Result<(), Cuda> {
    let most = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)).ok_or(Cuda::INVALID_VALUE)?;
    if to.is_null() {
        return Err(Cuda::INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(most)];
    // SAFETY: at most `len` bytes, the last one zero.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
        to.add(bytes.len()).write(0);
    }
    Ok(())
}

// Devices, contexts, peer access, and the texts of errors.

/// 13.0, the version whose bindings the course uses.
const DRIVER_VERSION: c_int = 13000;

/// `CU_DEVICE_ATTRIBUTE_…` of cuda.h. All others are 0.
const MAX_THREADS_PER_BLOCK: c_uint = 1;
const WARP_SIZE: c_uint = 10;
const MULTIPROCESSOR_COUNT: c_uint = 16;
const PCI_BUS_ID: c_uint = 33;
const UNIFIED_ADDRESSING: c_uint = 41;

fn ordinal(world: &World, device: c_int) -> Result<usize, Cuda> {
    usize::try_from(device).ok().filter(|it| *it < world.devices.len()).ok_or(Cuda::INVALID_DEVICE)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> Cuda {
    match (flags, world::call().devices.len()) {
        (0, 0) => Cuda::NO_DEVICE,
        (0, _) => Cuda::SUCCESS,
        _ => Cuda::INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Cuda {
    // SAFETY: a result of the caller's.
    unsafe { give(version, DRIVER_VERSION) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Cuda {
    let found = world::call().devices.len() as c_int;
    // SAFETY: a result of the caller's.
    unsafe { give(count, found) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> Cuda {
    // SAFETY: a result of the caller's.
    ordinal(&world::call(), number).and_then(|_| unsafe { give(device, number) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Cuda {
    let world = world::call();
    // SAFETY: room of the caller's.
    ordinal(&world, device)
        .and_then(|it| unsafe { give_text(name, len, &format!("{DEVICE_NAME} {}", world.devices[it].physical)) })
        .into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Cuda {
    // SAFETY: a result of the caller's.
    ordinal(&world::call(), device).and_then(|_| unsafe { give(bytes, world::options().memory as usize) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) -> Cuda {
    let world = world::call();
    // SAFETY: room of the caller's.
    ordinal(&world, device).and_then(|it| unsafe { give_text(id, len, &bus_id(world.devices[it].physical)) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> Cuda {
    let world = world::call();
    let found = ordinal(&world, device).map(|device| match attribute {
        MAX_THREADS_PER_BLOCK => crate::streams::MOST_THREADS as c_int,
        WARP_SIZE => 32,
        MULTIPROCESSOR_COUNT => 8,
        PCI_BUS_ID => 0x10 + world.devices[device].physical as c_int,
        UNIFIED_ADDRESSING => 1,
        _ => 0,
    });
    // SAFETY: a result of the caller's.
    found.and_then(|found| unsafe { give(value, found) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Cuda {
    let world = world::call();
    let found = ordinal(&world, device).and_then(|one| Ok((one, ordinal(&world, peer)?)));
    let linked = |(one, other): (usize, usize)| are_linked(world.devices[one].physical, world.devices[other].physical);
    // SAFETY: a result of the caller's.
    found.and_then(|pair| unsafe { give(can, linked(pair).into()) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(to: *mut *mut c_void, device: c_int) -> Cuda {
    // SAFETY: a result of the caller's.
    ordinal(&world::call(), device).and_then(|device| unsafe { give(to, context(device)) }).into()
}

/// The context stays: nothing here depends on its end.
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Cuda {
    ordinal(&world::call(), device).map(|_| ()).into()
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(to: *mut c_void) -> Cuda {
    let known = device_of(to).is_none_or(|device| device < world::call().devices.len());
    if !known {
        return Cuda::INVALID_CONTEXT;
    }
    make_current(device_of(to));
    Cuda::SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(to: *mut *mut c_void) -> Cuda {
    // SAFETY: a result of the caller's.
    unsafe { give(to, current().map_or(std::ptr::null_mut(), context)) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(to: *mut c_int) -> Cuda {
    let device = current().ok_or(Cuda::INVALID_CONTEXT);
    // SAFETY: a result of the caller's.
    device.and_then(|device| unsafe { give(to, device as c_int) }).into()
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: *mut c_void, flags: c_uint) -> Cuda {
    let enable = || {
        let (mut world, device) = here()?;
        let peer = device_of(peer).filter(|_| flags == 0).ok_or(Cuda::INVALID_VALUE)?;
        let other = world.healthy(peer)?.physical;
        if !are_linked(world.devices[device].physical, other) {
            return Err(Cuda::PEER_ACCESS_UNSUPPORTED);
        }
        if world.devices[device].peers.insert(peer) { Ok(()) } else { Err(Cuda::PEER_ACCESS_ALREADY_ENABLED) }
    };
    enable().into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: Cuda, to: *mut *const c_char) -> Cuda {
    let texts = error.texts().ok_or(Cuda::INVALID_VALUE);
    // SAFETY: a result of the caller's; the text is static.
    texts.and_then(|(name, _)| unsafe { give(to, name.as_ptr()) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: Cuda, to: *mut *const c_char) -> Cuda {
    let texts = error.texts().ok_or(Cuda::INVALID_VALUE);
    // SAFETY: a result of the caller's; the text is static.
    texts.and_then(|(_, text)| unsafe { give(to, text.as_ptr()) }).into()
}

// NVML's entry points for the topology of the simulated machine.
//
// Devices come in pairs that NVLink connects, pairs in fours under one host bridge, and fours on sockets of their own.

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
    let Some(found) = world::options().devices.iter().find(|physical| bus_id(**physical).eq_ignore_ascii_case(&id))
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
