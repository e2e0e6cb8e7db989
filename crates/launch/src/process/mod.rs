//! Worker processes: started tied to the agent's life, watched by the kernel, ended with all their children.
//!
//! - [`Workers`] starts them, tells their deaths in order, passes signals on and sweeps after them.
//! - Nothing outlives the agent. A worker leads a session of its own and gets a parent-death signal ([`tied`]); what it
//!   leaves behind comes to the agent, which ends it (`stray`); if the agent is killed, its warden does (`warden`, `guard`).
//! - [`find_program`] says in words why a program cannot be run.
//! - [`SignalStream`] tells what the agent itself is asked; when to ask workers and when to kill them is the agent's to decide.
//! - [`Group`] and [`Signals`] serve those who run one program and wait for it.
//!
//! Everything happens on the process's **main thread**: the kernel ties a worker's life to the thread that started it.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use lockstep_launch::process::{Exit, Sink, Spec, Stdin, Workers};
//! # async fn round() -> std::io::Result<()> {
//! let mut workers = Workers::new()?;
//! let spec = Spec {
//!     program: "true".into(),
//!     args: vec![],
//!     env: vec![("RANK".into(), Some("0".into()))],
//!     folder: None,
//!     stdin: Stdin::Inherit,
//!     stdout: Sink::Inherit,
//!     stderr: Sink::Inherit,
//! };
//! workers.start(0, spec)?;
//! let died = workers.next().await?;
//! assert_eq!(died.exit, Exit::Code(0));
//! workers.sweep(Duration::from_secs(2)).await;
//! workers.close();
//! # Ok(())
//! # }
//! ```

mod exit;
mod group;
mod guard;
mod mark;
mod open_files;
mod proc;
mod program;
mod signals;
mod spec;
mod stray;
mod tied;
mod warden;
mod watch;
mod workers;

use std::ffi::OsString;

pub use exit::{Exit, signal_name};
pub use group::{Group, Outcome};
pub use mark::MARKER;
pub use open_files::{TooFewFiles, raise_open_files};
pub use program::{ProgramError, find_program};
pub use rustix::process::Signal;
pub use signals::{SignalStream, Signals};
pub use spec::{Sink, Spec, Stdin};
pub use stray::{Stray, Swept};
pub use tied::{TIED, tied};
pub use warden::WARDEN;
pub use workers::{Died, Workers};

/// Runs a hidden subcommand of this executable by its name, [`TIED`] or [`WARDEN`], with the arguments after the name;
/// `None` for any other name. An executable that starts workers calls it before anything else, in particular before it
/// starts a thread.
///
/// `tied-exec` returns only when it could not become the program.
pub fn helper(name: &str, args: &[OsString]) -> Option<anyhow::Result<()>> {
    match name {
        TIED => Some(tied::exec(args)),
        WARDEN => Some(guard::run(args)),
        _ => None,
    }
}
