//! Errors of an optimizer: its options, its parameters, their gradients, or a saved state.

use c10d::Rank;
use tch::{Kind, TchError};

use crate::object_collectives::ObjectError;

/// The result of an optimizer's operation.
pub type Result<T, E = OptimError> = std::result::Result<T, E>;

/// Why an optimizer refused.
#[derive(Debug, thiserror::Error)]
pub enum OptimError {
    /// An option is outside the range of PyTorch's constructor.
    #[error("invalid {option} for {optimizer}: {value}; it must be {must_be}")]
    Option {
        /// "SGD", "Adam" or "AdamW".
        optimizer: &'static str,
        option: &'static str,
        value: f64,
        /// The valid range, as text.
        must_be: &'static str,
    },
    /// Nesterov's momentum without momentum, or with dampening.
    #[error(
        "nesterov needs a momentum above 0 and a dampening of 0, got momentum {momentum} and dampening {dampening}"
    )]
    Nesterov { momentum: f64, dampening: f64 },
    /// There are no parameters in any group, or none in this one.
    #[error(
        "the optimizer got an empty parameter list (group {group}); build the model before the optimizer and check \
         that not every layer is frozen"
    )]
    NoParameters { group: usize },
    /// The requested group does not exist.
    #[error("no parameter group {group}: the optimizer has {count}")]
    NoSuchGroup { group: usize, count: usize },
    /// A parameter cannot be trained.
    #[error("cannot optimize the parameter {name}: {why}")]
    Parameter {
        name: String,
        /// The reason and what to do.
        why: String,
    },
    /// The kernels do not support a gradient.
    #[error("cannot step the parameter {name}: {why}")]
    Gradient {
        name: String,
        /// The reason and what to do.
        why: String,
    },
    /// The saved state belongs to another optimizer.
    #[error("the saved state is of {saved}, this optimizer is {here}; build the optimizer that the run was saved with")]
    WrongOptimizer { saved: &'static str, here: &'static str },
    /// The saved state has another number of parameter groups.
    #[error("the saved state has {saved} parameter groups, this optimizer has {here}")]
    GroupCount { saved: usize, here: usize },
    /// The names of parameters differ.
    #[error(
        "parameter group {group} differs: only in the saved state: {}; only in this optimizer: {}",
        list(.only_saved), list(.only_here)
    )]
    Names { group: usize, only_saved: Vec<String>, only_here: Vec<String> },
    /// The saved tensors do not match the saved step counts.
    #[error(
        "the saved tensors do not fit the saved steps: missing: {}; not expected: {}",
        list(.missing), list(.unexpected)
    )]
    Tensors {
        /// Missing tensors of parameters with steps.
        missing: Vec<String>,
        /// Tensors that no parameter uses, or that occur twice.
        unexpected: Vec<String>,
    },
    /// A saved tensor has another shape than its parameter.
    #[error("the saved {name} has shape {saved:?}, the parameter here has {here:?}")]
    Shape {
        /// The tensor's name, `exp_avg.<parameter>`.
        name: String,
        saved: Vec<i64>,
        here: Vec<i64>,
    },
    /// A saved tensor has another dtype than its parameter.
    #[error("the saved {name} has dtype {saved:?}, the parameter here has {here:?}")]
    Dtype {
        /// The tensor's name, `exp_avg.<parameter>`.
        name: String,
        saved: Kind,
        here: Kind,
    },
    /// The state is divided among ranks, and this one has not gathered it since the last step.
    #[error("rank {rank} has only its part of the optimizer's state; call consolidate_state_dict on all ranks first")]
    NotConsolidated {
        /// The rank that was asked.
        rank: Rank,
    },
    /// Parameters or state did not reach all ranks.
    #[error("failed to exchange parameters or optimizer state between ranks")]
    Group(#[source] c10d::Error),
    /// The description of the state did not reach all ranks.
    #[error("failed to gather the optimizer's state")]
    State(#[source] ObjectError),
    /// A fused kernel failed.
    #[error("the step failed")]
    Kernel(#[source] c10d::Error),
    /// libtorch failed otherwise.
    #[error("libtorch failed to {doing}")]
    Torch {
        doing: &'static str,
        /// libtorch's message.
        #[source]
        source: TchError,
    },
}

impl OptimError {
    pub(super) fn torch(doing: &'static str) -> impl FnOnce(TchError) -> Self {
        move |source| OptimError::Torch { doing, source }
    }
}

/// A list of names for messages: at most five, then a count.
fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        [first @ .., _] if names.len() > 5 => format!("{} and {} more", first[..4].join(", "), names.len() - 4),
        _ => names.join(", "),
    }
}
