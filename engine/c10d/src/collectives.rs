//! Collectives: of one tensor, of several and of a sparse one. Several tensors are packed into one, so that they need one call, with the
//! latency of one.

use std::time::Duration;

use tch::{Device, Kind, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::ffi::{self, GroupHandle, Status, TensorPtr, WorkHandle, pointers};
use crate::lifetime::Access;
use crate::store::millis;
use crate::tensors::{self, Guard, Purpose, describe};
use crate::work::{Call, Pending, Work};
use crate::{Backend, ProcessGroup, Rank, recording, stragglers};

/// How the values of different ranks are combined; the numbers are c10d's (Types.hpp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum.
    Sum = 0,
    /// The mean.
    Avg = 1,
    /// The product.
    Product = 2,
    /// The minimum.
    Min = 3,
    /// The maximum.
    Max = 4,
    /// Sets a bit if all ranks have it; PyTorch's `BAND`. The bitwise operations are for integers, and not on NCCL.
    BitAnd = 5,
    /// Sets a bit if any rank has it; `BOR`.
    BitOr = 6,
    /// Sets a bit if an odd number of ranks have it; `BXOR`.
    BitXor = 7,
}

impl ReduceOp {
    fn is_bitwise(self) -> bool {
        matches!(self, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor)
    }
}

/// Collectives: every rank of the group calls the same one, with matching shapes and dtypes.
///
/// Each has two forms. The blocking form borrows its tensors; the `_async` form takes them, and [`Work::wait`] returns
/// them. Gloo and shared memory support `Float`, `Double`, `Half`, `BFloat16`, `Uint8`, `Int8`, `Int`, `Int64` (and `Bool` in operations
/// that do not reduce); NCCL supports the same dtypes on its GPU, and `Bool` everywhere.
///
/// Tensors must be contiguous in memory, of one dtype and device. Memory that an operation writes must not belong to
/// two tensors of the call, or to an operation that is still in progress. One case cannot be detected: tch clones tensors without
/// their memory ([`Tensor::shallow_clone`]), and a computation on such a clone during an operation may see values change. Use the
/// tensors that [`Work::wait`] returns.
///
/// # Errors
/// `BadArgument` for tensors that do not fit, before anything is sent. From the blocking form, or from the wait: `Timeout` if a rank does
/// not arrive, with the missing ranks; `PeerGone` if one has died; `Mismatch` if the ranks made different calls and compare them
/// ([`GroupOptions::compare_calls`](crate::GroupOptions::compare_calls)); `Aborted` if this rank has aborted the group.
///
/// # Examples
/// ```no_run
/// # use c10d::{ProcessGroup, Rank, ReduceOp, Result};
/// # use tch::Tensor;
/// # fn both(group: &ProcessGroup, weights: Tensor, gradients: &mut [Tensor]) -> Result<Tensor> {
/// let work = group.broadcast_async(weights, Rank::ZERO)?; // goes on while this rank does something else
/// group.all_reduce_coalesced(gradients, ReduceOp::Sum)?; // all gradients in one call
/// work.wait()
/// # }
/// ```
impl ProcessGroup {
    /// Copies the root's tensor to all ranks.
    pub fn broadcast(&self, tensor: &mut Tensor, root: Rank) -> Result<()> {
        self.now(|| self.start_broadcast(tensor, root))
    }

    /// As [`ProcessGroup::broadcast`].
    pub fn broadcast_async(&self, tensor: Tensor, root: Rank) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_broadcast(&tensor, root)?, tensor))
    }

    /// Reduces over all ranks, in place; all ranks get the result.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
        self.now(|| self.start_all_reduce(tensor, op))
    }

    /// As [`ProcessGroup::all_reduce`].
    pub fn all_reduce_async(&self, tensor: Tensor, op: ReduceOp) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_all_reduce(&tensor, op)?, tensor))
    }

    /// Reduces over all ranks, in place; the root gets the result. The tensors of the other ranks are unspecified
    /// afterwards.
    pub fn reduce(&self, tensor: &mut Tensor, root: Rank, op: ReduceOp) -> Result<()> {
        self.now(|| self.start_reduce(tensor, root, op))
    }

    /// As [`ProcessGroup::reduce`].
    pub fn reduce_async(&self, tensor: Tensor, root: Rank, op: ReduceOp) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_reduce(&tensor, root, op)?, tensor))
    }

    /// Collects every rank's `input`, all of the same shape, into `outputs` on all ranks, one tensor per rank.
    pub fn all_gather(&self, outputs: &mut [Tensor], input: &Tensor) -> Result<()> {
        self.now(|| self.start_all_gather(outputs, input))
    }

    /// As [`ProcessGroup::all_gather`]; returns the outputs.
    pub fn all_gather_async(&self, outputs: Vec<Tensor>, input: Tensor) -> Result<Work<Vec<Tensor>>> {
        Ok(Work::new(self.start_all_gather(&outputs, &input)?, outputs))
    }

    /// As [`ProcessGroup::all_gather`], into a single tensor: with `world × n` rows for inputs of `n` rows, or with an
    /// additional first dimension of size `world`.
    pub fn all_gather_into_tensor(&self, output: &mut Tensor, input: &Tensor) -> Result<()> {
        self.now(|| self.start_all_gather_into_tensor(output, input))
    }

    /// As [`ProcessGroup::all_gather_into_tensor`].
    pub fn all_gather_into_tensor_async(&self, output: Tensor, input: Tensor) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_all_gather_into_tensor(&output, &input)?, output))
    }

    /// Collects every rank's `input` on the root, which passes one output tensor per rank; the other ranks pass no
    /// outputs.
    pub fn gather(&self, outputs: &mut [Tensor], input: &Tensor, root: Rank) -> Result<()> {
        self.now(|| self.start_gather(outputs, input, root))
    }

    /// As [`ProcessGroup::gather`].
    pub fn gather_async(&self, outputs: Vec<Tensor>, input: Tensor, root: Rank) -> Result<Work<Vec<Tensor>>> {
        Ok(Work::new(self.start_gather(&outputs, &input, root)?, outputs))
    }

    /// Sends each of the root's `inputs`, one tensor per rank, to its rank's `output`; the other ranks pass no inputs.
    pub fn scatter(&self, output: &mut Tensor, inputs: &[Tensor], root: Rank) -> Result<()> {
        self.now(|| self.start_scatter(output, inputs, root))
    }

    /// As [`ProcessGroup::scatter`].
    pub fn scatter_async(&self, output: Tensor, inputs: Vec<Tensor>, root: Rank) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_scatter(&output, &inputs, root)?, output))
    }

    /// Reduces `inputs`, one tensor per rank, over all ranks; rank `r` gets the result for `inputs[r]`.
    pub fn reduce_scatter(&self, output: &mut Tensor, inputs: &[Tensor], op: ReduceOp) -> Result<()> {
        self.now(|| self.start_reduce_scatter(output, inputs, op))
    }

    /// As [`ProcessGroup::reduce_scatter`].
    pub fn reduce_scatter_async(&self, output: Tensor, inputs: Vec<Tensor>, op: ReduceOp) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_reduce_scatter(&output, &inputs, op)?, output))
    }

    /// As [`ProcessGroup::reduce_scatter`], with a single tensor whose first dimension is split into `world` equal
    /// parts.
    pub fn reduce_scatter_tensor(&self, output: &mut Tensor, input: &Tensor, op: ReduceOp) -> Result<()> {
        self.now(|| self.start_reduce_scatter_tensor(output, input, op))
    }

    /// As [`ProcessGroup::reduce_scatter_tensor`].
    pub fn reduce_scatter_tensor_async(&self, output: Tensor, input: Tensor, op: ReduceOp) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_reduce_scatter_tensor(&output, &input, op)?, output))
    }

    /// Sends part `r` of `input` to rank `r` and receives the part that rank `r` has for this rank, for every `r`. Dimension
    /// 0 is split into equal parts, or as `splits` says.
    pub fn all_to_all_single(&self, output: &mut Tensor, input: &Tensor, splits: &Splits) -> Result<()> {
        self.now(|| self.start_all_to_all(output, input, splits))
    }

    /// As [`ProcessGroup::all_to_all_single`].
    pub fn all_to_all_single_async(&self, output: Tensor, input: Tensor, splits: &Splits) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_all_to_all(&output, &input, splits)?, output))
    }

    /// Waits until all ranks have called it.
    pub fn barrier(&self) -> Result<()> {
        self.now(|| self.start_barrier())
    }

    /// As [`ProcessGroup::barrier`].
    pub fn barrier_async(&self) -> Result<Work<()>> {
        Ok(Work::new(self.start_barrier()?, ()))
    }

    /// A barrier with a timeout, whose error names missing ranks: on rank 0 all of them with `wait_all_ranks`, otherwise the
    /// first; on the other ranks it says that rank 0 gave up. It goes to the backend for host memory, so it is not available
    /// with NCCL alone.
    pub fn monitored_barrier(&self, timeout: Duration, wait_all_ranks: bool) -> Result<()> {
        let Some(backend) = self.backends().of(Device::Cpu) else {
            let detail = format!(
                "{} does not support it: use barrier, or make the group with cpu:gloo,cuda:nccl",
                self.backends()
            );
            return Err(Error::bad_argument("monitored_barrier", detail).at_rank(self.rank()));
        };
        let call = Call::inside(self.inner(), "monitored_barrier".into()).on(backend);
        let _waiting = stragglers::waiting();
        // SAFETY: the group is alive as long as self.
        let status = unsafe { ffi::lc_monitored_barrier(self.as_ptr(), millis(timeout), wait_all_ranks) };
        call.end(status.check())
    }

    /// Starts an operation and waits for it. With shared memory, it then runs on this thread.
    fn now(&self, start: impl FnOnce() -> Result<Pending>) -> Result<()> {
        struct Hint;
        impl Drop for Hint {
            fn drop(&mut self) {
                recording::caller_waits(false);
            }
        }
        recording::caller_waits(true);
        let hint = Hint;
        let started = {
            let runs_here = |one| matches!(one, Backend::SharedMemory | Backend::TwoLevels);
            let _waiting = self.backends().all().any(runs_here).then(stragglers::waiting);
            start()
        };
        drop(hint);
        started?.wait(None)
    }

    fn start_broadcast(&self, tensor: &Tensor, root: Rank) -> Result<Pending> {
        const CALL: &str = "broadcast";
        self.check_member(CALL, root)?;
        let mut guard = Guard::new(CALL, self, Purpose::Collective);
        if self.rank() == root { guard.reads("the tensor", tensor) } else { guard.writes("the tensor", tensor) }?;
        let call = format!("{CALL} from rank {root} of {}", describe(tensor));
        let tensor = tensor.as_ptr();
        self.start(guard, call, |group, out| {
            // SAFETY: `start`'s contract, and the tensor is borrowed by the caller.
            unsafe { ffi::lc_broadcast(group, tensor, root.get() as i64, self.timeout_ms(), out) }
        })
    }

    fn start_all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Pending> {
        const CALL: &str = "all_reduce";
        self.check_op(CALL, op, tensor)?;
        let mut guard = Guard::new(CALL, self, Purpose::Reduction);
        guard.writes("the tensor", tensor)?;
        let call = format!("{CALL}({op:?}) of {}", describe(tensor));
        let tensor = tensor.as_ptr();
        self.start(guard, call, |group, out| {
            // SAFETY: `start`'s contract, and the tensor is borrowed by the caller.
            unsafe { ffi::lc_all_reduce(group, tensor, op as u8, self.timeout_ms(), out) }
        })
    }

    fn start_reduce(&self, tensor: &Tensor, root: Rank, op: ReduceOp) -> Result<Pending> {
        const CALL: &str = "reduce";
        self.check_member(CALL, root)?;
        self.check_op(CALL, op, tensor)?;
        let mut guard = Guard::new(CALL, self, Purpose::Reduction);
        guard.writes("the tensor", tensor)?;
        let call = format!("{CALL}({op:?}) to rank {root} of {}", describe(tensor));
        let tensor = tensor.as_ptr();
        self.start(guard, call, |group, out| {
            // SAFETY: `start`'s contract, and the tensor is borrowed by the caller.
            unsafe { ffi::lc_reduce(group, tensor, root.get() as i64, op as u8, self.timeout_ms(), out) }
        })
    }

    fn start_all_gather(&self, outputs: &[Tensor], input: &Tensor) -> Result<Pending> {
        const CALL: &str = "all_gather";
        self.check_count(CALL, "outputs", outputs.len(), self.size().get())?;
        let mut guard = Guard::new(CALL, self, Purpose::Collective);
        guard.reads("the input", input)?;
        guard.list("output", outputs, Access::Write, input)?;
        let call = format!("{CALL} of {}", describe(input));
        let (outputs, input) = (pointers(outputs), input.as_ptr());
        self.start(guard, call, |group, out| {
            // SAFETY: `start`'s contract, and the tensors are borrowed by the caller.
            unsafe { ffi::lc_all_gather(group, outputs.as_ptr(), outputs.len(), input, self.timeout_ms(), out) }
        })
    }

    fn start_all_gather_into_tensor(&self, output: &Tensor, input: &Tensor) -> Result<Pending> {
        const CALL: &str = "all_gather_into_tensor";
        let mut guard = Guard::new(CALL, self, Purpose::Collective);
        guard.reads("the input", input)?;
        guard.writes("the output", output)?;
        tensors::check_parts(&guard, self.size(), ("output", output), ("input", input))?;
        let call = format!("{CALL} of {}", describe(input));
        let (output, input) = (output.as_ptr(), input.as_ptr());
        self.start(guard, call, |group, out| {
            // SAFETY: `start`'s contract, and the tensors are borrowed by the caller.
            unsafe { ffi::lc_all_gather_into_tensor(group, output, input, self.timeout_ms(), out) }
        })
    }

    fn start_gather(&self, outputs: &[Tensor], input: &Tensor, root: Rank) -> Result<Pending> {
        const CALL: &str = "gather";
        self.check_member(CALL, root)?;
        self.check_count(CALL, "outputs", outputs.len(), self.only_at(root))?;
        let mut guard = Guard::new(CALL, self, Purpose::Collective);
        guard.reads("the input", input)?;
        guard.list("output", outputs, Access::Write, input)?;
        let call = format!("{CALL} to rank {root} of {}", describe(input));
        let (outputs, input) = (pointers(outputs), input.as_ptr());
        self.start(guard, call, |group, out| {
            let (list, n) = (outputs.as_ptr(), outputs.len());
            // SAFETY: `start`'s contract, and the tensors are borrowed by the caller.
            unsafe { ffi::lc_gather(group, list, n, input, root.get() as i64, self.timeout_ms(), out) }
        })
    }

    fn start_scatter(&self, output: &Tensor, inputs: &[Tensor], root: Rank) -> Result<Pending> {
        const CALL: &str = "scatter";
        self.check_member(CALL, root)?;
        self.check_count(CALL, "inputs", inputs.len(), self.only_at(root))?;
        let mut guard = Guard::new(CALL, self, Purpose::Collective);
        guard.writes("the output", output)?;
        guard.list("input", inputs, Access::Read, output)?;
        let call = format!("{CALL} from rank {root} of {}", describe(output));
        let (output, inputs) = (output.as_ptr(), pointers(inputs));
        self.start(guard, call, |group, out| {
            let (list, n) = (inputs.as_ptr(), inputs.len());
            // SAFETY: `start`'s contract, and the tensors are borrowed by the caller.
            unsafe { ffi::lc_scatter(group, output, list, n, root.get() as i64, self.timeout_ms(), out) }
        })
    }

    fn start_reduce_scatter(&self, output: &Tensor, inputs: &[Tensor], op: ReduceOp) -> Result<Pending> {
        const CALL: &str = "reduce_scatter";
        self.check_count(CALL, "inputs", inputs.len(), self.size().get())?;
        self.check_op(CALL, op, output)?;
        let mut guard = Guard::new(CALL, self, Purpose::Reduction);
        guard.writes("the output", output)?;
        guard.list("input", inputs, Access::Read, output)?;
        let call = format!("{CALL}({op:?}) of {}", describe(output));
        let (output, inputs) = (output.as_ptr(), pointers(inputs));
        self.start(guard, call, |group, out| {
            let (list, n) = (inputs.as_ptr(), inputs.len());
            // SAFETY: `start`'s contract, and the tensors are borrowed by the caller.
            unsafe { ffi::lc_reduce_scatter(group, output, list, n, op as u8, self.timeout_ms(), out) }
        })
    }

    fn start_reduce_scatter_tensor(&self, output: &Tensor, input: &Tensor, op: ReduceOp) -> Result<Pending> {
        const CALL: &str = "reduce_scatter_tensor";
        self.check_op(CALL, op, output)?;
        let mut guard = Guard::new(CALL, self, Purpose::Reduction);
        guard.reads("the input", input)?;
        guard.writes("the output", output)?;
        tensors::check_parts(&guard, self.size(), ("input", input), ("output", output))?;
        let call = format!("{CALL}({op:?}) of {}", describe(input));
        let (output, input) = (output.as_ptr(), input.as_ptr());
        self.start(guard, call, |group, out| {
            // SAFETY: `start`'s contract, and the tensors are borrowed by the caller.
            unsafe { ffi::lc_reduce_scatter_tensor(group, output, input, op as u8, self.timeout_ms(), out) }
        })
    }

    fn start_all_to_all(&self, output: &Tensor, input: &Tensor, splits: &Splits) -> Result<Pending> {
        const CALL: &str = "all_to_all_single";
        let (outputs, inputs) = splits.lists();
        let mut guard = Guard::new(CALL, self, Purpose::Collective);
        guard.reads("the input", input)?;
        guard.writes("the output", output)?;
        tensors::check_splits(&guard, self.size(), output, input, splits)?;
        // Sizes may differ between ranks here, so ranks compare only the dtype.
        let call = format!("{CALL} of {:?}", input.kind());
        let (output, input) = (output.as_ptr(), input.as_ptr());
        self.start(guard, call, |group, out| {
            // SAFETY: `start`'s contract; tensors are borrowed by the caller, and the lists outlive the call.
            unsafe {
                ffi::lc_all_to_all_single(
                    group,
                    output,
                    input,
                    outputs.as_ptr(),
                    outputs.len(),
                    inputs.as_ptr(),
                    inputs.len(),
                    self.timeout_ms(),
                    out,
                )
            }
        })
    }

    fn start_barrier(&self) -> Result<Pending> {
        let guard = Guard::new("barrier", self, Purpose::Collective);
        // SAFETY: `start`'s contract.
        self.start(guard, "barrier".into(), |group, out| unsafe { ffi::lc_barrier(group, self.timeout_ms(), out) })
    }

    /// Starts an operation. `launch` gets a group that is alive during the call, and a pointer that it may write;
    /// libtorch takes its own references to the tensors before it returns.
    fn start(
        &self,
        guard: Guard<'_>,
        operation: String,
        launch: impl FnOnce(*mut GroupHandle, *mut *mut WorkHandle) -> Status,
    ) -> Result<Pending> {
        let backend = guard.backend();
        let (memory, passed) = guard.claim(&operation)?;
        let call = Call::collective(self.inner(), operation, passed).on(backend);
        Pending::start(call, memory, |out| launch(self.as_ptr(), out))
    }

    pub(crate) fn check_member(&self, operation: &str, rank: Rank) -> Result<()> {
        if self.size().contains(rank) {
            return Ok(());
        }
        let detail = format!("rank {rank} is outside a group of {}", self.size());
        Err(Error::bad_argument(operation, detail).at_rank(self.rank()))
    }

    fn check_op(&self, operation: &str, op: ReduceOp, tensor: &Tensor) -> Result<()> {
        let integers = [Kind::Uint8, Kind::Int8, Kind::Int, Kind::Int64];
        let detail = if !op.is_bitwise() {
            return Ok(());
        } else if tensor.defined() && self.backends().of(tensor.device()).is_some_and(Backend::is_nccl) {
            format!("{op:?} is not supported by NCCL: use a tensor in host memory and Gloo for it")
        } else if !tensor.defined() || integers.contains(&tensor.kind()) {
            return Ok(()); // the guard refuses a tensor that is not defined
        } else {
            format!("{op:?} is for integers, not for {:?}", tensor.kind())
        };
        Err(Error::bad_argument(operation, detail).at_rank(self.rank()))
    }

    fn check_count(&self, operation: &str, what: &str, given: usize, wanted: usize) -> Result<()> {
        if given == wanted {
            return Ok(());
        }
        let detail = format!("{given} {what} were given where rank {} of {} needs {wanted}", self.rank(), self.size());
        Err(Error::bad_argument(operation, detail).at_rank(self.rank()))
    }

    fn only_at(&self, root: Rank) -> usize {
        if self.rank() == root { self.size().get() } else { 0 }
    }
}

/// How [`ProcessGroup::all_to_all_single`] splits dimension 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Splits {
    /// Into one part per rank, all equal.
    Equal,
    /// Into parts of these sizes, one per rank: what this rank sends to each rank and receives from each rank.
    Sizes {
        /// Rows of the input for each rank.
        input: Vec<i64>,
        /// Rows of the output from each rank.
        output: Vec<i64>,
    },
}

impl Splits {
    /// What arrives from each rank, and what goes to each.
    pub(crate) fn lists(&self) -> (&[i64], &[i64]) {
        match self {
            Splits::Equal => (&[], &[]),
            Splits::Sizes { input, output } => (output, input),
        }
    }
}

/// Checks that both pointer types are the same.
const _: fn(&Tensor) -> TensorPtr = Tensor::as_ptr;

impl ProcessGroup {
    /// Reduces each of `tensors`, which have one dtype, over all ranks, in place; PyTorch's `all_reduce_coalesced`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `BadArgument` for different dtypes.
    pub fn all_reduce_coalesced(&self, tensors: &mut [Tensor], op: ReduceOp) -> Result<()> {
        let Some(mut packed) = self.pack("all_reduce_coalesced", tensors)? else { return Ok(()) };
        self.all_reduce(&mut packed, op)?;
        self.unpack("all_reduce_coalesced", &packed, tensors)
    }

    /// As [`all_gather_into_tensor`](Self::all_gather_into_tensor), for several tensors of one dtype: `outputs[i]` gets every rank's
    /// `inputs[i]`, in a first dimension of size `world`.
    ///
    /// # Errors
    /// The errors of [`all_gather_into_tensor`](Self::all_gather_into_tensor); `BadArgument` for different dtypes, and for an output of another size.
    pub fn all_gather_into_tensor_coalesced(&self, outputs: &mut [Tensor], inputs: &[Tensor]) -> Result<()> {
        const CALL: &str = "all_gather_into_tensor_coalesced";
        self.check_lists(CALL, outputs, inputs)?;
        let ranks = self.size().get();
        if let Some((output, input)) =
            outputs.iter().zip(inputs).find(|(output, input)| output.numel() != ranks * input.numel())
        {
            let detail = format!("an output has {} elements for {ranks} times {}", output.numel(), input.numel());
            return self.refuse(CALL, detail);
        }
        let Some(packed) = self.pack(CALL, inputs)? else { return Ok(()) };
        let world = ranks as i64;
        let mut all = Tensor::empty([world * packed.numel() as i64], (packed.kind(), packed.device()));
        self.all_gather_into_tensor(&mut all, &packed)?;
        let all = all.view([world, packed.numel() as i64]);
        let mut at = 0;
        for (output, input) in outputs.iter_mut().zip(inputs) {
            let count = input.numel() as i64;
            let part = all.narrow(1, at, count);
            at += count;
            self.fill(CALL, output, &part)?;
        }
        Ok(())
    }

    /// As [`reduce_scatter_tensor`](Self::reduce_scatter_tensor), for several tensors of one dtype: `outputs[i]` gets this rank's part of
    /// the sum of all `inputs[i]`, whose elements are split into `world` equal parts.
    ///
    /// # Errors
    /// The errors of [`reduce_scatter_tensor`](Self::reduce_scatter_tensor); `BadArgument` for different dtypes, and for sizes that do not fit.
    pub fn reduce_scatter_tensor_coalesced(
        &self,
        outputs: &mut [Tensor],
        inputs: &[Tensor],
        op: ReduceOp,
    ) -> Result<()> {
        const CALL: &str = "reduce_scatter_tensor_coalesced";
        self.check_lists(CALL, outputs, inputs)?;
        let world = self.size().get();
        if let Some(input) = inputs.iter().find(|input| !input.numel().is_multiple_of(world)) {
            return self.refuse(CALL, format!("{} elements cannot be split into {world} equal parts", input.numel()));
        }
        if let Some((output, input)) =
            outputs.iter().zip(inputs).find(|(output, input)| output.numel() * world != input.numel())
        {
            let detail = format!("an output has {} elements for a part of {}", output.numel(), input.numel() / world);
            return self.refuse(CALL, detail);
        }
        self.check_kinds(CALL, inputs)?;
        let Some(first) = inputs.first() else { return Ok(()) };
        let rows = |input: &Tensor| input.detach().f_reshape([world as i64, (input.numel() / world) as i64]);
        let packed = no_grad(|| {
            let rows = inputs.iter().map(rows).collect::<Result<Vec<_>, _>>()?;
            Tensor::f_cat(&rows, 1)?.f_contiguous()
        });
        let packed = packed.or_else(|error: tch::TchError| self.refuse(CALL, error.to_string()))?;
        let mut sum = Tensor::empty([packed.size()[1]], (first.kind(), first.device()));
        self.reduce_scatter_tensor(&mut sum, &packed.flatten(0, -1), op)?;
        self.unpack(CALL, &sum, outputs)
    }

    /// Sends `inputs[r]` to rank `r` and receives its tensor for this rank into `outputs[r]`, for every `r`. Tensors may have
    /// different sizes; PyTorch's `all_to_all`.
    ///
    /// # Errors
    /// As [`all_to_all_single`](Self::all_to_all_single); `BadArgument` for lists that do not have a tensor for each rank, or different
    /// dtypes.
    pub fn all_to_all(&self, outputs: &mut [Tensor], inputs: &[Tensor]) -> Result<()> {
        const CALL: &str = "all_to_all";
        self.check_lists(CALL, outputs, inputs)?;
        if inputs.len() != self.size().get() {
            return self.refuse(CALL, format!("{} inputs were given to a group of {}", inputs.len(), self.size()));
        }
        let Some(packed) = self.pack(CALL, inputs)? else { return Ok(()) };
        let counts = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.numel() as i64).collect::<Vec<_>>();
        let splits = Splits::Sizes { input: counts(inputs), output: counts(outputs) };
        let total = counts(outputs).iter().sum::<i64>();
        let mut received = Tensor::empty([total], (packed.kind(), packed.device()));
        self.all_to_all_single(&mut received, &packed, &splits)?;
        self.unpack(CALL, &received, outputs)
    }

    /// The values of all tensors in a single tensor; `None` if the list is empty.
    fn pack(&self, call: &str, tensors: &[Tensor]) -> Result<Option<Tensor>> {
        self.check_kinds(call, tensors)?;
        if tensors.is_empty() {
            return Ok(None);
        }
        let flat: Vec<Tensor> = tensors.iter().map(|tensor| tensor.detach().reshape([-1])).collect();
        no_grad(|| Tensor::f_cat(&flat, 0)).map(Some).or_else(|error| self.refuse(call, error.to_string()))
    }

    /// Fills `tensors`, in order, with the values of `packed`.
    fn unpack(&self, call: &str, packed: &Tensor, tensors: &mut [Tensor]) -> Result<()> {
        let mut at = 0;
        for tensor in tensors {
            let count = tensor.numel() as i64;
            if at + count > packed.numel() as i64 {
                return self.refuse(call, "the outputs have more elements than arrive".to_owned());
            }
            self.fill(call, tensor, &packed.narrow(0, at, count))?;
            at += count;
        }
        Ok(())
    }

    fn fill(&self, call: &str, tensor: &mut Tensor, values: &Tensor) -> Result<()> {
        if tensor.numel() != values.numel() {
            return self
                .refuse(call, format!("an output has {} elements, and {} arrive", tensor.numel(), values.numel()));
        }
        let copied = no_grad(|| tensor.f_copy_(&values.reshape(tensor.size())));
        copied.or_else(|error| self.refuse(call, error.to_string()))
    }

    fn check_lists(&self, call: &str, outputs: &[Tensor], inputs: &[Tensor]) -> Result<()> {
        if outputs.len() != inputs.len() {
            return self.refuse(call, format!("{} outputs were given for {} inputs", outputs.len(), inputs.len()));
        }
        self.check_kinds(call, outputs)?;
        match (outputs.first(), inputs.first()) {
            (Some(output), Some(input)) if output.kind() != input.kind() => {
                self.refuse(call, format!("the outputs are {:?} and the inputs {:?}", output.kind(), input.kind()))
            }
            _ => Ok(()),
        }
    }

    fn check_kinds(&self, call: &str, tensors: &[Tensor]) -> Result<()> {
        if let Some(position) = tensors.iter().position(|tensor| !tensor.defined()) {
            return self.refuse(call, format!("tensor {position} is undefined"));
        }
        let kinds: Vec<Kind> = tensors.iter().map(Tensor::kind).collect();
        match kinds.iter().find(|kind| **kind != kinds[0]) {
            Some(other) => self.refuse(call, format!("tensors of {:?} and {other:?} cannot be sent as one", kinds[0])),
            None => Ok(()),
        }
    }

    fn refuse<T>(&self, call: &str, detail: String) -> Result<T> {
        Err(Error::bad_argument(call, detail).at_rank(self.rank()))
    }
}

// The sum of sparse tensors (COO): each rank gathers the indices and values of all ranks, and adds them up in rank order.

impl ProcessGroup {
    /// The sum of all ranks' sparse tensors, in place; in Python this is `all_reduce`. The result is coalesced: each index occurs
    /// once, in order. Ranks may have different numbers of values.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `BadArgument` for a tensor that is not sparse, and on NCCL; `Mismatch` for tensors of
    /// different sizes.
    pub fn all_reduce_sparse(&self, tensor: &mut Tensor) -> Result<()> {
        const CALL: &str = "all_reduce_sparse";
        let refuse = |detail: String| Err(Error::bad_argument(CALL, detail).at_rank(self.rank()));
        if !tensor.defined() || !tensor.is_sparse() {
            return refuse("the tensor is not sparse: use all_reduce".to_owned());
        }
        let Some(backend) = self.backends().of(Device::Cpu).filter(|_| tensor.device() == Device::Cpu) else {
            return refuse("sparse tensors are summed on the CPU only, by Gloo or in shared memory".to_owned());
        };
        if !matches!(tensor.kind(), Kind::Float | Kind::Double | Kind::Int | Kind::Int64) {
            return refuse(format!(
                "sparse tensors of {:?} are not summed: convert it with `.to_kind()`",
                tensor.kind()
            ));
        }
        let call = Call::inside(self.inner(), format!("{CALL} of {}", describe(tensor))).on(backend);
        let _waiting = stragglers::waiting();
        // SAFETY: the group is alive as long as self, and the tensor is borrowed for the call, which waits for its end.
        call.end(unsafe { ffi::lc_all_reduce_sparse(self.as_ptr(), tensor.as_ptr(), self.timeout_ms()) }.check())
    }
}
