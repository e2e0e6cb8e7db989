//! Grades exercises: runs a learner's program on real ranks and diagnoses what is wrong. Links no libtorch.
//!
//! - [`exercise`]: the contents of `lab.toml` and the function that grades each task. [`Answers`]: the wrong and unusual answers.
//! - [`Runner`] calls the learner's answer, a [`Claim`] checks a result, and a [`Finding`] says what is wrong.
//! - [`grade`] grades a task, [`learner`] runs `cargo test -p ex-NN`, [`labs::try_answers`] tests the course's own answers.
//! - [`Workplace`]: where a learner works. [`progress`] records which tasks have passed, and [`seat`] tells the class. [`package`] writes the learner's files, and
//!   [`checksums`] shows which of them have changed.
//! - [`labs`]: the course's labs, with the functions that grade their tasks, which stand in `labs/NN-name/tasks/TASK/grade.rs`.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone

// The graders of the labs, which are compiled here, name this crate.
extern crate self as lockstep_grading;

mod answers;
pub mod exercise;
mod finding;
pub mod grade;
pub mod labs;
pub mod language;
pub mod learner;
pub mod package;
pub mod progress;
mod python;
pub mod runner;
pub mod seat;
mod workplace;

pub use answers::Answers;
pub use exercise::{Grading, Lab};
pub use finding::{
    Claim, Finding, GradeResult, Numbers, Verdict, causes, close, explain, given, is_too_late, joined, rows, table,
};
pub use language::{Language, Program};
pub use lockstep_contract::counted;
pub use package::checksums;
pub use python::{Python, PythonMissing};
pub use runner::{
    BESIDE, CallOptions, DEADLINE, IN_NO_CALL, Inputs, JOINS, Options, Outputs, RankOutcome, Runner, SEPARATOR,
    at_seeds,
};
pub use workplace::{MARKER, Workplace};
