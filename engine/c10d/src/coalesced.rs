//! Collectives of tensors that are not one block of memory: of several tensors, and of a sparse one.
//!
//! Collectives of several tensors pack them into one and make one call of `collectives.rs`, with the latency of one call.

use tch::{Device, Kind, Tensor, no_grad};

use crate::collectives::{ReduceOp, Splits};
use crate::error::{Error, Result};
use crate::tensors::describe;
use crate::work::Call;
use crate::{ProcessGroup, ffi, stragglers};

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
    /// As there; `BadArgument` for different dtypes, and for an output of another size.
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
    /// As there; `BadArgument` for different dtypes, and for sizes that do not fit.
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
        let call = Call::collective(self.inner(), format!("{CALL} of {}", describe(tensor))).on(backend);
        let _waiting = stragglers::waiting();
        // SAFETY: the group is alive as long as self, and the tensor is borrowed for the call, which waits for its end.
        call.end(unsafe { ffi::lc_all_reduce_sparse(self.as_ptr(), tensor.as_ptr(), self.timeout_ms()) }.check())
    }
}
