//! Where the memory of a rank goes, by kind: counted by the tensors that are alive, not estimated from shapes.
//!
//! Memory that several tensors share counts once. Leaves out what libtorch needs besides: intermediate results of a kernel, what
//! its allocator keeps, and the program itself.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;

use c10d::{ProcessGroup, Reducer, Storage, storage_bytes};
use lockstep_contract::events::memory_line;
use tch::Tensor;

use crate::optim::Optimizer;
use crate::parallel::FullyShard;

/// The bytes of one rank, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBytes {
    /// The parameters that this rank keeps.
    pub parameters: u64,
    /// Their gradients.
    pub gradients: u64,
    /// The optimizer's state tensors, without the parameters and the counts of steps.
    pub optimizer: u64,
    /// What autograd keeps for the backward pass, at its start; see [`Activations`].
    pub activations: u64,
    /// Memory for communication: DDP's buckets; for a fully sharded model, the most parameters and gradients that were whole at once.
    pub buckets: u64,
    /// What this rank has passed to its group's operations so far; 0 where nothing counts it (NCCL).
    pub sent: u64,
}

impl MemoryBytes {
    /// The bytes of a rank that trains `parameters` whole, alone or with
    /// [`ZeroRedundancyOptimizer`](crate::optim::ZeroRedundancyOptimizer).
    pub fn of<'a>(parameters: impl IntoIterator<Item = &'a Tensor>, optimizer: &impl Optimizer) -> Self {
        let parameters: Vec<&Tensor> = parameters.into_iter().collect();
        let gradients: Vec<Tensor> = parameters.iter().map(|param| param.grad()).collect();
        MemoryBytes {
            parameters: storage_bytes(parameters),
            gradients: storage_bytes(&gradients),
            optimizer: optimizer.state_bytes(),
            ..Self::default()
        }
    }

    /// As [`of`](Self::of), with DDP's buckets. Gradients that lie in them count as buckets.
    pub fn of_ddp<'a>(
        parameters: impl IntoIterator<Item = &'a Tensor>,
        optimizer: &impl Optimizer,
        reducer: &Reducer,
    ) -> c10d::Result<Self> {
        let parameters: Vec<&Tensor> = parameters.into_iter().collect();
        let buckets = reducer.bucket_storages()?;
        let in_bucket: HashSet<u64> = buckets.iter().map(Storage::id).collect();
        let gradients = parameters.iter().map(|param| param.grad());
        let is_apart = |grad: &Tensor| Storage::of(grad).is_some_and(|storage| !in_bucket.contains(&storage.id()));
        let gradients: Vec<Tensor> = gradients.filter(is_apart).collect();
        let alone = Self::of(parameters, optimizer);
        let bytes = MemoryBytes {
            gradients: storage_bytes(&gradients),
            buckets: buckets.iter().map(Storage::bytes).sum(),
            ..alone
        };
        Ok(bytes.with_sent(reducer.group()))
    }

    /// The bytes of a fully sharded model.
    pub fn of_sharded(model: &FullyShard, optimizer: &impl Optimizer) -> Self {
        let shard = model.bytes();
        let bytes = MemoryBytes {
            parameters: shard.parameters,
            gradients: shard.gradients,
            optimizer: optimizer.state_bytes(),
            buckets: shard.most_whole,
            ..Self::default()
        };
        bytes.with_sent(model.group())
    }

    /// Sets what autograd kept for the backward pass.
    pub fn with_activations(self, activations: u64) -> Self {
        MemoryBytes { activations, ..self }
    }

    /// Sets what this rank has passed to the operations of `group`.
    pub fn with_sent(self, group: &ProcessGroup) -> Self {
        MemoryBytes { sent: group.traffic().map_or(0, |traffic| traffic.bytes), ..self }
    }

    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.activations + self.buckets
    }
}

/// One line for people.
impl fmt::Display for MemoryBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("buckets", self.buckets),
        ];
        f.write_str(&memory_line(&kinds, self.sent))
    }
}

/// The tensors that autograd keeps for a backward pass.
#[derive(Debug)]
pub struct Activations {
    saved: Rc<RefCell<Vec<Storage>>>,
}

impl Activations {
    /// Runs `body`, a forward pass, and notes what autograd saves in it, except memory of `parameters`.
    pub fn watch<'a, T>(
        parameters: impl IntoIterator<Item = &'a Tensor>,
        body: impl FnOnce() -> T,
    ) -> c10d::Result<(T, Self)> {
        // A number is not reused as long as something refers to the memory.
        let parameters: Vec<Storage> = parameters.into_iter().filter_map(Storage::of).collect();
        let known = RefCell::new(parameters.iter().map(Storage::id).collect::<HashSet<u64>>());
        let saved = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&saved);
        let pack = move |tensor: &Tensor| {
            if let Some(storage) = Storage::of(tensor)
                && known.borrow_mut().insert(storage.id())
            {
                noted.borrow_mut().push(storage);
            }
            None
        };
        let result = c10d::with_saved_tensors(Rc::new(pack), body)?;
        drop(parameters);
        Ok((result, Activations { saved }))
    }

    /// The bytes that are still in memory: all before the backward pass, fewer and fewer during it.
    pub fn bytes(&self) -> u64 {
        self.saved.borrow().iter().map(Storage::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_all_kinds_in_one_line() {
        let bytes = MemoryBytes { parameters: 8, optimizer: 2048, sent: 16, ..Default::default() };
        let line = "2.0 KiB: parameters 8 B, gradients 0 B, optimizer 2.0 KiB, activations 0 B, buckets 0 B; sent 16 B";
        assert_eq!(bytes.to_string(), line);
    }
}
