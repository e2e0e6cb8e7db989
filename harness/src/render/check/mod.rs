//! `lockstep render --check`: reads scripts that somebody wrote, and lists what is wrong with them, line by line.
//!
//! Nothing is run. [`lexer`] and [`script`] read a script, [`facts`] is what it asks for, and [`rules`] are the mistakes that are known.

mod examine;
mod facts;
mod lexer;
mod rules;
mod script;

pub(super) use examine::check;
pub(super) use lexer::first_word;
pub(crate) use rules::{RULES, Rule};
