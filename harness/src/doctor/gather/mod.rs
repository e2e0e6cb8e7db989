//! Collects the facts of this machine, each part from its own place: `/proc` and `/sys`, system calls, files, and two programs
//! (`nvidia-smi`, `getent`) that get a few seconds each.

mod fabric;
mod files;
mod gpu;
mod network;
mod node;
mod read;
mod software;
mod system;

pub(super) use network::resolve;
pub(super) use node::node;
pub(super) use read::in_time;
