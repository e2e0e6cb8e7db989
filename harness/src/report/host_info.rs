//! The machine of a report, according to the kernel. Facts that cannot be read are left out.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::formatting::count;

/// Facts that influence the numbers of a report.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct HostInfo {
    /// The host name.
    pub(crate) host: String,
    /// As `uname -sr` writes it: `Linux 6.8.0`.
    pub(crate) kernel: String,
    /// As `uname -m` writes it: `x86_64`.
    pub(crate) architecture: String,
    /// Processors that this process may use.
    pub(crate) cores: usize,
    /// The processor's model, if the kernel names it.
    pub(crate) processor: Option<String>,
    /// In bytes.
    pub(crate) memory: Option<u64>,
    /// The model of each NVIDIA GPU.
    pub(crate) gpus: Vec<String>,
}

impl HostInfo {
    /// This machine.
    pub(crate) fn here() -> Self {
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        HostInfo {
            host: text(uname.nodename()),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            architecture: text(uname.machine()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            memory: field(&read("/proc/meminfo"), "MemTotal").and_then(|text| bytes(&text)),
            gpus: gpus(Path::new("/proc/driver/nvidia/gpus")),
        }
    }

    /// What no run on this machine can show.
    pub(crate) fn not_verified(&self) -> Vec<String> {
        let gpu = "training on GPUs over NCCL: this machine has no NVIDIA GPU";
        if self.gpus.is_empty() { vec![gpu.into()] } else { vec![] }
    }

    /// In one line: `2 cores, 7.8 GiB, no GPU, Linux 6.8.0 (x86_64)`.
    pub(crate) fn summary(&self) -> String {
        let cores = count(self.cores, "core");
        let memory = self.memory.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
        let gpus = match self.gpus.as_slice() {
            [] => "no GPU".to_owned(),
            [one] => one.clone(),
            [first, ..] => format!("{} GPUs ({first})", self.gpus.len()),
        };
        let kernel = format!("{} ({})", self.kernel, self.architecture);
        [Some(cores), memory, Some(gpus), Some(kernel)].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The value after `name` and a colon, on the first line that has it.
fn field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Parses `8167840 kB`, the format of proc(5).
fn bytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The driver has a folder for each card with a file that names its model.
fn gpus(folder: &Path) -> Vec<String> {
    let Ok(cards) = fs::read_dir(folder) else { return vec![] };
    let mut paths: Vec<_> = cards.flatten().map(|card| card.path()).collect();
    paths.sort();
    let model = |text: String| field(&text, "Model").unwrap_or_else(|| "unknown GPU".into());
    paths.iter().map(|path| model(fs::read_to_string(path.join("information")).unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_tables() {
        let table = "processor\t: 0\nmodel name\t: Some CPU: 9\nmodel name\t: Another\n";
        assert_eq!(field(table, "model name").as_deref(), Some("Some CPU: 9"));
        assert_eq!(field("MemTotal:        2048 kB\n", "MemTotal").and_then(|text| bytes(&text)), Some(2_097_152));
        assert_eq!((field("", "MemTotal"), bytes("many kB"), bytes(&format!("{} kB", u64::MAX))), (None, None, None));
    }

    #[test]
    fn names_each_card_that_the_driver_lists() {
        let dir = tempfile::tempdir().unwrap();
        for (card, text) in [("0000:02:00.0", ""), ("0000:01:00.0", "Model: \t\t NVIDIA H200\nIRQ: 7\n")] {
            fs::create_dir(dir.path().join(card)).unwrap();
            fs::write(dir.path().join(card).join("information"), text).unwrap();
        }
        assert_eq!(gpus(dir.path()), ["NVIDIA H200", "unknown GPU"]);
        assert!(gpus(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn says_what_cannot_be_shown_without_a_gpu() {
        let mut machine =
            HostInfo { cores: 1, memory: Some(3 << 29), kernel: "Linux 6.1".into(), ..HostInfo::default() };
        machine.architecture = "x86_64".into();
        assert_eq!(machine.summary(), "1 core, 1.5 GiB, no GPU, Linux 6.1 (x86_64)");
        assert_eq!(machine.not_verified().len(), 1);
        machine.gpus = vec!["NVIDIA H200".into(); 2];
        assert!(machine.not_verified().is_empty() && machine.summary().contains("2 GPUs (NVIDIA H200)"));
        assert!(HostInfo::here().cores > 0 && HostInfo::here().kernel.starts_with("Linux "));
    }
}
