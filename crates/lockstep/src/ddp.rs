//! `DistributedDataParallel`: one model on every rank, kept equal by averaging gradients while backward still runs.
//!
//! libtorch's reducer ([`c10d::Reducer`]) does the work. This is the part that PyTorch has in Python
//! (`torch/nn/parallel/distributed.py`): the checks and copies at the start, and the calls to the reducer. Leaves out the
//! optimizer and the data.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::rc::Rc;

use c10d::{CommHook, Error, ProcessGroup, Rank, Reducer, ReducerOptions, Result};
use tch::nn::{ModuleT, VarStore};
use tch::{Kind, Tensor, no_grad};

use crate::nn;
use crate::optim::named_parameters;
use crate::virtual_ranks::{TreeSum, VirtualRanks};

/// Maximum length of messages in the first broadcast, in bytes (`broadcast_bucket_size` in PyTorch).
const BROADCAST_BYTES: usize = 250 * 1024 * 1024;

/// The options of [`DistributedDataParallel`]; names and defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DdpOptions {
    /// Capacity of a gradient bucket, in MiB.
    pub bucket_cap_mb: f64,
    /// For models in which a step may leave out some parameters: costs a traversal of the graph in each step.
    pub find_unused_parameters: bool,
    /// Makes gradients views into their buckets: saves a copy and the memory of all gradients.
    pub gradient_as_bucket_view: bool,
    /// Copies rank 0's buffers (batch norm's running statistics) to all ranks before each training pass. After the pass the
    /// ranks' buffers differ again, since each follows its own batch, until the next pass or
    /// [`DistributedDataParallel::sync_buffers`]; with [`SyncBatchNorm2d`](crate::nn::SyncBatchNorm2d) they are equal.
    pub broadcast_buffers: bool,
    /// The graph of the model is the same in every step. Then a parameter may be used several times by functions that are computed
    /// again in the backward pass ([`c10d::checkpoint`]), or not at all without `find_unused_parameters`. The first step finds out
    /// how often each is used, and reduces all gradients after its backward pass, which must follow its forward pass. Later a
    /// gradient that is missing fails the next step, but an extra one may go unnoticed.
    pub static_graph: bool,
    /// The communication hook for buckets; `None` is the plain all-reduce.
    pub comm_hook: Option<CommHook>,
    /// Fixes the bucket layout once, before the first step, in the reverse order of definition. PyTorch does it after the first
    /// step of each *process*, by the order in which gradients arrive. So a process that resumes takes one step with a layout
    /// that the uninterrupted one no longer has: from three ranks on, sums are then added in another order and differ in their
    /// last bits. Off by default, as in PyTorch; if on, it costs one all-reduce of zeros when the model is wrapped.
    pub fixed_buckets: bool,
    /// How many virtual ranks the training has, so that its weights have the same bits on any number of ranks up to this one: see
    /// [`virtual_ranks`](crate::virtual_ranks). The model is then trained for each of [`DistributedDataParallel::virtual_ranks`] in turn. `None` is plain
    /// DDP.
    pub virtual_ranks: Option<NonZeroUsize>,
}

impl Default for DdpOptions {
    fn default() -> Self {
        DdpOptions {
            bucket_cap_mb: 25.0,
            find_unused_parameters: false,
            gradient_as_bucket_view: false,
            broadcast_buffers: true,
            static_graph: false,
            comm_hook: None,
            fixed_buckets: false,
            virtual_ranks: None,
        }
    }
}

impl DdpOptions {
    /// Refuses what virtual ranks do not support.
    fn check_virtual(&self, variables: &DdpVariables<'_>) -> Result<()> {
        let refused = [
            (self.comm_hook.is_some(), "comm_hook, which would compress the sums of some ranks and not of others"),
            (self.gradient_as_bucket_view, "gradient_as_bucket_view: gradients lie in the sums as it is"),
            (self.static_graph, "static_graph, which is for the reducer's buckets"),
            (!self.broadcast_buffers, "broadcast_buffers: false: each rank would keep its own running statistics"),
            (!variables.sparse.is_empty(), "sparse gradients"),
        ];
        match refused.into_iter().find(|(refused, _)| self.virtual_ranks.is_some() && *refused) {
            Some((_, what)) => Err(Error::bad_argument(
                WRAP,
                format!("virtual ranks do not work with {what}; leave out one of the two"),
            )),
            None => Ok(()),
        }
    }

    /// As in PyTorch, the first bucket is small only if the capacity has its default value.
    fn reducer(&self) -> ReducerOptions {
        let default = ReducerOptions::default();
        let bucket_bytes_cap = (self.bucket_cap_mb * 1024.0 * 1024.0) as usize;
        let is_default = bucket_bytes_cap == default.bucket_bytes_cap;
        ReducerOptions {
            bucket_bytes_cap,
            first_bucket_bytes_cap: if is_default { default.first_bucket_bytes_cap } else { bucket_bytes_cap },
            find_unused_parameters: self.find_unused_parameters,
            gradient_as_bucket_view: self.gradient_as_bucket_view,
            static_graph: self.static_graph,
        }
    }
}

/// Variables of a model, by name, that DDP treats differently from the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct DdpVariables<'a> {
    /// Parameters and buffers that it leaves alone: each rank keeps its own, with its own gradients. PyTorch's
    /// `_set_params_and_buffers_to_ignore_for_model`.
    pub ignored: &'a [&'a str],
    /// Parameters whose gradients are sparse: the weights of embeddings made with `sparse`. PyTorch finds them by their modules.
    /// Each is reduced by itself, and only the rows that some rank used are sent.
    pub sparse: &'a [&'a str],
}

impl DdpVariables<'_> {
    fn check(&self, vs: &VarStore) -> Result<()> {
        let variables = vs.variables();
        let absent =
            |names: &[&str]| names.iter().find(|name| !variables.contains_key(**name)).map(|name| format!("{name:?}"));
        let trained =
            |name: &str| variables.get(name).is_some_and(Tensor::requires_grad) && !self.ignored.contains(&name);
        let detail = if let Some(absent) = absent(self.ignored) {
            format!("the model has no parameter or buffer {absent} to ignore")
        } else if let Some(other) = self.sparse.iter().find(|name| !trained(name)) {
            format!("the model has no parameter {other:?} to train by sparse gradients")
        } else {
            return Ok(());
        };
        Err(Error::bad_argument(WRAP, detail))
    }
}

const WRAP: &str = "wrap a model for DDP";

/// A model whose gradients are the mean over all ranks.
///
/// ```no_run
/// # use std::rc::Rc;
/// # use lockstep::{DistributedDataParallel, DdpOptions, optim::Optimizer};
/// # use tch::{Tensor, nn::{Module, VarStore}};
/// # fn step(
/// #     model: impl Module, vs: &VarStore, group: Rc<c10d::ProcessGroup>, optimizer: &mut impl Optimizer,
/// #     inputs: Tensor, targets: Tensor,
/// # ) -> anyhow::Result<()> {
/// let model = DistributedDataParallel::new(model, vs, group, &DdpOptions::default())?;
/// optimizer.zero_grad();
/// let loss = model.forward(&inputs)?.cross_entropy_for_logits(&targets);
/// model.backward(&loss)?;
/// optimizer.step()?;
/// # Ok(()) }
/// ```
///
/// A model and its backward passes belong to one thread: see [`Reducer`] for a loss that is sent to another thread.
///
/// Every rank must make the same calls. `loss` is the mean over the rank's own batch; with batches of equal size the averaged
/// gradient is that of the mean over all ranks' samples.
#[derive(Debug)]
pub struct DistributedDataParallel<M> {
    module: M,
    group: Rc<ProcessGroup>,
    sums: GradientSums,
    /// The parameters that are trained and reduced.
    params: Vec<Tensor>,
    /// Whether the gradients of each of `params` are sparse.
    sparse: Vec<bool>,
    buffers: Vec<Tensor>,
    options: DdpOptions,
    /// False inside [`DistributedDataParallel::no_sync`] (PyTorch's `require_backward_grad_sync`).
    reduce_gradients: Cell<bool>,
    /// False after a pass that reduced nothing: until the next one that does, each rank keeps its own buffers
    /// (`require_forward_param_sync`).
    broadcast_buffers: Cell<bool>,
}

/// What sums gradients over the ranks.
#[derive(Debug)]
enum GradientSums {
    Reducer(Reducer),
    /// Over virtual ranks.
    Tree(Rc<TreeSum>),
}

impl<M> DistributedDataParallel<M> {
    /// Takes a model whose variables are in `vs`: checks that all ranks have the same shapes, and copies rank 0's parameters
    /// and buffers to all.
    ///
    /// Errors: `Mismatch` when the ranks' parameters differ in number, shape or dtype; `BadArgument` when none is trainable.
    pub fn new(module: M, vs: &VarStore, group: Rc<ProcessGroup>, options: &DdpOptions) -> Result<Self> {
        Self::new_with(module, vs, group, options, &DdpVariables::default())
    }

    /// As [`new`](Self::new), for a model with variables of other kinds.
    pub fn new_with(
        module: M,
        vs: &VarStore,
        group: Rc<ProcessGroup>,
        options: &DdpOptions,
        variables: &DdpVariables<'_>,
    ) -> Result<Self> {
        variables.check(vs)?;
        options.check_virtual(variables)?;
        let ranks = options.virtual_ranks.map(|count| VirtualRanks::new(count, &group)).transpose()?;
        if options.fixed_buckets && options.static_graph {
            let detail = "fixed_buckets fixes the layout by a step of its own, in which each parameter is used once: leave it \
                          out, or static_graph";
            return Err(Error::bad_argument(WRAP, detail));
        }
        let ignored: BTreeSet<&str> = variables.ignored.iter().copied().collect();
        let mut named = named_parameters(vs);
        named.retain(|(name, _)| !ignored.contains(name.as_str()));
        let params: Vec<Tensor> = named.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
        let sparse: Vec<bool> = named.iter().map(|(name, _)| variables.sparse.contains(&name.as_str())).collect();
        c10d::verify_params(&group, &params)?;
        let buffers = buffers(vs, &ignored);
        broadcast(&group, &states(vs, &ignored))?;
        let buckets = options.reducer();
        let sums = if let Some(ranks) = ranks {
            if std::env::var_os("OMP_NUM_THREADS").is_none() {
                tch::set_num_threads(1); // as launchers set it for more than one rank
            }
            let (group, buffers) = (Rc::clone(&group), buffers.iter().map(Tensor::shallow_clone).collect());
            let limits = [buckets.first_bucket_bytes_cap, buckets.bucket_bytes_cap];
            GradientSums::Tree(TreeSum::new(ranks, group, named, buffers, options.find_unused_parameters, &limits)?)
        } else {
            let reducer = Reducer::with_sparse(Rc::clone(&group), &named, &sparse, &buckets)?;
            options.comm_hook.map_or(Ok(()), |hook| reducer.register_comm_hook(hook))?;
            GradientSums::Reducer(reducer)
        };
        let (reduce_gradients, broadcast_buffers) = (Cell::new(true), Cell::new(true));
        let options = *options;
        let model = Self { module, group, sums, params, sparse, buffers, options, reduce_gradients, broadcast_buffers };
        // If a step may leave out parameters, the reducer never changes its bucket layout.
        if let (GradientSums::Reducer(reducer), true, false) =
            (&model.sums, options.fixed_buckets, options.find_unused_parameters)
        {
            model.fix_buckets(reducer)?;
        }
        Ok(model)
    }

    /// The model itself, for evaluation: using it never communicates.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The group over which gradients are averaged.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The virtual ranks that this rank trains, one after the other, in each step: its own rank alone, unless
    /// [`DdpOptions::virtual_ranks`] says otherwise.
    pub fn virtual_ranks(&self) -> VirtualRanks {
        match &self.sums {
            GradientSums::Tree(tree) => tree.ranks(),
            GradientSums::Reducer(_) => VirtualRanks::of_ranks(&self.group),
        }
    }

    /// The reducer, to look at its buckets.
    ///
    /// # Errors
    /// `BadArgument` with virtual ranks, whose gradients no reducer sums.
    pub fn reducer(&self) -> Result<&Reducer> {
        match &self.sums {
            GradientSums::Reducer(reducer) => Ok(reducer),
            GradientSums::Tree(_) => {
                Err(Error::bad_argument("look at the reducer", "virtual ranks sum their gradients without one"))
            }
        }
    }

    /// Runs a training pass that is more than one call of the model's `forward`; `body` returns the outputs from which backward
    /// starts, one tensor or several. If autograd is off ([`tch::no_grad`]), no backward pass is prepared.
    pub fn forward_with<O: Outputs>(&self, body: impl FnOnce(&M) -> O) -> Result<O> {
        let reducer = match &self.sums {
            GradientSums::Tree(tree) => return tree.pass(|| body(&self.module)),
            GradientSums::Reducer(reducer) => reducer,
        };
        let reduce = self.reduce_gradients.get() && c10d::grad_enabled();
        if reduce {
            reducer.prepare_for_forward()?;
        }
        if c10d::grad_enabled() {
            reducer.rebuild_buckets()?;
        }
        if self.options.broadcast_buffers && self.broadcast_buffers.get() {
            broadcast(&self.group, &self.buffers)?;
        }
        let output = nn::caught(|| body(&self.module))?;
        if reduce {
            let searches = self.options.find_unused_parameters && !self.options.static_graph;
            let outputs = if searches { output.tensors() } else { Vec::new() };
            reducer.prepare_for_backward(&outputs)?;
        }
        self.broadcast_buffers.set(reduce);
        Ok(output)
    }

    /// Runs backward from a loss computed from the output of [`DistributedDataParallel::forward`]. When it returns, every
    /// gradient is the mean over all ranks; inside [`DistributedDataParallel::no_sync`] it is the rank's own sum so far. With virtual
    /// ranks it ends the pass of one of them, and the gradients are there after the last.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        match (&self.sums, self.reduce_gradients.get()) {
            (GradientSums::Tree(tree), completes) => tree.backward(loss, completes),
            (GradientSums::Reducer(reducer), true) => reducer.backward(loss),
            // Nothing is sent inside no_sync, so the ranks need not make this call in step.
            (GradientSums::Reducer(_), false) => c10d::backward(loss),
        }
    }

    /// Runs `body` without communication: gradients add up on each rank, and the next pass outside reduces the sum.
    pub fn no_sync<T>(&self, body: impl FnOnce() -> T) -> T {
        let _restore = Restore::after(&self.reduce_gradients, false);
        body()
    }

    /// Copies rank 0's buffers to all. Training passes do this automatically. Do it once before an evaluation, since the last
    /// pass left every rank with statistics of its own batch.
    pub fn sync_buffers(&self) -> Result<()> {
        broadcast(&self.group, &self.buffers)
    }

    fn zero_loss(&self) -> Tensor {
        let device = self.group.device();
        let zero = |(param, sparse): (&Tensor, &bool)| {
            // One row, so that the gradient is sparse.
            let row = || Tensor::embedding(param, &Tensor::zeros([1], (Kind::Int64, param.device())), -1, false, true);
            let some = if *sparse { row() } else { param.shallow_clone() };
            some.sum(Kind::Float).to_device(device) * 0.0
        };
        let zeros = || self.params.iter().zip(&self.sparse).map(zero);
        let loss = tch::with_grad(|| zeros().reduce(|sum, zero| sum + zero));
        loss.unwrap_or_else(|| Tensor::zeros([], (Kind::Float, device)))
    }

    /// Shows the reducer every gradient once, the last parameter's first, so that it fixes its bucket layout in that order.
    fn fix_buckets(&self, reducer: &Reducer) -> Result<()> {
        reducer.prepare_for_forward()?;
        let loss = self.zero_loss(); // backward starts with the most recent computation
        reducer.prepare_for_backward(&[])?;
        reducer.backward(&loss)?;
        self.params.iter().try_for_each(|param| c10d::clear_grad(&mut param.shallow_clone()))?;
        reducer.rebuild_buckets().map(drop)
    }
}

impl<M: ModuleT> DistributedDataParallel<M> {
    /// The model's output in training mode, prepared for [`DistributedDataParallel::backward`].
    pub fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        self.forward_with(|module| module.forward_t(inputs, true))
    }
}

/// Restores a flag, even when the body panics.
pub(crate) struct Restore<'a> {
    flag: &'a Cell<bool>,
    value: bool,
}

impl<'a> Restore<'a> {
    /// Sets the flag until this is dropped.
    pub(crate) fn after(flag: &'a Cell<bool>, now: bool) -> Self {
        Restore { flag, value: flag.replace(now) }
    }
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.flag.set(self.value);
    }
}

/// Copies rank 0's variables to all ranks. A collective.
pub(crate) fn broadcast_states(vs: &VarStore, group: &ProcessGroup) -> Result<()> {
    broadcast(group, &states(vs, &BTreeSet::new()))
}

pub(crate) fn broadcast(group: &ProcessGroup, tensors: &[Tensor]) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    no_grad(|| c10d::broadcast_coalesced(group, tensors, BROADCAST_BYTES, Rank::ZERO))
}

/// Every variable that is not ignored, sorted by name, including frozen parameters and buffers: the starting point that all ranks
/// share.
fn states(vs: &VarStore, ignored: &BTreeSet<&str>) -> Vec<Tensor> {
    let mut named: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
    named.retain(|(name, _)| !ignored.contains(name.as_str()));
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    named.into_iter().map(|(_, tensor)| tensor).collect()
}

/// Variables that are not parameters, sorted by name.
fn buffers(vs: &VarStore, ignored: &BTreeSet<&str>) -> Vec<Tensor> {
    let parameters: Vec<usize> = vs.trainable_variables().iter().map(|p| p.data_ptr() as usize).collect();
    states(vs, ignored).into_iter().filter(|t| !parameters.contains(&(t.data_ptr() as usize))).collect()
}

/// What a forward pass returns, and backward starts from: a tensor, or several in a tuple, a list or an option.
pub trait Outputs {
    /// All of its tensors.
    fn tensors(&self) -> Vec<Tensor>;
}

impl Outputs for Tensor {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.shallow_clone()]
    }
}

impl<A: Outputs, B: Outputs> Outputs for (A, B) {
    fn tensors(&self) -> Vec<Tensor> {
        [self.0.tensors(), self.1.tensors()].into_iter().flatten().collect()
    }
}

impl<A: Outputs, B: Outputs, C: Outputs> Outputs for (A, B, C) {
    fn tensors(&self) -> Vec<Tensor> {
        [self.0.tensors(), self.1.tensors(), self.2.tensors()].into_iter().flatten().collect()
    }
}

impl<O: Outputs> Outputs for Vec<O> {
    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(Outputs::tensors).collect()
    }
}

impl<O: Outputs> Outputs for Option<O> {
    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(Outputs::tensors).collect()
    }
}
