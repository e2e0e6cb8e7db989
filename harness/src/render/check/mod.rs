//! `lockstep render --check`: reads scripts that somebody wrote, and lists what is wrong with them, line by line.
//!
//! Nothing is run. [`tree`] has bash's grammar, and [`evaluate`] makes a [`script`] of it, whose [`word`]s say what is known before it
//! runs. [`facts`] is what it asks for, [`numbers`] what it calculates, and [`rules`] are the mistakes that are known.

mod evaluate;
mod examine;
mod facts;
mod numbers;
mod rules;
mod script;
mod tree;
mod word;

pub(super) use examine::check;
pub(crate) use rules::{RULES, Rule};
pub(super) use script::first_word;
