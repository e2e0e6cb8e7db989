//! Which backend carries the tensors of which device: one for all, or one for each, as PyTorch's `cpu:gloo,cuda:nccl`.
//!
//! Not here: how a backend connects (`backend.rs`).

use std::fmt;
use std::ptr;
use std::time::Instant;

use tch::Device;

use crate::Backend;
use crate::backend::{Connected, MemberConfig};
use crate::error::{Error, Result};
use crate::ffi;

/// The backends of a group: of tensors in host memory, and of those on this rank's GPU. `distributed_c10d.py` has a class of this
/// name. A [`Backend`] converts into one that takes all tensors that it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    cpu: Option<Backend>,
    cuda: Option<Backend>,
}

/// Python adds a prefix with the device type to each backend's keys; one backend for both has the first device's.
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
    /// `device` is this rank's, which NCCL works on.
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

    /// The backend of tensors on `device`; `None` if the group takes none of these.
    pub fn of(self, device: Device) -> Option<Backend> {
        match device {
            Device::Cpu => self.cpu,
            Device::Cuda(_) => self.cuda,
            _ => None,
        }
    }

    /// The backend of calls that have no tensor. As in Python (`_new_process_group_helper`) that is NCCL if there is one.
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

    /// Loads libraries and checks that the device exists, before this rank waits for others.
    pub(crate) fn prepare(self) -> Result<()> {
        self.all().try_for_each(Backend::prepare)
    }

    /// Returns true if creating a group connects its ranks, so that absent ranks are noticed then.
    pub(crate) fn connects_at_once(self) -> bool {
        self.all().any(Backend::connects_at_once)
    }

    /// Connects this rank to the group, backend by backend, those of host memory first.
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
        // What carries both is one backend, unless the ranks chose one that cannot.
        let shared = cpu.as_ref().filter(|(_, chosen)| self.cuda.is_some() && *chosen == Backend::Gloo);
        let cuda = own_cuda.as_ref().or(shared);
        let backends =
            BackendConfig { cpu: cpu.as_ref().map(|(_, chosen)| *chosen), cuda: cuda.map(|(_, chosen)| *chosen) };
        let pointer = |handle: &crate::backend::Handle| handle.as_ptr().cast_const();
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

/// Python's form; just the name if one backend carries all that the group takes.
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
}
