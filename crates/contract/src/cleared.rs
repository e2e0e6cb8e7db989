//! The variables to clear before ranks are started without a launcher.

use std::process::Command;

use crate::fault::FAULTS;
use crate::wish::{LAUNCHER, SNAPSHOT_ON};

/// Variables that a launcher, or the developer's own shell, may have set.
pub const CLEARED_VARIABLES: [&str; 23] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "TORCH_DISTRIBUTED_DEBUG",
    "RUST_BACKTRACE",
    "LOCKSTEP_EVENTS",
    SNAPSHOT_ON,
    LAUNCHER,
    FAULTS,
];

/// Removes these variables from the environment of `command`.
pub fn clear_launcher(command: &mut Command) -> &mut Command {
    CLEARED_VARIABLES.iter().fold(command, |command, name| command.env_remove(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_what_a_launcher_has_set_and_nothing_else() {
        let mut command = Command::new("true");
        clear_launcher(command.envs([("RANK", "1"), ("MASTER_PORT", "2"), ("HOME", "/")]));
        let set: Vec<_> = command.get_envs().filter(|(_, value)| value.is_some()).map(|(name, _)| name).collect();
        assert_eq!(set, ["HOME"]);
    }
}
