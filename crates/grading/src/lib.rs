//! Grades exercises: starts real ranks of a learner's program and tells from what was seen what is wrong. Links no libtorch.
//!
//! - [`exercise`]: what a lab's `lab.toml` says, and which function grades each task.
//! - [`Stage`]: where such a function calls the learner's answer; [`Claim`]: how it judges results; [`Fault`]: what it finds.
//! - [`grade`]: grades tasks; [`learner`]: `cargo test -p ex-NN`; [`course`]: the tests of the course's own answers.
//! - [`progress`]: which tasks a learner has passed; [`skeleton`], [`sums`]: the learner's files.
//!
//! What a task asks for and which mistakes it knows stands in its lab's `grading` folder; `lockstep-labs` has all labs.

mod claim;
pub mod course;
pub mod exercise;
mod fault;
pub mod grade;
pub mod learner;
mod numbers;
mod options;
pub mod package;
pub mod progress;
pub mod skeleton;
pub mod stage;
pub mod sums;
mod tell;

pub use claim::{Claim, close};
pub use exercise::{Grading, Lab};
pub use fault::{Fault, Found, Verdict, explain};
pub use numbers::Numbers;
pub use options::{DEADLINE, Options};
pub use stage::{End, Setting, Stage};
