//! Memory and copies.
//!
//! By CUDA's documentation an asynchronous copy from or to memory of the host that is not pinned may wait for the stream. Here a copy from
//! it reads it when it is issued and does not wait, and a copy to it returns when it has ended. As on a GPU, freeing memory of a device
//! waits for the device.

use std::ffi::{c_uchar, c_uint, c_void};

use super::{give, here, stream};
use crate::codes::Cuda;
use crate::memory::Allocation;
use crate::options;
use crate::streams::{self, Operation};
use crate::world::{self, Guard, World};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Cuda {
    let info = here().and_then(|(world, device)| {
        let all = options::get().memory;
        // SAFETY: results of the caller's.
        unsafe {
            give(free, all.saturating_sub(world.used(device)) as usize)?;
            give(total, all as usize)
        }
    });
    info.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, bytes: usize) -> Cuda {
    let allocate = || {
        let (mut world, device) = here()?;
        let address = world.allocate(device, bytes as u64)?;
        // SAFETY: a result of the caller's.
        unsafe { give(to, address) }
    };
    allocate().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Cuda {
    let free = || {
        if address == 0 {
            return Ok(());
        }
        let world = world::call();
        let owner = world.owner(address, 1).ok_or(Cuda::INVALID_VALUE)?;
        let mut world = drain(world, owner)?;
        world.device(owner)?.allocations.remove(&address).map(|_| ()).ok_or(Cuda::INVALID_VALUE)
    };
    free().into()
}

/// Waits for all streams of a device.
pub(super) fn drain(world: Guard, device: usize) -> Result<Guard, Cuda> {
    let tails = world.tails(device);
    tails.into_iter().try_fold(world, |world, (stream, number)| streams::wait_for(world, stream, number))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Cuda {
    let allocate = || {
        let allocation = Allocation::new(bytes)?;
        let address = allocation.begin();
        world::call().pinned.insert(address, allocation);
        // SAFETY: a result of the caller's.
        unsafe { give(to, address as *mut c_void) }
    };
    allocate().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: *mut c_void) -> Cuda {
    let free = || {
        let mut world = world::call();
        for device in 0..world.devices.len() {
            world = drain(world, device)?;
        }
        world.pinned.remove(&(address as u64)).map(|_| ()).ok_or(Cuda::INVALID_VALUE)
    };
    free().into()
}

/// The error of a copy with memory that no device has.
fn known(world: &World, address: u64, bytes: usize) -> Result<(), Cuda> {
    world.owner(address, bytes as u64).map(|_| ()).ok_or(Cuda::INVALID_VALUE)
}

/// Issues a copy and, if it is not asynchronous, waits for it.
fn copy(to: *mut c_void, operation: Operation, waits: bool) -> Result<(), Cuda> {
    let (mut world, stream) = stream(to)?;
    let number = world.issue(stream, operation)?;
    if waits { streams::wait_for(world, stream, number).map(|_| ()) } else { Ok(()) }
}

unsafe fn upload(to: u64, from: *const c_void, bytes: usize, stream: *mut c_void, is_async: bool) -> Result<(), Cuda> {
    let world = world::call();
    if bytes == 0 {
        return Ok(());
    }
    known(&world, to, bytes)?;
    let (from_address, bytes) = (from as u64, bytes as u64);
    if is_async && world.is_pinned(from_address, bytes) {
        drop(world);
        return copy(stream, Operation::UploadPinned { to, from: from_address, bytes }, false);
    }
    drop(world);
    if from.is_null() {
        return Err(Cuda::INVALID_VALUE);
    }
    // SAFETY: the caller's to read, by CUDA's contract.
    let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize) }.to_vec();
    copy(stream, Operation::Upload { to, data }, !is_async)
}

unsafe fn download(to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void, is_async: bool) -> Result<(), Cuda> {
    let world = world::call();
    if bytes == 0 {
        return Ok(());
    }
    known(&world, from, bytes)?;
    let waits = !is_async || !world.is_pinned(to as u64, bytes as u64);
    drop(world);
    if to.is_null() {
        return Err(Cuda::INVALID_VALUE);
    }
    copy(stream, Operation::Download { to: to as u64, from, bytes: bytes as u64 }, waits)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> Cuda {
    // SAFETY: CUDA's contract, passed on.
    unsafe { upload(to, from, bytes, std::ptr::null_mut(), false) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: *mut c_void) -> Cuda {
    // SAFETY: CUDA's contract, passed on.
    unsafe { upload(to, from, bytes, stream, true) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Cuda {
    // SAFETY: CUDA's contract, passed on.
    unsafe { download(to, from, bytes, std::ptr::null_mut(), false) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void) -> Cuda {
    // SAFETY: CUDA's contract, passed on.
    unsafe { download(to, from, bytes, stream, true) }.into()
}

/// Between devices, too: they share their addresses.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> Cuda {
    let both = {
        let world = world::call();
        known(&world, to, bytes).and_then(|()| known(&world, from, bytes))
    };
    both.and_then(|()| copy(stream, Operation::Copy { to, from, bytes: bytes as u64 }, false)).into()
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: c_uchar, bytes: usize, stream: *mut c_void) -> Cuda {
    let is_known = known(&world::call(), address, bytes);
    is_known.and_then(|()| copy(stream, Operation::Set { address, value, bytes: bytes as u64 }, false)).into()
}
