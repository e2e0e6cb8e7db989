//! Signals to the agent: which of them stop the workers, ask them for a snapshot, or are passed on.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use lockstep_contract::events::AgentEvent;
use lockstep_contract::snapshot_request::REPETITION;
use lockstep_process::{Signal, Workers, not_ignored, signal_name, unblock_signals};
use tokio::signal::unix::{self, SignalKind};

use super::state_machine::{Event, StateMachine};
use super::workers::Context;
use crate::config::{Response, Signals};

/// Call it first, on the main thread. Lets through what the caller may have blocked, and makes a file that reaches the limit on its size an
/// error of the write, which is reported, instead of the end of this process. Workers get the signal's default action, as all programs.
///
/// # Errors
/// The system's error.
pub fn settle() -> io::Result<()> {
    unblock_signals();
    signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::default()).map(drop)
}

/// The signals to this process that it handles, and those that asked for the end.
pub(super) struct SignalStream {
    streams: Vec<(i32, unix::Signal)>,
    /// Signals that arrived while stacks were read; they are handled after the death that was looked into.
    held: VecDeque<i32>,
    /// The last signal that asked for the end, and when it came first.
    asked: Option<(i32, Instant)>,
}

impl SignalStream {
    /// Handles these signals, by number. One that this process was started to ignore stays ignored.
    ///
    /// # Errors
    /// One cannot be handled (SIGKILL, SIGSTOP, not a signal); the error names it.
    pub(super) fn listen(signals: &[i32]) -> io::Result<Self> {
        let streams = not_ignored(signals)?.into_iter().map(|number| {
            let stream = unix::signal(SignalKind::from_raw(number));
            let named = |error| io::Error::other(format!("cannot handle {}: {error}", signal_name(number)));
            Ok((number, stream.map_err(named)?))
        });
        Ok(SignalStream { streams: streams.collect::<io::Result<_>>()?, held: VecDeque::new(), asked: None })
    }

    /// The next signal that arrives. Cancel safe. Several of one kind may arrive as one.
    pub(super) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let mut streams = self.streams.iter_mut();
            let arrived = streams.find_map(|(number, stream)| stream.poll_recv(context).is_ready().then_some(*number));
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// The next signal that asks for the end. Others have no meaning while no worker runs.
    pub(super) async fn next_that_ends(&mut self, signals: &Signals) -> i32 {
        loop {
            let signal = self.next().await;
            if !matches!(signals.response(signal), Response::PassOn { .. }) {
                return signal;
            }
        }
    }

    /// Keeps a signal that arrived while something else was awaited.
    pub(super) fn hold(&mut self, signal: i32) {
        self.held.push_back(signal);
    }

    /// The first signal that was kept and not yet returned.
    pub(super) fn take_held(&mut self) -> Option<i32> {
        self.held.pop_front()
    }

    /// Returns true if the last request to end was this signal.
    pub(super) fn asked_by(&self, signal: Signal) -> bool {
        self.asked.is_some_and(|(asked, _)| asked == signal.as_raw())
    }

    /// Acts on a signal to this process, unless it only repeats the last one. Returns what it asks of the job.
    pub(super) fn note(
        &mut self,
        signal: i32,
        context: &Context<'_>,
        machine: &StateMachine,
        workers: &Workers,
    ) -> Option<Event> {
        context.events.emit(&AgentEvent::Signalled { signal });
        let name = signal_name(signal);
        let response = context.config.signals.response(signal);
        let now = Instant::now();
        if repeats(self.asked, signal, response, now) {
            let within = REPETITION.as_secs();
            context.say(&format!("received {name} again within {within} s: it counts once (SIGINT counts each time)"));
            return None;
        }
        if let Response::PassOn { to_all } = response {
            pass_on_to_handlers(context, workers, machine.is_running(), signal, to_all);
            return None;
        }
        self.asked = Some((signal, now));
        let saves = response == Response::SaveAndEnd;
        let (what, event) = if saves && machine.is_running() && all_can_save(workers) {
            ("asking the workers to save a snapshot and to end", Event::SaveAndEnd(signal))
        } else if saves && machine.takes_save_request(signal) {
            ("waiting for the workers, which save a snapshot and end", Event::SaveAndEnd(signal))
        } else if saves && machine.is_running() {
            ("stopping the workers, since not all can save a snapshot on SIGUSR2", Event::Signalled(signal))
        } else {
            ("stopping the workers", Event::Signalled(signal))
        };
        context.say(&format!("received {name}: {what}"));
        Some(event)
    }
}

/// Returns true if all workers handle the request. One that is at its end may have fulfilled it: a scheduler signals the workers, too.
pub(super) fn all_can_save(workers: &Workers) -> bool {
    let (handle, end) = (workers.that_handle(Signal::USR2), workers.that_end());
    workers.alive().iter().all(|worker| handle.contains(worker) || end.contains(worker))
}

/// Sends a signal to these workers themselves.
pub(super) fn pass_on(context: &Context<'_>, workers: &Workers, to: &[usize], signal: Signal) {
    if let Err(error) = workers.signal_themselves(to, signal) {
        context.say(&format!("cannot pass {} on to the workers: {error}", signal_name(signal.as_raw())));
    }
}

/// Passes a signal on to those workers that handle it, unless the user named it: its default action is to end a process.
fn pass_on_to_handlers(context: &Context<'_>, workers: &Workers, is_running: bool, signal: i32, to_all: bool) {
    let name = signal_name(signal);
    let Some(signal) = Signal::from_named_raw(signal) else {
        return context.say(&format!("received {name}: it cannot be passed on to the workers"));
    };
    let all = if is_running { workers.alive() } else { vec![] };
    let handle = workers.that_handle(signal);
    let (to, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|worker| to_all || handle.contains(worker));
    pass_on(context, workers, &to, signal);
    let listed = |workers: &[usize]| workers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match (&to[..], &others[..]) {
        ([], []) => context.say(&format!("received {name}, but no worker runs to pass it on to")),
        (to, []) => context.say(&format!("received {name}: passed it on to local rank {}", listed(to))),
        (to, others) => {
            let to = if to.is_empty() { "no worker".to_owned() } else { format!("local rank {}", listed(to)) };
            context.say(&format!(
                "received {name}: passed it on to {to}; local rank {} would be ended by it, having no handler \
                 (--forward-signals={name} sends it all the same)",
                listed(others)
            ));
        }
    }
}

/// Returns true if this signal is the `last` that asked for the end, sent once more by a scheduler or timeout(1). A person at a terminal
/// means each SIGINT, and a signal that is passed on does not ask for the end.
fn repeats(last: Option<(i32, Instant)>, signal: i32, response: Response, now: Instant) -> bool {
    let may_be_sent_twice = signal != Signal::INT.as_raw() && !matches!(response, Response::PassOn { .. });
    let just_before = |(before, at): (i32, Instant)| before == signal && now.duration_since(at) <= REPETITION;
    may_be_sent_twice && last.is_some_and(just_before)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns true if `signal` repeats `last`, which came this many milliseconds earlier.
    fn after(last: Signal, millis: u64, signal: Signal, response: Response) -> bool {
        let at = Instant::now();
        repeats(Some((last.as_raw(), at)), signal.as_raw(), response, at + Duration::from_millis(millis))
    }

    #[test]
    fn a_signal_that_is_sent_twice_within_two_seconds_counts_once() {
        for response in [Response::End, Response::SaveAndEnd] {
            for signal in [Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR2] {
                assert!(after(signal, 0, signal, response) && after(signal, 2000, signal, response), "{signal:?}");
                assert!(!after(signal, 2001, signal, response), "{signal:?}");
                assert!(!repeats(None, signal.as_raw(), response, Instant::now()), "{signal:?}");
            }
            assert!(!after(Signal::HUP, 0, Signal::TERM, response), "it is another signal");
        }
    }

    #[test]
    fn each_sigint_counts_and_each_signal_that_is_passed_on() {
        assert!(!after(Signal::INT, 0, Signal::INT, Response::End));
        assert!(!after(Signal::INT, 0, Signal::INT, Response::SaveAndEnd));
        for to_all in [false, true] {
            assert!(!after(Signal::USR1, 0, Signal::USR1, Response::PassOn { to_all }));
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn reports_a_signal_and_refuses_one_that_cannot_be_handled() {
        let mut signals = SignalStream::listen(&[signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2]).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR2).unwrap();
        assert_eq!(signals.next().await, signal_hook::consts::SIGUSR2);
        let Err(error) = SignalStream::listen(&[signal_hook::consts::SIGKILL]) else { panic!("handled") };
        assert!(error.to_string().starts_with("cannot handle SIGKILL: "), "{error}");
    }
}
