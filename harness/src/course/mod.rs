//! Finds labs by name, and their folders: shared by the commands that take labs. `lockstep_labs` has the list of labs.

mod answers;
mod begin;
mod check;
mod labs;
mod maintain;
mod new;
mod reference;
mod variables;

pub(crate) use labs::{checkout, checkout_around, find, find_all, in_checkout};
pub(crate) use maintain::Options;
