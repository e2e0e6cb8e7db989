//! Environment variables that other launchers set.

use crate::fault::FAULTS;

/// Variables that a launcher or the developer's shell may have set. A program that starts ranks directly removes them
/// first.
pub const FOREIGN: [&str; 14] = [
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
    "TORCH_DISTRIBUTED_DEBUG",
    "RUST_BACKTRACE",
    "LOCKSTEP_EVENTS",
    FAULTS,
];
