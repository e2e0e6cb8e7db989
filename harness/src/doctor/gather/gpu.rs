//! NVIDIA GPUs: what `nvidia-smi` prints.

use std::ffi::OsString;
use std::time::Duration;

use lockstep_launch::config::HostInfo;

use super::super::facts::{Card, GpuPath, Gpus};
use super::read::output;

/// One line for each card: name, driver, memory in MiB, MIG.
const QUERY: [&str; 2] =
    ["--query-gpu=name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader,nounits"];

/// The GPUs of this machine. `visible` is the value of `CUDA_VISIBLE_DEVICES`.
pub(super) async fn gpus(visible: Option<&str>, patience: Duration) -> Gpus {
    let env = |name: &str| Some(name).filter(|name| *name == "CUDA_VISIBLE_DEVICES").and(visible).map(OsString::from);
    let counted = HostInfo::here(&env).gpus;
    let present = counted.hidden_by.unwrap_or(counted.count);
    let mut gpus = Gpus { present, visible: counted.count, ..Gpus::default() };
    if present == 0 {
        return gpus;
    }
    match output("nvidia-smi", &QUERY, patience).await {
        Ok(text) => (gpus.driver, gpus.cards) = cards(&text),
        Err(why) => gpus.trouble = Some(why),
    }
    if let Ok(text) = output("nvidia-smi", &["topo", "-m"], patience).await {
        gpus.paths = paths(&text);
    }
    gpus
}

/// Reads the answer to [`QUERY`].
fn cards(text: &str) -> (Option<String>, Vec<Card>) {
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').map(str::trim).collect()).collect();
    let driver = rows.first().and_then(|row| row.get(1)).map(|driver| (*driver).to_owned());
    let card = |row: &Vec<&str>| {
        let [name, _, memory, mig] = row.as_slice() else { return None };
        Some(Card { name: (*name).to_owned(), memory: memory.parse().ok()?, divided: *mig == "Enabled" })
    };
    (driver, rows.iter().filter_map(card).collect())
}

/// Reads `nvidia-smi topo -m`: a row for each GPU, whose cells say how it reaches the device of each column. Columns of network cards and
/// of processors follow those of the GPUs.
fn paths(text: &str) -> Vec<GpuPath> {
    // On terminals the first line is underlined.
    let plain = |line: &str| {
        let parts = line.split('\x1b').enumerate();
        let text = |(at, part): (usize, &str)| match at {
            0 => part.to_owned(),
            _ => part.split_once('m').map_or_else(String::new, |(_, rest)| rest.to_owned()),
        };
        parts.map(text).collect::<String>()
    };
    let number = |word: &str| word.strip_prefix("GPU")?.parse::<usize>().ok();
    let lines: Vec<String> = text.lines().map(plain).collect();
    let Some(header) = lines.iter().find(|line| line.split_whitespace().next() == Some("GPU0")) else {
        return Vec::new();
    };
    let columns: Vec<usize> = header.split_whitespace().map_while(number).collect();
    let mut found = Vec::new();
    for line in lines.iter().skip_while(|line| *line != header).skip(1) {
        let mut words = line.split_whitespace();
        let Some(row) = words.next().and_then(number) else { break };
        for (column, tier) in columns.iter().zip(words) {
            if row < *column {
                found.push(GpuPath { between: (row, *column), tier: tier.to_owned() });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four H100 on two sockets, of which two pairs have NVLink, with two network cards (the form of driver 550).
    const FOUR: &str = "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n\
        GPU0\t X \tNV12\tSYS\tSYS\tPIX\tSYS\t0-31,64-95\t0\t\tN/A\n\
        GPU1\tNV12\t X \tSYS\tSYS\tNODE\tSYS\t0-31,64-95\t0\t\tN/A\n\
        GPU2\tSYS\tSYS\t X \tNV12\tSYS\tPIX\t32-63,96-127\t1\t\tN/A\n\
        GPU3\tSYS\tSYS\tNV12\t X \tSYS\tNODE\t32-63,96-127\t1\t\tN/A\n\
        NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS\n\
        NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X \n\n\
        Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes\n";
    const ONE: &str = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\t\tN/A\n";

    #[test]
    fn reads_how_gpus_are_joined() {
        let tiers: Vec<_> = paths(FOUR).iter().map(|path| format!("{:?} {}", path.between, path.tier)).collect();
        assert_eq!(tiers, ["(0, 1) NV12", "(0, 2) SYS", "(0, 3) SYS", "(1, 2) SYS", "(1, 3) SYS", "(2, 3) NV12"]);
        assert!(paths(ONE).is_empty() && paths("").is_empty() && paths("No devices were found").is_empty());
        for (end, _) in FOUR.char_indices() {
            paths(&FOUR[..end]);
        }
    }

    #[test]
    fn reads_cards_and_the_driver() {
        let text =
            "NVIDIA H100 80GB HBM3, 580.65.06, 81559, Disabled\nNVIDIA H100 80GB HBM3, 580.65.06, 81559, Enabled";
        let (driver, found) = cards(text);
        assert_eq!(driver.as_deref(), Some("580.65.06"));
        assert_eq!(
            found.iter().map(|card| (card.memory, card.divided)).collect::<Vec<_>>(),
            [(81559, false), (81559, true)]
        );
        assert_eq!(cards("").1, []);
        assert_eq!(cards("GeForce, 1, [N/A], [N/A]").1, []);
    }
}
