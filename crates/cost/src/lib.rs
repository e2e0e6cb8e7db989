//! Models of what communication costs. Pure, and without libtorch: the runtime and the harness both use them.
//!
//! - [`AlphaBeta`]: a message of n bytes takes α + β·n; fitted to measured times.
//! - [`Collective`]: what each collective must move, so that times of different sizes and numbers of ranks can be compared.

mod alpha_beta;
mod collective;

pub use alpha_beta::{AlphaBeta, FitError};
pub use collective::Collective;
