//! Backends: the libraries that carry a group's messages, and which of them carries the tensors of which device: one for all devices, or
//! one for each, as in PyTorch's `cpu:gloo,cuda:nccl`.
//!
//! Not here: how the members of a group connect on a backend (`connect.rs`).

use std::fmt;
use std::time::Duration;

use tch::Device;

use crate::error::{Error, Result};

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
pub(crate) const CPU_PREFIX: &str = "cpu/";
pub(crate) const CUDA_PREFIX: &str = "cuda/";

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
