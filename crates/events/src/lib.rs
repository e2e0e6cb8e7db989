#![doc = include_str!("../README.md")]
//!
//! This is a separate crate, without libtorch: the runtime writes these files and the harness reads them. Ranks are
//! plain numbers here. The launcher's agents write files of their own next to these: [`AgentEvent`].

mod agent;
mod error;
mod event;
mod log;
mod memory;
mod sink;
#[cfg(test)]
mod tests;

pub use agent::{AgentEvent, AgentLog, AgentRecord, AgentSink, VerdictRecord, read_agents};
pub use error::EventsError;
pub use event::{Event, Record};
pub use log::{EventLog, read, read_folder};
pub use memory::memory_line;
pub use sink::EventSink;

/// The variable that names the folder for event files.
pub const FOLDER: &str = "LOCKSTEP_EVENTS";
