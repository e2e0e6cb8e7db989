//! What the agent knows of its job, for the status.

use std::time::Duration;

/// The agent's knowledge about its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// The current phase.
    pub phase: AgentPhase,
    /// The number of ranks in the job; 0 until a group has been formed.
    pub ranks: usize,
    /// The number of nodes in the job.
    pub nodes: usize,
    /// The number of restarts so far.
    pub restarts: u32,
    /// The maximum number of restarts.
    pub max_restarts: u32,
    /// The time since the agent started.
    pub elapsed: Duration,
}

/// The phase of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentPhase {
    /// Waiting for the other nodes.
    Forming,
    /// The workers run.
    Running,
    /// The workers are being stopped.
    Stopping,
    /// The workers have ended.
    Ending,
}
