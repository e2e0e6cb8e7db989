//! The line on a terminal that tells how the job is, kept up to date while the agent waits.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::machine::Machine;
use crate::config::{Config, StatusWhen};
use crate::output::{Console, Stream};
use crate::rendezvous::Round;
use crate::status::{AgentView, Status};

/// How often the line is redrawn.
const EVERY: Duration = Duration::from_millis(250);

/// A status line, and where its ranks' events come from.
pub(super) struct LiveStatus {
    status: Status,
    begun: Instant,
    /// The folder for event files where the user named none: without them there is no step and no loss to show.
    own_folder: Option<PathBuf>,
}

impl LiveStatus {
    /// A status on stderr, if that is a terminal and the user wants one. `events`: the folder that the user named.
    pub(super) fn on(config: &Config, console: &Console, events: Option<PathBuf>, logs: Option<&Path>) -> Option<Self> {
        if config.status == StatusWhen::Never || !console.is_terminal(Stream::Stderr) {
            return None;
        }
        let own_folder = if events.is_none() { logs.map(|logs| logs.join("events")) } else { None };
        let status = Status::new(events.as_deref().or(own_folder.as_deref()));
        console.draw_above(&status.bar());
        Some(LiveStatus { status, begun: Instant::now(), own_folder })
    }

    /// Where workers are to write their events for the status alone.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.own_folder.as_deref()
    }

    /// Brings the line up to date; when to do so again.
    pub(super) fn show(&mut self, machine: &Machine, max_restarts: u32, round: Option<&Round>) -> Instant {
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

    /// Takes the line away.
    pub(super) fn finish(self) {
        self.status.finish();
    }
}
