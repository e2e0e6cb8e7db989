//! Variables of other launchers.

use crate::fault::FAULTS;

/// What a launcher, or the developer's own shell, may have set, and whoever starts ranks by himself takes away first.
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
