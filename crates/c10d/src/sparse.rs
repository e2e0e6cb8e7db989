//! The sum of sparse tensors (COO): the ranks gather the indices and values of all, and each adds them up in rank order.

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::tensors::describe;
use crate::work::Call;
use crate::{ProcessGroup, ffi, pace};

impl ProcessGroup {
    /// The sum of all ranks' sparse tensors, in place; in Python this is `all_reduce`. The result is coalesced: each index once, in
    /// order. Ranks may have different numbers of values.
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
        let _waiting = pace::waiting();
        // SAFETY: the group is alive as long as self, and the tensor is borrowed for the call, which waits for its end.
        call.end(unsafe { ffi::lc_all_reduce_sparse(self.as_ptr(), tensor.as_ptr(), self.timeout_ms()) }.check())
    }
}
