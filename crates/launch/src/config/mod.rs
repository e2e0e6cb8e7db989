//! What is to be run, as torchrun's flags say it, and the environment of each worker.
//!
//! The command line makes [`Flags`], plain texts with their origin; [`Config::from_flags`] checks them and gives them their
//! meaning. From there on everything is decided: [`Program::args`] and [`worker_env`] say how a worker is started,
//! [`Logs::routes`] where its output goes, [`LogDir`] in which folder. Nothing here starts or waits for anything.

mod endpoint;
mod environment;
mod error;
mod flags;
mod given;
mod job;
mod log_dir;
mod logs;
mod machine;
mod nodes;
mod program;
mod signals;
mod template;
#[cfg(test)]
pub(crate) mod testing;

pub use endpoint::{DEFAULT_PORT, Endpoint};
pub use environment::{Placement, threads_notice, worker_env};
pub use error::ConfigError;
pub use flags::{Flags, path, switch};
pub use given::{Env, Given, Source, variable};
pub use job::{Backend, Config, Rendezvous, StatusWhen};
pub use log_dir::{Attempt, LogDir, LogDirError};
pub use logs::{LogBase, Logs, PrefixWhen, Route, Routes, Std, Streams};
pub use machine::{Gpus, Machine};
pub use nodes::Nodes;
pub use program::{Program, ProgramError};
pub use signals::{Signals, name as signal_name};
