//! Modules and launches of kernels.

use std::ffi::{CStr, c_char, c_uint, c_void};

use super::{give, here, stream};
use crate::codes::Cuda;
use crate::kernels::{Kernel, Launch, MOST_THREADS, Module, entries};
use crate::streams::Operation;
use crate::world;

/// A module of PTX. Compiled code (cubin, fatbin) is refused: there is nothing here that could run it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(to: *mut *mut c_void, image: *const c_void) -> Cuda {
    let load = || {
        let (mut world, device) = here()?;
        if image.is_null() {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: CUDA's contract: PTX ends with a zero; other images have one in their first bytes.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
        if !text.contains(".version") {
            return Err(Cuda::NO_BINARY_FOR_GPU);
        }
        let module = world.handle();
        world.modules.insert(module, Module { device, entries: entries(&text) });
        // SAFETY: a result of the caller's.
        unsafe { give(to, module as *mut c_void) }
    };
    load().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: *mut c_void) -> Cuda {
    world::call().modules.remove(&(module as u64)).map(|_| ()).ok_or(Cuda::INVALID_HANDLE).into()
}

/// A function's handle: its module's, and its place in it.
const MOST_ENTRIES: u64 = 1 << 16;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(to: *mut *mut c_void, module: *mut c_void, name: *const c_char) -> Cuda {
    let find = || {
        let world = world::call();
        let known = world.modules.get(&(module as u64)).ok_or(Cuda::INVALID_HANDLE)?;
        if name.is_null() {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: CUDA's contract: a string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let place = known.entries.iter().position(|entry| *entry == name).ok_or(Cuda::NOT_FOUND)?;
        // SAFETY: a result of the caller's.
        unsafe { give(to, (module as u64 * MOST_ENTRIES + place as u64) as *mut c_void) }
    };
    find().into()
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // CUDA's signature
unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    handle: *mut c_void,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Cuda {
    let launch = || {
        let (mut world, stream) = stream(handle)?;
        let function = function as u64;
        let module = world.modules.get(&(function / MOST_ENTRIES)).ok_or(Cuda::INVALID_HANDLE)?;
        let name = module.entries.get((function % MOST_ENTRIES) as usize).ok_or(Cuda::INVALID_HANDLE)?;
        if world.streams.get(&stream).map(|stream| stream.device) != Some(module.device) {
            return Err(Cuda::INVALID_HANDLE);
        }
        let product = |sizes: [c_uint; 3]| sizes.iter().try_fold(1_u64, |all, size| all.checked_mul((*size).into()));
        let (blocks, threads) = (product([grid_x, grid_y, grid_z]), product([block_x, block_y, block_z]));
        let (Some(blocks @ 1..), Some(threads @ 1..)) = (blocks, threads) else { return Err(Cuda::INVALID_VALUE) };
        if threads > MOST_THREADS.into() || !extra.is_null() {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: CUDA's contract for the arguments of this kernel.
        let kernel = unsafe { Kernel::read(name, arguments.cast_const().cast()) }?;
        let launch = Launch { kernel, threads: blocks.saturating_mul(threads) };
        world.issue(stream, Operation::Kernel(launch)).map(|_| ())
    };
    launch().into()
}
