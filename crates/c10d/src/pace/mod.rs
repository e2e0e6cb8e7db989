//! Where a rank's time goes: waiting for other ranks, waiting for batches, or its own work. And who is late because of it.
//!
//! All ranks of a step take the same time, since those that are fast wait in their collectives for those that are slow.
//! So the rank that all others wait for is the one that waits least itself. Every rank adds up its waits (`Clock`),
//! its reporter's thread publishes the sums once a second (`exchange.rs`), and that of rank 0 compares them (`judge.rs`)
//! and reports what holds for several intervals (`watch.rs`). No step has a collective or a store operation for it.
//!
//! Ranks that share memory also know who arrives last in each collective (`arrivals.rs`); over several hosts, those of each host know it
//! of each other, and of the rest only that they wait for another host. So a rank for which all others wait is reported while they do
//! (`stall.rs`), and a rank for which nobody waits is never reported as late.
//!
//! Only the thread that joined the default group is measured. Waits on NCCL are on the GPU, so nothing is seen of them
//! there, and nothing is reported.

mod arrivals;
mod clock;
mod exchange;
mod judge;
mod listener;
mod stall;
mod watch;

pub use clock::{Timed, loading};
pub use exchange::publish_every;
pub use judge::{Cause, Finding};
pub use listener::listen;

pub(crate) use arrivals::Arrivals;
pub(crate) use clock::{Clock, count_wait, waiting};
pub(crate) use exchange::Exchange;
