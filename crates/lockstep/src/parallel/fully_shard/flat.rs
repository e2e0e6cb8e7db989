//! A unit's parameters as one vector, of which each rank has an equal part.
//!
//! ```text
//! parameters   weight [2, 3]      bias [2]
//! the vector   0 1 2 3 4 5        6 7        -        a zero, so that three ranks have as much
//! rank 0       0 1 2                                  its part of weight is 0..3, of bias 2..2
//! rank 1             3 4 5
//! rank 2                          6 7        -        its part of weight is 6..6, of bias 0..2
//! ```

use std::ops::Range;

use c10d::{Error, ProcessGroup, Result};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, TchError, Tensor, no_grad};

/// The elements of a parameter that a rank has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The parameter's name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The elements, counted row by row; may be empty.
    pub elements: Range<usize>,
}

/// A parameter in the vector.
#[derive(Debug)]
pub(super) struct Param {
    piece: Piece,
    /// Where it begins in the vector.
    start: i64,
    numel: i64,
    /// The model's own tensor.
    variable: Tensor,
    /// This rank's elements, a leaf whose memory is in the rank's part of the vector.
    part: Tensor,
}

impl Param {
    pub(super) fn piece(&self) -> &Piece {
        &self.piece
    }

    pub(super) fn part(&self) -> Tensor {
        self.part.shallow_clone()
    }

    pub(super) fn variable(&self) -> Tensor {
        self.variable.shallow_clone()
    }

    /// Its elements in a vector of the unit's length, one-dimensional.
    pub(super) fn of_whole(&self, vector: &Tensor) -> Result<Tensor, TchError> {
        vector.f_narrow(0, self.start, self.numel)
    }

    /// This rank's elements in the rank's part of such a vector.
    fn of_part(&self, part: &Tensor, begins: i64) -> Result<Tensor, TchError> {
        let (from, length) = (self.piece.elements.start as i64, self.piece.elements.len() as i64);
        // An empty one may lie outside.
        let at = if length == 0 { 0 } else { self.start + from - begins };
        part.f_narrow(0, at, length)
    }

    /// Makes the model's tensor one of these elements.
    pub(super) fn show(&self, elements: &Tensor) -> Result<(), TchError> {
        self.variable().f_set_data(&elements.f_view(&*self.piece.shape)?)
    }

    /// Makes the model's tensor one NaN that has the parameter's shape.
    pub(super) fn hide(&self, kind: Kind) -> Result<(), TchError> {
        let nan = Tensor::f_full([0_i64; 0], f64::NAN, (kind, self.part.device()))?;
        self.variable().f_set_data(&nan.f_expand(&*self.piece.shape, false)?)
    }
}

/// This rank's part of a unit.
#[derive(Debug)]
pub(super) struct Flat {
    params: Vec<Param>,
    /// `[length]`
    part: Tensor,
    /// The rank's first element in the vector.
    begins: i64,
    ranks: i64,
}

impl Flat {
    /// Copies this rank's part of `params`, whose values are the same on all ranks, out of the model.
    pub(super) fn new(unit: &str, params: Vec<(String, Tensor)>, group: &ProcessGroup) -> Result<Self> {
        let refused = |why: String| Error::bad_argument("fully_shard", format!("the unit {unit:?} {why}"));
        let torch = |error: TchError| Error::of_torch(format!("divide the unit {unit:?}"), &error);
        let (kind, device) = (params[0].1.kind(), params[0].1.device()); // a unit has parameters
        if device != Device::Cpu {
            return Err(refused(format!("is on {device:?}; fully sharded training is for CPUs")));
        }
        if let Some((name, other)) = params.iter().find(|(_, param)| (param.kind(), param.device()) != (kind, device)) {
            return Err(refused(format!("has parameters of several dtypes or devices: {name} is {:?}", other.kind())));
        }
        let sizes: Vec<i64> = params.iter().map(|(_, param)| param.numel() as i64).collect();
        let (ranks, rank) = (group.size().get() as i64, group.rank().get() as i64);
        let length = (sizes.iter().sum::<i64>() + ranks - 1) / ranks;
        let begins = rank * length;
        let part = Tensor::f_zeros([length], (kind, device)).map_err(torch)?;
        let mut flat = Flat { params: Vec::new(), part, begins, ranks };
        let mut start = 0;
        for ((name, variable), numel) in params.into_iter().zip(sizes) {
            let within = |at: i64| (at - start).clamp(0, numel) as usize;
            let piece = Piece { name, shape: variable.size(), elements: within(begins)..within(begins + length) };
            let mut param = Param { piece, start, numel, variable, part: Tensor::new() };
            no_grad(|| {
                let elements = param.piece.elements.clone();
                let mut own = param.of_part(&flat.part, begins)?;
                own.f_copy_(&param.variable.f_flatten(0, -1)?.f_narrow(
                    0,
                    elements.start as i64,
                    elements.len() as i64,
                )?)?;
                param.part = own.f_detach()?.f_set_requires_grad(true)?;
                Ok(())
            })
            .map_err(torch)?;
            flat.params.push(param);
            start += numel;
        }
        Ok(flat)
    }

    pub(super) fn params(&self) -> &[Param] {
        &self.params
    }

    /// This rank's part, `[length]`, which the optimizer changes.
    pub(super) fn part(&self) -> &Tensor {
        &self.part
    }

    /// The vector's length, a multiple of the number of ranks.
    pub(super) fn length(&self) -> i64 {
        self.part.size()[0] * self.ranks
    }

    /// Adds this rank's part of a gradient to the gradients of the parameters for which `has` is true.
    pub(super) fn add_gradient(&self, part: &Tensor, has: &[bool]) -> Result<()> {
        let torch = |error: TchError| Error::of_torch("add a unit's gradient", &error);
        for (param, _) in self.params.iter().zip(has).filter(|(_, has)| **has) {
            let grad = param.of_part(part, self.begins).map_err(torch)?;
            c10d::add_grad(&mut param.part(), &grad)?;
        }
        Ok(())
    }
}
