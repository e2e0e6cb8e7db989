//! Collects facts of processors, memory, network adapters and installed software, mostly from `/proc` and `/sys`.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use lockstep_process::{ControlGroup, find_program, pids_limit, processor_of};
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

use super::facts::{Adapter, AdapterPort, Cpu, Fabric, Libtorch, Limits, Memory, Program};
use super::gather::{entries, line, name_of};

/// Version 1 shows "no limit" as a number of pages near 2^63.
const UNLIMITED: u64 = 1 << 60;

/// The host name, and the architecture.
pub(super) fn names() -> (String, String) {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    (text(uname.nodename()), text(uname.machine()))
}

/// Processors; files are read below `root`.
pub(super) fn cpu(root: &Path) -> Cpu {
    let online = line(root.join("sys/devices/system/cpu/online")).map_or(0, |ranges| count(&ranges));
    let allowed = sched_getaffinity(None).map_or(online, |set| set.count() as usize);
    Cpu { online: online.max(allowed), allowed, quota: quota(root) }
}

/// Memory; files are read below `root`.
pub(super) fn memory(root: &Path) -> Memory {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let limits = groups(root, "memory").into_iter().filter_map(|group| {
        let text = line(group.join("memory.max")).or_else(|| line(group.join("memory.limit_in_bytes")))?;
        text.parse::<u64>().ok().filter(|limit| *limit < UNLIMITED)
    });
    Memory { total: field("MemTotal"), available: field("MemAvailable"), limit: limits.min() }
}

pub(super) fn limits() -> Limits {
    Limits {
        open_files: getrlimit(Resource::Nofile).maximum,
        processes: getrlimit(Resource::Nproc).current,
        group_processes: pids_limit(Path::new("/")).map(|(_, limit)| limit),
        locked_memory: getrlimit(Resource::Memlock).current,
        address_space: getrlimit(Resource::As).current,
        core: getrlimit(Resource::Core).current,
        core_pattern: line("/proc/sys/kernel/core_pattern").unwrap_or_default(),
    }
}

/// The CPU quota of the control groups, in processors.
fn quota(root: &Path) -> Option<f64> {
    let paid = groups(root, "cpu").into_iter().filter_map(|group| {
        let number = |text: Option<String>| text?.parse::<f64>().ok();
        let (quota, period) = match line(group.join("cpu.max")) {
            Some(text) => {
                let (quota, period) = text.split_once(' ')?;
                (quota.parse().ok()?, period.parse().ok()?)
            }
            None => (number(line(group.join("cpu.cfs_quota_us")))?, number(line(group.join("cpu.cfs_period_us")))?),
        };
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    });
    paid.min_by(f64::total_cmp)
}

/// The folders of this process's control groups and of those around them, for one controller.
fn groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    ControlGroup::of(root, controller).iter().flat_map(ControlGroup::around).map(Path::to_owned).collect()
}

/// The length of the kernel's list `0-3,5`.
fn count(ranges: &str) -> usize {
    let size = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    ranges.split(',').filter_map(size).sum()
}

// ---- adapters and plugins

/// Where packages and container images install NCCL's network plugins and RCCL's, besides `LD_LIBRARY_PATH`; `{arch}` is this architecture.
const PLUGINS: [&str; 8] = [
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib/{arch}-linux-gnu",
    "opt/aws-ofi-nccl/lib",
    "opt/aws-ofi-rccl",
    "opt/aws-ofi-rccl/lib",
    "usr/lib/{arch}-linux-gnu",
    "usr/lib64",
    "usr/local/lib",
];

/// The fabric of this machine; files are read below `root`.
pub(super) fn fabric(root: &Path, library_path: Option<&str>) -> Fabric {
    let adapters = entries(&root.join("sys/class/infiniband"));
    let drivers = adapters.iter().filter_map(|path| path.join("device/driver").canonicalize().ok());
    let of_path = library_path.unwrap_or_default().split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folders = of_path.chain(PLUGINS.map(|folder| root.join(folder.replace("{arch}", ARCH))));
    let plugins = folders.flat_map(|folder| entries(&folder)).filter(|path| is_plugin(&name_of(path)));
    Fabric {
        efa: drivers.into_iter().any(|driver| name_of(&driver) == "efa"),
        cxi: !entries(&root.join("sys/class/cxi")).is_empty(),
        adapters: adapters.iter().map(|path| adapter(path)).collect(),
        plugins: plugins.collect(),
    }
}

/// NCCL loads `libnccl-net.so`, or `libnccl-net-NAME.so` for `NCCL_NET_PLUGIN=NAME`; RCCL does, too, and newer ones load `librccl-net`.
fn is_plugin(name: &str) -> bool {
    (name.starts_with("libnccl-net") || name.starts_with("librccl-net")) && name.contains(".so")
}

fn adapter(path: &Path) -> Adapter {
    let port = |path: PathBuf| {
        // `4: ACTIVE`
        let state = line(path.join("state")).unwrap_or_default();
        Some(AdapterPort {
            number: name_of(&path).parse().ok()?,
            state: state.rsplit(' ').next().unwrap_or_default().to_owned(),
            link_layer: line(path.join("link_layer")).unwrap_or_default(),
            gids: entries(&path.join("gids")).iter().filter_map(|path| gid(path)).collect(),
        })
    };
    Adapter { name: name_of(path), ports: entries(&path.join("ports")).into_iter().filter_map(port).collect() }
}

/// The index of a GID that is not zero.
fn gid(path: &Path) -> Option<u32> {
    let value = line(path)?;
    if value.chars().all(|c| "0:".contains(c)) { None } else { name_of(path).parse().ok() }
}

// ---- this program, libtorch and containers

/// Container runtimes of clusters and of clouds.
const RUNTIMES: [&str; 5] = ["apptainer", "singularity", "podman", "docker", "enroot"];

/// The `lockstep` that runs.
pub(super) fn program() -> Program {
    let path = std::env::current_exe().unwrap_or_default();
    let checksum = checksum(&path).ok();
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), path, checksum }
}

/// CRC-32.
fn checksum(path: &Path) -> io::Result<String> {
    let mut reader = flate2::CrcReader::new(File::open(path)?);
    io::copy(&mut reader, &mut io::sink())?;
    Ok(format!("{:08x}", reader.crc().sum()))
}

/// What kind of container this process is in; `None` outside of one.
pub(super) fn container() -> Option<String> {
    let set = |name: &str| std::env::var_os(name).is_some();
    let there = |path: &str| Path::new(path).exists();
    let kinds = [
        ("apptainer", set("APPTAINER_CONTAINER") || there("/.singularity.d")),
        ("singularity", set("SINGULARITY_CONTAINER")),
        ("enroot", set("ENROOT_ROOTFS")),
        ("podman", there("/run/.containerenv")),
        ("kubernetes", set("KUBERNETES_SERVICE_HOST")),
        ("docker", there("/.dockerenv")),
    ];
    kinds.into_iter().find(|(_, is)| *is).map(|(name, _)| name.to_owned())
}

/// The container runtimes in `PATH`.
pub(super) fn runtimes() -> Vec<String> {
    let path = std::env::var_os("PATH");
    let there = |name: &&&str| find_program(OsStr::new(name), path.as_deref()).is_ok();
    RUNTIMES.iter().filter(there).map(|name| (*name).to_owned()).collect()
}

/// The libtorch that programs of the course would load: that of `LIBTORCH`, of the checkout around this program or the current folder
/// (`scripts/setup.sh` installs it in `.libtorch`, for another architecture than x86-64 in a folder of that), or of `LD_LIBRARY_PATH`.
pub(super) fn libtorch(variables: &BTreeMap<String, String>) -> Option<Libtorch> {
    let named = variables.get("LIBTORCH").map(|folder| (PathBuf::from(folder), "LIBTORCH"));
    let begins = [std::env::current_exe().ok(), std::env::current_dir().ok()];
    let checkouts = begins.iter().flatten().flat_map(|begin| begin.ancestors());
    let folders = checkouts.flat_map(|folder| [folder.join(".libtorch").join(ARCH), folder.join(".libtorch")]);
    let installed = folders.map(|folder| (folder, "scripts/setup.sh"));
    let libraries = variables.get("LD_LIBRARY_PATH").map(String::as_str).unwrap_or_default();
    let loaded = libraries.split(':').filter(|folder| !folder.is_empty()).map(Path::new);
    let loaded = loaded.filter_map(Path::parent).map(|folder| (folder.to_owned(), "LD_LIBRARY_PATH"));
    let found = named.into_iter().chain(installed).chain(loaded).find_map(|(folder, found)| at(&folder, found))?;
    let same = |one: &Path, other: &Path| one.canonicalize().ok() == other.canonicalize().ok();
    let mut first = libraries.split(':').map(|folder| Path::new(folder).join(TORCH)).filter(|file| is_loaded(file));
    let other = first.next().filter(|file| !same(file, &found.folder.join("lib").join(TORCH)));
    Some(Libtorch { other: other.and_then(|file| Some(file.parent()?.to_owned())), ..found })
}

/// The library that every program of the course loads.
const TORCH: &str = "libtorch_cpu.so";

/// The loader passes over a library for another processor.
fn is_loaded(library: &Path) -> bool {
    library.is_file() && processor_of(library).is_none_or(|processor| processor == ARCH)
}

/// As set-up looks for it: the folder itself, or one in it.
fn at(folder: &Path, found: &str) -> Option<Libtorch> {
    let folders = [folder.to_owned(), folder.join("torch"), folder.join("libtorch")];
    let folder = folders.into_iter().find(|folder| is_loaded(&folder.join("lib").join(TORCH)))?;
    Some(Libtorch { version: version(&folder), folder, found: found.to_owned(), other: None })
}

/// The version, from whichever file of the installation contains it.
fn version(folder: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let recorded = || read("installed")?.lines().find_map(|line| line.strip_prefix("version=")).map(str::to_owned);
    let stamped = || read("build-version")?.lines().next().map(str::to_owned);
    let python = || {
        let text = read("version.py")?;
        let value = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
        Some(value.trim_matches(['\'', '"']).to_owned())
    };
    let header = |name: &str| {
        let text = read(name)?;
        let part = |part: &str| {
            let define = format!("#define TORCH_VERSION_{part} ");
            text.lines().find_map(|line| line.strip_prefix(&define)).map(|value| value.trim().to_owned())
        };
        Some(format!("{}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
    };
    recorded()
        .or_else(stamped)
        .or_else(python)
        .or_else(|| header("include/torch/headeronly/version.h"))
        .or_else(|| header("include/torch/version.h"))
        .filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_lowest_limit_of_nested_groups_counts_in_both_versions() {
        let new = root(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable: 1024 kB\n"),
            ("sys/fs/cgroup/job/memory.max", "1048576\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/job/cpu.max", "max 100000\n"),
        ]);
        let found = memory(new.path());
        assert_eq!((found.total, found.available, found.limit), (Some(2 << 20), Some(1 << 20), Some(1 << 20)));
        assert_eq!(quota(new.path()), Some(1.5));
        let old = root(&[
            ("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/a\n0::/\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "524288\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!((memory(old.path()).limit, quota(old.path())), (Some(1 << 19), Some(0.5)));
        let none = root(&[]);
        assert_eq!((memory(none.path()), quota(none.path())), (Memory::default(), None));
    }

    #[test]
    fn counts_processors_from_ranges() {
        assert_eq!(["0-3,5", "0", "", "x", "3-1"].map(count), [5, 1, 0, 0, 0]);
    }

    #[test]
    fn reads_ports_gids_and_plugins() {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let files = [
            (format!("{port}/state"), "4: ACTIVE\n"),
            (format!("{port}/link_layer"), "Ethernet\n"),
            (format!("{port}/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            (format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            (format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            ("opt/aws-ofi-nccl/lib/libnccl-net.so".into(), ""),
            ("opt/aws-ofi-rccl/librccl-net.so".into(), ""),
            (format!("usr/lib/{ARCH}-linux-gnu/libnccl-net-ofi.so"), ""),
            ("usr/lib/m68k-linux-gnu/libnccl-net.so".into(), ""),
            ("usr/lib64/libnccl.so.2".into(), ""),
        ];
        let dir = root(&files.each_ref().map(|(path, text)| (path.as_str(), *text)));
        let found = fabric(dir.path(), None);
        assert_eq!((found.efa, found.cxi, found.plugins.len()), (false, false, 3));
        let port = &found.adapters[0].ports[0];
        assert_eq!((port.number, port.state.as_str(), port.link_layer.as_str()), (1, "ACTIVE", "Ethernet"));
        let mut gids = port.gids.clone();
        gids.sort_unstable();
        assert_eq!(gids, [0, 3]);
        assert_eq!(fabric(&dir.path().join("none"), None), Fabric::default());
    }

    fn installation(files: &[(&str, &str)]) -> tempfile::TempDir {
        root(&[&[("torch/lib/libtorch_cpu.so", "")], files].concat())
    }

    #[test]
    fn finds_libtorch_and_its_version_in_each_form() {
        let header = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n";
        for (file, text, version) in [
            ("torch/build-version", "2.11.0+cpu\n", Some("2.11.0+cpu")),
            ("torch/version.py", "# \n__version__ = '2.11.0+cu130'\n", Some("2.11.0+cu130")),
            ("torch/include/torch/headeronly/version.h", header, Some("2.11.0")),
            ("torch/installed", "source=own\nversion=2.11.0\n", Some("2.11.0")),
            ("torch/other", "", None),
        ] {
            let dir = installation(&[(file, text)]);
            let found = at(dir.path(), "test").unwrap();
            assert_eq!(found.version.as_deref(), version, "{file}");
        }
        assert_eq!(at(Path::new("/none"), "test"), None);
        let dir = installation(&[]);
        let found = libtorch(&[("LIBTORCH".to_owned(), dir.path().to_str().unwrap().to_owned())].into()).unwrap();
        assert_eq!((found.found.as_str(), found.folder), ("LIBTORCH", dir.path().join("torch")));
    }

    #[test]
    fn the_checksum_is_that_of_the_content() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "123456789").unwrap();
        assert_eq!(checksum(&dir.path().join("a")).unwrap(), "cbf43926");
    }
}
