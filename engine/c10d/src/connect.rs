//! How the members of a group connect, backend by backend.
//!
//! Not here: the members and names of groups (`group.rs`), and the choice of backends (`backend.rs`).

use std::ptr::{self, NonNull};
use std::time::Instant;

use crate::backend::{CPU_PREFIX, CUDA_PREFIX};
use crate::error::{Error, Result};
use crate::ffi::{self, BackendHandle, Bytes, Exception, GroupHandle};
use crate::options::{Endpoint, GroupOptions};
use crate::store::millis;
use crate::{Backend, BackendConfig, Rank, Store, cuda};

pub(crate) struct Connected {
    pub(crate) group: NonNull<GroupHandle>,
    /// Never [`Backend::Auto`].
    pub(crate) backends: BackendConfig,
    /// Why [`Backend::Auto`] chose these.
    pub(crate) why: Option<String>,
}

impl BackendConfig {
    /// Loads libraries and checks that the device exists, before this rank waits for others.
    pub(crate) fn prepare(self) -> Result<()> {
        self.all().try_for_each(Backend::prepare)
    }

    /// Connects this rank to the group, backend by backend, first the one for host memory.
    pub(crate) fn connect(self, member: &MemberConfig<'_>, detail: bool, compares: bool) -> Result<Connected> {
        let begun = Instant::now();
        let mut why = None;
        let mut connect = |backend: Backend, prefix| -> Result<_> {
            let (handle, chosen, reason) = backend.connect(member, &member.store.prefix(prefix)?, detail, compares)?;
            why = why.take().or(reason);
            Ok((handle, chosen))
        };
        let own_cuda = self.cuda.filter(|cuda| self.cpu != Some(*cuda));
        let cpu = self.cpu.map(|cpu| connect(cpu, CPU_PREFIX)).transpose()?;
        let own_cuda = own_cuda.map(|cuda| connect(cuda, CUDA_PREFIX)).transpose()?;
        // One backend serves both devices, unless the ranks chose one that cannot.
        let shared = cpu.as_ref().filter(|(_, chosen)| self.cuda.is_some() && *chosen == Backend::Gloo);
        let cuda = own_cuda.as_ref().or(shared);
        let backends =
            BackendConfig { cpu: cpu.as_ref().map(|(_, chosen)| *chosen), cuda: cuda.map(|(_, chosen)| *chosen) };
        let pointer = |handle: &OwnedBackend| handle.as_ptr().cast_const();
        let cpu = cpu.as_ref().map_or(ptr::null(), |(handle, _)| pointer(handle));
        let cuda = cuda.map_or(ptr::null(), |(handle, _)| pointer(handle));
        let store = member.store.as_ptr();
        let group = member.with_raw(member.store, |raw| {
            // SAFETY: store, configuration and handles outlive the call; the group takes its own references.
            ffi::made(|out| unsafe { ffi::lc_group_new(store, raw, cpu, cuda, out) })
                .map_err(|exception| Error::new(member.operation(), exception).after(begun.elapsed()))
        })?;
        Ok(Connected { group, backends, why })
    }
}

impl Backend {
    /// Loads the libraries and checks that the device exists, before this rank waits for others.
    fn prepare(self) -> Result<()> {
        match self {
            Backend::Nccl { device } => cuda::prepare_nccl(device),
            _ => Ok(()),
        }
    }

    /// Connects this rank to the others, on the backend's own store. Returns the backend, which one [`Backend::Auto`] chose, and
    /// why. With `detail` the ranks compare their calls as PyTorch's debug mode does; with `compares` they compare them in the
    /// shim, if all ranks want that.
    fn connect(
        self,
        member: &MemberConfig<'_>,
        store: &Store,
        detail: bool,
        compares: bool,
    ) -> Result<(OwnedBackend, Backend, Option<String>)> {
        let begun = Instant::now();
        let fail = |exception| Error::new(member.operation(), exception).after(begun.elapsed());
        let (interface, host) = member.options.endpoint.bytes();
        member.with_raw(store, |raw| {
            let (backend, chosen, why) = match self {
                Backend::SharedMemory | Backend::TwoLevels | Backend::Auto => {
                    self.share_memory(member, store, raw, compares, &fail)?
                }
                Backend::Gloo => (connect_gloo(member, store, raw, compares, &fail)?, self, None),
                Backend::Nccl { device } => (OwnedBackend(cuda::make_nccl(raw, device).map_err(fail)?), self, None),
            };
            if detail {
                // SAFETY: the member's configuration and everything it points to outlive the call, and the handle is alive.
                let status = unsafe { ffi::lc_backend_compare_calls(backend.0.as_ptr(), raw, interface, host) };
                status.check().map_err(fail)?;
            }
            Ok((backend, chosen, why))
        })
    }

    /// Connects through shared memory, in two levels if there are several hosts. If the ranks cannot share memory, connects
    /// through Gloo or fails.
    fn share_memory(
        self,
        member: &MemberConfig<'_>,
        store: &Store,
        raw: &ffi::MemberConfig,
        compares: bool,
        fail: &impl Fn(Exception) -> Error,
    ) -> Result<(OwnedBackend, Backend, Option<String>)> {
        let or_gloo = self == Backend::Auto;
        let why = if or_gloo && connects_lazily() {
            "TORCH_GLOO_LAZY_INIT is set, so ranks of other programs cannot be seen".into()
        } else {
            let (mut out, mut is_two_levels, mut guard_compares) = (ptr::null_mut(), false, false);
            let (interface, host) = member.options.endpoint.bytes();
            let simulated = member.options.simulated_host.as_deref().unwrap_or_default();
            let request = ffi::MemoryRequest {
                reach: self.reach(),
                or_gloo,
                compares,
                host: Bytes::new(simulated.as_bytes()),
                page: member.options.simulated_page,
            };
            // SAFETY: the member's configuration, the request and everything they point to outlive the call; the shim copies what it keeps,
            // and writes the results before it returns.
            let made = |why: *mut _| unsafe {
                ffi::lc_backend_memory(
                    raw,
                    &request,
                    interface,
                    host,
                    &mut out,
                    why,
                    &mut is_two_levels,
                    &mut guard_compares,
                )
            };
            let why = String::from_utf8_lossy(&ffi::blobs(made).map_err(fail)?.concat()).into_owned();
            if let Some(handle) = NonNull::new(out).map(OwnedBackend) {
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

fn connect_gloo(
    member: &MemberConfig<'_>,
    store: &Store,
    raw: &ffi::MemberConfig,
    compares: bool,
    fail: &impl Fn(Exception) -> Error,
) -> Result<OwnedBackend> {
    let (interface, host) = member.options.endpoint.bytes();
    // Without a connection, a rank does not know what the others want.
    let compares = compares && !connects_lazily();
    if compares {
        store.set(&compares_key(member.rank), "1")?;
    }
    // SAFETY: the member's configuration and everything it points to outlive the call; the shim copies what it keeps.
    let backend = ffi::made(|out| unsafe { ffi::lc_backend_gloo(raw, interface, host, out) });
    let backend = OwnedBackend(backend.map_err(fail)?);
    guard(&backend, compares && all_compare(store, member.members.len())?).map_err(fail)?;
    Ok(backend)
}

/// With TORCH_GLOO_LAZY_INIT, connecting does not wait for other ranks.
fn connects_lazily() -> bool {
    std::env::var("TORCH_GLOO_LAZY_INIT").is_ok_and(|value| value != "0")
}

fn guard(backend: &OwnedBackend, compares: bool) -> Result<(), Exception> {
    // SAFETY: the handle is alive.
    unsafe { ffi::lc_backend_guard(backend.0.as_ptr(), compares) }.check()
}

/// The configuration of one member of a group that is being created.
pub(crate) struct MemberConfig<'a> {
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

    /// Calls `make` with the configuration in the shim's form, on a store of this group.
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

/// Returns true if all ranks want to compare calls. Call it after the ranks have connected, because each has set its key by
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
pub(crate) struct OwnedBackend(NonNull<BackendHandle>);

impl OwnedBackend {
    pub(crate) fn as_ptr(&self) -> *mut BackendHandle {
        self.0.as_ptr()
    }
}

impl Drop for OwnedBackend {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once; a group holds its own references.
        unsafe { ffi::lc_backend_free(self.0.as_ptr()) };
    }
}
