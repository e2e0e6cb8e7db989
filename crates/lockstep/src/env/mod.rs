//! A launcher's variables (torchrun's), read once into one value. Without a launcher, `mpirun`, `mpiexec` or `srun` may have
//! started one process for each rank; what a launcher would have set is then [`Taken`] from their variables.
//!
//! Parsing is a pure function of a lookup, so tests never touch the process's environment. Leaves out joining the group, and
//! starting processes: see [`crate::spawn()`].

mod error;
mod launch_env;
mod taken;

pub use error::EnvError;
pub use launch_env::{ERROR_FILE, LAUNCHER_VARIABLES, LaunchEnv};
pub use taken::Taken;
pub(crate) use taken::read;
