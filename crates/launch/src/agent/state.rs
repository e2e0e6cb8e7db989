//! What the agent's event loop and its parts work on.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use lockstep_process::Workers;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::batch_job::BatchJob;
use super::diagnostic_input::DiagnosticInput;
use super::live_status::LiveStatus;
use super::membership::Membership;
use super::state_machine::{Event, StateMachine};
use super::waits::SignalStream;
use super::workers::{Context, Current};

/// Everything that the loop needs.
pub(super) struct Agent<'a> {
    pub(super) context: Context<'a>,
    pub(super) machine: StateMachine,
    pub(super) workers: Workers,
    /// Readable when `workers` have something to report.
    pub(super) ready: AsyncFd<OwnedFd>,
    pub(super) membership: Membership,
    /// The scheduler's job, if any.
    pub(super) batch: BatchJob,
    pub(super) signals: SignalStream,
    /// What is known about the rendezvous endpoint, for error messages.
    pub(super) diagnostic_input: DiagnosticInput,
    /// Only on a terminal.
    pub(super) status: Option<LiveStatus>,
    /// What the rendezvous waits for, as text.
    pub(super) reasons: watch::Receiver<String>,
    /// When the reason is printed, unless it has changed by then.
    pub(super) say_reason_at: Option<Instant>,
    pub(super) current: Current,
    /// An event that is already known and handled next.
    pub(super) pending: Option<Event>,
    /// Signals that came while stacks were read; they are handled after the death that was looked into.
    pub(super) held: VecDeque<i32>,
    /// The last signal that asked for the end, and when it came first.
    pub(super) asked: Option<(i32, Instant)>,
}

impl Agent<'_> {
    /// Prints a line of the agent itself.
    pub(super) fn say(&self, line: &str) {
        self.context.say(line);
    }
}
