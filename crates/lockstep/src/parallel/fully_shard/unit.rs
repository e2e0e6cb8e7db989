//! One unit: its vector is gathered, freed, and its gradients are reduced. When each happens is for [`super::passes`].

use std::cell::RefCell;
use std::rc::Rc;

use c10d::{Error, ProcessGroup, ReduceOp, Result, Storage, Work};
use tch::{Kind, TchError, Tensor, no_grad};

use super::flat::Flat;
use super::options::MixedPrecision;

/// A unit on this rank.
#[derive(Debug)]
pub(super) struct Unit {
    name: String,
    flat: Flat,
    group: Rc<ProcessGroup>,
    /// In which parameters are gathered.
    compute: Kind,
    /// In which gradients are reduced.
    reduce: Kind,
    whole: RefCell<Whole>,
    grads: RefCell<Grads>,
    /// All vectors that were gathered and may still be in memory.
    gathered: RefCell<Vec<Storage>>,
    /// And those of gradients.
    unreduced: RefCell<Vec<Storage>>,
}

/// The parameters of all ranks' parts, one after another.
#[derive(Debug, Default)]
enum Whole {
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
    /// What is sent: nobody else gets its memory before the end.
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

    /// In which the unit computes.
    pub(super) fn compute(&self) -> Kind {
        self.compute
    }

    /// Starts the all-gather, unless the whole vector is there or on the way.
    pub(super) fn start_gather(&self) -> Result<()> {
        let flat = &self.flat;
        let mut whole = self.whole.borrow_mut();
        if !matches!(*whole, Whole::Freed) {
            return Ok(());
        }
        let (own, all) = no_grad(|| {
            let own = flat.part().f_to_kind(self.compute)?;
            Ok((own, Tensor::f_empty([flat.length()], (self.compute, flat.part().device()))?))
        })
        .map_err(|error| self.torch("gather", &error))?;
        self.gathered.borrow_mut().extend(Storage::of(&all));
        let work = self.group.all_gather_into_tensor_async(all, own.shallow_clone())?;
        *whole = Whole::Gathering(work, own);
        Ok(())
    }

    /// The whole vector, gathered if it is not there.
    pub(super) fn whole(&self) -> Result<Tensor> {
        self.start_gather()?;
        let mut whole = self.whole.borrow_mut();
        let vector = match std::mem::take(&mut *whole) {
            Whole::Gathering(work, _sent) => work.wait()?,
            Whole::Gathered(vector) => vector,
            Whole::Freed => return Err(Error::bad_argument("gather a unit", "it was freed meanwhile")),
        };
        *whole = Whole::Gathered(vector.shallow_clone());
        Ok(vector)
    }

    pub(super) fn is_gathered(&self) -> bool {
        !matches!(*self.whole.borrow(), Whole::Freed)
    }

    /// Lets go of the whole vector: it is freed with the last tensor that lies in it.
    pub(super) fn reshard(&self) -> Result<()> {
        if let Whole::Gathering(work, _sent) = self.whole.take() {
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

    /// Takes them away again.
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
            // First, so that no sum overflows.
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
    pub(super) fn whole_bytes(&self) -> (u64, u64) {
        let bytes = |vectors: &RefCell<Vec<Storage>>| vectors.borrow().iter().map(Storage::bytes).sum();
        (bytes(&self.gathered), bytes(&self.unreduced))
    }

    fn torch(&self, doing: &str, error: &TchError) -> Error {
        Error::of_torch(format!("{doing} the unit {:?}", self.name), error)
    }
}
