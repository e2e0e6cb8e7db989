//! Sums the gradients of all virtual ranks: on each rank along the tree as its passes end, and then over the ranks.
//!
//! Gradients lie in buckets, as those of DDP's reducer do. In the backward pass of this rank's last virtual rank, a bucket whose gradients are
//! all there is on its way to the other ranks while the pass goes on; the earlier passes need no communication. How often each gradient arrives
//! in a pass is counted in the pass before: a parameter that is used several times by functions that are computed again
//! ([`c10d::checkpoint`]) has its gradient in parts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::take;
use std::ops::Range;
use std::rc::{Rc, Weak};

use c10d::{Backend, Error, ProcessGroup, ReduceOp, Result, Splits, Work};
use tch::{Device, Kind, TchError, Tensor, no_grad};

use super::{VIRTUAL, VirtualRanks, in_pass, tree};
use crate::ddp::broadcast;
use crate::nn;

/// Gradients of one kind and device, in one vector.
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
    /// The sums of finished subtrees, each the left sibling of a later one, or the largest in this rank's part.
    sums: Vec<(Range<usize>, Tensor)>,
    /// The last step's sum, in which the parameters' gradients lie.
    total: Option<Tensor>,
    /// Memory for sums.
    spare: Vec<Tensor>,
}

/// Sums the gradients of a model over its virtual ranks. See [`crate::virtual_ranks`].
#[derive(Debug)]
pub(crate) struct TreeSum {
    ranks: VirtualRanks,
    group: Rc<ProcessGroup>,
    params: Vec<(String, Tensor)>,
    buffers: Vec<Tensor>,
    /// The bucket of each parameter.
    bucket_of: Vec<usize>,
    find_unused: bool,
    step: RefCell<Step>,
}

/// A step under way.
#[derive(Debug, Default)]
struct Step {
    buckets: Vec<Bucket>,
    /// How many of this rank's virtual ranks are done.
    done: usize,
    /// The current virtual rank has begun its pass, or the first of its micro-batches.
    begun: bool,
    /// Which parameters have had a gradient.
    used: Vec<bool>,
    /// The buffers with which every virtual rank begins, and those with which virtual rank 0 ended.
    buffers: Vec<Tensor>,
    buffers_of_0: Vec<Tensor>,
    /// The backward pass that completes the gradients of a virtual rank.
    pass: Pass,
    /// How often each gradient arrived in the last such pass, if all did.
    expected: Option<Vec<u32>>,
    /// The exchanges of the first buckets, which are under way.
    exchanges: Vec<Exchange>,
    /// Why a bucket could not be sent in the backward pass.
    failure: Option<Error>,
}

#[derive(Debug, Default)]
struct Pass {
    /// How often each gradient has arrived.
    arrived: Vec<u32>,
    /// How many parameters of each bucket still lack a part of their gradient; empty unless complete buckets are to be sent.
    lacking: Vec<usize>,
}

/// A bucket on its way.
#[derive(Debug)]
enum Exchange {
    /// This rank's sums, and the same piece of all ranks' sums.
    Scattered {
        own: Vec<Tensor>,
        pieces: Vec<Pieces>,
    },
    Whole(Whole),
}

/// Pieces that arrive together, one for each node of the tree.
type Pieces = (Vec<Range<usize>>, Work<Tensor>);

/// The sum over all virtual ranks.
#[derive(Debug)]
enum Whole {
    Here(Tensor),
    Coming(Work<Tensor>),
}

impl TreeSum {
    /// Buckets are filled in the reverse order of definition, in which gradients arrive, up to `limits` in bytes.
    pub(crate) fn new(
        ranks: VirtualRanks,
        group: Rc<ProcessGroup>,
        params: Vec<(String, Tensor)>,
        buffers: Vec<Tensor>,
        find_unused: bool,
        limits: &[usize],
    ) -> Result<Rc<Self>> {
        let (world, count) = (ranks.world.get(), ranks.count.get());
        let in_tree_order = tree::is_the_ranks_tree(world, count);
        let last_first: Vec<Tensor> = params.iter().rev().map(|(_, param)| param.shallow_clone()).collect();
        let (mut buckets, mut bucket_of) = (Vec::new(), vec![0; params.len()]);
        for indices in c10d::bucket_assignment(&last_first, limits)? {
            let first = &last_first[indices[0]];
            let (device, mut length, mut places) = (first.device(), 0, Vec::new());
            for index in indices {
                let param = params.len() - 1 - index;
                bucket_of[param] = buckets.len();
                places.push((param, length as i64));
                length += last_first[index].numel();
            }
            buckets.push(Bucket {
                kind: if matches!(first.kind(), Kind::Half | Kind::BFloat16) { Kind::Float } else { first.kind() },
                device,
                places,
                length: length.next_multiple_of(world),
                // The sum of two numbers has one order.
                by_all_reduce: in_tree_order
                    && (world <= 2 || group.backends().of(device) == Some(Backend::SharedMemory)),
                sums: Vec::new(),
                total: None,
                spare: Vec::new(),
            });
        }
        let step = RefCell::new(Step { buckets, ..Step::default() });
        let tree = Rc::new(TreeSum { ranks, group, params, buffers, bucket_of, find_unused, step });
        // A step that may leave out parameters has no count to wait for; and libtorch calls hooks for a GPU on threads of its own.
        for (index, (_, param)) in tree.params.iter().enumerate().filter(|_| !find_unused) {
            if param.device() == Device::Cpu {
                let weak: Weak<Self> = Rc::downgrade(&tree); // the model's tensors may outlive this
                c10d::on_gradient(param, move || weak.upgrade().map_or(Ok(()), |tree| tree.gradient_arrived(index)))?;
            }
        }
        Ok(tree)
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
            step.buckets.iter_mut().for_each(|bucket| bucket.spare.extend(bucket.total.take()));
            step.used = vec![false; self.params.len()];
            broadcast(&self.group, &self.buffers)?;
            step.buffers = self.buffers.iter().map(Tensor::copy).collect();
        }
        step.begun = true;
        Ok(())
    }

    /// Runs backward for the current virtual rank; `completes` its gradients, unless more micro-batches follow. After this rank's last
    /// virtual rank each gradient is the mean over all virtual ranks. A collective then.
    pub(crate) fn backward(&self, loss: &Tensor, completes: bool) -> Result<()> {
        if !completes {
            return c10d::backward(loss);
        }
        self.begin_backward();
        let done = c10d::backward(loss);
        let step = &mut *self.step.borrow_mut();
        let pass = take(&mut step.pass);
        // What came of a failed exchange is only its words.
        done.map_err(|error| step.failure.take().unwrap_or(error))?;
        step.expected = pass.arrived.iter().all(|arrived| *arrived > 0).then_some(pass.arrived);
        self.end_pass(step)
    }

    fn begin_backward(&self) {
        let step = &mut *self.step.borrow_mut();
        let is_last = step.done + 1 == self.ranks.part().len();
        let sends = step.begun && is_last && step.expected.is_some();
        let buckets = if sends { &step.buckets[..] } else { &[] };
        let lacking = buckets.iter().map(|bucket| bucket.places.len()).collect();
        step.pass = Pass { arrived: vec![0; self.params.len()], lacking };
        step.exchanges.clear();
    }

    /// Autograd has added to the gradient of a parameter. Starts to send what is complete, bucket after bucket: all ranks have one order.
    fn gradient_arrived(&self, index: usize) -> Result<()> {
        let step = &mut *self.step.borrow_mut();
        let Some(arrived) = step.pass.arrived.get_mut(index) else { return Ok(()) };
        *arrived += 1;
        let (Some(expected), false) = (&step.expected, step.pass.lacking.is_empty()) else { return Ok(()) };
        let (bucket, name) = (self.bucket_of[index], &self.params[index].0);
        if *arrived == expected[index] {
            step.pass.lacking[bucket] -= 1;
        } else if step.exchanges.len() > bucket {
            let why = format!(
                "the gradient of {name} has more parts than in the pass before, and was already sent: if steps differ in what they use, set \
                 find_unused_parameters"
            );
            step.failure = Some(Error::bad_argument(VIRTUAL, why));
        }
        while step.failure.is_none() && step.pass.lacking.get(step.exchanges.len()) == Some(&0) {
            step.failure = self.send_next(step).err();
        }
        match step.failure {
            Some(_) => Err(Error::bad_argument(VIRTUAL, "a bucket could not be sent")), // replaced by the failure
            None => Ok(()),
        }
    }

    /// Adds up the next bucket's gradients of this rank's last virtual rank, and starts its exchange.
    fn send_next(&self, step: &mut Step) -> Result<()> {
        let bucket = &mut step.buckets[step.exchanges.len()];
        self.add(self.ranks.part().end - 1, bucket, &mut step.used)?;
        step.exchanges.push(self.start(bucket)?);
        Ok(())
    }

    /// Ends the pass of the current virtual rank, whose gradients are complete.
    fn end_pass(&self, step: &mut Step) -> Result<()> {
        if !take(&mut step.begun) {
            return Err(Error::bad_argument(VIRTUAL, "backward was called without a forward pass"));
        }
        let part = self.ranks.part();
        let v = part.start + step.done;
        if v == 0 {
            step.buffers_of_0 = self.buffers.iter().map(Tensor::copy).collect();
        }
        step.done += 1;
        if step.done < part.len() {
            step.buckets.iter_mut().try_for_each(|bucket| self.add(v, bucket, &mut step.used))?;
            return self.set_buffers(&step.buffers);
        }
        step.done = 0;
        if part.start == 0 {
            self.set_buffers(&step.buffers_of_0)?;
        }
        while step.exchanges.len() < step.buckets.len() {
            self.send_next(step)?;
        }
        let exchanges = step.buckets.iter_mut().zip(take(&mut step.exchanges));
        let wholes = exchanges.map(|(bucket, exchange)| self.gather(bucket, exchange)).collect::<Result<Vec<_>>>()?;
        let used = self.used_anywhere(&step.used)?;
        for (bucket, whole) in step.buckets.iter_mut().zip(wholes) {
            let total = match whole {
                Whole::Here(total) => total,
                Whole::Coming(work) => work.wait()?,
            };
            self.set_gradients(bucket, &total, &used)?;
            bucket.total = Some(total);
        }
        Ok(())
    }

    fn set_buffers(&self, values: &[Tensor]) -> Result<()> {
        let copy = |(buffer, value): (&Tensor, &Tensor)| no_grad(|| buffer.shallow_clone().f_copy_(value));
        self.buffers.iter().zip(values).try_for_each(copy).map_err(|error| Error::of_torch(VIRTUAL, &error))
    }

    /// Takes a bucket's gradients of virtual rank `v` out of the parameters, as they are in its share of the mean, and adds them to the
    /// sums as far as the tree allows.
    fn add(&self, v: usize, bucket: &mut Bucket, used: &mut [bool]) -> Result<()> {
        let count = self.ranks.count.get();
        let mut node = v..v + 1;
        // The reducer of DDP multiplies each gradient in the same way.
        let share = 1.0 / count as f64;
        let is_next = |sums: &[(Range<usize>, Tensor)], node: &Range<usize>| {
            sums.last().is_some_and(|(last, _)| Some(last) == tree::left_sibling(node, count).as_ref())
        };
        let joins = is_next(&bucket.sums, &node);
        let mut sum = match bucket.sums.pop_if(|_| joins) {
            Some((left, sum)) => {
                node.start = left.start;
                sum
            }
            None => bucket.room()?,
        };
        let torch = |error| Error::of_torch("sum the gradients of virtual ranks", &error);
        for &(index, place) in &bucket.places {
            let (name, param) = &self.params[index];
            let (mut view, mut grad) = (view(&sum, param, place).map_err(torch)?, param.grad());
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
            used[index] = true;
            no_grad(|| {
                let grad = grad.f_mul_scalar_(share)?;
                if joins { view.f_add_(&grad).map(drop) } else { view.f_copy_(&grad) }
            })
            .map_err(torch)?;
            c10d::clear_grad(&mut param.shallow_clone())?;
        }
        while is_next(&bucket.sums, &node) {
            let Some((left, mut earlier)) = bucket.sums.pop() else { break };
            no_grad(|| earlier.f_add_(&sum).map(drop)).map_err(torch)?;
            bucket.spare.push(std::mem::replace(&mut sum, earlier));
            node.start = left.start;
        }
        bucket.sums.push((node, sum));
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

    /// Starts to send a bucket's sums. What is in them is overwritten.
    fn start(&self, bucket: &mut Bucket) -> Result<Exchange> {
        let own: Vec<Tensor> = take(&mut bucket.sums).into_iter().map(|(_, sum)| sum).collect();
        match &own[..] {
            [sum] if self.group.size().get() == 1 => Ok(Exchange::Whole(Whole::Here(sum.shallow_clone()))),
            [sum] if bucket.by_all_reduce => {
                let work = self.group.all_reduce_async(sum.shallow_clone(), ReduceOp::Sum)?;
                Ok(Exchange::Whole(Whole::Coming(work)))
            }
            _ => Ok(Exchange::Scattered { pieces: self.scatter(bucket, &own)?, own }),
        }
    }

    /// Each rank sends to each other one that piece of its subtrees' sums. Ranks have different numbers of subtrees: a message for each.
    fn scatter(&self, bucket: &Bucket, own: &[Tensor]) -> Result<Vec<Pieces>> {
        let (world, subtrees) = (self.group.size().get(), self.ranks.subtrees());
        let length = (bucket.length / world) as i64;
        let most = subtrees.iter().map(Vec::len).max().unwrap_or(0);
        let empty = |elements: i64| {
            let made = Tensor::f_empty([elements], (bucket.kind, bucket.device));
            made.map_err(|error| Error::of_torch(VIRTUAL, &error))
        };
        let start = |round: usize| {
            let senders = subtrees.iter().map(|of_rank| of_rank.get(round));
            let splits = Splits::Sizes {
                input: vec![if own.len() > round { length } else { 0 }; world],
                output: senders.clone().map(|node| if node.is_some() { length } else { 0 }).collect(),
            };
            let nodes: Vec<Range<usize>> = senders.flatten().cloned().collect();
            let received = empty(length * nodes.len() as i64)?;
            let sent = own.get(round).map_or_else(|| empty(0), |sum| Ok(sum.shallow_clone()))?;
            Ok((nodes, self.group.all_to_all_single_async(received, sent, &splits)?))
        };
        (0..most).map(start).collect()
    }

    /// Adds up this rank's piece of all ranks' sums, and starts to send it to all ranks.
    fn gather(&self, bucket: &mut Bucket, exchange: Exchange) -> Result<Whole> {
        let (own, pieces) = match exchange {
            Exchange::Whole(whole) => return Ok(whole),
            Exchange::Scattered { own, pieces } => (own, pieces),
        };
        let length = (bucket.length / self.group.size().get()) as i64;
        let mut sums = HashMap::new();
        for (nodes, work) in pieces {
            let received = work.wait()?;
            let piece = |(at, node): (i64, Range<usize>)| (node, received.narrow(0, at * length, length));
            sums.extend((0..).zip(nodes).map(piece));
        }
        let mut add = |mut a: Tensor, b: Tensor| no_grad(|| a.g_add_(&b));
        let piece = tree::total(0..self.ranks.count.get(), &mut sums, &mut add).contiguous();
        let mut own = own.into_iter();
        let total = own.next().ok_or_else(|| Error::bad_argument(VIRTUAL, "this rank has no virtual ranks"))?;
        bucket.spare.extend(own);
        Ok(Whole::Coming(self.group.all_gather_into_tensor_async(total, piece)?))
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

    fn set_gradients(&self, bucket: &Bucket, total: &Tensor, used: &[bool]) -> Result<()> {
        let torch = |error| Error::of_torch("set the gradients", &error);
        for &(index, place) in bucket.places.iter().filter(|(index, _)| used[*index]) {
            let (_, param) = &self.params[index];
            let grad = view(total, param, place).and_then(|view| view.f_to_kind(param.kind())).map_err(torch)?;
            c10d::add_grad(&mut param.shallow_clone(), &grad)?;
        }
        Ok(())
    }
}

impl Bucket {
    /// Memory for a sum.
    fn room(&mut self) -> Result<Tensor> {
        let zeros = || Tensor::f_zeros([self.length as i64], (self.kind, self.device));
        let torch = |error| Error::of_torch("allocate the sums of gradients", &error);
        self.spare.pop().map_or_else(|| zeros().map_err(torch), Ok)
    }
}

/// The part of a vector that has the gradient of `param`, with the parameter's own strides.
fn view(vector: &Tensor, param: &Tensor, place: i64) -> std::result::Result<Tensor, TchError> {
    no_grad(|| vector.f_as_strided(param.size(), param.stride(), place))
}
