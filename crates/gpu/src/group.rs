//! Grouped calls.

use std::cell::{Cell, RefCell};

use cudarc::nccl::sys;

use crate::error::{Error, Result, nccl};
use crate::library;

/// Frees something.
type Free = Box<dyn FnOnce()>;

thread_local! {
    /// The groups that are open on this thread, one in another.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// What was dropped meanwhile: calls that NCCL has collected may use it.
    static LATER: RefCell<Vec<Free>> = const { RefCell::new(Vec::new()) };
}

/// Runs calls of any communicators as one: they are issued together when `calls` has returned, and their order does not matter.
///
/// Communicators are neither made nor aborted in a group. Buffers, streams and communicators that are dropped in it are freed after its
/// end.
///
/// # Errors
/// Those of `calls`, and NCCL's.
pub fn group<R>(calls: impl FnOnce() -> Result<R>) -> Result<R> {
    library::open()?;
    // SAFETY: takes nothing; ended below, whatever the calls return.
    nccl("ncclGroupStart", unsafe { sys::ncclGroupStart() })?;
    DEPTH.set(DEPTH.get() + 1);
    /// Ends the group, even if the calls panic: NCCL keeps it for the thread.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            // Only after a panic, so the result has nowhere to go.
            let _ = end();
        }
    }
    let open = End;
    let result = calls();
    std::mem::forget(open);
    let ended = end();
    let result = result?;
    ended.map(|()| result)
}

fn end() -> Result<()> {
    // SAFETY: takes nothing.
    let ended = nccl("ncclGroupEnd", unsafe { sys::ncclGroupEnd() });
    DEPTH.set(DEPTH.get() - 1);
    if !is_open() {
        // Taken out first: what is freed may drop more.
        LATER.take().into_iter().for_each(|free| free());
    }
    ended
}

fn is_open() -> bool {
    DEPTH.get() > 0
}

/// The error of a call that cannot wait for the end of a group, since it writes its result only there.
pub(crate) fn refuse(call: &'static str) -> Result<()> {
    if is_open() { Err(Error::Grouped { call }) } else { Ok(()) }
}

/// Frees something now, or after the end of the group that is open on this thread.
pub(crate) fn free(free: impl FnOnce() + 'static) {
    if is_open() {
        LATER.with_borrow_mut(|later| later.push(Box::new(free)));
    } else {
        free();
    }
}
