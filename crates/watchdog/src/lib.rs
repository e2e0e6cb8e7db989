//! Deadlines that do not depend on the machine's speed or load: a wait ends when the processes that are waited for stand still.
//!
//! A deadline in seconds assumes a speed. On a busy machine it ends work that would have succeeded, and on a fast one it lets a hang
//! last for minutes. What tells a hang from slow work is time on a core: who computes gets some, however little, and who waits for a
//! message gets none. So [`Watchdog`] reads from `/proc` how much time a test's processes have used, and gives up when there was
//! next to none for a minute. [`Stillness`] is the same rule for others. Where seconds must be given, [`scaled`] makes them more on a
//! busy machine, and [`Queue`] tells how many were lost in waiting for a core.
//!
//! Leaves out what is waited for, and processes of other machines.

mod load;
mod proc;
mod queue;
mod stillness;
mod waits;
mod watchdog;

pub use load::scaled;
pub use proc::{Awake, threads};
pub use queue::Queue;
pub use stillness::Stillness;
pub use waits::{drain, output, receive, until};
pub use watchdog::{InVain, Watchdog};
