//! Devices, contexts, peer access, and the texts of errors.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{context, device_of, give, give_text, here, make_current};
use crate::codes::Cuda;
use crate::nvml::{are_linked, bus_id};
use crate::world::{self, World};
use crate::{DEVICE_NAME, options};

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
    ordinal(&world::call(), device).and_then(|_| unsafe { give(bytes, options::get().memory as usize) }).into()
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
        MAX_THREADS_PER_BLOCK => crate::kernels::MOST_THREADS as c_int,
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
    unsafe { give(to, super::current().map_or(std::ptr::null_mut(), context)) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(to: *mut c_int) -> Cuda {
    let device = super::current().ok_or(Cuda::INVALID_CONTEXT);
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
