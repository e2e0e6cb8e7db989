//! The status line on a terminal, updated while the agent waits.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::state_machine::StateMachine;
use crate::config::{Config, StatusWhen};
use crate::output::{Console, Stream};
use crate::rendezvous::Round;
use crate::status::{AgentView, Status};

/// How often the line is redrawn.
const EVERY: Duration = Duration::from_millis(250);

/// A status line, and the source of its events.
pub(super) struct LiveStatus {
    status: Status,
    begun: Instant,
    /// The folder for event files if the user named none: step and loss come from them.
    own_folder: Option<PathBuf>,
}

impl LiveStatus {
    /// A status on stderr, if that is a terminal and the user wants one. `events` is the folder that the user named.
    pub(super) fn on(config: &Config, console: &Console, events: Option<PathBuf>, logs: Option<&Path>) -> Option<Self> {
        if config.status == StatusWhen::Never || !console.is_terminal(Stream::Stderr) {
            return None;
        }
        let own_folder = if events.is_none() { logs.map(|logs| logs.join("events")) } else { None };
        let status = Status::new(events.as_deref().or(own_folder.as_deref()));
        console.draw_above(&status.bar());
        Some(LiveStatus { status, begun: Instant::now(), own_folder })
    }

    /// The folder for event files that only the status needs.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.own_folder.as_deref()
    }

    /// Updates the line and returns when to do so again.
    pub(super) fn show(&mut self, machine: &StateMachine, max_restarts: u32, round: Option<&Round>) -> Instant {
        self.status.update(&AgentView {
            phase: machine.doing(),
            ranks: round.map_or(0, |round| round.world_size),
            nodes: round.map_or(0, |round| round.nodes),
            restarts: max_restarts - machine.restarts_left(),
            max_restarts,
            elapsed: self.begun.elapsed(),
        });
        Instant::now() + EVERY
    }

    /// Removes the line.
    pub(super) fn finish(self) {
        self.status.finish();
    }
}
