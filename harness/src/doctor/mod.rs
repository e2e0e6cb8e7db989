//! `lockstep doctor`: what keeps training from starting, on this machine or on the nodes of a job, and how to fix it.
//!
//! - [`facts`]: what is known of a node, as data; [`gather`] collects it.
//! - [`job`]: how the nodes of a job find each other, exchange their facts and try to reach each other.
//! - [`check`]: the faults, each a pure function of the facts; [`choice`]: which interfaces Gloo and NCCL will take.
//! - [`show`]: the report.

mod check;
mod choice;
mod facts;
mod gather;
mod job;
mod options;
mod page;
mod show;

pub(crate) use options::Options;
pub(crate) use page::page;
