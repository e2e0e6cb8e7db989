//! A value that can move to another thread together with its owner, but is accessible only on its original thread.
//!
//! tch requires layers to be `Send`, and a layer that communicates shares a process group, which belongs to one thread.

use std::fmt;
use std::mem::ManuallyDrop;
use std::thread::{self, ThreadId};

use crate::error::{Error, Result};

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
    use super::*;
    use std::rc::Rc;

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
