//! Event files: what each rank did, as JSON lines, one file per rank. The harness and plots read them; people need not.
//!
//! A line is `{"t": …, "rank": …, "restart": …, "event": "step", …}`. Each line is appended with a single write, so a
//! killed process leaves at most one torn line, and a restarted one continues after it. A failure to write events never
//! stops training.
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
