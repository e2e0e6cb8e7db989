//! Facts about this host that the configuration needs (processors, GPUs, variables, a random number), and what follows from them and the
//! flags: the number of nodes, and of workers on each.

use std::fs;
use std::num::NonZero;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::flags::{ConfigError, Given};
use super::program::Env;

/// Has one folder per GPU that NVIDIA's driver manages.
const DRIVER: &str = "proc/driver/nvidia/gpus";
/// Has one folder per processor and GPU that AMD's driver sees (`kfd_topology.c` of Linux), and the file that programs open to use them.
const TOPOLOGY: &str = "sys/class/kfd/kfd/topology/nodes";
const AMD_FILE: &str = "dev/kfd";
/// What hides GPUs from CUDA, and from HIP, which reads its own variable first.
const CUDA_VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
const HIP_VISIBLE: &str = "HIP_VISIBLE_DEVICES";
/// What hides AMD's GPUs from all programs. HIP counts those that are left.
const ROCR_VISIBLE: &str = "ROCR_VISIBLE_DEVICES";

/// The facts about this host.
#[derive(Clone, Copy)]
pub struct HostInfo<'a> {
    /// The number of processors that this process may use.
    pub cpus: usize,
    /// The GPUs that workers will see.
    pub gpus: Gpus,
    /// This process's variables.
    pub env: Env<'a>,
    /// A random number for unique ids.
    pub random: u128,
}

/// Who made the GPUs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuVendor {
    /// CUDA, `nvidia-smi`.
    #[default]
    Nvidia,
    /// ROCm, `rocm-smi`.
    Amd,
}

/// The GPUs that workers will see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// The number of GPUs.
    pub count: usize,
    /// The number of GPUs of this host, if variables hide some.
    pub hidden_by: Option<usize>,
    /// NVIDIA if the host has GPUs of both.
    pub vendor: GpuVendor,
}

impl<'a> HostInfo<'a> {
    /// The facts about this host, now.
    pub fn here(env: Env<'a>) -> Self {
        HostInfo { cpus: cpus(), gpus: Gpus::below(Path::new("/"), env), env, random: random() }
    }
}

impl Gpus {
    /// The GPUs of the system whose files are below `root` that a program with these variables sees.
    fn below(root: &Path, env: Env<'_>) -> Self {
        let text = |name: &str| env(name).map(|value| value.to_string_lossy().into_owned());
        match (nvidia(root), amd(root)) {
            (0, present @ 1..) => {
                let left = visible(present, text(ROCR_VISIBLE).as_deref());
                Gpus::of(
                    present,
                    visible(left, text(HIP_VISIBLE).or_else(|| text(CUDA_VISIBLE)).as_deref()),
                    GpuVendor::Amd,
                )
            }
            (present, _) => Gpus::of(present, visible(present, text(CUDA_VISIBLE).as_deref()), GpuVendor::Nvidia),
        }
    }

    fn of(present: usize, count: usize, vendor: GpuVendor) -> Self {
        Gpus { count, hidden_by: (count < present).then_some(present), vendor }
    }

    /// Why there are no GPUs.
    pub(super) fn why_none(&self) -> String {
        let Some(present) = self.hidden_by else {
            let files = "/dev/nvidia0, /proc/driver/nvidia/gpus or, of AMD's, /dev/kfd";
            return format!("there is no GPU: none of {files} exists; use cpu, auto or a number");
        };
        let hides = match self.vendor {
            GpuVendor::Nvidia => "CUDA_VISIBLE_DEVICES hides",
            GpuVendor::Amd => "ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides",
        };
        format!("there is no GPU that workers would see: {hides} all {present} of this host; unset it")
    }
}

/// How many of the GPUs that are present a variable leaves visible; all of them if it is not set.
///
/// The rules are CUDA's, as in `torch.cuda._parse_visible_devices`: entries count up to the first that is not a
/// device, and a device that occurs twice hides all.
fn visible(present: usize, variable: Option<&str>) -> usize {
    let Some(variable) = variable else { return present };
    let named: Vec<&str> = entries(variable).take_while(|entry| is_device(entry, present)).collect();
    let twice = named.iter().enumerate().any(|(at, entry)| named[..at].contains(entry));
    if twice { 0 } else { named.len().min(present) }
}

/// The variable by which one worker gets one GPU: CUDA's, which HIP reads as well, unless its own is set.
pub(super) fn of_one_gpu(env: Env<'_>) -> &'static str {
    if env(HIP_VISIBLE).is_some() { HIP_VISIBLE } else { CUDA_VISIBLE }
}

/// The entries of CUDA_VISIBLE_DEVICES up to the first that is empty or negative, which hides the rest: none if that is the first.
pub(super) fn entries(visible: &str) -> impl Iterator<Item = &str> {
    visible.split(',').map(str::trim).take_while(|entry| !entry.is_empty() && !entry.starts_with('-'))
}

fn is_device(entry: &str, present: usize) -> bool {
    entry.starts_with("GPU-") || entry.starts_with("MIG-") || entry.parse().is_ok_and(|index: usize| index < present)
}

/// Containers get some of the host's GPUs as device files, while the driver's folder lists all, so the files have
/// precedence.
fn nvidia(root: &Path) -> usize {
    let in_folder =
        |folder| fs::read_dir(root.join(folder)).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let files = in_folder("dev").filter(|name| name.to_str().is_some_and(is_gpu)).count();
    if files > 0 { files } else { in_folder(DRIVER).count() }
}

/// A processor has no SIMD units. Containers without the device's file see the host's list, too; of GPUs that a job has not been given, the
/// properties cannot be read.
fn amd(root: &Path) -> usize {
    if !root.join(AMD_FILE).exists() {
        return 0;
    }
    let is_gpu = |node: &fs::DirEntry| {
        let text = fs::read_to_string(node.path().join("properties")).unwrap_or_default();
        let units =
            text.lines().find_map(|line| line.strip_prefix("simd_count ")).and_then(|count| count.trim().parse().ok());
        units.is_some_and(|units: u64| units > 0)
    };
    fs::read_dir(root.join(TOPOLOGY)).into_iter().flatten().flatten().filter(is_gpu).count()
}

/// The number of processors that this process may use, by its affinity and by the quota of its control groups, in whole
/// processors.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Uses two hashers that std seeds from the operating system's entropy.
fn random() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half =
        |salt: u8| u128::from(RandomState::new().hash_one((salt, std::process::id(), std::time::SystemTime::now())));
    half(0) << 64 | half(1)
}

/// `--nnodes`: the number of agents in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The job needs at least this many.
    pub min: usize,
    /// At most this many take part.
    pub max: usize,
}

impl Nodes {
    pub(crate) fn parse(given: &Given) -> Result<Self, ConfigError> {
        let numbers: Option<Vec<i64>> = given.text.split(':').map(|part| part.trim().parse().ok()).collect();
        let (min, max) = match numbers.as_deref() {
            Some(&[number]) => (number, number),
            Some(&[min, max]) => (min, max),
            _ => return Err(ConfigError::not_allowed(given, "expected N or MIN:MAX, such as 2 or 1:4")),
        };
        match (usize::try_from(min), usize::try_from(max)) {
            (Ok(min), Ok(max)) if 0 < min && min <= max => Ok(Nodes { min, max }),
            _ => Err(ConfigError::not_allowed(given, format!("expected 0 < MIN <= MAX, got MIN {min} and MAX {max}"))),
        }
    }
}

impl std::fmt::Display for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min == self.max { write!(f, "{}", self.min) } else { write!(f, "{}:{}", self.min, self.max) }
    }
}

/// `--nproc-per-node`: a number, `cpu`, `gpu` or `auto`.
pub(super) fn workers(given: &Given, host: &HostInfo<'_>) -> Result<usize, ConfigError> {
    match given.text.trim() {
        "cpu" => Ok(host.cpus),
        "gpu" if host.gpus.count == 0 => Err(ConfigError::not_allowed(given, host.gpus.why_none())),
        "gpu" => Ok(host.gpus.count),
        "auto" if host.gpus.count == 0 => Ok(host.cpus),
        "auto" => Ok(host.gpus.count),
        "xpu" => Err(ConfigError::not_allowed(given, "XPU devices cannot be counted here; give their number instead")),
        text => match text.parse::<usize>() {
            Ok(number @ 1..=MOST_WORKERS) => Ok(number),
            Ok(number) => {
                Err(ConfigError::not_allowed(given, format!("{number} workers are not between 1 and {MOST_WORKERS}")))
            }
            Err(_) => Err(ConfigError::not_allowed(given, "expected a number of at least 1, or cpu, gpu or auto")),
        },
    }
}

/// The kernel's maximum number of process ids (`PID_MAX_LIMIT`, linux/threads.h).
const MOST_WORKERS: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;
    use crate::config::flags::Source;

    #[test]
    fn counts_only_processors_that_this_thread_may_use() {
        let all = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        assert_eq!(cpus(), 1);
        sched_setaffinity(None, &all).unwrap();
        assert!((1..=all.count() as usize).contains(&cpus()));
    }

    #[test]
    fn counts_the_gpus_that_cuda_leaves_visible() {
        let count = |variable| visible(4, variable);
        // None, "", one device, a list with spaces; an entry that does not exist ends the list, and so does -1.
        let variables = [None, Some(""), Some("2"), Some("0, 1"), Some("0,9,1"), Some("-1"), Some("3,-1,2")];
        assert_eq!(variables.map(count), [4, 0, 1, 2, 1, 0, 1]);
        assert_eq!([count(Some("1,1")), count(Some("GPU-8f3a,MIG-1/2/3"))], [0, 2]);
        assert_eq!(visible(0, Some("0,1")), 0);
    }

    #[test]
    fn reports_whether_gpus_are_missing_or_hidden() {
        assert!(Gpus::of(2, 0, GpuVendor::Nvidia).why_none().contains(": CUDA_VISIBLE_DEVICES hides all 2"));
        assert!(Gpus::of(8, 0, GpuVendor::Amd).why_none().contains("ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or"));
        assert!(Gpus::default().why_none().contains("/dev/nvidia0"));
        assert_eq!(Gpus::of(2, 2, GpuVendor::Nvidia).hidden_by, None);
    }

    #[test]
    fn counts_amds_gpus_as_its_runtime_and_hip_leave_them() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // Two processors, then eight GPUs, and one whose properties this job may not read.
        for node in 0..10 {
            let (cores, units) = if node < 2 { (32, 0) } else { (0, 440) };
            file(
                &format!("{TOPOLOGY}/{node}/properties"),
                &format!("cpu_cores_count {cores}\nsimd_count {units}\nmem_banks_count 1\n"),
            );
        }
        file(&format!("{TOPOLOGY}/10/name"), "");
        let seen = |variables: &[(&str, &str)]| {
            let env = |name: &str| {
                variables.iter().find(|(set, _)| *set == name).map(|(_, value)| std::ffi::OsString::from(value))
            };
            Gpus::below(root.path(), &env)
        };
        assert_eq!(seen(&[]), Gpus::default(), "no program can open the driver's file");
        file(AMD_FILE, "");
        assert_eq!(seen(&[]), Gpus::of(8, 8, GpuVendor::Amd));
        for (variables, count) in [
            (vec![(ROCR_VISIBLE, "0,1,2,3")], 4),
            (vec![(CUDA_VISIBLE, "6,7")], 2),
            (vec![(HIP_VISIBLE, "1"), (CUDA_VISIBLE, "6,7")], 1),
            // HIP counts the two that are left: there is no 4.
            (vec![(ROCR_VISIBLE, "4,5"), (HIP_VISIBLE, "4,5")], 0),
            (vec![(ROCR_VISIBLE, "4,5"), (HIP_VISIBLE, "0,1")], 2),
        ] {
            assert_eq!(seen(&variables), Gpus::of(8, count, GpuVendor::Amd), "{variables:?}");
        }
        file("dev/nvidia0", "");
        assert_eq!(seen(&[]), Gpus::of(1, 1, GpuVendor::Nvidia));
    }

    #[test]
    fn returns_a_different_random_number_each_time() {
        assert_ne!(random(), random());
    }

    fn given(flag: &'static str, text: &str) -> Given {
        Given { flag, text: text.into(), source: Source::CommandLine }
    }

    #[test]
    fn reads_a_number_or_a_range_of_nodes() {
        let parse = |text| Nodes::parse(&given("nnodes", text)).unwrap();
        assert_eq!(parse("1:1"), Nodes { min: 1, max: 1 });
        assert_eq!(parse("3"), Nodes { min: 3, max: 3 });
        assert_eq!((parse("1:4").to_string(), parse("2:2").to_string()), ("1:4".into(), "2".into()));
    }

    #[test]
    fn rejects_invalid_numbers_of_nodes() {
        for (text, why) in [
            ("abc", "expected N or MIN:MAX, such as 2 or 1:4"),
            ("", "expected N or MIN:MAX, such as 2 or 1:4"),
            ("1:2:3", "expected N or MIN:MAX, such as 2 or 1:4"),
            ("0", "expected 0 < MIN <= MAX, got MIN 0 and MAX 0"),
            ("3:2", "expected 0 < MIN <= MAX, got MIN 3 and MAX 2"),
            ("-1:2", "expected 0 < MIN <= MAX, got MIN -1 and MAX 2"),
        ] {
            let error = Nodes::parse(&given("nnodes", text)).unwrap_err();
            assert_eq!(error.to_string(), format!("--nnodes={text}: {why}"));
            assert!(!error.is_usage(), "torchrun ends with 1");
        }
    }

    fn host(gpus: usize) -> HostInfo<'static> {
        HostInfo { cpus: 8, gpus: Gpus { count: gpus, ..Gpus::default() }, env: &|_| None, random: 0 }
    }

    #[test]
    fn derives_the_number_of_workers_from_the_host_if_requested() {
        let count = |text, gpus| workers(&given("nproc-per-node", text), &host(gpus)).unwrap();
        assert_eq!(
            [count("4", 0), count("cpu", 2), count("gpu", 2), count("auto", 2), count("auto", 0)],
            [4, 8, 2, 2, 8]
        );
    }

    #[test]
    fn rejects_workers_that_cannot_be_counted() {
        let refuse = |text| workers(&given("nproc-per-node", text), &host(0)).unwrap_err().to_string();
        assert!(refuse("gpu").starts_with("--nproc-per-node=gpu: there is no GPU"), "{}", refuse("gpu"));
        assert_eq!(refuse("0"), "--nproc-per-node=0: 0 workers are not between 1 and 4194304");
        for text in ["-1", "two", "", "1.5"] {
            assert!(refuse(text).ends_with("expected a number of at least 1, or cpu, gpu or auto"), "{}", refuse(text));
        }
        assert!(refuse("xpu").contains("give their number"));
    }
}
