//! One unit: its parameters as one vector, divided equally among the ranks. The vector is gathered and freed, and its gradients are
//! reduced; [`super::passes`] decides when.
//!
//! ```text
//! parameters   weight [2, 3]      bias [2]
//! the vector   0 1 2 3 4 5        6 7        -        a zero, so that three ranks have as much
//! rank 0       0 1 2                                  its part of weight is 0..3, of bias 2..2
//! rank 1             3 4 5
//! rank 2                          6 7        -        its part of weight is 6..6, of bias 0..2
//! ```

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use c10d::{Error, ProcessGroup, ReduceOp, Result, Storage, Work};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, TchError, Tensor, no_grad};

/// A unit on this rank.
#[derive(Debug)]
pub(super) struct Unit {
    name: String,
    flat: Flat,
    group: Rc<ProcessGroup>,
    /// The dtype in which parameters are gathered.
    compute: Kind,
    /// The dtype in which gradients are reduced.
    reduce: Kind,
    whole: RefCell<GatherState>,
    grads: RefCell<Grads>,
    /// All vectors that were gathered and may still be in memory.
    gathered: RefCell<Vec<Storage>>,
    /// The same for vectors of gradients.
    unreduced: RefCell<Vec<Storage>>,
}

/// The parameters of all ranks' parts, one after another.
#[derive(Debug, Default)]
enum GatherState {
    #[default]
    Freed,
    /// On the way, with what is sent.
    Gathering(Work<Tensor>, Tensor),
    /// `[length of the vector]`, in the dtype of computing.
    Gathered(Tensor),
}

/// The whole gradients of this rank's own samples.
#[derive(Debug, Default)]
struct Grads {
    /// `[length of the vector]`, in the dtype of reducing: the sum since the last reduce-scatter.
    sum: Option<Tensor>,
    /// The parameters with a gradient in it.
    has: Vec<bool>,
    /// How many of them this backward pass has brought.
    ready: usize,
}

/// A reduce-scatter on the way.
#[derive(Debug)]
pub(super) struct Reducing {
    part: Work<Tensor>,
    /// What is sent; its memory must not be reused before the end.
    sum: Tensor,
    has: Vec<bool>,
}

impl Unit {
    /// Hides the parameters in the model.
    pub(super) fn new(name: String, flat: Flat, group: Rc<ProcessGroup>, kinds: &MixedPrecision) -> Result<Self> {
        let compute = kinds.param.unwrap_or(flat.part().kind());
        let reduce = kinds.reduce.unwrap_or(compute);
        for kind in [compute, reduce] {
            if !matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16) {
                return Err(Error::bad_argument(
                    "fully_shard",
                    format!("{kind:?} is not a dtype to compute gradients in"),
                ));
            }
        }
        let (gathered, unreduced) = (RefCell::default(), RefCell::default());
        let unit = Unit {
            name,
            flat,
            group,
            compute,
            reduce,
            whole: RefCell::default(),
            grads: RefCell::default(),
            gathered,
            unreduced,
        };
        unit.conceal()?;
        Ok(unit)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn flat(&self) -> &Flat {
        &self.flat
    }

    /// The dtype in which the unit computes.
    pub(super) fn compute(&self) -> Kind {
        self.compute
    }

    /// Starts the all-gather, unless the whole vector is there or on the way.
    pub(super) fn start_gather(&self) -> Result<()> {
        let flat = &self.flat;
        let mut whole = self.whole.borrow_mut();
        if !matches!(*whole, GatherState::Freed) {
            return Ok(());
        }
        let (own, all) = no_grad(|| {
            let own = flat.part().f_to_kind(self.compute)?;
            Ok((own, Tensor::f_empty([flat.length()], (self.compute, flat.part().device()))?))
        })
        .map_err(|error| self.torch("gather", &error))?;
        self.gathered.borrow_mut().extend(Storage::of(&all));
        let work = self.group.all_gather_into_tensor_async(all, own.shallow_clone())?;
        *whole = GatherState::Gathering(work, own);
        Ok(())
    }

    /// The whole vector, gathered if it is not there.
    pub(super) fn whole(&self) -> Result<Tensor> {
        self.start_gather()?;
        let mut whole = self.whole.borrow_mut();
        let vector = match std::mem::take(&mut *whole) {
            GatherState::Gathering(work, _sent) => work.wait()?,
            GatherState::Gathered(vector) => vector,
            GatherState::Freed => return Err(Error::bad_argument("gather a unit", "it was freed meanwhile")),
        };
        *whole = GatherState::Gathered(vector.shallow_clone());
        Ok(vector)
    }

    pub(super) fn is_gathered(&self) -> bool {
        !matches!(*self.whole.borrow(), GatherState::Freed)
    }

    /// Lets go of the whole vector: it is freed with the last tensor that lies in it.
    pub(super) fn reshard(&self) -> Result<()> {
        if let GatherState::Gathering(work, _sent) = self.whole.take() {
            // Nothing may read this rank's part when the optimizer changes it.
            drop(work.wait()?);
        }
        for vectors in [&self.gathered, &self.unreduced] {
            vectors.borrow_mut().retain(|vector| vector.bytes() > 0);
        }
        Ok(())
    }

    /// Gives the model its parameters.
    pub(super) fn expose(&self) -> Result<Tensor> {
        let whole = self.whole()?;
        let shown = no_grad(|| self.flat().params().iter().try_for_each(|param| param.show(&param.of_whole(&whole)?)));
        shown.map_err(|error| self.torch("show the parameters of", &error))?;
        Ok(whole)
    }

    /// Hides the parameters in the model again.
    pub(super) fn conceal(&self) -> Result<()> {
        let hidden = no_grad(|| self.flat().params().iter().try_for_each(|param| param.hide(self.compute)));
        hidden.map_err(|error| self.torch("hide the parameters of", &error))
    }

    /// Moves the gradient of a parameter into the sum of whole gradients. Returns true if it was the last of this pass.
    pub(super) fn take_gradient(&self, param: usize) -> Result<bool> {
        let (flat, mut grads) = (&self.flat, self.grads.borrow_mut());
        let count = flat.params().len();
        let mut variable = flat.params()[param].variable();
        let length = flat.length();
        let added = no_grad(|| {
            let sum = match grads.sum.take() {
                Some(sum) => sum,
                None => {
                    let sum = Tensor::f_zeros([length], (self.reduce, flat.part().device()))?;
                    self.unreduced.borrow_mut().extend(Storage::of(&sum));
                    sum
                }
            };
            let grad = variable.f_grad()?.f_flatten(0, -1)?.f_to_kind(self.reduce)?;
            let _sum = flat.params()[param].of_whole(&sum)?.f_add_(&grad)?;
            grads.sum = Some(sum);
            Ok(())
        });
        added.map_err(|error| self.torch("take a gradient of", &error))?;
        c10d::clear_grad(&mut variable)?;
        grads.has.resize(count, false);
        grads.has[param] = true;
        grads.ready += 1;
        Ok(grads.ready == count)
    }

    /// Ends the unit's part in a backward pass. Returns true if there are gradients to reduce.
    pub(super) fn end_pass(&self) -> bool {
        let mut grads = self.grads.borrow_mut();
        grads.ready = 0;
        grads.sum.is_some()
    }

    /// Starts the reduce-scatter of the whole gradients.
    pub(super) fn start_reduce(&self) -> Result<Option<Reducing>> {
        let Grads { sum, has, .. } = self.grads.take();
        let Some(mut sum) = sum else { return Ok(None) };
        let flat = &self.flat;
        let own = no_grad(|| {
            // Divided first, so that no sum overflows.
            let _mean = sum.f_div_scalar_(self.group.size().get() as i64)?;
            Tensor::f_empty([flat.part().size()[0]], (self.reduce, flat.part().device()))
        });
        let own = own.map_err(|error| self.torch("reduce the gradients of", &error))?;
        let part = self.group.reduce_scatter_tensor_async(own, sum.shallow_clone(), ReduceOp::Sum)?;
        Ok(Some(Reducing { part, sum, has }))
    }

    /// Waits for this rank's part of the mean gradient and adds it to the parameters' own.
    pub(super) fn finish_reduce(&self, reducing: Reducing) -> Result<()> {
        let Reducing { part, sum, has } = reducing;
        let part = part.wait()?;
        drop(sum);
        let flat = &self.flat;
        let part = no_grad(|| part.f_to_kind(flat.part().kind())).map_err(|error| self.torch("convert", &error))?;
        flat.add_gradient(&part, &has)
    }

    /// Bytes of whole parameters that are in memory now, and of whole gradients, also those that are being reduced.
    fn whole_bytes(&self) -> (u64, u64) {
        let bytes = |vectors: &RefCell<Vec<Storage>>| vectors.borrow().iter().map(Storage::bytes).sum();
        (bytes(&self.gathered), bytes(&self.unreduced))
    }

    fn torch(&self, doing: &str, error: &TchError) -> Error {
        Error::of_torch(format!("{doing} the unit {:?}", self.name), error)
    }
}

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
    fn of_whole(&self, vector: &Tensor) -> Result<Tensor, TchError> {
        vector.f_narrow(0, self.start, self.numel)
    }

    /// This rank's elements in the rank's part of such a vector.
    fn of_part(&self, part: &Tensor, begins: i64) -> Result<Tensor, TchError> {
        let (from, length) = (self.piece.elements.start as i64, self.piece.elements.len() as i64);
        // An empty range may lie outside.
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
    fn add_gradient(&self, part: &Tensor, has: &[bool]) -> Result<()> {
        let torch = |error: TchError| Error::of_torch("add a unit's gradient", &error);
        for (param, _) in self.params.iter().zip(has).filter(|(_, has)| **has) {
            let grad = param.of_part(part, self.begins).map_err(torch)?;
            c10d::add_grad(&mut param.part(), &grad)?;
        }
        Ok(())
    }
}

/// How a model is sharded; names and defaults are those of PyTorch's `fully_shard`, where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullyShardOptions {
    /// Frees a unit's parameters between its forward and its backward pass. If off, they stay: more memory for one all-gather
    /// less, which is ZeRO's stage 2. The backward pass frees them, or [`FullyShard::reshard`].
    pub reshard_after_forward: bool,
    /// Starts the all-gather of the next unit while one computes: in the forward pass by the order of the pass before, in the
    /// backward pass by that of the forward pass.
    pub prefetch: bool,
    /// The dtypes of computing and of reducing.
    pub mixed_precision: MixedPrecision,
}

impl Default for FullyShardOptions {
    fn default() -> Self {
        let mixed_precision = MixedPrecision::default();
        FullyShardOptions { reshard_after_forward: true, prefetch: true, mixed_precision }
    }
}

/// Dtypes apart from that of the parameters, in which each rank keeps its part and the optimizer steps; PyTorch's
/// `MixedPrecisionPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixedPrecision {
    /// The dtype in which a unit's parameters are gathered and its inputs are passed to it: `param_dtype`. By default that of
    /// the parameters.
    pub param: Option<Kind>,
    /// The dtype in which gradients are added up and reduced: `reduce_dtype`. By default `param`.
    pub reduce: Option<Kind>,
}

/// Bytes of a sharded model on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardBytes {
    /// This rank's parts of the parameters.
    pub parameters: u64,
    /// Their gradients.
    pub gradients: u64,
    /// Parameters that are whole now, because their unit computes or will soon.
    pub gathered: u64,
    /// Gradients that are whole now, because they are not yet reduced.
    pub unreduced: u64,
    /// The most that was whole at once so far, as seen before each unit's forward and after each unit's backward pass.
    pub most_whole: u64,
}

impl ShardBytes {
    pub(super) fn add(&mut self, unit: &Unit) {
        let flat = unit.flat();
        let gradients: Vec<_> = flat.params().iter().map(|param| param.part().grad()).collect();
        let (gathered, unreduced) = unit.whole_bytes();
        self.parameters += c10d::storage_bytes([flat.part()]);
        self.gradients += c10d::storage_bytes(&gradients);
        self.gathered += gathered;
        self.unreduced += unreduced;
    }
}
