//! Backends: the libraries that carry a group's messages, and the connection of a group's members.
//!
//! Not here: the members and names of groups (`group.rs`), and which backend carries the tensors of which device (`backend_config.rs`).

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use tch::Device;

use crate::error::{Error, Result};
use crate::ffi::{self, BackendHandle, Bytes, Exception, GroupHandle};
use crate::options::{Endpoint, GroupOptions};
use crate::store::millis;
use crate::{BackendConfig, Rank, Store, nccl};

/// The library that carries a group's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Sockets, for tensors in host memory. Tensors on a GPU are copied to the host and back.
    Gloo,
    /// Memory that all ranks map, for tensors in host memory and ranks on one host. Sums have the same bits on all ranks.
    SharedMemory,
    /// Memory within each host and Gloo between the hosts' first ranks, for tensors in host memory. Sums have the same bits on all
    /// ranks. Messages, and the collectives gather, scatter and all-to-all, go through Gloo.
    TwoLevels,
    /// [`Backend::SharedMemory`] if all ranks of the group are on one host, [`Backend::TwoLevels`] if they are on several, at least two
    /// of them on one; [`Backend::Gloo`] if neither is possible, or a rank is another program. The ranks find out together; see
    /// [`ProcessGroup::backend`](crate::ProcessGroup::backend) for the result.
    Auto,
    /// NVIDIA's library, for tensors on one GPU, which no other rank of the group may use. See
    /// [`HAS_NCCL`](Self::HAS_NCCL).
    Nccl {
        /// The GPU's number, as in [`Device::Cuda`].
        device: usize,
    },
}

impl Backend {
    /// True if this program was built for NCCL, as it is if libtorch for CUDA and NVIDIA's headers were there.
    pub const HAS_NCCL: bool = cfg!(nccl);

    /// The name that Python uses, where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Gloo => "gloo",
            Backend::SharedMemory => "shm",
            Backend::TwoLevels => "shm+gloo",
            Backend::Auto => "auto",
            Backend::Nccl { .. } => "nccl",
        }
    }

    /// The backend of tensors in host memory that has this [`name`](Self::name), among those that users choose from.
    pub fn of_host_memory(name: &str) -> Option<Self> {
        [Backend::Auto, Backend::Gloo, Backend::SharedMemory].into_iter().find(|backend| backend.name() == name)
    }

    /// The device of the tensors in its operations.
    pub fn device(self) -> Device {
        match self {
            Backend::Gloo | Backend::SharedMemory | Backend::TwoLevels | Backend::Auto => Device::Cpu,
            Backend::Nccl { device } => Device::Cuda(device),
        }
    }

    /// The default timeout of an operation in Python: 30 minutes for Gloo (Backend.hpp, `kBackendDefaultTimeout`), 10
    /// for NCCL (ProcessGroupNCCL.hpp, `kProcessGroupNCCLDefaultTimeout`).
    pub fn default_timeout(self) -> Duration {
        match self {
            Backend::Nccl { .. } => Duration::from_secs(10 * 60),
            _ => Duration::from_secs(30 * 60),
        }
    }

    /// Loads the libraries and checks that the device exists, before this rank waits for others.
    pub(crate) fn prepare(self) -> Result<()> {
        match self {
            Backend::Nccl { device } => nccl::prepare(device),
            _ => Ok(()),
        }
    }

    /// Returns true if creating a group connects its ranks, so that absent ranks are noticed then. NCCL connects in the
    /// first operation, and there waits without a deadline.
    pub(crate) fn connects_at_once(self) -> bool {
        !self.is_nccl()
    }

    pub(crate) fn is_nccl(self) -> bool {
        matches!(self, Backend::Nccl { .. })
    }

    /// Connects this rank to the others, on the backend's own store: the backend, which one [`Backend::Auto`] chose, and why. With
    /// `detail` the ranks compare their calls as PyTorch's debug mode does; with `compares` they compare them in the shim, if all
    /// ranks want that.
    pub(crate) fn connect(
        self,
        member: &MemberConfig<'_>,
        store: &Store,
        detail: bool,
        compares: bool,
    ) -> Result<(Handle, Backend, Option<String>)> {
        let begun = Instant::now();
        let fail = |exception| Error::new(member.operation(), exception).after(begun.elapsed());
        let (interface, host) = member.options.endpoint.bytes();
        member.with_raw(store, |raw| {
            let (backend, chosen, why) = match self {
                Backend::SharedMemory | Backend::TwoLevels | Backend::Auto => {
                    self.share_memory(member, store, raw, compares, &fail)?
                }
                Backend::Gloo => (connect_gloo(member, store, raw, compares, &fail)?, self, None),
                Backend::Nccl { device } => (Handle(nccl::make(raw, device).map_err(fail)?), self, None),
            };
            if detail {
                // SAFETY: the member's configuration and everything it points to outlive the call, and the handle is alive.
                let status = unsafe { ffi::lc_backend_compare_calls(backend.0.as_ptr(), raw, interface, host) };
                status.check().map_err(fail)?;
            }
            Ok((backend, chosen, why))
        })
    }

    /// Connects through shared memory, in two levels if there are several hosts; if the ranks cannot, through Gloo or not at all.
    fn share_memory(
        self,
        member: &MemberConfig<'_>,
        store: &Store,
        raw: &ffi::MemberConfig,
        compares: bool,
        fail: &impl Fn(Exception) -> Error,
    ) -> Result<(Handle, Backend, Option<String>)> {
        let or_gloo = self == Backend::Auto;
        let why = if or_gloo && connects_lazily() {
            "TORCH_GLOO_LAZY_INIT is set, so ranks of other programs cannot be seen".into()
        } else {
            let (mut out, mut is_two_levels, mut guard_compares) = (std::ptr::null_mut(), false, false);
            let (interface, host) = member.options.endpoint.bytes();
            let simulated = member.options.simulated_host.as_deref().unwrap_or_default();
            let wish =
                ffi::MemoryWish { reach: self.reach(), or_gloo, compares, host: Bytes::new(simulated.as_bytes()) };
            // SAFETY: the member's configuration, the wish and everything they point to outlive the call; the shim copies what it keeps,
            // and writes the results before it returns.
            let made = |why: *mut _| unsafe {
                ffi::lc_backend_memory(
                    raw,
                    &wish,
                    interface,
                    host,
                    &mut out,
                    why,
                    &mut is_two_levels,
                    &mut guard_compares,
                )
            };
            let why = String::from_utf8_lossy(&ffi::blobs(made).map_err(fail)?.concat()).into_owned();
            if let Some(handle) = NonNull::new(out).map(Handle) {
                guard(&handle, guard_compares).map_err(fail)?;
                let backend = if is_two_levels { Backend::TwoLevels } else { Backend::SharedMemory };
                return Ok((handle, backend, or_gloo.then_some(why)));
            }
            why
        };
        if or_gloo {
            return Ok((connect_gloo(member, store, raw, compares, fail)?, Backend::Gloo, Some(why)));
        }
        let detail =
            format!("the ranks cannot share memory: {why}: use Gloo, or let the group choose with Backend::Auto");
        Err(Error::bad_argument(member.operation(), detail))
    }

    /// `shm::Reach`: which hosts the ranks may be on.
    fn reach(self) -> u8 {
        match self {
            Backend::Auto => 1,
            Backend::TwoLevels => 2,
            _ => 0,
        }
    }
}

/// A group that is connected.
pub(crate) struct Connected {
    pub(crate) group: NonNull<GroupHandle>,
    /// Never [`Backend::Auto`].
    pub(crate) backends: BackendConfig,
    /// Why [`Backend::Auto`] chose it.
    pub(crate) why: Option<String>,
}

fn connect_gloo(
    member: &MemberConfig<'_>,
    store: &Store,
    raw: &ffi::MemberConfig,
    compares: bool,
    fail: &impl Fn(Exception) -> Error,
) -> Result<Handle> {
    let (interface, host) = member.options.endpoint.bytes();
    // Without a connection, a rank would not know the wishes of the others.
    let compares = compares && !connects_lazily();
    if compares {
        store.set(&compares_key(member.rank), "1")?;
    }
    // SAFETY: the member's configuration and everything it points to outlive the call; the shim copies what it keeps.
    let backend = ffi::made(|out| unsafe { ffi::lc_backend_gloo(raw, interface, host, out) });
    let backend = Handle(backend.map_err(fail)?);
    guard(&backend, compares && all_compare(store, member.members.len())?).map_err(fail)?;
    Ok(backend)
}

/// With TORCH_GLOO_LAZY_INIT, connecting does not wait for other ranks.
fn connects_lazily() -> bool {
    std::env::var("TORCH_GLOO_LAZY_INIT").is_ok_and(|value| value != "0")
}

fn guard(backend: &Handle, compares: bool) -> Result<(), Exception> {
    // SAFETY: the handle is alive.
    unsafe { ffi::lc_backend_guard(backend.0.as_ptr(), compares) }.check()
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

    /// Passes on the configuration as the shim reads it, on a store of this group.
    pub(crate) fn with_raw<T>(&self, store: &Store, make: impl FnOnce(&ffi::MemberConfig) -> Result<T>) -> Result<T> {
        let members: Vec<u64> = self.members.iter().map(|rank| rank.get() as u64).collect();
        make(&ffi::MemberConfig {
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
pub(crate) struct Handle(NonNull<BackendHandle>);

impl Handle {
    pub(crate) fn as_ptr(&self) -> *mut BackendHandle {
        self.0.as_ptr()
    }
}

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
    fn names_and_deadlines_are_pythons() {
        // torch/distributed/distributed_c10d.py: `Backend`, `_get_default_timeout`.
        let (gloo, nccl) = (Backend::Gloo, Backend::Nccl { device: 3 });
        assert_eq!([gloo.name(), nccl.name()], ["gloo", "nccl"]);
        assert_eq!([gloo.default_timeout(), nccl.default_timeout()].map(|t| t.as_secs()), [1800, 600]);
        assert_eq!([gloo.device(), nccl.device()], [Device::Cpu, Device::Cuda(3)]);
    }
}
