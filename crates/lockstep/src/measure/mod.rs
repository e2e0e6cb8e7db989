//! Measuring messages: a sweep of sizes, times with their spread, the α–β model through them, a table and a plot.
//!
//! Units: bytes, microseconds, and MB/s for 10^6 bytes a second. Leaves out the operation, which the caller passes in.
//!
//! ```no_run
//! use lockstep::measure::{Repeats, Series, Sizes, bare, plot, time};
//! # fn f(group: &c10d::ProcessGroup) -> anyhow::Result<()> {
//! let group = bare(group)?;
//! let mut series = Series::new("all_reduce");
//! for bytes in Sizes::new(4, 1 << 20)?.iter() {
//!     let mut tensor = tch::Tensor::f_zeros([bytes as i64 / 4], (tch::Kind::Float, group.device()))?;
//!     let spread = time(&group, &Repeats::for_bytes(bytes), || Ok(group.all_reduce(&mut tensor, c10d::ReduceOp::Sum)?))?;
//!     series.push(bytes, spread);
//! }
//! println!("{}", series.table());
//! plot::save("plots/all_reduce.svg".as_ref(), "all_reduce on 2 ranks", &[series])?;
//! # Ok(()) }
//! ```

mod bare;
pub mod plot;
mod series;
mod sizes;
mod table;
mod timing;

pub use bare::bare;
pub use lockstep_cost::{AlphaBeta, FitError};
pub use series::{Point, Series, table_of};
pub use sizes::Sizes;
pub use table::Table;
pub use timing::{Repeats, Spread, synchronize, time};
