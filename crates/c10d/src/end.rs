//! How a process ends: without libtorch's destructors.
//!
//! Before `main`, libtorch registers thousands of operators, and when the process exits, the destructors of its static objects take
//! them out again one by one: a third of the processor time of a program that does nothing else, and for memory that the kernel takes
//! back anyway. So the process ends before them, unless `LD_PRELOAD` is set. What was registered with `atexit` after `main` began still
//! runs, and what C's streams hold is written; Rust's standard output was flushed before.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

unsafe extern "C" {
    /// Calls `function` with the exit code when the process exits, before what was registered earlier. It is glibc's, as libtorch is.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The executable's constructors run after those of its libraries, and after the dynamic linker has registered their destructors.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    // A tool that was loaded into the process, such as a profiler, may write its results when destructors run.
    if std::env::var_os("LD_PRELOAD").is_some() {
        return;
    }
    // SAFETY: `end` takes what on_exit passes, and needs no argument. If there is no room for it, the process ends as usual.
    unsafe { on_exit(end, null_mut()) };
}

extern "C" fn end(code: c_int, _: *mut c_void) {
    // SAFETY: a null pointer stands for all streams; afterwards nothing of this process runs.
    unsafe {
        libc::fflush(null_mut());
        libc::_exit(code)
    }
}
