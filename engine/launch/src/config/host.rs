//! Facts about this host that the configuration needs (processors, GPUs, variables, a random number), and what follows from them and the
//! flags: the number of nodes, and of workers on each.

use std::fs;
use std::num::NonZero;

use super::flags::{ConfigError, Given};
use super::program::Env;

/// Has one folder per GPU that NVIDIA's driver manages.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

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

/// The GPUs that workers will see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// Their number.
    pub count: usize,
    /// The number of GPUs of this host, if CUDA_VISIBLE_DEVICES hides some.
    pub hidden_by: Option<usize>,
}

impl<'a> HostInfo<'a> {
    /// The facts about this host, now.
    pub fn here(env: Env<'a>) -> Self {
        let visible = env("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned());
        HostInfo { cpus: cpus(), gpus: Gpus::of(present(), visible.as_deref()), env, random: random() }
    }
}

impl Gpus {
    /// The GPUs that CUDA_VISIBLE_DEVICES leaves visible; all of them if it is not set.
    ///
    /// The rules are CUDA's, as in `torch.cuda._parse_visible_devices`: entries count up to the first that is not a
    /// device, and a device that occurs twice hides all.
    pub fn of(present: usize, visible: Option<&str>) -> Self {
        let Some(visible) = visible else { return Gpus { count: present, hidden_by: None } };
        let named: Vec<&str> = entries(visible).take_while(|entry| is_device(entry, present)).collect();
        let twice = named.iter().enumerate().any(|(at, entry)| named[..at].contains(entry));
        let count = if twice { 0 } else { named.len().min(present) };
        Gpus { count, hidden_by: (count < present).then_some(present) }
    }

    /// Why there are no GPUs.
    pub(super) fn why_none(&self) -> String {
        match self.hidden_by {
            Some(present) => format!(
                "there is no GPU that workers would see: CUDA_VISIBLE_DEVICES hides all {present} of this host; unset it"
            ),
            None => {
                "there is no GPU: neither /dev/nvidia0 nor /proc/driver/nvidia/gpus exists; use cpu, auto or a number"
                    .to_owned()
            }
        }
    }
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
fn present() -> usize {
    let in_folder = |folder| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let files = in_folder("/dev").filter(|name| name.to_str().is_some_and(is_gpu)).count();
    if files > 0 { files } else { in_folder(DRIVER).count() }
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
        let count = |visible| Gpus::of(4, visible).count;
        // None, "", one device, a list with spaces; an entry that does not exist ends the list, and so does -1.
        let visible = [None, Some(""), Some("2"), Some("0, 1"), Some("0,9,1"), Some("-1"), Some("3,-1,2")];
        assert_eq!(visible.map(count), [4, 0, 1, 2, 1, 0, 1]);
        assert_eq!([count(Some("1,1")), count(Some("GPU-8f3a,MIG-1/2/3"))], [0, 2]);
        assert_eq!(Gpus::of(0, Some("0,1")).count, 0);
    }

    #[test]
    fn reports_whether_gpus_are_missing_or_hidden() {
        assert!(Gpus::of(2, Some("")).why_none().contains("CUDA_VISIBLE_DEVICES hides all 2"));
        assert!(Gpus::of(0, None).why_none().contains("/dev/nvidia0"));
        assert_eq!(Gpus::of(2, Some("0,1")).hidden_by, None);
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
        HostInfo { cpus: 8, gpus: Gpus { count: gpus, hidden_by: None }, env: &|_| None, random: 0 }
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
