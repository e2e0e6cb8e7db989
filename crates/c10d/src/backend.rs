//! Backends: what carries a group's messages, and how a rank's place in a group becomes a group.
//!
//! Leaves out which ranks are in a group and what it is called: `group.rs`.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use tch::Device;

use crate::error::{Error, Result};
use crate::ffi::{self, BackendHandle, Bytes, GroupHandle};
use crate::options::{Endpoint, GroupOptions};
use crate::store::millis;
use crate::{Rank, Store, nccl};

/// What carries a group's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Sockets, for tensors in host memory. Tensors on a GPU are copied through it.
    Gloo,
    /// NVIDIA's library, for tensors on one GPU, which no other rank of the group may use. Needs the cargo feature `nccl`.
    Nccl {
        /// The GPU's number, as in [`Device::Cuda`].
        device: usize,
    },
}

impl Backend {
    /// Python's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Gloo => "gloo",
            Backend::Nccl { .. } => "nccl",
        }
    }

    /// Where the tensors of its operations lie.
    pub fn device(self) -> Device {
        match self {
            Backend::Gloo => Device::Cpu,
            Backend::Nccl { device } => Device::Cuda(device),
        }
    }

    /// The deadline of an operation that Python gives it: 30 minutes for Gloo (Backend.hpp, `kBackendDefaultTimeout`),
    /// 10 for NCCL (ProcessGroupNCCL.hpp, `kProcessGroupNCCLDefaultTimeout`).
    pub fn default_timeout(self) -> Duration {
        match self {
            Backend::Gloo => Duration::from_secs(30 * 60),
            Backend::Nccl { .. } => Duration::from_secs(10 * 60),
        }
    }

    /// Loads what it needs and looks whether its device is there, before any other rank is waited for.
    pub(crate) fn prepare(self) -> Result<()> {
        match self {
            Backend::Gloo => Ok(()),
            Backend::Nccl { device } => nccl::prepare(device),
        }
    }

    /// Whether making a group connects its ranks, so that absent ones are noticed then. NCCL connects in the first operation,
    /// and there waits without a deadline.
    pub(crate) fn connects_at_once(self) -> bool {
        match self {
            Backend::Gloo => true,
            Backend::Nccl { .. } => false,
        }
    }

    pub(crate) fn is_nccl(self) -> bool {
        matches!(self, Backend::Nccl { .. })
    }

    /// Makes the rank's end of a group. With `detail` the ranks compare what they call as PyTorch's debug mode does; with `compares`
    /// they do it as the shim's own guard does, if all ranks want it.
    pub(crate) fn connect(self, seat: &Seat<'_>, detail: bool, compares: bool) -> Result<NonNull<GroupHandle>> {
        let begun = Instant::now();
        let store = seat.store.prefix(self.store_prefix())?;
        let members: Vec<u64> = seat.members.iter().map(|rank| rank.get() as u64).collect();
        let raw = seat.raw(&store, &members)?;
        let fail = |exception| Error::new(seat.operation(), exception).after(begun.elapsed());
        let (interface, host) = seat.options.endpoint.bytes();
        // Under TORCH_GLOO_LAZY_INIT connecting waits for nobody, so that a rank could not know what the others want.
        let compares = compares && !std::env::var("TORCH_GLOO_LAZY_INIT").is_ok_and(|value| value != "0");
        if compares {
            store.set(&compares_key(seat.rank), "1")?;
        }
        let backend = match self {
            // SAFETY: the seat and what it points to outlive the call; the shim copies what it keeps.
            Backend::Gloo => ffi::made(|out| unsafe { ffi::lc_backend_gloo(&raw, interface, host, out) }),
            Backend::Nccl { device } => nccl::make(&raw, device),
        };
        let backend = Handle(backend.map_err(fail)?);
        if !self.is_nccl() {
            let compares = compares && all_compare(&store, seat.members.len())?;
            // SAFETY: the handle is alive.
            unsafe { ffi::lc_backend_guard(backend.0.as_ptr(), compares) }.check().map_err(fail)?;
        }
        if detail {
            // SAFETY: as above, and the handle is alive.
            let status = unsafe { ffi::lc_backend_compare_calls(backend.0.as_ptr(), &raw, interface, host) };
            status.check().map_err(fail)?;
        }
        let (group_store, backend) = (seat.store.as_ptr(), backend.0.as_ptr());
        // SAFETY: as above; the group takes its own references to store and backend.
        ffi::made(|out| unsafe { ffi::lc_group_new(group_store, &raw, backend, out) }).map_err(fail)
    }

    /// Python puts each backend's keys below the type of its devices.
    pub(crate) fn store_prefix(self) -> &'static str {
        match self {
            Backend::Gloo => "cpu/",
            Backend::Nccl { .. } => "cuda/",
        }
    }
}

/// One rank's place in a group that is being made.
pub(crate) struct Seat<'a> {
    /// The group's store.
    pub(crate) store: &'a Store,
    pub(crate) name: &'a str,
    /// The members' ranks in the whole job, in group order.
    pub(crate) members: &'a [Rank],
    /// The position among them.
    pub(crate) rank: Rank,
    pub(crate) options: &'a GroupOptions,
}

impl Seat<'_> {
    /// For messages.
    pub(crate) fn operation(&self) -> String {
        format!("connect process group {} of {} ranks", self.name, self.members.len())
    }

    fn raw(&self, store: &Store, members: &[u64]) -> Result<ffi::Seat> {
        Ok(ffi::Seat {
            store: store.as_ptr(),
            group_name: Bytes::new(self.name.as_bytes()),
            rank: self.to_i32(self.rank.get())?,
            size: self.to_i32(members.len())?,
            global_ranks: members.as_ptr(),
            timeout_ms: millis(self.options.timeout),
        })
    }

    fn to_i32(&self, n: usize) -> Result<i32> {
        i32::try_from(n).map_err(|_| Error::bad_argument(self.operation(), format!("{n} is more than c10d counts to")))
    }
}

/// Where a rank says that it wants to compare calls.
fn compares_key(rank: Rank) -> String {
    format!("lockstep/compares/{rank}")
}

/// Whether all ranks want to compare calls. To be asked when the ranks are connected: then each has said what it wants.
fn all_compare(store: &Store, size: usize) -> Result<bool> {
    let keys: Vec<String> = (0..size).map(|rank| compares_key(Rank::new(rank))).collect();
    store.check(&keys)
}

impl Endpoint {
    /// Interface and host for the shim, empty where they are not given.
    fn bytes(&self) -> (Bytes, Bytes) {
        let (interface, host) = match self {
            Endpoint::Default => ("", ""),
            Endpoint::Interface(name) => (name.as_str(), ""),
            Endpoint::Host(name) => ("", name.as_str()),
        };
        (Bytes::new(interface.as_bytes()), Bytes::new(host.as_bytes()))
    }
}

/// A backend that no group has yet.
struct Handle(NonNull<BackendHandle>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once; a group has references of its own.
        unsafe { ffi::lc_backend_free(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_prefixes_and_deadlines_are_pythons() {
        // torch/distributed/distributed_c10d.py: `BackendConfig`, `_new_process_group_helper`, `_get_default_timeout`.
        let (gloo, nccl) = (Backend::Gloo, Backend::Nccl { device: 3 });
        assert_eq!([gloo.name(), nccl.name()], ["gloo", "nccl"]);
        assert_eq!([gloo.store_prefix(), nccl.store_prefix()], ["cpu/", "cuda/"]);
        assert_eq!([gloo.default_timeout(), nccl.default_timeout()].map(|t| t.as_secs()), [1800, 600]);
        assert_eq!([gloo.device(), nccl.device()], [Device::Cpu, Device::Cuda(3)]);
    }
}
