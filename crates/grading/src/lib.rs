//! Grades exercises: runs a learner's program on real ranks and diagnoses what is wrong. Links no libtorch.
//!
//! - [`exercise`]: the contents of `lab.toml` and the function that grades each task. [`Answers`]: the wrong and unusual answers.
//! - [`Runner`] calls the learner's answer, a [`Claim`] checks a result, and a [`Finding`] says what is wrong.
//! - [`grade`] grades a task, [`learner`] runs `cargo test -p ex-NN`, [`course`] tests the course's own answers.
//! - [`progress`] records which tasks a learner has passed. [`package`] writes the learner's files, and [`checksums`] shows which of them
//!   have changed.
//!
//! The functions that grade tasks are in the labs: `tasks/TASK/grade.rs`. `lockstep-labs` lists all labs.

mod answers;
pub mod course;
pub mod exercise;
mod finding;
pub mod grade;
pub mod learner;
pub mod package;
pub mod progress;
pub mod runner;

pub use answers::Answers;
pub use exercise::{Grading, Lab};
pub use finding::{Claim, Finding, Found, Numbers, Verdict, close, explain, given};
pub use package::checksums;
pub use runner::{
    BESIDE, COMPUTES, CallOptions, DEADLINE, Inputs, JOINS, Options, Outputs, RankOutcome, Runner, SEPARATOR,
};
