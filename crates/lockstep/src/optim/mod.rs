//! Optimizers with PyTorch's names, defaults and results: [`Sgd`], [`Adam`], [`AdamW`].
//!
//! ```no_run,standalone_crate
//! # fn main() -> anyhow::Result<()> {
//! # let vs = tch::nn::VarStore::new(tch::Device::Cpu);
//! # let loss = tch::Tensor::zeros([], tch::kind::FLOAT_CPU);
//! use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
//!
//! let options = SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() };
//! let mut optimizer = Sgd::new(named_parameters(&vs), options)?;
//! optimizer.zero_grad();
//! loss.backward();
//! optimizer.step()?;
//! let state = optimizer.state_dict(); // everything that the next step reads
//! # drop(state); Ok(()) }
//! ```
//!
//! A step is one call of libtorch's fused kernel for each group of parameters of one dtype and device, the kernel that Python
//! runs with `fused=True`: the results are bit-identical to Python's with that option on the same processor. Without the option
//! Python runs a plain loop on the CPU and `foreach` kernels on CUDA, which round differently: ten steps agree within 1e-6 of a
//! tensor's largest value in float32.
//!
//! tch has its own optimizers, but they hide their state, so a run cannot be resumed with the same bits.
//!
//! Deliberate differences from Python's:
//! - A parameter whose first gradient comes late works with momentum; Python's fused SGD fails on it.
//! - A gradient or state with another memory layout than its parameter is an error; the CPU kernels ignore strides, and
//!   Python's fused SGD then writes to the wrong elements.
//! - Sparse gradients are an error for SGD too; a learning rate must be finite.
//! - State is matched by parameter name, not by position, and its dtype must be the parameter's.
//!
//! [`ZeroRedundancyOptimizer`] divides the state of any of them among the ranks. Learning-rate schedules are in [`schedule`].
//!
//! [`clip_grad_norm`] limits the norm of gradients, also of divided ones; [`GradScaler`](crate::amp::GradScaler) scales them in mixed
//! precision; [`accumulate`](crate::accumulate) adds them up over micro-batches.
//!
//! Left out: `foreach`, `capturable`, `differentiable`, closures.

mod clip;
mod cosine;
mod engine;
mod error;
mod params;
mod rules;
pub mod schedule;
mod state;
mod zero;

pub use clip::{GradParts, clip_grad_norm};
pub(crate) use engine::last_lr;
pub use engine::{FusedOptimizer, Optimizer, Rule};
pub use error::{OptimError, Result};
pub(crate) use params::by_dtype_and_device;
pub use params::{ParamGroup, named_parameters};
pub use rules::{Adam, AdamW, Sgd};
pub use state::{AdamOptions, AdamWOptions, GroupMeta, GroupOptions, ParamMeta, SgdOptions, State, StateMeta};
pub use zero::ZeroRedundancyOptimizer;
