//! Copies of a process that has loaded libtorch and done nothing else: a copy need not load it again. All of it is unsafe where other
//! threads run, so each function refuses there.

use std::ffi::OsString;
use std::io;

use rustix::process::Pid;

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

/// Ends this process at once, without what was registered for its end: nothing is flushed.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) has no conditions.
    unsafe { libc::_exit(code) }
}

fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_copy_a_process_with_several_threads() {
        // The test's own thread is not the only one.
        assert!(fork().unwrap_err().to_string().contains("several threads"));
        assert!(std::panic::catch_unwind(|| set_variables(&[("A".into(), None)])).is_err());
    }
}
