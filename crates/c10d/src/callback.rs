//! What Rust gives to C++ to call: no panic may cross the border, neither one of a call nor one of what a closure owns.

use std::any::Any;
use std::ffi::c_char;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use lockstep_contract::error_file::panic_text;

use crate::Error;

/// The result, or the text of the error or the panic.
pub(crate) fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(text_of(panic.as_ref())),
    }
}

pub(crate) fn drop_guarded<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(move || drop(value)));
}

/// A panic's text, or the error of a layer that failed.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let error = || panic.downcast_ref::<Error>().map(Error::to_string);
    panic_text(panic).map(str::to_owned).or_else(error).unwrap_or_else(|| "a panic".to_owned())
}

/// Writes the text, as far as it fits; returns false.
///
/// # Safety
/// `why` has room for `capacity` bytes.
pub(crate) unsafe fn explain(text: &str, why: *mut c_char, capacity: usize) -> bool {
    let text = &text.as_bytes()[..text.len().min(capacity.saturating_sub(1))];
    // SAFETY: `why` has room for more than these bytes.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), why.cast(), text.len());
        *why.add(text.len()) = 0;
    }
    false
}
