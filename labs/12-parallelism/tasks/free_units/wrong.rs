//! Answers to `free_units`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep_answers::{edit, given};
use tch::Tensor;

use crate::layers::Unit;

/// The forward pass, each unit gathered and freed; the inputs of each unit, and the gradient of the last outputs.
fn forward(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<(Vec<Tensor>, Tensor)> {
    let (mut inputs, mut x) = (Vec::new(), x.shallow_clone());
    for unit in units {
        unit.gather()?;
        let y = unit.forward(&x);
        unit.free();
        inputs.push(std::mem::replace(&mut x, y));
    }
    Ok((inputs, x - targets))
}

/// Both gradients of a unit that is whole; then it is freed.
fn both(unit: &Unit<'_>, x: &Tensor, of_outputs: &Tensor) -> Result<(Tensor, Tensor)> {
    let (of_weight, of_inputs) = (unit.weight_gradient(x, of_outputs), unit.input_gradient(of_outputs));
    unit.free();
    Ok((unit.reduce(of_weight)?, of_inputs))
}

fn gathered(unit: &Unit<'_>, x: &Tensor, of_outputs: &Tensor) -> Result<(Tensor, Tensor)> {
    unit.gather()?;
    both(unit, x, of_outputs)
}

/// The given program: frees a unit before it computes the gradient of its inputs.
#[given]
pub fn before_inputs() {}

/// Gathers nothing in the backward pass.
#[edit(unit.gather()?; let of_weight => let of_weight)]
pub fn gathers_once() {}

/// Frees a unit before its forward pass.
#[edit(let y = unit.forward(&x); unit.free(); => unit.free(); let y = unit.forward(&x);)]
pub fn before_forward() {}

/// Frees nothing between the passes.
#[edit(unit.free(); inputs.push => inputs.push)]
#[edit(unit.gather()?; let of_weight => let of_weight)]
pub fn keeps_all() {}

/// Frees nothing in the backward pass.
#[edit(unit.free(); gradients.push => gradients.push)]
pub fn never_again() {}

/// Replaces the outputs' gradient by the inputs' gradient before it computes the weight's.
#[edit(let of_weight = unit.weight_gradient(x, &of_outputs); => )]
#[edit(unit.reduce(of_weight) => unit.reduce(unit.weight_gradient(x, &of_outputs)))]
pub fn inputs_first() {}

/// Gathers all units before the backward pass.
#[edit(let mut of_outputs => units.iter().try_for_each(Unit::gather)?; let mut of_outputs)]
#[edit(unit.gather()?; let of_weight => let of_weight)]
pub fn gathers_all() {}

/// Gathers a unit for each of its gradients.
#[edit(of_outputs = unit.input_gradient => unit.free(); unit.gather()?; of_outputs = unit.input_gradient)]
pub fn gathers_thrice() {}

/// Reduces all gradients when the backward pass is over.
#[edit(unit.reduce(of_weight)? => of_weight)]
#[edit(Ok(gradients) => units.iter().zip(gradients).map(|(unit, of_weight)| unit.reduce(of_weight)).collect())]
pub fn reduces_last() {}

/// Leaves the gradients as they are on this rank.
#[edit(unit.reduce(of_weight)? => of_weight)]
pub fn not_reduced() {}

/// Passes the outputs' gradient on in place of the inputs' gradient.
#[edit(unit.gather()?; let of_weight => let of_weight)]
#[edit(of_outputs = unit.input_gradient(&of_outputs); unit.free(); => )]
pub fn same_gradient() {}

/// Uses a unit's outputs in place of its inputs.
#[edit(let mut of_outputs => inputs.push(x.shallow_clone()); let mut of_outputs)]
#[edit(zip(&inputs) => zip(&inputs[1..]))]
pub fn of_outputs() {}

/// Divides the loss by the number of rows.
#[edit(let mut of_outputs = x - targets => let mut of_outputs = (&x - targets) / x.size()[0] as f64)]
pub fn mean_of_rows() {}

/// Frees all units at the end of the backward pass.
#[edit(unit.free(); gradients.push => gradients.push)]
#[edit(gradients.reverse(); => gradients.reverse(); units.iter().for_each(Unit::free);)]
pub fn freed_at_the_end() {}

/// Computes the gradient of the inputs first, of a weight that is not there yet.
#[edit(unit.gather()?; let of_weight = unit.weight_gradient(x, &of_outputs); => of_outputs = unit.input_gradient(&of_outputs); unit.gather()?; let of_weight = unit.weight_gradient(x, &of_outputs);)]
pub fn before_gather() {}

/// Forgets to pass the gradient on.
#[edit(of_outputs = unit.input_gradient(&of_outputs); => let _unused = unit.input_gradient(&of_outputs);)]
pub fn not_passed_on() {}

/// Returns the gradients in the order in which they come.
pub fn as_they_come(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let mut gradients = crate::free_units::free_units(units, x, targets)?;
    gradients.reverse();
    Ok(gradients)
}

/// Takes the distance the other way round.
#[edit(x - targets => targets - x)]
pub fn other_sign() {}

/// One percent more for the first unit: a mistake of no known kind.
pub fn one_percent(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let mut gradients = crate::free_units::free_units(units, x, targets)?;
    gradients[0] = &gradients[0] * 1.01;
    Ok(gradients)
}

/// Right: keeps the last unit between the passes, and does not gather the first again, since its inputs need no gradient.
pub fn gathers_less(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (mut inputs, mut x) = (Vec::new(), x.shallow_clone());
    for (number, unit) in units.iter().enumerate() {
        unit.gather()?;
        let y = unit.forward(&x);
        if number + 1 < units.len() {
            unit.free();
        }
        inputs.push(std::mem::replace(&mut x, y));
    }
    let (mut of_outputs, mut gradients) = (x - targets, Vec::new());
    for (number, (unit, x)) in units.iter().zip(&inputs).enumerate().rev() {
        let of_weight = unit.weight_gradient(x, &of_outputs);
        if number > 0 {
            if number + 1 < units.len() {
                unit.gather()?;
            }
            of_outputs = unit.input_gradient(&of_outputs);
            unit.free();
        }
        gradients.insert(0, unit.reduce(of_weight)?);
    }
    Ok(gradients)
}

/// Right: gathers the unit before while this one computes.
pub fn gathers_ahead(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, mut of_outputs) = forward(units, x, targets)?;
    let mut gradients = Vec::new();
    units.last().map_or(Ok(()), Unit::gather)?;
    for number in (0..units.len()).rev() {
        number.checked_sub(1).map_or(Ok(()), |before| units[before].gather())?;
        let (rows, of_inputs) = both(&units[number], &inputs[number], &of_outputs)?;
        of_outputs = of_inputs;
        gradients.insert(0, rows);
    }
    Ok(gradients)
}

/// Right: calls itself for the units that follow, and so needs no list of inputs.
pub fn recurses(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    fn pass(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<(Vec<Tensor>, Tensor)> {
        let Some((unit, rest)) = units.split_first() else { return Ok((Vec::new(), x - targets)) };
        unit.gather()?;
        let y = unit.forward(x);
        unit.free();
        let (mut gradients, of_outputs) = pass(rest, &y, targets)?;
        let (rows, of_inputs) = gathered(unit, x, &of_outputs)?;
        gradients.insert(0, rows);
        Ok((gradients, of_inputs))
    }
    Ok(pass(units, x, targets)?.0)
}
