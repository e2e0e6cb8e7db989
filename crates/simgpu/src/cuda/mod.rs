//! The entry points of CUDA's driver, with the signatures of cuda.h. Handles are numbers; none is a pointer to the device's own memory.

mod copies;
mod devices;
mod launches;
mod orders;

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use crate::codes::Cuda;
use crate::world::{self, Guard};

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

/// The world and the thread's device, without an error on it.
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
