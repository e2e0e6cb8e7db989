//! One collective at several sizes: first checked, then timed.

use std::rc::Rc;

use anyhow::{Context, Result};
use c10d::{P2pOp, ProcessGroup, Rank, ReduceOp, Reducer, ReducerOptions, Splits};
use lockstep::measure::{Repeats, time};
use lockstep_cost::Collective;
use lockstep_rank_messages::bench::{CollectiveAnswer, CollectiveOrder};
use tch::{Device, Kind, Tensor, no_grad};

/// Batches per turn: untimed ones, then timed ones.
const WARM_UP: usize = 1;
const TIMED: usize = 5;

/// Every rank calls this with the same order.
pub(crate) fn run(group: &Rc<ProcessGroup>, order: &CollectiveOrder) -> Result<CollectiveAnswer> {
    let name = &order.operation;
    let collective = Collective::named(name).with_context(|| format!("there is no collective {name:?}"))?;
    let mut answer = CollectiveAnswer { seconds: Vec::new(), wrong: Vec::new() };
    for &bytes in &order.bytes {
        let mut tensors = Tensors::new(group, collective, bytes)?;
        tensors.call(group)?;
        answer.wrong.push(tensors.wrong(group)?.unsigned_abs());
        tensors.clear();
        let repeats = Repeats { warm_up: WARM_UP, timed: TIMED, ..Repeats::for_bytes(bytes) };
        answer.seconds.push(time(group, &repeats, || tensors.call(group))?.median * 1e-6);
    }
    Ok(answer)
}

/// What one rank passes to a collective. Rank r's numbers are the pattern times r + 1, so that each result is a small whole number.
struct Tensors {
    collective: Collective,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// What the outputs must be; for a collective in place, what the input must be.
    expected: Vec<Tensor>,
}

impl Tensors {
    fn new(group: &Rc<ProcessGroup>, collective: Collective, bytes: u64) -> Result<Self> {
        let (rank, world) = (group.rank().get() as i64, group.size().get() as i64);
        let whole = bytes as i64 / 4;
        let part = whole / world;
        let root = rank == 0;
        let sum = world * (world + 1) / 2;
        let mine = |length| pattern(length) * (rank + 1);
        let of_each = || (1..=world).map(|times| pattern(part) * times).collect::<Vec<_>>();
        let empty = |length: i64| Tensor::zeros([length], (Kind::Float, Device::Cpu));
        let on_root = |tensors: Vec<Tensor>| if root { tensors } else { vec![] };
        let empties = || (0..world).map(|_| empty(part)).collect::<Vec<_>>();
        let our_part = || pattern(whole).narrow(0, rank * part, part);
        let (inputs, outputs, expected) = match collective {
            Collective::AllReduce => (vec![], vec![mine(whole)], vec![pattern(whole) * sum]),
            Collective::AllReduceBucket => {
                let mut bucket = bucket(group, whole)?;
                no_grad(|| bucket.copy_(&mine(whole)));
                (vec![], vec![bucket], vec![pattern(whole) * sum])
            }
            Collective::Broadcast => (vec![], vec![mine(whole)], vec![pattern(whole)]),
            Collective::Reduce => (vec![], vec![mine(whole)], on_root(vec![pattern(whole) * sum])),
            Collective::AllGather => (vec![mine(part)], vec![empty(whole)], vec![Tensor::cat(&of_each(), 0)]),
            Collective::Gather => (vec![mine(part)], on_root(empties()), on_root(of_each())),
            Collective::Scatter => (on_root(of_each()), vec![empty(part)], vec![mine(part)]),
            Collective::ReduceScatter => (vec![mine(whole)], vec![empty(part)], vec![our_part() * sum]),
            Collective::AllToAll => {
                let parts: Vec<Tensor> = (1..=world).map(|times| our_part() * times).collect();
                (vec![mine(whole)], vec![empty(whole)], vec![Tensor::cat(&parts, 0)])
            }
            Collective::SendRecv => {
                let before = (rank + world - 1) % world;
                (vec![mine(whole)], vec![empty(whole)], vec![pattern(whole) * (before + 1)])
            }
            Collective::Barrier => (vec![], vec![], vec![]),
        };
        let there = |tensors: Vec<Tensor>| tensors.iter().map(|tensor| tensor.to_device(group.device())).collect();
        Ok(Tensors { collective, inputs: there(inputs), outputs: there(outputs), expected: there(expected) })
    }

    fn call(&mut self, group: &ProcessGroup) -> Result<()> {
        let (inputs, outputs) = (&self.inputs, &mut self.outputs);
        match self.collective {
            Collective::AllReduce | Collective::AllReduceBucket => group.all_reduce(&mut outputs[0], ReduceOp::Sum)?,
            Collective::Broadcast => group.broadcast(&mut outputs[0], Rank::ZERO)?,
            Collective::Reduce => group.reduce(&mut outputs[0], Rank::ZERO, ReduceOp::Sum)?,
            Collective::AllGather => group.all_gather_into_tensor(&mut outputs[0], &inputs[0])?,
            Collective::Gather => group.gather(outputs, &inputs[0], Rank::ZERO)?,
            Collective::Scatter => group.scatter(&mut outputs[0], inputs, Rank::ZERO)?,
            Collective::ReduceScatter => group.reduce_scatter_tensor(&mut outputs[0], &inputs[0], ReduceOp::Sum)?,
            Collective::AllToAll => group.all_to_all_single(&mut outputs[0], &inputs[0], &Splits::Equal)?,
            Collective::SendRecv => send_recv(group, &inputs[0], &outputs[0])?,
            Collective::Barrier => group.barrier()?,
        }
        Ok(())
    }

    /// The number of wrong elements, summed over all ranks.
    fn wrong(&self, group: &ProcessGroup) -> Result<i64> {
        let different =
            |(found, expected): (&Tensor, &Tensor)| found.ne_tensor(expected).sum(Kind::Int64).int64_value(&[]);
        let here: i64 = self.outputs.iter().zip(&self.expected).map(different).sum();
        let mut everywhere = Tensor::from(here);
        group.all_reduce(&mut everywhere, ReduceOp::Sum)?;
        Ok(everywhere.int64_value(&[]))
    }

    /// Repeated sums of zeros stay zero.
    fn clear(&mut self) {
        for tensor in self.inputs.iter_mut().chain(&mut self.outputs) {
            let _zeros = no_grad(|| tensor.zero_());
        }
    }
}

/// A gradient of `length` elements that is a bucket of its own, as DDP makes them with `gradient_as_bucket_view`.
fn bucket(group: &Rc<ProcessGroup>, length: i64) -> Result<Tensor> {
    let parameter = Tensor::zeros([length], (Kind::Float, group.device())).set_requires_grad(true);
    let options = ReducerOptions { gradient_as_bucket_view: true, ..ReducerOptions::default() };
    let reducer = Reducer::new(Rc::clone(group), &[("bucket".into(), parameter.shallow_clone())], &options)?;
    let loss = parameter.sum(Kind::Float);
    reducer.prepare_for_forward()?;
    reducer.prepare_for_backward(&[])?;
    reducer.backward(&loss)?;
    Ok(parameter.grad())
}

/// Sends to the next rank and receives from the previous one, in one batch as nccl-tests does: NCCL handles the messages between two
/// ranks in order, so two ranks that both receive first would wait for each other.
fn send_recv(group: &ProcessGroup, input: &Tensor, output: &Tensor) -> Result<()> {
    let (rank, world) = (group.rank().get(), group.size().get());
    let (before, next) = (Rank::new((rank + world - 1) % world), Rank::new((rank + 1) % world));
    let works = group.batch_isend_irecv(vec![
        P2pOp::Recv { tensor: output.shallow_clone(), from: before, tag: 0 },
        P2pOp::Send { tensor: input.shallow_clone(), to: next, tag: 0 },
    ])?;
    works.into_iter().try_for_each(|work| work.wait().map(drop))?;
    Ok(())
}

/// 1, 2, …, 7, 1, 2, …: different ranks' parts differ.
fn pattern(length: i64) -> Tensor {
    (Tensor::arange(length, (Kind::Float, Device::Cpu)).remainder(7) + 1).to_kind(Kind::Float)
}
