//! The shim's handle of a group, and how it is freed: after its operations, or by another thread if this one panics.

use std::ptr::NonNull;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::ffi::{self, GroupHandle};
use crate::in_use;
use crate::operation::Lifetime;

/// How long a rank that panics waits until its group has been freed.
const GIVE_UP: Duration = Duration::from_secs(1);

/// The shim's object; its last user frees it.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) group: NonNull<GroupHandle>,
    pub(super) lifetime: Lifetime,
}

// SAFETY: a c10d process group is not tied to the thread that created it. It only requires that its operations are
// issued in one order, which holds because `ProcessGroup` is not Sync.
unsafe impl Send for Handle {}
// SAFETY: operations in progress share `Inner`. They only read plain fields of it, and the last one frees the handle.
// Calls that issue operations go through `ProcessGroup`, which is not Sync; an abort may come from any thread.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) fn new(group: NonNull<GroupHandle>) -> Self {
        Handle { group, lifetime: Lifetime::new() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        #[cfg(test)]
        let _after = tests::AfterClose;
        let (group, lifetime) = (Freed(self.group), self.lifetime.clone());
        if !std::thread::panicking() {
            return group.free(&lifetime, false);
        }
        // A panicking rank may leave operations behind, and waiting for them could take as long as their timeout.
        // Another thread waits instead. If there are none, the group is freed in time for the peers to see closed
        // connections.
        let (sender, done) = channel();
        let free = move || {
            group.free(&lifetime, true);
            // The receiver is gone if freeing took long.
            let _ = sender.send(());
        };
        // If no thread can be started, the group lives until the process exits.
        if std::thread::Builder::new().spawn(free).is_ok() {
            let _ = done.recv_timeout(GIVE_UP);
        }
    }
}

/// A group without users.
struct Freed(NonNull<GroupHandle>);

// SAFETY: as for `Handle`.
unsafe impl Send for Freed {}

impl Freed {
    fn free(self, lifetime: &Lifetime, give_up: bool) {
        in_use::end_abandoned(lifetime);
        if lifetime.is_endless() {
            return;
        }
        // SAFETY: the handle came from the shim and is freed once: its owner passed it here.
        unsafe { ffi::lc_group_free(self.0.as_ptr(), give_up) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::options::{Endpoint, GroupOptions};
    use crate::{ProcessGroup, Rank, Store, WorldSize};

    type Hook = Box<dyn FnOnce()>;

    thread_local! {
        /// Called after this thread has closed the connections of a group.
        static AFTER_CLOSE: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    pub(super) struct AfterClose;

    impl Drop for AfterClose {
        fn drop(&mut self) {
            if let Some(hook) = AFTER_CLOSE.take() {
                hook();
            }
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn options() -> GroupOptions {
        GroupOptions { timeout: LONG, endpoint: Endpoint::Interface("lo".into()), ..GroupOptions::default() }
    }

    /// Runs `make` for both ranks at the same time.
    fn both<T: Send>(make: impl Fn(usize) -> T + Sync) -> [T; 2] {
        std::thread::scope(|scope| {
            let second = scope.spawn(|| make(1));
            [make(0), second.join().unwrap()]
        })
    }

    fn pair() -> [ProcessGroup; 2] {
        let (store, world) = (Store::hash().unwrap(), WorldSize::new(2).unwrap());
        both(|rank| ProcessGroup::gloo(&store, Rank::new(rank), world, &options()).unwrap())
    }

    #[test]
    fn a_rank_that_sees_closed_connections_finds_the_record_of_the_leaving_rank() {
        let [ours, theirs] = pair();
        let (asked, wait) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Rank 0 asks and gets its answer after rank 1 has closed its connections and before it does anything else.
                AFTER_CLOSE.set(Some(Box::new(move || {
                    let _ = wait.recv_timeout(LONG);
                })));
                drop(theirs);
            });
            let error = ours.barrier().unwrap_err().to_string();
            drop(asked);
            assert!(error.contains("rank 1 has left the group after 0 finished calls"), "{error}");
        });
    }

    #[test]
    fn a_rank_that_left_a_subgroup_is_named_though_it_answers_for_the_job() {
        let [ours, theirs] = pair().map(std::sync::Mutex::new);
        let members = [0, 1].map(Rank::new);
        let [our_part, their_part] = both(|rank| {
            let group = [&ours, &theirs][rank].lock().unwrap();
            group.new_group(&members, &options()).unwrap().unwrap()
        });
        drop(their_part);
        let error = our_part.barrier().unwrap_err().to_string();
        assert!(error.contains("rank 1 has left the group after 0 finished calls"), "{error}");
    }

    #[test]
    fn a_group_is_never_freed_after_a_dropped_collective_failed() {
        let [ours, theirs] = pair();
        let lifetime = ours.inner.lifetime().clone();
        let short = lockstep_process::watchdog::scaled(Duration::from_millis(100));
        drop(ours.with_timeout(short, ProcessGroup::barrier_async).unwrap());
        // The group is not freed while the collective may still run.
        drop(ours);
        assert!(lifetime.is_endless(), "libtorch may still use it");
        drop(theirs);
    }

    #[test]
    fn a_group_is_freed_after_a_dropped_collective_succeeded() {
        let pair = pair().map(std::sync::Mutex::new);
        let lifetimes = both(|rank| {
            let group = pair[rank].lock().unwrap();
            drop(group.barrier_async().unwrap());
            group.inner.lifetime().clone()
        });
        drop(pair);
        assert!(lifetimes.iter().all(|lifetime| !lifetime.is_endless()));
    }
}
