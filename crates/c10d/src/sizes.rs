//! The sizes that a collective's tensors must have if they differ. Gloo splits memory by them without a check.

use tch::Tensor;

use crate::error::Result;
use crate::tensors::Guard;
use crate::{Splits, WorldSize};

/// A tensor and its name in messages.
type Named<'a> = (&'a str, &'a Tensor);

/// Checks that `whole` holds one `part` per rank, either concatenated or stacked in a new first dimension.
pub(crate) fn check_parts(guard: &Guard<'_>, world: WorldSize, whole: Named<'_>, part: Named<'_>) -> Result<()> {
    let (whole_size, part_size) = (whole.1.size(), part.1.size());
    let [in_a_row, stacked] = wholes(world.get() as i64, &part_size);
    if in_a_row.as_ref() == Some(&whole_size) || stacked.as_ref() == Some(&whole_size) {
        return Ok(());
    }
    let fitting: Vec<String> = [in_a_row, stacked].iter().flatten().map(|size| format!("{size:?}")).collect();
    guard.refuse(format!(
        "the {} is of shape {whole_size:?}, where {world} ranks and an {} of {part_size:?} need {}",
        whole.0,
        part.0,
        fitting.join(" or ")
    ))
}

/// The shapes of `world` parts concatenated, which is impossible for scalars, and stacked.
fn wholes(world: i64, part: &[i64]) -> [Option<Vec<i64>>; 2] {
    let in_a_row = part.split_first().map(|(rows, rest)| [&[rows.saturating_mul(world)], rest].concat());
    [in_a_row, Some([&[world], part].concat())]
}

/// Checks that both tensors have rows of the same size and that the splits cover all rows.
pub(crate) fn check_splits(
    guard: &Guard<'_>,
    world: WorldSize,
    output: &Tensor,
    input: &Tensor,
    splits: &Splits,
) -> Result<()> {
    let (output, input) = (output.size(), input.size());
    let (Some((out_rows, out_row)), Some((in_rows, in_row))) = (output.split_first(), input.split_first()) else {
        return guard.refuse("a scalar has no dimension to split: pass tensors of at least one dimension".into());
    };
    if out_row != in_row {
        return guard.refuse(format!("the output has rows of shape {out_row:?}, the input of {in_row:?}"));
    }
    match splits {
        Splits::Equal if out_rows != in_rows || in_rows % world.get() as i64 != 0 => guard.refuse(format!(
            "{in_rows} rows of input and {out_rows} of output are not {world} equal parts: give the sizes with Splits::Sizes"
        )),
        Splits::Equal => Ok(()),
        Splits::Sizes { input, output } => {
            check_split(guard, world, ("input", input.as_slice()), *in_rows)?;
            check_split(guard, world, ("output", output.as_slice()), *out_rows)
        }
    }
}

fn check_split(guard: &Guard<'_>, world: WorldSize, (what, sizes): (&str, &[i64]), rows: i64) -> Result<()> {
    if sizes.len() != world.get() {
        return guard.refuse(format!("{} {what} splits were given for {world} ranks", sizes.len()));
    }
    let sum = sizes.iter().try_fold(0_i64, |sum, &size| sum.checked_add(size).filter(|_| size >= 0));
    if sum == Some(rows) {
        return Ok(());
    }
    guard.refuse(format!("the {what} splits {sizes:?} are not sizes that add up to its {rows} rows"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_concatenated_or_stacked() {
        assert_eq!(wholes(3, &[2, 5]), [Some(vec![6, 5]), Some(vec![3, 2, 5])]);
        assert_eq!(wholes(3, &[]), [None, Some(vec![3])]);
    }
}
