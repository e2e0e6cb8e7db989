//! Programs that are started with a leash: they end before this command does, however this one ends.
//!
//! - A **group** of its own holds the program and its children, so that one signal reaches all ([`group`]).
//! - A **tie** to this process's life: the kernel kills the program if this process is killed ([`tied`]).
//! - **Signals** to this command become events of the same wait as the program's end ([`signals`]).

mod group;
mod signals;
mod tied;

pub(crate) use group::{Group, Outcome};
pub(crate) use signals::Signals;
pub(crate) use tied::{TIED, Tied, tied};
