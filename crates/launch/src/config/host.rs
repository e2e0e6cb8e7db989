//! Facts about this host that the configuration needs: processors, GPUs, variables, and a random number.

use std::fs;
use std::num::NonZero;

use super::given::Env;

/// Linux's list of the processors that are online, as ranges (`0-3,5`).
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Has one folder per GPU that NVIDIA's driver manages.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// The facts about this host.
#[derive(Clone, Copy)]
pub struct HostInfo<'a> {
    /// The number of processors that are online, as in Python's `os.cpu_count()`.
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
        let named: Vec<&str> =
            visible.split(',').map(str::trim).take_while(|entry| is_device(entry, present)).collect();
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

fn is_device(entry: &str, present: usize) -> bool {
    entry.starts_with("GPU-") || entry.starts_with("MIG-") || entry.parse().is_ok_and(|index: usize| index < present)
}

/// Containers get some of the host's GPUs as device files, while the driver's folder lists all, so the files have
/// precedence.
fn present() -> usize {
    let entries = |folder| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let files = entries("/dev").filter(|name| name.to_str().is_some_and(is_gpu)).count();
    if files > 0 { files } else { entries(DRIVER).count() }
}

fn cpus() -> usize {
    let online = fs::read_to_string(ONLINE).ok().and_then(|text| online(&text));
    online.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

fn online(text: &str) -> Option<usize> {
    let size = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    let count: usize = text.trim().split(',').map(size).sum::<Option<usize>>()?;
    (count > 0).then_some(count)
}

/// Uses two hashers that std seeds from the operating system's entropy.
fn random() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half =
        |salt: u8| u128::from(RandomState::new().hash_one((salt, std::process::id(), std::time::SystemTime::now())));
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_online_processors_from_ranges() {
        assert_eq!(online("0-1\n"), Some(2));
        assert_eq!(online("0-3,5,8-9"), Some(7));
        for broken in ["", "x", "3-1", "0-"] {
            assert_eq!(online(broken), None, "{broken}");
        }
        assert!(cpus() >= 1);
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
}
