//! Model checking: the orders in which a few agents may come, look, ask, lead, write, fail, freeze, leave and die. The
//! search visits a limited number of worlds, those with the fewest steps first.
//!
//! The search visits each distinguishable world once, breadth first, so that a broken rule is reported with one of the
//! shortest sequences that break it. From each world it also lets time pass without further faults, and requires that
//! the live agents soon run together, and that their success then ends the job.

mod leading;
mod rules;
mod search;
mod world;
