//! Sums the gradients of all virtual ranks: on each rank along the tree as its passes end, and then over the ranks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::take;
use std::ops::Range;
use std::rc::Rc;

use c10d::{Backend, Error, ProcessGroup, ReduceOp, Result, Splits};
use tch::{Device, Kind, Tensor, no_grad};

use super::{VIRTUAL, VirtualRanks, in_pass, tree};
use crate::ddp::broadcast;
use crate::nn;

/// The gradients of one kind and device, in one vector.
#[derive(Debug)]
struct Bucket {
    /// The kind of the sums: `Float` for 16-bit gradients.
    kind: Kind,
    device: Device,
    /// Indices of the parameters, with the place of each gradient in the vector.
    places: Vec<(usize, i64)>,
    /// Elements, so many that the number of ranks divides them.
    length: usize,
    /// An all-reduce over the ranks adds in the tree's order, on the backend of this device.
    by_all_reduce: bool,
}

/// The vectors of all buckets.
type Sums = Vec<Tensor>;

/// Sums the gradients of a model over its virtual ranks. See [`crate::elastic`].
#[derive(Debug)]
pub(crate) struct TreeSum {
    ranks: VirtualRanks,
    group: Rc<ProcessGroup>,
    params: Vec<(String, Tensor)>,
    buffers: Vec<Tensor>,
    buckets: Vec<Bucket>,
    find_unused: bool,
    step: RefCell<Step>,
}

/// A step under way.
#[derive(Debug, Default)]
struct Step {
    /// How many of this rank's virtual ranks are done.
    done: usize,
    /// The current virtual rank has begun its pass, or the first of its micro-batches.
    begun: bool,
    /// The sums of finished subtrees, each the left sibling of a later one, or the largest in this rank's part.
    sums: Vec<(Range<usize>, Sums)>,
    /// Which parameters have had a gradient.
    used: Vec<bool>,
    /// The buffers with which every virtual rank begins, and those with which virtual rank 0 ended.
    buffers: Vec<Tensor>,
    buffers_of_0: Vec<Tensor>,
    /// The last step's sums, in which the parameters' gradients lie.
    gradients: Option<Sums>,
    /// Memory for sums.
    spare: Vec<Sums>,
}

impl TreeSum {
    pub(crate) fn new(
        ranks: VirtualRanks,
        group: Rc<ProcessGroup>,
        params: Vec<(String, Tensor)>,
        buffers: Vec<Tensor>,
        find_unused: bool,
    ) -> Self {
        let (world, count) = (ranks.world.get(), ranks.count.get());
        let in_tree_order = tree::is_the_ranks_tree(world, count);
        let adds_in_order = |device| {
            // The sum of two numbers has one order.
            in_tree_order && (world <= 2 || group.backends().of(device) == Some(Backend::SharedMemory))
        };
        let mut buckets: Vec<Bucket> = Vec::new();
        for (index, (_, param)) in params.iter().enumerate() {
            let kind = if matches!(param.kind(), Kind::Half | Kind::BFloat16) { Kind::Float } else { param.kind() };
            let device = param.device();
            let at = buckets.iter().position(|bucket| (bucket.kind, bucket.device) == (kind, device));
            let at = at.unwrap_or_else(|| {
                let by_all_reduce = adds_in_order(device);
                buckets.push(Bucket { kind, device, places: Vec::new(), length: 0, by_all_reduce });
                buckets.len() - 1
            });
            let bucket = &mut buckets[at];
            bucket.places.push((index, bucket.length as i64));
            bucket.length += param.numel();
        }
        buckets.iter_mut().for_each(|bucket| bucket.length = bucket.length.next_multiple_of(world));
        TreeSum { ranks, group, params, buffers, buckets, find_unused, step: RefCell::default() }
    }

    pub(crate) fn ranks(&self) -> VirtualRanks {
        self.ranks
    }

    /// A pass of the current virtual rank, or of one of its micro-batches.
    pub(crate) fn pass<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        if c10d::grad_enabled() {
            self.begin_pass()?;
        }
        in_pass(|| nn::caught(body))
    }

    fn begin_pass(&self) -> Result<()> {
        let step = &mut *self.step.borrow_mut();
        if step.begun {
            return Ok(());
        }
        if step.done == 0 {
            if let Some((name, _)) = self.params.iter().find(|(_, param)| param.grad().defined()) {
                let why = format!(
                    "{name} still has the last step's gradient, which already has those of all virtual ranks: call the optimizer's \
                     zero_grad before each step"
                );
                return Err(Error::bad_argument(VIRTUAL, why));
            }
            step.spare.extend(step.gradients.take());
            step.used = vec![false; self.params.len()];
            broadcast(&self.group, &self.buffers)?;
            step.buffers = self.buffers.iter().map(Tensor::copy).collect();
        }
        step.begun = true;
        Ok(())
    }

    /// Ends the pass of the current virtual rank, whose gradients are complete. If it is this rank's last one, leaves in each gradient
    /// the mean over all virtual ranks. A collective then.
    pub(crate) fn end_pass(&self) -> Result<()> {
        let step = &mut *self.step.borrow_mut();
        if !take(&mut step.begun) {
            return Err(Error::bad_argument(VIRTUAL, "backward was called without a forward pass"));
        }
        let part = self.ranks.part();
        let v = part.start + step.done;
        if v == 0 {
            step.buffers_of_0 = self.buffers.iter().map(Tensor::copy).collect();
        }
        self.add(v, step)?;
        step.done += 1;
        if step.done < part.len() {
            return self.set_buffers(&step.buffers);
        }
        step.done = 0;
        if part.start == 0 {
            self.set_buffers(&step.buffers_of_0)?;
        }
        let own = take(&mut step.sums);
        let totals = self.exchange(own, &mut step.spare)?;
        let used = self.used_anywhere(&step.used)?;
        self.set_gradients(&totals, &used)?;
        step.gradients = Some(totals);
        Ok(())
    }

    fn set_buffers(&self, values: &[Tensor]) -> Result<()> {
        let copy = |(buffer, value): (&Tensor, &Tensor)| no_grad(|| buffer.shallow_clone().f_copy_(value));
        self.buffers.iter().zip(values).try_for_each(copy).map_err(|error| Error::of_torch(VIRTUAL, &error))
    }

    /// Takes the gradients of virtual rank `v` out of the parameters, as they are in its share of the mean, and adds them to the sums
    /// as far as the tree allows.
    fn add(&self, v: usize, step: &mut Step) -> Result<()> {
        let count = self.ranks.count.get();
        let mut node = v..v + 1;
        // The reducer of DDP multiplies each gradient in the same way.
        let share = 1.0 / count as f64;
        let is_next = |sums: &[(Range<usize>, Sums)], node: &Range<usize>| {
            sums.last().is_some_and(|(last, _)| Some(last) == tree::left_sibling(node, count).as_ref())
        };
        let joins = is_next(&step.sums, &node);
        let mut sums = match step.sums.pop_if(|_| joins) {
            Some((left, sums)) => {
                node.start = left.start;
                sums
            }
            None => self.room(&mut step.spare)?,
        };
        let torch = |error| Error::of_torch("sum the gradients of virtual ranks", &error);
        for (bucket, sum) in self.buckets.iter().zip(&mut sums) {
            for &(index, place) in &bucket.places {
                let (name, param) = &self.params[index];
                let (mut view, mut grad) = (view(sum, param, place).map_err(torch)?, param.grad());
                if !grad.defined() {
                    self.check_unused(name, v)?;
                    if !joins {
                        no_grad(|| view.f_zero_().map(drop)).map_err(torch)?;
                    }
                    continue;
                }
                if grad.is_sparse() {
                    let why = format!(
                        "the gradient of {name} is sparse, which virtual ranks do not support: make its layer dense"
                    );
                    return Err(Error::bad_argument(VIRTUAL, why));
                }
                step.used[index] = true;
                no_grad(|| {
                    let grad = grad.f_mul_scalar_(share)?;
                    if joins { view.f_add_(&grad).map(drop) } else { view.f_copy_(&grad) }
                })
                .map_err(torch)?;
                c10d::clear_grad(&mut param.shallow_clone())?;
            }
        }
        while is_next(&step.sums, &node) {
            let Some((left, mut earlier)) = step.sums.pop() else { break };
            for (earlier, later) in earlier.iter_mut().zip(&sums) {
                no_grad(|| earlier.f_add_(later).map(drop)).map_err(torch)?;
            }
            step.spare.push(std::mem::replace(&mut sums, earlier));
            node.start = left.start;
        }
        step.sums.push((node, sums));
        Ok(())
    }

    fn check_unused(&self, name: &str, v: usize) -> Result<()> {
        if self.find_unused {
            return Ok(());
        }
        let why = format!(
            "{name} has no gradient after the backward pass of virtual rank {v}: if a step may leave out parameters, set \
             find_unused_parameters"
        );
        Err(Error::bad_argument(VIRTUAL, why))
    }

    /// Memory for the sums of all buckets.
    fn room(&self, spare: &mut Vec<Sums>) -> Result<Sums> {
        if let Some(sums) = spare.pop() {
            return Ok(sums);
        }
        let zeros = |bucket: &Bucket| Tensor::f_zeros([bucket.length as i64], (bucket.kind, bucket.device));
        let sums: std::result::Result<Sums, _> = self.buckets.iter().map(zeros).collect();
        sums.map_err(|error| Error::of_torch("allocate the sums of gradients", &error))
    }

    /// The sums over all virtual ranks, from those of all ranks' subtrees. What is in `own` is overwritten.
    fn exchange(&self, own: Vec<(Range<usize>, Sums)>, spare: &mut Vec<Sums>) -> Result<Sums> {
        let mut own: Vec<Sums> = own.into_iter().map(|(_, sums)| sums).collect();
        for (at, bucket) in self.buckets.iter().enumerate() {
            if bucket.by_all_reduce {
                if self.group.size().get() > 1 {
                    self.group.all_reduce(&mut own[0][at], ReduceOp::Sum)?;
                }
                continue;
            }
            let sums: Vec<&Tensor> = own.iter().map(|sums| &sums[at]).collect();
            let piece = self.scatter(&sums)?;
            self.group.all_gather_into_tensor(&mut own[0][at], &piece)?;
        }
        let mut own = own.into_iter();
        let totals = own.next();
        spare.extend(own);
        totals.ok_or_else(|| Error::bad_argument(VIRTUAL, "this rank has no virtual ranks"))
    }

    /// This rank's piece of the sum over all virtual ranks: each rank sends to each other one that piece of its subtrees' sums.
    fn scatter(&self, own: &[&Tensor]) -> Result<Tensor> {
        let (world, subtrees) = (self.group.size().get(), self.ranks.subtrees());
        let length = own[0].size1().map_err(|error| Error::of_torch(VIRTUAL, &error))? / world as i64;
        let nothing = own[0].narrow(0, 0, 0);
        let mut pieces = HashMap::new();
        for round in 0..subtrees.iter().map(Vec::len).max().unwrap_or(0) {
            let (mine, senders) = (own.get(round), subtrees.iter().map(|of_rank| of_rank.get(round)));
            let splits = Splits::Sizes {
                input: vec![if mine.is_some() { length } else { 0 }; world],
                output: senders.clone().map(|node| if node.is_some() { length } else { 0 }).collect(),
            };
            let nodes: Vec<&Range<usize>> = senders.flatten().collect();
            let mut received = nothing.f_new_empty([length * nodes.len() as i64], (nothing.kind(), nothing.device()));
            let received = received.as_mut().map_err(|error| Error::of_torch(VIRTUAL, error))?;
            self.group.all_to_all_single(received, mine.unwrap_or(&&nothing), &splits)?;
            for (at, node) in (0..).zip(nodes) {
                pieces.insert(node.clone(), received.narrow(0, at * length, length));
            }
        }
        let mut add = |mut a: Tensor, b: Tensor| no_grad(|| a.g_add_(&b));
        Ok(tree::total(0..self.ranks.count.get(), &mut pieces, &mut add).contiguous())
    }

    /// Which parameters have a gradient on any virtual rank. A collective if a step may leave out some.
    fn used_anywhere(&self, used: &[bool]) -> Result<Vec<bool>> {
        if !self.find_unused || self.group.size().get() == 1 {
            return Ok(used.to_vec());
        }
        let flags: Vec<u8> = used.iter().map(|used| u8::from(*used)).collect();
        let mut flags = Tensor::from_slice(&flags).to_device(self.group.device());
        self.group.all_reduce(&mut flags, ReduceOp::Max)?;
        let flags: Vec<u8> = Vec::try_from(flags).map_err(|error| Error::of_torch(VIRTUAL, &error))?;
        Ok(flags.into_iter().map(|flag| flag != 0).collect())
    }

    fn set_gradients(&self, totals: &Sums, used: &[bool]) -> Result<()> {
        let torch = |error| Error::of_torch("set the gradients", &error);
        for (bucket, total) in self.buckets.iter().zip(totals) {
            for &(index, place) in bucket.places.iter().filter(|(index, _)| used[*index]) {
                let (_, param) = &self.params[index];
                let grad = view(total, param, place).and_then(|view| view.f_to_kind(param.kind())).map_err(torch)?;
                c10d::add_grad(&mut param.shallow_clone(), &grad)?;
            }
        }
        Ok(())
    }
}

/// The part of a vector that has the gradient of `param`, with the parameter's own strides.
fn view(vector: &Tensor, param: &Tensor, place: i64) -> std::result::Result<Tensor, tch::TchError> {
    no_grad(|| vector.f_as_strided(param.size(), param.stride(), place))
}
