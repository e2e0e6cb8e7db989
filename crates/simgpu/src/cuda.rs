//! The entry points of CUDA's driver, with the signatures of cuda.h. Handles are numbers; none is a pointer to the device's own memory.
//! Below: streams and events, which order work, and the work, copies and kernels.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};

use crate::streams::{self, Event, Kernel, Launch, MOST_THREADS, Module, Operation, entries};
use crate::world::{self, Allocation, Guard, World};
use crate::{Cuda, DEVICE_NAME};

thread_local! {
    /// The device whose primary context is this thread's.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The device of this thread's context.
pub(crate) fn current() -> Option<usize> {
    CURRENT.get()
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
    CURRENT.set(device_of(to));
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
fn bus_id(physical: usize) -> String {
    format!("0000:{:02X}:00.0", 0x10 + physical)
}

/// Returns true if NVLink connects two devices of the machine.
fn are_linked(one: usize, other: usize) -> bool {
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

/// `CU_STREAM_NON_BLOCKING`: a stream that the legacy default stream does not wait for.
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(to: *mut *mut c_void, flags: c_uint) -> Cuda {
    let create = || {
        let (mut world, device) = here()?;
        let stream = world.new_stream(device, flags & NON_BLOCKING == 0)?;
        // SAFETY: a result of the caller's.
        unsafe { give(to, stream as *mut c_void) }
    };
    create().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: *mut c_void) -> Cuda {
    world::call().destroy_stream(handle as u64).into()
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: *mut c_void) -> Cuda {
    let synchronize = || {
        let (world, stream) = stream(handle)?;
        let number = world.tail(stream);
        streams::wait_for(world, stream, number).map(|_| ())
    };
    synchronize().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: *mut c_void) -> Cuda {
    let query = || {
        let (world, stream) = stream(handle)?;
        let number = world.tail(stream);
        is_done(world, stream, number)
    };
    query().into()
}

/// A query asks for the work, too: a caller that polls wants progress.
fn is_done(mut world: world::Guard, stream: u64, number: u64) -> Result<(), Cuda> {
    world.want(stream, number);
    if let Some(device) = world.streams.get(&stream).map(|stream| stream.device) {
        world.healthy(device)?;
    }
    if world.is_done(stream, number) { Ok(()) } else { Err(Cuda::NOT_READY) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Cuda {
    here().and_then(|(world, device)| drain(world, device)).map(|_| ()).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(to: *mut *mut c_void, _flags: c_uint) -> Cuda {
    let create = || {
        let (mut world, _) = here()?;
        let event = world.handle();
        world.events.insert(event, Event::default());
        // SAFETY: a result of the caller's.
        unsafe { give(to, event as *mut c_void) }
    };
    create().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> Cuda {
    world::call().events.remove(&(event as u64)).map(|_| ()).ok_or(Cuda::INVALID_HANDLE).into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: *mut c_void, handle: *mut c_void) -> Cuda {
    let record = || {
        let (mut world, stream) = stream(handle)?;
        world.event(event as u64)?;
        let number = world.issue(stream, Operation::Record(event as u64))?;
        *world.event(event as u64)? = Event { place: Some((stream, number)), reached: None };
        Ok(())
    };
    record().into()
}

/// Waits for the last record before this call; for none if there was none.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: *mut c_void, event: *mut c_void, _flags: c_uint) -> Cuda {
    let wait = || {
        let (mut world, stream) = stream(handle)?;
        if let Some((other, number)) = world.event(event as u64)?.place {
            world.issue(stream, Operation::WaitFor(other, number))?;
        }
        Ok(())
    };
    wait().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: *mut c_void) -> Cuda {
    let query = || {
        let mut world = world::call();
        let place = world.event(event as u64)?.place;
        place.map_or(Ok(()), |(stream, number)| is_done(world, stream, number))
    };
    query().into()
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: *mut c_void) -> Cuda {
    let synchronize = || {
        let mut world = world::call();
        let place = world.event(event as u64)?.place;
        place.map_or(Ok(()), |(stream, number)| streams::wait_for(world, stream, number).map(|_| ()))
    };
    synchronize().into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(to: *mut f32, begin: *mut c_void, end: *mut c_void) -> Cuda {
    let elapsed = world::call().elapsed(begin as u64, end as u64);
    // SAFETY: a result of the caller's.
    elapsed.and_then(|elapsed| unsafe { give(to, elapsed) }).into()
}

// Memory and copies.
//
// By CUDA's documentation an asynchronous copy from or to memory of the host that is not pinned may wait for the stream. Here a copy from
// it reads it when it is issued and does not wait, and a copy to it returns when it has ended. As on a GPU, freeing memory of a device
// waits for the device.

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Cuda {
    let info = here().and_then(|(world, device)| {
        let all = world::options().memory;
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
fn drain(world: Guard, device: usize) -> Result<Guard, Cuda> {
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

// Modules and launches of kernels.

/// A module of PTX. Compiled code (cubin, fatbin) is refused: nothing here could run it.
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

/// A function's handle combines its module's handle and its place in the module, which is below this number.
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
