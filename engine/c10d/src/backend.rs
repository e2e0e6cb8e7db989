//! Backends: the libraries that carry a group's messages, and which of them carries the tensors of which device: one for all devices, or
//! one for each, as in PyTorch's `cpu:gloo,cuda:nccl`.
//!
//! Below: how the members of a group connect, backend by backend. Not here: the members and names of groups (`group.rs`).

use std::fmt;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use tch::Device;

use crate::error::{Error, Result};
use crate::ffi::{self, BackendHandle, Bytes, Exception, GroupHandle};
use crate::options::{Endpoint, GroupOptions};
use crate::store::millis;
use crate::{Rank, Store, cuda};

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
    /// of them on one; [`Backend::Gloo`] if neither is possible or a rank runs another program. The ranks decide together; see
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
    /// True if this program was built with NCCL, which needs libtorch for CUDA and NVIDIA's headers at build time.
    pub const HAS_NCCL: bool = cfg!(nccl);

    /// The name that Python uses, if it has one.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Gloo => "gloo",
            Backend::SharedMemory => "shm",
            Backend::TwoLevels => "shm+gloo",
            Backend::Auto => "auto",
            Backend::Nccl { .. } => "nccl",
        }
    }

    /// The backend for tensors in host memory with this [`name`](Self::name), among those that users can choose.
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

    /// Returns true if creating a group connects its ranks, so that absent ranks are noticed then. NCCL connects in the
    /// first operation, and there waits without a deadline.
    pub(crate) fn connects_at_once(self) -> bool {
        !self.is_nccl()
    }

    pub(crate) fn is_nccl(self) -> bool {
        matches!(self, Backend::Nccl { .. })
    }
}

/// The backends of a group: one for tensors in host memory, and one for tensors on this rank's GPU. `distributed_c10d.py` has a
/// class of this name. A [`Backend`] converts into a configuration that takes all the tensors that the backend can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    pub(crate) cpu: Option<Backend>,
    pub(crate) cuda: Option<Backend>,
}

/// Python adds a prefix with the device type to each backend's keys; a backend for both devices has the prefix of the first.
const CPU_PREFIX: &str = "cpu/";
const CUDA_PREFIX: &str = "cuda/";

impl From<Backend> for BackendConfig {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Gloo | Backend::Auto => BackendConfig { cpu: Some(backend), cuda: Some(backend) },
            Backend::SharedMemory | Backend::TwoLevels => BackendConfig { cpu: Some(backend), cuda: None },
            Backend::Nccl { .. } => BackendConfig { cpu: None, cuda: Some(backend) },
        }
    }
}

impl BackendConfig {
    const CALL: &str = "read the backends of a group";

    /// One backend for tensors in host memory, another for those on a GPU. Both are connected.
    ///
    /// # Errors
    /// `BadArgument` for a backend that cannot carry such tensors.
    pub fn pair(cpu: Backend, cuda: Backend) -> Result<Self> {
        BackendConfig { cpu: Some(cpu), cuda: Some(cuda) }.checked()
    }

    /// Refuses a backend that cannot carry the tensors of its device.
    fn checked(self) -> Result<Self> {
        let detail = match (self.cpu, self.cuda) {
            (Some(Backend::Nccl { .. }), _) => "nccl carries tensors on GPUs only: use cpu:gloo".to_owned(),
            (_, Some(cuda @ (Backend::SharedMemory | Backend::TwoLevels | Backend::Auto))) => {
                format!("{} carries tensors in host memory only: use cuda:nccl, or cuda:gloo", cuda.name())
            }
            _ => return Ok(self),
        };
        Err(Error::bad_argument(Self::CALL, detail))
    }

    /// Reads Python's form: a backend's name, or `cpu:gloo,cuda:nccl`. The names are [`Backend::name`]s, in upper or lower case.
    /// `device` is this rank's device, which NCCL uses.
    ///
    /// # Errors
    /// `BadArgument` for everything else, and for NCCL if `device` is not a GPU.
    pub fn parse(text: &str, device: Device) -> Result<Self> {
        let bad = |detail: String| Error::bad_argument(Self::CALL, detail);
        let unknown =
            |name: &str| bad(format!("there is no backend {name:?} in {text:?}: use auto, gloo, shm or nccl"));
        let backend = |name: &str| match (name, device) {
            ("nccl", Device::Cuda(device)) => Ok(Backend::Nccl { device }),
            ("nccl", _) => Err(bad(format!("nccl in {text:?} needs a GPU, and this rank is on {device:?}"))),
            _ => Backend::of_host_memory(name).ok_or_else(|| unknown(name)),
        };
        let lower = text.to_ascii_lowercase();
        if !lower.contains(':') {
            return backend(&lower).map(Self::from);
        }
        let mut config = BackendConfig { cpu: None, cuda: None };
        for pair in lower.split(',') {
            let Some((kind, name)) = pair.split_once(':').filter(|(_, name)| !name.contains(':')) else {
                return Err(bad(format!(
                    "invalid device:backend pairing {pair:?} in {text:?}: write cpu:gloo,cuda:nccl"
                )));
            };
            let slot = match kind {
                "cpu" => &mut config.cpu,
                "cuda" => &mut config.cuda,
                _ => return Err(bad(format!("there is no device type {kind:?} in {text:?}: use cpu and cuda"))),
            };
            if slot.replace(backend(name)?).is_some() {
                return Err(bad(format!("duplicate device type {kind} in {text:?}")));
            }
        }
        config.checked()
    }

    /// The backend for tensors on `device`; `None` if the group takes no such tensors.
    pub fn of(self, device: Device) -> Option<Backend> {
        match device {
            Device::Cpu => self.cpu,
            Device::Cuda(_) => self.cuda,
            _ => None,
        }
    }

    /// The backend for calls without a tensor: NCCL if the group has it, as in Python (`_new_process_group_helper`).
    pub fn default_backend(self) -> Backend {
        match (self.cpu, self.cuda) {
            (_, Some(cuda @ Backend::Nccl { .. })) => cuda,
            (Some(cpu), _) => cpu,
            (None, cuda) => cuda.unwrap_or(Backend::Gloo),
        }
    }

    /// The prefix of the keys of the [default backend](Self::default_backend).
    pub(crate) fn store_prefix(self) -> &'static str {
        if self.cpu == Some(self.default_backend()) { CPU_PREFIX } else { CUDA_PREFIX }
    }

    /// Each backend once.
    pub(crate) fn all(self) -> impl Iterator<Item = Backend> {
        self.cpu.into_iter().chain(self.cuda.filter(|cuda| self.cpu != Some(*cuda)))
    }

    /// Returns true if creating a group connects its ranks, so that absent ranks are noticed then.
    pub(crate) fn connects_at_once(self) -> bool {
        self.all().any(Backend::connects_at_once)
    }
}

/// Python's form; only the name if one backend carries all tensors of the group.
impl fmt::Display for BackendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cpu, self.cuda) {
            (Some(cpu), Some(cuda)) if cpu != cuda => write!(f, "cpu:{},cuda:{}", cpu.name(), cuda.name()),
            _ => f.write_str(self.default_backend().name()),
        }
    }
}

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
    fn with_raw<T>(&self, store: &Store, make: impl FnOnce(&ffi::MemberConfig) -> Result<T>) -> Result<T> {
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
struct OwnedBackend(NonNull<BackendHandle>);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const GPU: Device = Device::Cuda(2);
    const NCCL: Backend = Backend::Nccl { device: 2 };

    fn parse(text: &str) -> BackendConfig {
        BackendConfig::parse(text, GPU).unwrap()
    }

    #[test]
    fn reads_what_python_reads() {
        let mixed = parse("cpu:gloo,cuda:nccl");
        assert_eq!((mixed.of(Device::Cpu), mixed.of(GPU)), (Some(Backend::Gloo), Some(NCCL)));
        assert_eq!(mixed, parse("CUDA:nccl,CPU:Gloo"));
        assert_eq!(mixed, BackendConfig::pair(Backend::Gloo, NCCL).unwrap());
        assert_eq!((parse("gloo").of(Device::Cpu), parse("gloo").of(GPU)), (Some(Backend::Gloo), Some(Backend::Gloo)));
        assert_eq!((parse("nccl").of(Device::Cpu), parse("nccl").of(GPU)), (None, Some(NCCL)));
        assert_eq!((parse("cpu:shm").of(Device::Cpu), parse("cpu:shm").of(GPU)), (Some(Backend::SharedMemory), None));
        assert_eq!(parse("cuda:gloo").of(Device::Cpu), None);
    }

    #[test]
    fn calls_without_a_tensor_go_to_nccl_where_there_is_one() {
        let defaults =
            ["cpu:gloo,cuda:nccl", "cpu:shm,cuda:gloo", "cuda:gloo", "nccl"].map(|text| parse(text).default_backend());
        assert_eq!(defaults, [NCCL, Backend::SharedMemory, Backend::Gloo, NCCL]);
    }

    #[test]
    fn prefixes_of_keys_are_pythons() {
        let prefixes = ["gloo", "nccl", "cpu:gloo,cuda:nccl", "cuda:gloo"].map(|text| parse(text).store_prefix());
        assert_eq!(prefixes, ["cpu/", "cuda/", "cuda/", "cuda/"]);
    }

    #[test]
    fn prints_pairs_where_there_are_two_backends() {
        for text in ["cpu:gloo,cuda:nccl", "cpu:shm,cuda:gloo", "gloo", "nccl", "shm"] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("cpu:gloo,cuda:gloo").to_string(), "gloo");
    }

    #[test]
    fn refuses_what_no_backend_can_do_and_says_what_it_read() {
        for (text, says) in [
            ("ucc", "there is no backend \"ucc\" in \"ucc\": use auto, gloo, shm or nccl"),
            ("cpu:gloo,cuda", "invalid device:backend pairing \"cuda\""),
            ("cpu:gloo:nccl", "invalid device:backend pairing \"cpu:gloo:nccl\""),
            ("cpu:gloo,cpu:shm", "duplicate device type cpu"),
            ("xpu:gloo", "there is no device type \"xpu\""),
            ("cpu:nccl", "nccl carries tensors on GPUs only: use cpu:gloo"),
            ("cuda:shm", "shm carries tensors in host memory only: use cuda:nccl, or cuda:gloo"),
            ("cpu:nccl,cuda:nccl", "nccl carries tensors on GPUs only"),
            ("cpu:gloo,cuda:auto", "auto carries tensors in host memory only"),
            ("", "there is no backend \"\""),
        ] {
            let error = BackendConfig::parse(text, GPU).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadArgument, "{text}");
            assert!(error.detail().contains(says), "{text}: {error}");
        }
        let error = BackendConfig::parse("cpu:gloo,cuda:nccl", Device::Cpu).unwrap_err();
        assert!(error.detail().contains("needs a GPU, and this rank is on Cpu"), "{error}");
    }

    #[test]
    fn names_and_deadlines_are_pythons() {
        // torch/distributed/distributed_c10d.py: `Backend`, `_get_default_timeout`.
        let (gloo, nccl) = (Backend::Gloo, Backend::Nccl { device: 3 });
        assert_eq!([gloo.name(), nccl.name()], ["gloo", "nccl"]);
        assert_eq!([gloo.default_timeout(), nccl.default_timeout()].map(|t| t.as_secs()), [1800, 600]);
        assert_eq!([gloo.device(), nccl.device()], [Device::Cpu, Device::Cuda(3)]);
    }
}
