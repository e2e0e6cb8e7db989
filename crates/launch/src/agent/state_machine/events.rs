//! The events that the state machine handles, and the actions that it orders.

use lockstep_process::Exit;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Event {
    /// The nodes agreed on a round in which this node has `workers` workers.
    Formed { workers: usize },
    /// The nodes did not agree, or the rendezvous was interrupted, for the given reason.
    NotFormed(String),
    /// Only the first `started` workers could be started, for the given reason.
    NotStarted { started: usize, why: String },
    /// A worker ended.
    Died { worker: usize, exit: Exit },
    /// Another node failed, left or came, so that all nodes must agree again.
    Reform(String),
    /// The job has ended for all nodes, or cannot continue, for the given reason.
    Closed(String),
    /// This process received a signal that asks it to exit.
    Signalled(i32),
    /// This process received a signal that asks it to exit, and all workers can save a snapshot first.
    SaveAndEnd(i32),
    /// The grace period of the workers is over; a second time: SIGKILL has not ended them in time.
    GraceOver,
    /// All workers and the processes that they left behind are gone, and their output is written.
    Cleared,
    /// All nodes have finished, or waiting for them was given up.
    BarrierPassed,
    /// A node failed while this one waited at the exit barrier, for the given reason.
    BarrierBroken(String),
}

/// An action. Actions are executed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Action {
    /// Agree with the other nodes on the members.
    Join,
    /// Start all workers.
    Start,
    /// Send every live worker this signal; the grace period begins.
    Stop(i32),
    /// Ask every live worker to save a snapshot and to end, because of this signal.
    AskToSave(i32),
    /// The grace period of workers that end on their own begins.
    AwaitEnd,
    /// Kill every live worker.
    Kill,
    /// Ask the other nodes to agree again.
    AskToReform(String),
    /// Tell the user that all workers will be restarted.
    Announce(Restart),
    /// Give up these workers, which SIGKILL has not ended.
    GiveUp(Vec<usize>),
    /// Wait until all processes of the workers are gone.
    Clear,
    /// Stop waiting for that.
    HurryUp,
    /// Wait until all nodes have finished.
    AwaitOthers,
    /// Announce to the other nodes that the job has failed for good.
    CloseJob,
    /// Announce to the other nodes that this one leaves.
    Leave,
    /// Exit.
    Finish(Outcome),
}

/// A restart of all workers of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Restart {
    /// The reason.
    pub(in super::super) reason: String,
    /// Whether it counts against `--max-restarts`.
    pub(in super::super) counted: bool,
    /// The number of counted restarts that are left.
    pub(in super::super) left: u32,
}

/// How the agent ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Outcome {
    /// All workers of the job succeeded.
    Succeeded,
    /// The workers saved a snapshot and ended, as a signal asked.
    Saved,
    /// Workers of this node failed, and no restart is left.
    WorkersFailed,
    /// Another failure, with its reason.
    Failed(String),
    /// A signal asked it to exit.
    Signalled(i32),
}
