//! `ZeroRedundancyOptimizer`: each rank keeps the optimizer's state of its own share of the parameters and updates only these.
//!
//! DDP gives every rank the same gradients, so that every rank would make the same update with the same state. Here only a
//! parameter's owner makes the update and sends the result to the others. Each rank keeps `1 / ranks` of the state, at the price
//! of one broadcast of the parameters per step. Leaves out gradients and parameters, which stay whole on each rank (stages 2 and
//! 3 of ZeRO), and the overlap of the broadcasts with backward.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use c10d::{ProcessGroup, Rank, WorldSize};
use tch::Tensor;

use super::engine::{FusedOptimizer, Optimizer, Rule};
use super::error::{OptimError, Result};
use super::params::{self, ParamGroup};
use super::state::{self, GroupMeta, ParamMeta, State, StateMeta};
use crate::object_collectives::all_gather_object;

/// Maximum length of messages, in bytes, as for DDP's first broadcast.
const MESSAGE_BYTES: usize = 250 * 1024 * 1024;

/// An optimizer whose state is divided among the ranks of a group; `torch.distributed.optim.ZeroRedundancyOptimizer`.
///
/// ```no_run
/// # use std::rc::Rc;
/// # use c10d::{ProcessGroup, Rank};
/// # fn train(vs: &tch::nn::VarStore, group: Rc<ProcessGroup>) -> anyhow::Result<()> {
/// use lockstep::optim::{AdamOptions, Optimizer, ZeroRedundancyOptimizer, named_parameters};
///
/// let mut optimizer = ZeroRedundancyOptimizer::new(named_parameters(vs), AdamOptions::default(), group)?;
/// optimizer.step()?; // a collective
/// optimizer.consolidate_state_dict(Rank::ZERO)?; // rank 0 gathers the whole state
/// # Ok(()) }
/// ```
///
/// The parameters have the same bits as with the optimizer inside alone, and the consolidated state is that optimizer's: a run
/// may go on with it, or on another number of ranks.
///
/// Source: Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2019), stage 1;
/// `torch/distributed/optim/zero_redundancy_optimizer.py`, which divides the parameters in the same way.
#[derive(Debug)]
pub struct ZeroRedundancyOptimizer<R> {
    group: Rc<ProcessGroup>,
    /// All groups with their options; only this rank's parameters.
    own: FusedOptimizer<R>,
    /// All parameters of each group, in order.
    params: Vec<Vec<Shared>>,
    /// The whole state, on the rank that has gathered it since the last step.
    consolidated: RefCell<Option<State>>,
}

/// A parameter and the rank that updates it.
#[derive(Debug)]
struct Shared {
    name: String,
    param: Tensor,
    owner: Rank,
}

impl<R: Rule> ZeroRedundancyOptimizer<R> {
    /// An optimizer of one group of named parameters, which are the same on all ranks of `group`.
    pub fn new(params: Vec<(String, Tensor)>, options: R, group: Rc<ProcessGroup>) -> Result<Self> {
        Self::with_groups(vec![ParamGroup::new(params)], options, group)
    }

    /// An optimizer of several groups; see [`FusedOptimizer::with_groups`].
    pub fn with_groups(groups: Vec<ParamGroup>, options: R, group: Rc<ProcessGroup>) -> Result<Self> {
        params::check(&groups)?;
        let sizes = groups.iter().map(|group| group.params.iter().map(|(_, param)| param.numel()).collect());
        let owners = partition(sizes.collect(), group.size());
        let (mut params, mut mine) = (Vec::new(), Vec::new());
        for (one, owners) in groups.into_iter().zip(owners) {
            let ParamGroup { params: all, lr, weight_decay } = one;
            let shared = all.into_iter().zip(owners);
            let shared: Vec<_> = shared.map(|((name, param), owner)| Shared { name, param, owner }).collect();
            let own = shared.iter().filter(|param| param.owner == group.rank());
            let own = own.map(|param| (param.name.clone(), param.param.shallow_clone())).collect();
            mine.push(ParamGroup { params: own, lr, weight_decay });
            params.push(shared);
        }
        Ok(ZeroRedundancyOptimizer {
            group,
            own: FusedOptimizer::of_checked(mine, &options)?,
            params,
            consolidated: RefCell::default(),
        })
    }

    /// The names of the parameters that each rank updates, by rank.
    pub fn partition(&self) -> Vec<Vec<&str>> {
        let of = |rank: Rank| self.shared().filter(move |param| param.owner == rank).map(|param| param.name.as_str());
        self.group.size().ranks().map(|rank| of(rank).collect()).collect()
    }

    /// The state that this rank keeps, a part of the whole, without a copy.
    pub fn local_state(&self) -> State {
        self.own.local_state()
    }

    /// Gathers the whole state on rank `to`. A collective, before [`state_dict`](Optimizer::state_dict); the next step makes the gathered
    /// state out of date and drops it. [`Snapshots`](crate::snapshot::Snapshots) call it themselves.
    pub fn consolidate_state_dict(&self, to: Rank) -> Result<()> {
        let mine = self.local_state();
        let metas = all_gather_object(&self.group, mine.meta()).map_err(OptimError::State)?;
        let tensors: HashMap<String, Tensor> = mine.tensors().into_iter().collect();
        let meta = StateMeta { groups: self.whole(&metas) };
        let mut whole = Vec::new();
        for ((params, names), meta) in self.params.iter().zip(self.own.state_names()).zip(&meta.groups) {
            let started = params.iter().zip(&meta.params).filter(|(_, meta)| meta.step > 0);
            for (param, name) in started.flat_map(|(param, _)| names.iter().map(move |name| (param, name))) {
                let name = state::tensor_name(name, &param.name);
                let tensor = self.fetch(to, param, tensors.get(&name))?;
                whole.extend(tensor.map(|tensor| (name, tensor)));
            }
        }
        self.consolidated.replace((self.group.rank() == to).then(|| State::new(meta, whole)));
        Ok(())
    }

    /// The state tensor `mine` of the owner of `param`, on rank `to`.
    fn fetch(&self, to: Rank, param: &Shared, mine: Option<&Tensor>) -> Result<Option<Tensor>> {
        let me = self.group.rank();
        match mine {
            Some(mine) if me == to => Ok(Some(mine.copy())),
            Some(mine) => {
                let sent = tch::no_grad(|| mine.f_contiguous()).map_err(OptimError::torch("copy optimizer state"))?;
                self.group.send(&sent, to, 0).map_err(OptimError::Group)?;
                Ok(None)
            }
            None if me == to => {
                let (size, kind) = (param.param.size(), (param.param.kind(), param.param.device()));
                let empty = Tensor::f_empty(size, kind).map_err(OptimError::torch("allocate optimizer state"));
                let mut tensor = empty?;
                self.group.recv(&mut tensor, param.owner, 0).map_err(OptimError::Group)?;
                Ok(Some(tensor))
            }
            None => Ok(None),
        }
    }

    /// The descriptions of all parameters of each group, from those of each rank's own.
    fn whole(&self, metas: &[StateMeta]) -> Vec<GroupMeta> {
        let steps: HashMap<&str, u64> = metas.iter().flat_map(|meta| &meta.groups).flat_map(GroupMeta::steps).collect();
        let options = metas[0].groups.iter().map(|group| group.options.clone()); // the same on all ranks
        let groups = self.params.iter().zip(options);
        groups
            .map(|(params, options)| {
                let step = |name: &str| steps.get(name).copied().unwrap_or(0);
                let params =
                    params.iter().map(|Shared { name, .. }| ParamMeta { name: name.clone(), step: step(name) });
                GroupMeta { options, params: params.collect() }
            })
            .collect()
    }

    fn shared(&self) -> impl Iterator<Item = &Shared> {
        self.params.iter().flatten()
    }
}

impl<R: Rule> Optimizer for ZeroRedundancyOptimizer<R> {
    /// A collective: every parameter is sent by its owner, also one without a gradient.
    fn step(&mut self) -> Result<()> {
        self.consolidated.take();
        self.own.step()?;
        for rank in self.group.size().ranks() {
            let owned = self.shared().filter(|param| param.owner == rank);
            let owned: Vec<_> = owned.map(|param| param.param.detach()).collect();
            if !owned.is_empty() {
                c10d::broadcast_coalesced(&self.group, &owned, MESSAGE_BYTES, rank).map_err(OptimError::Group)?;
            }
        }
        Ok(())
    }

    fn zero_grad(&mut self) {
        for param in self.params.iter_mut().flatten() {
            // Every parameter is a defined leaf tensor: the constructor checks it.
            c10d::clear_grad(&mut param.param).expect("libtorch forgets the gradient of a leaf");
        }
    }

    fn grads(&self) -> Vec<(String, Tensor)> {
        params::with_grad(self.shared().map(|param| (&param.name, &param.param)))
    }

    fn lr(&self) -> f64 {
        self.own.lr()
    }

    fn group_lrs(&self) -> Vec<f64> {
        self.own.group_lrs()
    }

    fn set_lr(&mut self, lr: f64) {
        self.own.set_lr(lr);
    }

    fn set_group_lr(&mut self, group: usize, lr: f64) -> Result<()> {
        self.own.set_group_lr(group, lr)
    }

    fn state_bytes(&self) -> u64 {
        self.own.state_bytes()
    }

    /// Gathers the whole state on rank 0.
    fn gather_state(&self) -> Result<()> {
        self.consolidate_state_dict(Rank::ZERO)
    }

    /// The consolidated state.
    ///
    /// Errors: this rank has not gathered it since the last step.
    fn shared_state(&self) -> Result<State> {
        self.consolidated
            .borrow()
            .as_ref()
            .map(State::shared)
            .ok_or(OptimError::NotConsolidated { rank: self.group.rank() })
    }

    /// Loads the whole state, of which this rank keeps its share.
    fn load_state_dict(&mut self, state: State) -> Result<()> {
        let (meta, tensors) = state.into_parts();
        if meta.groups.len() != self.params.len() {
            return Err(OptimError::GroupCount { saved: meta.groups.len(), here: self.params.len() });
        }
        for (position, (saved, here)) in meta.groups.iter().zip(&self.params).enumerate() {
            state::check_names(position, saved, here.iter().map(|param| param.name.as_str()))?;
        }
        let others = self.shared().filter(|param| param.owner != self.group.rank());
        let others: HashSet<&str> = others.map(|param| param.name.as_str()).collect();
        let groups = meta.groups.into_iter().map(|mut group| {
            group.params.retain(|param| !others.contains(param.name.as_str()));
            group
        });
        let meta = StateMeta { groups: groups.collect() };
        // `exp_avg.fc1.weight`: the name of a state has no dot.
        let of_others = |name: &str| name.split_once('.').is_some_and(|(_, param)| others.contains(param));
        let kept = tensors.named().filter(|(name, _)| !of_others(name)).collect();
        self.own.load_state_dict(State::new(meta, kept))?;
        self.consolidated.take();
        Ok(())
    }
}

/// The owner of each parameter of each group: the largest first, each to the rank that has the fewest elements so far.
fn partition(groups: Vec<Vec<usize>>, ranks: WorldSize) -> Vec<Vec<Rank>> {
    let mut held = vec![0; ranks.get()];
    let divide = |sizes: Vec<usize>| {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&param| Reverse(sizes[param]));
        let mut owners = vec![Rank::ZERO; sizes.len()];
        for param in order {
            let least = (0..held.len()).min_by_key(|&rank| held[rank]).unwrap_or(0);
            held[least] += sizes[param];
            owners[param] = Rank::new(least);
        }
        owners
    };
    groups.into_iter().map(divide).collect()
}
