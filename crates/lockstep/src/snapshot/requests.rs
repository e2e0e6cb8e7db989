//! Requests for a snapshot, which arrive as signals ([`lockstep_contract::snapshot_request`]), and the ranks' agreement on the step after which they
//! are fulfilled.
//!
//! A signal may reach one rank only, or each rank in another step. A rank that ends a step earlier than the others would leave them
//! waiting in the next step's all-reduce. So the ranks ask the store after each step:
//!
//! 1. A rank with a request notes it in the store for the *next* boundary between steps, before it enters the next step.
//! 2. No rank completes that step without this one, because they all exchange their gradients in it.
//! 3. So when any rank reaches the next boundary, the note is in the store, and all ranks read the same there.
//!
//! The question costs one exchange with the store for each step, and none in a world of one rank.
//!
//! **Signals that end a program by default** are requests for a snapshot and the end if the launcher says so ([`SNAPSHOT_ON`]): SIGTERM,
//! which a scheduler sends to all processes of a job at its time limit.
//!
//! The launcher ends the survivors of a failure with the same signal. So a thread looks at the sender: a signal of the launcher, or a
//! second one of anybody, ends the program at once, even while it waits in a collective. A program between the two, such as
//! timeout(1), a container's or a shell with a trap, passes the launcher's signal on in its own name, so its signals end the program, too.
//!
//! The thread lives as long as the program, because a signal that was handled once never gets its default action back. While no
//! snapshots exist that could fulfil a request, it ends the program.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use c10d::{ProcessGroup, Store};
use lockstep_contract::snapshot_request::{LAUNCHER, REPETITION, SAVE, SAVE_AND_END, SNAPSHOT_ON};
use lockstep_process::proc::Stat;
use lockstep_process::signal_number;
use signal_hook::SigId;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::emulate_default_handler;
use signal_hook::low_level::unregister;

/// The flag of the requests that exist now.
static PENDING: Mutex<Weak<AtomicBool>> = Mutex::new(Weak::new());

/// What the ranks have agreed to do at a boundary between steps. The later one includes the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Request {
    /// Save and go on.
    Save,
    /// Save and end.
    SaveAndEnd,
}

/// The signals that this rank has received, and its place in the agreement.
pub(super) struct Requests {
    save: Signal,
    end: Signal,
    /// The prefix of this attempt's keys in the store, the same on all ranks.
    attempt: String,
    /// The number of boundaries so far.
    boundary: u64,
}

/// A signal that has arrived and is not fulfilled yet.
struct Signal {
    arrived: Arc<AtomicBool>,
    id: SigId,
}

impl Signal {
    fn listen(number: i32) -> io::Result<Self> {
        let arrived = Arc::new(AtomicBool::new(false));
        let id = signal_hook::flag::register(number, Arc::clone(&arrived))?;
        Ok(Signal { arrived, id })
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        unregister(self.id);
    }
}

/// A name for an attempt of a job: the store of some launchers keeps the keys of earlier attempts.
pub(super) fn name_of_attempt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), now.as_nanos())
}

impl Requests {
    /// Listens to the signals from now on. `attempt` is rank 0's [`name_of_attempt`].
    pub(super) fn listen(attempt: &str) -> io::Result<Self> {
        let attempt = format!("snapshot_requests/{attempt}");
        let requests =
            Requests { save: Signal::listen(SAVE)?, end: Signal::listen(SAVE_AND_END)?, attempt, boundary: 0 };
        listen_for_the_end(&requests.end.arrived)?;
        Ok(requests)
    }

    /// What all ranks do at this boundary. Each rank asks at each boundary, and all ranks exchange something between two of them.
    pub(super) fn agree(&mut self, group: &ProcessGroup) -> c10d::Result<Option<Request>> {
        let now = self.boundary;
        self.boundary += 1;
        if group.size().get() == 1 {
            let own = self.own();
            self.fulfilled(own);
            return Ok(own);
        }
        let agreed = self.noted(group.store(), now)?;
        self.fulfilled(agreed);
        if let Some(own) = self.own() {
            // `add` waits for the store's answer, which `set` does not.
            group.store().add(&self.key(now + 1), weight(own))?;
        }
        Ok(agreed)
    }

    /// The request of this rank that is not fulfilled yet.
    fn own(&self) -> Option<Request> {
        let arrived = |signal: &Signal| signal.arrived.load(Ordering::Relaxed);
        match (arrived(&self.end), arrived(&self.save)) {
            (true, _) => Some(Request::SaveAndEnd),
            (false, true) => Some(Request::Save),
            (false, false) => None,
        }
    }

    fn fulfilled(&mut self, request: Option<Request>) {
        if request >= Some(Request::Save) {
            self.save.arrived.store(false, Ordering::Relaxed);
        }
        if request == Some(Request::SaveAndEnd) {
            self.end.arrived.store(false, Ordering::Relaxed);
        }
    }

    fn noted(&self, store: &Store, boundary: u64) -> c10d::Result<Option<Request>> {
        let key = self.key(boundary);
        let notes = if store.check(&[&key])? { store.add(&key, 0)? } else { 0 };
        Ok(match notes {
            0 => None,
            notes if notes < weight(Request::SaveAndEnd) => Some(Request::Save),
            _ => Some(Request::SaveAndEnd),
        })
    }

    fn key(&self, boundary: u64) -> String {
        format!("{}/{boundary}", self.attempt)
    }
}

/// What a rank adds to a note: larger than what all ranks together add for a lesser request.
fn weight(request: Request) -> i64 {
    match request {
        Request::Save => 1,
        Request::SaveAndEnd => 1 << 32,
    }
}

/// Sets `end` when one of the signals arrives, if the launcher has named any.
fn listen_for_the_end(end: &Arc<AtomicBool>) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let Some((signals, launcher)) = named(|name| std::env::var(name).ok()) else { return Ok(()) };
    *PENDING.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(end);
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        let senders = Senders::of(launcher, std::process::id() as i32, |pid| Some(Stat::of(pid)?.parent));
        let signals = SignalsInfo::<WithOrigin>::new(signals)?;
        thread::Builder::new().name("end-signals".into()).spawn(move || watch(signals, senders))?;
        *started = true;
    }
    Ok(())
}

/// The signals that the launcher has named, and its process id; `None` if it has named none.
fn named(variable: impl Fn(&str) -> Option<String>) -> Option<(Vec<i32>, Option<i32>)> {
    let names = variable(SNAPSHOT_ON)?;
    let signals: Vec<i32> = names.split(',').filter_map(|name| signal_number(name.trim())).collect();
    let launcher = variable(LAUNCHER).and_then(|pid| pid.trim().parse().ok());
    (!signals.is_empty()).then_some((signals, launcher))
}

fn watch(mut signals: SignalsInfo<WithOrigin>, mut senders: Senders) {
    for origin in &mut signals {
        let sender = origin.process.map(|process| process.pid);
        let requests = PENDING.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        match (senders.meaning(origin.signal, sender, Instant::now()), requests) {
            (Meaning::Request, Some(requests)) => requests.store(true, Ordering::Relaxed),
            // Only a signal without a default action that ends a process would return.
            _ => drop(emulate_default_handler(origin.signal)),
        }
    }
}

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Request,
    End,
}

/// Who has sent signals so far.
struct Senders {
    /// Processes whose signals order the end: the launcher, and the programs between it and this one.
    order_the_end: Vec<i32>,
    /// When the first request arrived.
    first: Option<Instant>,
}

impl Senders {
    /// No signal has arrived yet. `own` is this process. If the launcher is not one of its ancestors, as in another container, only the
    /// launcher's own id counts.
    fn of(launcher: Option<i32>, own: i32, parent: impl Fn(i32) -> Option<i32>) -> Self {
        let mut ancestors: Vec<i32> = std::iter::successors(parent(own), |pid| parent(*pid)).collect();
        let order_the_end = match ancestors.iter().position(|pid| Some(*pid) == launcher) {
            Some(at) => ancestors.drain(..=at).collect(),
            None => launcher.into_iter().collect(),
        };
        Senders { order_the_end, first: None }
    }

    /// A person sends SIGINT, so a second one is not a scheduler's repetition.
    fn meaning(&mut self, signal: i32, sender: Option<i32>, now: Instant) -> Meaning {
        let is_second =
            |first: Instant| signal == lockstep_process::Signal::INT.as_raw() || now.duration_since(first) > REPETITION;
        if sender.is_some_and(|sender| self.order_the_end.contains(&sender)) || self.first.is_some_and(is_second) {
            return Meaning::End;
        }
        self.first.get_or_insert(now);
        Meaning::Request
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TERM: i32 = 15;
    const INT: i32 = 2;

    fn of(variables: &[(&str, &str)]) -> Option<(Vec<i32>, Option<i32>)> {
        named(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    /// Process 20, whose ancestors are 12, 7 and 1.
    fn senders(launcher: Option<i32>) -> Senders {
        Senders::of(launcher, 20, |pid| {
            [(20, 12), (12, 7), (7, 1), (1, 0)].into_iter().find(|(it, _)| *it == pid).map(|(_, parent)| parent)
        })
    }

    #[test]
    fn reads_the_signals_that_the_launcher_names() {
        assert_eq!(of(&[(SNAPSHOT_ON, "SIGTERM, SIGINT,term"), (LAUNCHER, "7")]), Some((vec![15, 2], Some(7))));
        assert!(of(&[]).is_none() && of(&[(SNAPSHOT_ON, ""), (LAUNCHER, "7")]).is_none());
        assert_eq!(of(&[(SNAPSHOT_ON, "SIGTERM")]).unwrap().1, None);
    }

    #[test]
    fn the_launchers_signal_ends_and_so_does_a_second_one() {
        let now = Instant::now();
        assert_eq!(senders(Some(7)).meaning(TERM, Some(7), now), Meaning::End);
        let mut others = senders(Some(7));
        let at = [0, 1, 2, 3].map(|seconds| others.meaning(TERM, Some(9), now + Duration::from_secs(seconds)));
        assert_eq!(at, [Meaning::Request, Meaning::Request, Meaning::Request, Meaning::End]);
        // A sender outside of a container has no id there.
        assert_eq!(senders(Some(7)).meaning(TERM, None, now), Meaning::Request);
        let mut first_wish = senders(Some(7));
        assert_eq!(
            [None, Some(7)].map(|sender| first_wish.meaning(TERM, sender, now)),
            [Meaning::Request, Meaning::End]
        );
    }

    #[test]
    fn a_second_sigint_ends_at_once() {
        let now = Instant::now();
        let mut of_a_person = senders(Some(7));
        assert_eq!(
            [INT, INT].map(|signal| of_a_person.meaning(signal, Some(9), now)),
            [Meaning::Request, Meaning::End]
        );
        let mut of_both = senders(Some(7));
        assert_eq!([TERM, INT].map(|signal| of_both.meaning(signal, Some(9), now)), [Meaning::Request, Meaning::End]);
    }

    #[test]
    fn a_program_between_passes_the_launchers_signal_on_in_its_own_name() {
        let meanings =
            |launcher| [12, 7, 1].map(|sender| senders(launcher).meaning(TERM, Some(sender), Instant::now()));
        assert_eq!(meanings(Some(7)), [Meaning::End, Meaning::End, Meaning::Request]);
        assert_eq!(meanings(Some(12)), [Meaning::End, Meaning::Request, Meaning::Request]);
        // The launcher is outside of this container, or not known.
        assert_eq!([meanings(Some(99)), meanings(None)], [[Meaning::Request; 3]; 2]);
        assert_eq!(senders(Some(99)).meaning(TERM, Some(99), Instant::now()), Meaning::End);
    }
}
