//! Collects facts of GPUs: those of NVIDIA by `nvidia-smi`, those of AMD by `rocm-smi` or `amd-smi`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use lockstep_launch::config::{GpuVendor, HostInfo};
use serde_json::Value;

use super::facts::{Card, GpuPath, Gpus};
use super::gather::{line, output};

/// The GPUs of this machine, as far as these variables let programs see them, and what could not be looked at.
pub(super) async fn gpus(variables: &BTreeMap<String, String>, patience: Duration) -> (Gpus, Option<String>) {
    let env = |name: &str| variables.get(name).map(OsString::from);
    let counted = HostInfo::here(&env).gpus;
    let present = counted.hidden_by.unwrap_or(counted.count);
    let gpus = Gpus { present, visible: counted.count, vendor: counted.vendor, ..Gpus::default() };
    match counted.vendor {
        _ if present == 0 => (gpus, None),
        GpuVendor::Nvidia => (of_nvidia(gpus, patience).await, None),
        GpuVendor::Amd => {
            let rocm = variables.get("ROCM_PATH").map_or("/opt/rocm", String::as_str);
            of_amd(gpus, Path::new("/dev/kfd"), Path::new(rocm), ["rocm-smi", "amd-smi"], patience).await
        }
    }
}

// ---- NVIDIA: what `nvidia-smi` prints

/// One line for each card: name, driver, memory in MiB, MIG.
const QUERY: [&str; 2] =
    ["--query-gpu=name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader,nounits"];

async fn of_nvidia(mut gpus: Gpus, patience: Duration) -> Gpus {
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

// ---- AMD: what `rocm-smi` or `amd-smi` prints, as JSON

/// The questions to `rocm-smi`: names, memory and the driver; links.
const ROCM_SMI: [&[&str]; 2] =
    [&["--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json"], &["--showtopotype", "--json"]];
/// The questions to `amd-smi`, which replaces `rocm-smi` in newer releases of ROCm.
const AMD_SMI: [&[&str]; 2] = [&["static", "--asic", "--vram", "--driver", "--json"], &["topology", "--json"]];

/// `file` is the one that programs open to use the GPUs, `rocm` the folder of ROCm.
async fn of_amd(
    mut gpus: Gpus,
    file: &Path,
    rocm: &Path,
    [rocm_smi, amd_smi]: [&str; 2],
    patience: Duration,
) -> (Gpus, Option<String>) {
    gpus.closed = File::options().read(true).write(true).open(file).err().map(|error| error.to_string());
    gpus.runtime = line(rocm.join(".info/version"));
    let mut unseen = None;
    for (tool, questions) in [(rocm_smi, ROCM_SMI), (amd_smi, AMD_SMI)] {
        let text = match output(tool, questions[0], patience).await {
            Ok(text) => text,
            // The driver comes without these programs, and a container need not have them.
            Err(why) if why.starts_with("cannot run") => {
                unseen.get_or_insert(format!("AMD's GPUs: {why}"));
                continue;
            }
            Err(why) => return (Gpus { trouble: Some(why), ..gpus }, None),
        };
        (gpus.driver, gpus.cards) = amd_cards(&json(&text));
        if let Ok(text) = output(tool, questions[1], patience).await {
            gpus.paths = amd_paths(&json(&text));
        }
        return (gpus, None);
    }
    (gpus, unseen)
}

/// The JSON in what a program printed. Warnings may come before it.
fn json(text: &str) -> Value {
    let begin = text.lines().position(|line| line.starts_with(['{', '[']));
    let lines: Vec<&str> = text.lines().skip(begin.unwrap_or(usize::MAX)).collect();
    serde_json::from_str(&lines.join("\n")).unwrap_or_default()
}

/// What `amd-smi` says of each GPU: a list, in newer releases below `gpu_data`.
fn each_gpu(answer: &Value) -> &[Value] {
    answer.get("gpu_data").unwrap_or(answer).as_array().map_or(&[], Vec::as_slice)
}

/// The driver's version, and the cards by number.
fn amd_cards(answer: &Value) -> (Option<String>, Vec<Card>) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let of_amd_smi = each_gpu(answer);
    if !of_amd_smi.is_empty() {
        let card = |gpu: &Value| {
            let size = gpu.pointer("/vram/size")?;
            // In MB, which are MiB here.
            let memory = size.get("value").unwrap_or(size).as_u64()?;
            Some(Card { name: text(gpu.pointer("/asic/market_name"))?, memory, divided: false })
        };
        let driver = text(of_amd_smi[0].pointer("/driver/version"));
        return (driver, of_amd_smi.iter().filter_map(card).collect());
    }
    let mut found = Vec::new();
    for (name, card) in answer.as_object().into_iter().flatten() {
        let Some(number) = name.strip_prefix("card").and_then(|number| number.parse::<u32>().ok()) else { continue };
        // The words differ between releases.
        let name =
            ["Card Series", "Card series", "Card Model", "Card model"].iter().find_map(|key| text(card.get(*key)));
        let memory = text(card.get("VRAM Total Memory (B)")).and_then(|bytes| bytes.parse::<u64>().ok());
        found
            .extend(name.zip(memory).map(|(name, bytes)| (number, Card { name, memory: bytes >> 20, divided: false })));
    }
    found.sort_by_key(|(number, _)| *number);
    (text(answer.pointer("/system/Driver version")), found.into_iter().map(|(_, card)| card).collect())
}

/// `XGMI` or `PCIE` for each pair.
fn amd_paths(answer: &Value) -> Vec<GpuPath> {
    let mut found = Vec::new();
    for gpu in each_gpu(answer) {
        for link in gpu.get("links").and_then(Value::as_array).into_iter().flatten() {
            let number = |of: &Value| of.get("gpu").and_then(Value::as_u64).map(|number| number as usize);
            let tier = link.get("link_type").and_then(Value::as_str);
            if let (Some(one), Some(other), Some(tier)) = (number(gpu), number(link), tier)
                && one < other
            {
                found.push(GpuPath { between: (one, other), tier: tier.to_owned() });
            }
        }
    }
    for (name, tier) in answer.get("system").and_then(Value::as_object).into_iter().flatten() {
        let pair =
            name.strip_prefix("(Topology) Link type between DRM devices ").and_then(|pair| pair.split_once(" and "));
        let pair = pair.and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
        if let (Some(between), Some(tier)) = (pair, tier.as_str()) {
            found.push(GpuPath { between, tier: tier.to_owned() });
        }
    }
    found.sort_by_key(|path| path.between);
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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

    /// Two of the eight devices of a node with four MI250X, in the words of ROCm 6.
    const ROCM: &str = r#"WARNING: AMD GPU device(s) is/are in a low-power state
{"card1": {"Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520"},
 "card0": {"Card series": "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520", "Card SKU": "D65201"},
 "system": {"Driver version": "6.7.0"}}"#;
    const ROCM_LINKS: &str = r#"{"system": {"(Topology) Link type between DRM devices 1 and 2": "PCIE",
        "(Topology) Link type between DRM devices 0 and 1": "XGMI", "Driver version": "6.7.0"}}"#;
    const AMD: &str = r#"{"gpu_data": [{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"},
        "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}}, "driver": {"name": "amdgpu", "version": "6.10.5"}}]}"#;
    const AMD_LINKS: &str = r#"[{"gpu": 0, "links": [{"gpu": 0, "link_type": "SELF"}, {"gpu": 1, "link_type": "XGMI"}]},
        {"gpu": 1, "links": [{"gpu": 0, "link_type": "XGMI"}, {"gpu": 1, "link_type": "SELF"}]}]"#;

    #[test]
    fn reads_what_both_of_amds_programs_print() {
        let shown = |(driver, cards): (Option<String>, Vec<Card>)| {
            (driver.unwrap_or_default(), cards.into_iter().map(|card| (card.name, card.memory)).collect::<Vec<_>>())
        };
        let mi250x = ("AMD Instinct MI250X".to_owned(), 65_520);
        assert_eq!(shown(amd_cards(&json(ROCM))), ("6.7.0".to_owned(), vec![mi250x.clone(), mi250x]));
        assert_eq!(
            shown(amd_cards(&json(AMD))),
            ("6.10.5".to_owned(), vec![("AMD Instinct MI300X".to_owned(), 196_592)])
        );
        let links = |text: &str| -> Vec<String> {
            amd_paths(&json(text)).iter().map(|path| format!("{:?} {}", path.between, path.tier)).collect()
        };
        assert_eq!(links(ROCM_LINKS), ["(0, 1) XGMI", "(1, 2) PCIE"]);
        assert_eq!(links(AMD_LINKS), ["(0, 1) XGMI"]);
        for text in [ROCM, ROCM_LINKS, AMD, AMD_LINKS, "", "ERROR: no GPU"] {
            for (end, _) in text.char_indices() {
                amd_cards(&json(&text[..end]));
                amd_paths(&json(&text[..end]));
            }
        }
    }

    #[tokio::test]
    async fn asks_the_program_that_is_there_and_gives_its_words_if_it_fails() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let program = |name: &str, script: &str| {
            fs::write(path(name), format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        let of = |words: &str, first: &str, second: &str| {
            format!("case $1 in {words}) cat <<'END'\n{first}\nEND\n;; *) cat <<'END'\n{second}\nEND\n;; esac")
        };
        let rocm = folder.path().join("rocm");
        fs::create_dir_all(rocm.join(".info")).unwrap();
        fs::write(rocm.join(".info/version"), "6.2.4\n").unwrap();
        let ask = async || {
            let tools = [path("rocm-smi"), path("amd-smi")];
            of_amd(Gpus::default(), &folder.path().join("kfd"), &rocm, tools.each_ref().map(String::as_str), PATIENCE)
                .await
        };
        let (gpus, unseen) = ask().await;
        assert!(unseen.unwrap().contains("rocm-smi") && gpus.trouble.is_none() && gpus.cards.is_empty());
        assert!(gpus.closed.unwrap().starts_with("No such file"));
        assert_eq!(gpus.runtime.as_deref(), Some("6.2.4"));
        program("amd-smi", &of("static", AMD, AMD_LINKS));
        fs::write(folder.path().join("kfd"), "").unwrap();
        let (gpus, unseen) = ask().await;
        assert_eq!((gpus.cards.len(), gpus.paths.len(), gpus.closed, unseen), (1, 1, None, None));
        program("rocm-smi", &of("--showproductname", ROCM, ROCM_LINKS));
        let (gpus, _) = ask().await;
        assert_eq!((gpus.driver.as_deref(), gpus.cards.len(), gpus.paths.len()), (Some("6.7.0"), 2, 2));
        program("rocm-smi", "echo 'ERROR:root:Driver not initialized (amdgpu not found in modules)' >&2; exit 1");
        let (gpus, _) = ask().await;
        assert!(gpus.trouble.unwrap().ends_with("Driver not initialized (amdgpu not found in modules)"));
    }
}
