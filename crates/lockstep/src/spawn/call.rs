//! Which call of spawn this is, and what this process has to do at it.
//!
//! The count of calls is the process's own state, kept here and nowhere else.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::SpawnError;
use super::handshake::{Handshake, Past, Place};

static CALLS: Mutex<Calls> = Mutex::new(Calls { past: Vec::new(), running: false });

struct Calls {
    past: Vec<Past>,
    running: bool,
}

/// A call that is running; the process has at most one.
pub(super) struct Call {
    pub(super) ordinal: usize,
    pub(super) at: String,
    pub(super) earlier: Vec<Past>,
    ok: bool,
}

/// What the process does at a call.
pub(super) enum Role {
    /// Start the workers.
    Parent,
    /// Be a worker.
    Worker(Handshake),
    /// Go on to a later call, with the result that the parent had here.
    PassedOver(Result<(), SpawnError>),
    /// Fail: this is not a call that the parent made.
    Elsewhere(Handshake),
}

/// Takes the next number, for the call at `at`.
///
/// # Errors
/// [`SpawnError::Concurrent`] while another call runs: with two at once, their order would not be the same in the
/// workers. A worker is within its call until it ends, so there it is [`SpawnError::Nested`].
pub(super) fn begin(at: String) -> Result<Call, SpawnError> {
    let mut calls = lock();
    if calls.running {
        return Err(if super::worker::is_running() { SpawnError::Nested } else { SpawnError::Concurrent });
    }
    calls.running = true;
    Ok(Call { ordinal: calls.past.len(), at, earlier: calls.past.clone(), ok: false })
}

impl Call {
    pub(super) fn role(&mut self, place: Place) -> Role {
        let Place::Spawned(handshake) = place else { return Role::Parent };
        let past = handshake.earlier.get(self.ordinal);
        if let Some(past) = past.filter(|past| past.at == self.at) {
            self.ok = past.ok;
            return Role::PassedOver(if past.ok { Ok(()) } else { Err(SpawnError::Earlier { at: self.at.clone() }) });
        }
        if self.ordinal == handshake.call && self.at == handshake.at {
            Role::Worker(handshake)
        } else {
            Role::Elsewhere(handshake)
        }
    }

    /// Runs the call's work and keeps how it went, for the workers of later calls.
    pub(super) fn finish(mut self, work: impl FnOnce(&Call) -> Result<(), SpawnError>) -> Result<(), SpawnError> {
        let result = work(&self);
        self.ok = result.is_ok();
        result
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = lock();
        calls.running = false;
        calls.past.push(Past { at: std::mem::take(&mut self.at), ok: self.ok });
    }
}

fn lock() -> MutexGuard<'static, Calls> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(ordinal: usize, at: &str) -> std::mem::ManuallyDrop<Call> {
        // Not dropped: these calls never took a number from the process's count.
        std::mem::ManuallyDrop::new(Call { ordinal, at: at.into(), earlier: Vec::new(), ok: false })
    }

    fn spawned() -> Place {
        let past = |at: &str, ok| Past { at: at.into(), ok };
        Place::Spawned(Handshake {
            parent: 1,
            call: 2,
            at: "c".into(),
            earlier: vec![past("a", true), past("b", false)],
            args: "args".into(),
            progress: "progress".into(),
        })
    }

    #[test]
    fn starts_workers_where_the_process_was_not_spawned() {
        assert!(matches!(call(0, "a").role(Place::Fresh), Role::Parent));
    }

    #[test]
    fn passes_over_earlier_calls_with_the_parents_result() {
        assert!(matches!(call(0, "a").role(spawned()), Role::PassedOver(Ok(()))));
        assert!(matches!(call(1, "b").role(spawned()), Role::PassedOver(Err(SpawnError::Earlier { .. }))));
    }

    #[test]
    fn works_at_the_parents_call_only() {
        assert!(matches!(call(2, "c").role(spawned()), Role::Worker(_)));
        for (ordinal, at) in [(2, "d"), (0, "b"), (3, "c")] {
            assert!(matches!(call(ordinal, at).role(spawned()), Role::Elsewhere(_)), "{ordinal} at {at}");
        }
    }
}
