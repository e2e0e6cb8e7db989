//! The job's configuration, from torchrun's flags, and the environment of each worker.
//!
//! The command line fills in [`Flags`], plain texts with their source; [`Config::from_flags`] checks and interprets
//! them. Everything else follows from the configuration: [`Program::args`] and [`worker_env`] define how a worker is
//! started, [`Logs::routes`] where its output goes, [`LogDir`] in which folder. This module neither starts nor waits
//! for anything.

mod endpoint;
mod error;
mod flags;
mod given;
mod host;
mod job;
mod log_dir;
mod logs;
mod nodes;
mod old_logs;
mod program;
mod rendezvous;
mod signals;
mod template;
#[cfg(test)]
pub(crate) mod testing;
mod values;
mod worker_env;

pub use endpoint::{DEFAULT_PORT, Endpoint};
pub use error::ConfigError;
pub use flags::{Flags, path, switch};
pub use given::{Env, Given, Source, variable};
pub use host::{Gpus, HostInfo};
pub use job::{Config, StatusWhen};
pub use log_dir::{Attempt, LogDir, LogDirError};
pub use logs::{LogBase, Logs, PrefixWhen, Route, Routes, Std, Streams};
pub use nodes::Nodes;
pub use program::{Program, ProgramError};
pub use rendezvous::{Backend, Rendezvous};
pub use signals::{Response, Signals, name as signal_name};
pub use worker_env::{Placement, threads_notice, worker_env};
