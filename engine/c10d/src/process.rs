//! A process that has loaded libtorch: its end, its copies, and values that stay on their thread.
//!
//! The process ends without libtorch's destructors. Before `main`, libtorch registers thousands of operators. At exit, the destructors of its
//! static objects remove them one by one, which takes a third of the processor time of a program that does nothing else, for memory that the
//! kernel frees anyway. So the process ends before these destructors run, unless `LD_PRELOAD` is set. Functions that were registered with
//! `atexit` after `main` began still run, and C's streams are flushed; Rust's standard output was flushed before.

use std::ffi::{OsString, c_int, c_void};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::thread::{self, ThreadId};

use rustix::process::Pid;

use crate::error::{Error, Result};

unsafe extern "C" {
    /// Calls `function` with the exit code when the process exits, before functions that were registered earlier. It belongs to
    /// glibc, which libtorch also uses.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The executable's constructors run after those of its libraries, and after the dynamic linker has registered their destructors.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    // A preloaded tool, such as a profiler, may write its results when destructors run.
    if std::env::var_os("LD_PRELOAD").is_some() {
        return;
    }
    // SAFETY: `end` takes what on_exit passes, and needs no argument. If there is no room for it, the process ends as usual.
    unsafe { on_exit(end, null_mut()) };
}

extern "C" fn end(code: c_int, _: *mut c_void) {
    // SAFETY: a null pointer stands for all streams; afterwards no code of this process runs.
    unsafe {
        libc::fflush(null_mut());
        libc::_exit(code)
    }
}

// Copies of a process that has loaded libtorch and done nothing else: a copy need not load it again. This is unsafe while other
// threads run, so each function then refuses.

/// fork(2): the child's process id, or `None` in the child.
///
/// # Errors
/// The system's error; this process has several threads.
pub fn fork() -> io::Result<Option<Pid>> {
    if threads()? != 1 {
        return Err(io::Error::other("a process with several threads cannot be copied"));
    }
    // SAFETY: no other thread runs, so the child finds no lock held and no data half written.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Changes the environment of this process: sets each variable to its value, or removes it.
///
/// # Panics
/// If this process has several threads.
pub fn set_variables(variables: &[(OsString, Option<OsString>)]) {
    assert!(matches!(threads(), Ok(1)), "the environment of a process with several threads is not changed");
    for (name, value) in variables {
        match value {
            // SAFETY: no other thread runs, so none reads the environment meanwhile.
            Some(value) => unsafe { std::env::set_var(name, value) },
            // SAFETY: as above.
            None => unsafe { std::env::remove_var(name) },
        }
    }
}

/// Ends this process at once, without running registered exit functions: nothing is flushed.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) has no conditions.
    unsafe { libc::_exit(code) }
}

fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

// A value that can move to another thread together with its owner, but is accessible only on its original thread.
//
// tch requires layers to be `Send`, and a layer that communicates shares a process group, which belongs to one thread.

/// Holds a `T` for the thread that creates it. If it is dropped on another thread, the value is leaked.
pub struct OwnThread<T> {
    value: ManuallyDrop<T>,
    thread: ThreadId,
}

// SAFETY: the value is accessed and dropped only on its own thread: `get` and `drop` compare thread ids, which are
// never reused. A reference from `get` cannot leave the thread either, because this type is `Sync` only if `T` is.
unsafe impl<T> Send for OwnThread<T> {}

impl<T> OwnThread<T> {
    /// Binds `value` to the calling thread.
    pub fn new(value: T) -> Self {
        OwnThread { value: ManuallyDrop::new(value), thread: thread::current().id() }
    }

    /// The value, on its own thread.
    ///
    /// # Errors
    /// `BadArgument` on any other thread.
    pub fn get(&self) -> Result<&T> {
        let elsewhere = || {
            let detail = "it was moved to another thread; make the model and its process group where they are used";
            Error::bad_argument("access a value that belongs to one thread", detail)
        };
        self.is_here().then_some(&*self.value).ok_or_else(elsewhere)
    }

    fn is_here(&self) -> bool {
        thread::current().id() == self.thread
    }
}

impl<T> Drop for OwnThread<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: this is the value's own thread, and the value is not used after `drop`.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OwnThread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnThread").field(&self.get().ok()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn refuses_to_copy_a_process_with_several_threads() {
        // The test's own thread is not the only one.
        assert!(fork().unwrap_err().to_string().contains("several threads"));
        assert!(std::panic::catch_unwind(|| set_variables(&[("A".into(), None)])).is_err());
    }

    #[test]
    fn is_accessible_and_dropped_on_its_own_thread_only() {
        let value = Rc::new(7);
        let (here, away) = (OwnThread::new(Rc::clone(&value)), OwnThread::new(Rc::clone(&value)));
        assert_eq!(**here.get().unwrap(), 7);
        drop(here);
        assert_eq!(Rc::strong_count(&value), 2);
        thread::scope(|scope| scope.spawn(|| assert!({ away }.get().is_err())).join().unwrap());
        assert_eq!(Rc::strong_count(&value), 2, "it was dropped on another thread");
    }
}
