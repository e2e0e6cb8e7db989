//! What the agent shows besides its own lines: the log messages that LOGLEVEL selects, as for torchrun, and on a terminal the status line.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;

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

/// From now on `console` shows log messages of LOGLEVEL and above; if it is not set, warnings and errors.
pub(super) fn log_to(console: &Console) {
    let level = std::env::var("LOGLEVEL").map_or(LevelFilter::WARN, |name| level(&name));
    let console = console.clone();
    let log = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(false).without_time();
    // A program that embeds the agent keeps its own logger.
    let _ = log.with_writer(move || Lines(console.clone())).try_init();
}

/// Parses Python's names and numbers (logging.getLevelName); other texts mean torchrun's default.
fn level(name: &str) -> LevelFilter {
    match name.to_ascii_uppercase().as_str() {
        "DEBUG" | "10" => LevelFilter::DEBUG,
        "INFO" | "20" => LevelFilter::INFO,
        "ERROR" | "CRITICAL" | "FATAL" | "40" | "50" => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    }
}

/// Writes each log message as a line of the console.
struct Lines(Console);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.say(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_pythons_names_of_levels() {
        let names = ["INFO", "debug", "Warning", "CRITICAL", "10", "loud"].map(level);
        let [info, debug, warn, error] = [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::WARN, LevelFilter::ERROR];
        assert_eq!(names, [info, debug, warn, error, debug, warn]);
    }
}
