//! What the links cost: all-reduces of several sizes, and the α–β model through their times.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep::measure::{Repeats, Series, Sizes, time};
use tch::{Kind, Tensor};

/// Above this size a median of fewer times is as good, since each is long.
const LONG: u64 = 1 << 20;
/// Times of a size above.
const TIMED: usize = 5;

/// Times all-reduces on all ranks; returns a table and the fitted line.
pub(crate) fn measure(group: &ProcessGroup, sizes: &Sizes) -> Result<String> {
    let mut series = Series::new("all_reduce");
    for bytes in sizes.iter() {
        let mut tensor = Tensor::f_zeros([bytes as i64 / 4], (Kind::Float, group.device()))?;
        let usual = Repeats::for_bytes(bytes);
        let repeats = Repeats { timed: if bytes > LONG { TIMED } else { usual.timed }, ..usual };
        series.push(bytes, time(group, &repeats, || Ok(group.all_reduce(&mut tensor, ReduceOp::Sum)?))?);
    }
    Ok(format!("{}\n{}", series.table(), series.fit_line()))
}
