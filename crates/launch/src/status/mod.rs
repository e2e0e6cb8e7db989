//! The state of a running job in one line: on a terminal redrawn in place, elsewhere a plain line when the phase
//! changes.
//!
//! The progress of the training comes from the ranks' event files ([`Tail`]), the state of the job from its agent
//! ([`AgentView`]); [`line()`] turns both into text, without a clock and without a terminal.

mod agent_view;
mod bar;
mod held;
mod line;
mod tail;

pub use agent_view::{AgentPhase, AgentView};
pub use bar::Status;
pub use held::Held;
pub use line::line;
pub use tail::{Late, Progress, Tail};
