//! The messages between a grader or a bench and its ranks, without libtorch: one side links it, the other does not.
//!
//! - [`exercise`]: the call of a grader to the ranks of a learner's program, and their answers, in files.
//! - [`bench`](mod@bench): what `lockstep bench` orders of its ranks, and what they answer, on sockets.

pub mod bench;
pub mod exercise;
