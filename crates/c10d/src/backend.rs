//! Backends: the libraries that carry a group's messages, and the connection of a group's members.
//!
//! Not here: the members and names of groups (`group.rs`).

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use tch::Device;

use crate::error::{Error, Result};
use crate::ffi::{self, BackendHandle, Bytes, GroupHandle};
use crate::options::{Endpoint, GroupOptions};
use crate::store::millis;
use crate::{Rank, Store, nccl};

/// The library that carries a group's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Sockets, for tensors in host memory. Tensors on a GPU are copied to the host and back.
    Gloo,
    /// NVIDIA's library, for tensors on one GPU, which no other rank of the group may use. Requires the cargo feature
    /// `nccl`.
    Nccl {
        /// The GPU's number, as in [`Device::Cuda`].
        device: usize,
    },
}

impl Backend {
    /// The name that Python uses.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Gloo => "gloo",
            Backend::Nccl { .. } => "nccl",
        }
    }

    /// The device of the tensors in its operations.
    pub fn device(self) -> Device {
        match self {
            Backend::Gloo => Device::Cpu,
            Backend::Nccl { device } => Device::Cuda(device),
        }
    }

    /// The default timeout of an operation in Python: 30 minutes for Gloo (Backend.hpp, `kBackendDefaultTimeout`), 10
    /// for NCCL (ProcessGroupNCCL.hpp, `kProcessGroupNCCLDefaultTimeout`).
    pub fn default_timeout(self) -> Duration {
        match self {
            Backend::Gloo => Duration::from_secs(30 * 60),
            Backend::Nccl { .. } => Duration::from_secs(10 * 60),
        }
    }

    /// Loads the libraries and checks that the device exists, before this rank waits for others.
    pub(crate) fn prepare(self) -> Result<()> {
        match self {
            Backend::Gloo => Ok(()),
            Backend::Nccl { device } => nccl::prepare(device),
        }
    }

    /// Returns true if creating a group connects its ranks, so that absent ranks are noticed then. NCCL connects in the
    /// first operation, and there waits without a deadline.
    pub(crate) fn connects_at_once(self) -> bool {
        match self {
            Backend::Gloo => true,
            Backend::Nccl { .. } => false,
        }
    }

    pub(crate) fn is_nccl(self) -> bool {
        matches!(self, Backend::Nccl { .. })
    }

    /// Connects this rank to the group. With `detail` the ranks compare their calls as PyTorch's debug mode does; with
    /// `compares` they compare them in the shim, if all ranks want that.
    pub(crate) fn connect(
        self,
        member: &MemberConfig<'_>,
        detail: bool,
        compares: bool,
    ) -> Result<NonNull<GroupHandle>> {
        let begun = Instant::now();
        let store = member.store.prefix(self.store_prefix())?;
        let members: Vec<u64> = member.members.iter().map(|rank| rank.get() as u64).collect();
        let raw = member.raw(&store, &members)?;
        let fail = |exception| Error::new(member.operation(), exception).after(begun.elapsed());
        let (interface, host) = member.options.endpoint.bytes();
        // With TORCH_GLOO_LAZY_INIT, connecting does not wait for other ranks, so a rank would not know their wishes.
        let compares = compares && !std::env::var("TORCH_GLOO_LAZY_INIT").is_ok_and(|value| value != "0");
        if compares {
            store.set(&compares_key(member.rank), "1")?;
        }
        let backend = match self {
            // SAFETY: the member's configuration and everything it points to outlive the call; the shim copies what it keeps.
            Backend::Gloo => ffi::made(|out| unsafe { ffi::lc_backend_gloo(&raw, interface, host, out) }),
            Backend::Nccl { device } => nccl::make(&raw, device),
        };
        let backend = Handle(backend.map_err(fail)?);
        if !self.is_nccl() {
            let compares = compares && all_compare(&store, member.members.len())?;
            // SAFETY: the handle is alive.
            unsafe { ffi::lc_backend_guard(backend.0.as_ptr(), compares) }.check().map_err(fail)?;
        }
        if detail {
            // SAFETY: as above, and the handle is alive.
            let status = unsafe { ffi::lc_backend_compare_calls(backend.0.as_ptr(), &raw, interface, host) };
            status.check().map_err(fail)?;
        }
        let (group_store, backend) = (member.store.as_ptr(), backend.0.as_ptr());
        // SAFETY: as above; the group takes its own references to store and backend.
        ffi::made(|out| unsafe { ffi::lc_group_new(group_store, &raw, backend, out) }).map_err(fail)
    }

    /// Python adds a prefix with the device type to each backend's keys.
    pub(crate) fn store_prefix(self) -> &'static str {
        match self {
            Backend::Gloo => "cpu/",
            Backend::Nccl { .. } => "cuda/",
        }
    }
}

/// The configuration of one member of a group that is being created.
pub(crate) struct MemberConfig<'a> {
    /// The group's store.
    pub(crate) store: &'a Store,
    pub(crate) name: &'a str,
    /// The members' ranks in the whole job, in group order.
    pub(crate) members: &'a [Rank],
    /// This member's position among them.
    pub(crate) rank: Rank,
    pub(crate) options: &'a GroupOptions,
}

impl MemberConfig<'_> {
    /// The operation, for error messages.
    pub(crate) fn operation(&self) -> String {
        format!("connect process group {} of {} ranks", self.name, self.members.len())
    }

    fn raw(&self, store: &Store, members: &[u64]) -> Result<ffi::MemberConfig> {
        Ok(ffi::MemberConfig {
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

/// The key with which a rank states that it wants to compare calls.
fn compares_key(rank: Rank) -> String {
    format!("lockstep/compares/{rank}")
}

/// Returns true if all ranks want to compare calls. Call it after the ranks have connected: each has set its key by
/// then.
fn all_compare(store: &Store, size: usize) -> Result<bool> {
    let keys: Vec<String> = (0..size).map(|rank| compares_key(Rank::new(rank))).collect();
    store.check(&keys)
}

impl Endpoint {
    /// Interface and host for the shim; empty if not given.
    fn bytes(&self) -> (Bytes, Bytes) {
        let (interface, host) = match self {
            Endpoint::Default => ("", ""),
            Endpoint::Interface(name) => (name.as_str(), ""),
            Endpoint::Host(name) => ("", name.as_str()),
        };
        (Bytes::new(interface.as_bytes()), Bytes::new(host.as_bytes()))
    }
}

/// A backend that does not belong to a group yet.
struct Handle(NonNull<BackendHandle>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once; a group holds its own references.
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
