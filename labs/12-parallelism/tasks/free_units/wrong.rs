//! Answers to `free_units`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep_answers::edit;
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

/// The backward pass: `step` turns a unit, its inputs and the gradient of its outputs into the rank's rows and the gradient of its inputs.
fn backward(
    units: &[Unit<'_>],
    inputs: &[Tensor],
    mut of_outputs: Tensor,
    step: impl Fn(&Unit<'_>, &Tensor, &Tensor) -> Result<(Tensor, Tensor)>,
) -> Result<Vec<Tensor>> {
    let mut gradients = Vec::new();
    for (unit, x) in units.iter().zip(inputs).rev() {
        let (rows, of_inputs) = step(unit, x, &of_outputs)?;
        gradients.push(rows);
        of_outputs = of_inputs;
    }
    gradients.reverse();
    Ok(gradients)
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
pub fn before_inputs(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        unit.gather()?;
        let rows = unit.reduce(unit.weight_gradient(x, of_outputs))?;
        unit.free();
        Ok((rows, unit.input_gradient(of_outputs)))
    })
}

/// Gathers nothing in the backward pass.
pub fn gathers_once(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs, both)
}

/// Frees a unit before its forward pass.
pub fn before_forward(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (mut inputs, mut x) = (Vec::new(), x.shallow_clone());
    for unit in units {
        unit.gather()?;
        unit.free();
        let y = unit.forward(&x);
        inputs.push(std::mem::replace(&mut x, y));
    }
    backward(units, &inputs, x - targets, gathered)
}

/// Frees nothing between the passes.
pub fn keeps_all(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (mut inputs, mut x) = (Vec::new(), x.shallow_clone());
    for unit in units {
        unit.gather()?;
        let y = unit.forward(&x);
        inputs.push(std::mem::replace(&mut x, y));
    }
    backward(units, &inputs, x - targets, both)
}

/// Frees nothing in the backward pass.
pub fn never_again(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        unit.gather()?;
        Ok((unit.reduce(unit.weight_gradient(x, of_outputs))?, unit.input_gradient(of_outputs)))
    })
}

/// Replaces the gradient of the outputs by that of the inputs before it computes the weight's.
pub fn inputs_first(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        unit.gather()?;
        let of_outputs = unit.input_gradient(of_outputs);
        unit.free();
        Ok((unit.reduce(unit.weight_gradient(x, &of_outputs))?, of_outputs))
    })
}

/// Gathers all units before the backward pass.
pub fn gathers_all(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    units.iter().try_for_each(Unit::gather)?;
    backward(units, &inputs, of_outputs, both)
}

/// Gathers a unit for each of its gradients.
pub fn gathers_thrice(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        unit.gather()?;
        let rows = unit.reduce(unit.weight_gradient(x, of_outputs))?;
        unit.free();
        unit.gather()?;
        let of_inputs = unit.input_gradient(of_outputs);
        unit.free();
        Ok((rows, of_inputs))
    })
}

/// Reduces all gradients when the backward pass is over.
pub fn reduces_last(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    let whole = backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        unit.gather()?;
        let both = (unit.weight_gradient(x, of_outputs), unit.input_gradient(of_outputs));
        unit.free();
        Ok(both)
    })?;
    units.iter().zip(whole).map(|(unit, of_weight)| unit.reduce(of_weight)).collect()
}

/// Leaves the gradients as they are on this rank.
pub fn not_reduced(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        unit.gather()?;
        let both = (unit.weight_gradient(x, of_outputs), unit.input_gradient(of_outputs));
        unit.free();
        Ok(both)
    })
}

/// Passes the gradient of the outputs on as that of the inputs.
pub fn same_gradient(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        Ok((unit.reduce(unit.weight_gradient(x, of_outputs))?, of_outputs.shallow_clone()))
    })
}

/// Uses a unit's outputs in place of its inputs.
pub fn of_outputs(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (mut inputs, of_outputs) = forward(units, x, targets)?;
    inputs.push(&of_outputs + targets);
    backward(units, &inputs[1..], of_outputs, gathered)
}

/// Divides the loss by the number of rows.
pub fn mean_of_rows(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, of_outputs / x.size()[0] as f64, gathered)
}

/// Frees all units at the end of the backward pass.
pub fn freed_at_the_end(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    let gradients = backward(units, &inputs, of_outputs, |unit, x, of_outputs| {
        unit.gather()?;
        Ok((unit.reduce(unit.weight_gradient(x, of_outputs))?, unit.input_gradient(of_outputs)))
    });
    units.iter().for_each(Unit::free);
    gradients
}

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
pub fn other_sign(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let (inputs, of_outputs) = forward(units, x, targets)?;
    backward(units, &inputs, -of_outputs, gathered)
}

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
