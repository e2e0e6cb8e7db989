//! Model checking: the orders in which a few agents may come, look, ask, lead, write, fail, freeze, leave and die. As many
//! worlds are visited as seconds allow, those of the fewest steps first.
//!
//! The search visits each distinguishable world once, breadth first, so that a broken rule is told by one of the shortest
//! stories that break it. From each world it also lets time go by without further faults, and demands that the live
//! agents soon run together, and that their success then ends the job.

mod leading;
mod rules;
mod search;
mod world;
