//! Collects the facts of this machine, each part from its own place: `/proc` and `/sys` ([`gather_hardware`](super::gather_hardware)),
//! system calls, files, and two programs (`nvidia-smi` or `rocm-smi`, and `getent`) that get a few seconds each.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use getifaddrs::{InterfaceFlags, getifaddrs};
use lockstep_contract::foreign::quotation;
use rustix::fs::statvfs;
use tokio::net::lookup_host;
use tokio::process::Command;
use tokio::time::timeout;

use super::facts::{Folder, Interface, Names, Node, Resolved, Space};
use super::{gather_gpus, gather_hardware};

/// The beginnings and whole names of the variables that training reads.
const VARIABLES: [&str; 20] = [
    "NCCL_",
    "GLOO_",
    "FI_",
    "TORCH_",
    "TORCHELASTIC_RUN_ID",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ROCM_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LIBTORCH",
    "LD_LIBRARY_PATH",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// The facts of this machine; `name` is what the job calls it. A program, or the resolution of a name, may take as long as `patience`: a
/// driver that hangs makes `nvidia-smi` hang.
pub(crate) async fn node(name: Option<&str>, folder: &Path, patience: Duration) -> Node {
    let (host, architecture) = gather_hardware::names();
    let variables = variables(std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value)));
    let mut unseen = Vec::new();
    let interfaces = interfaces().unwrap_or_else(|error| {
        unseen.push(format!("network interfaces: {error}"));
        Vec::new()
    });
    let master = variables.get("MASTER_ADDR").cloned();
    let ((gpus, unasked), own, localhost, master, reverse) = tokio::join!(
        gather_gpus::gpus(&variables, patience),
        resolve(&host, patience),
        resolve("localhost", patience),
        async {
            match &master {
                Some(name) => Some(resolve(name, patience).await),
                None => None,
            }
        },
        timeout(patience, reverse(&interfaces, patience)),
    );
    let reverse = reverse.unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs())));
    let reverse = reverse.unwrap_or_else(|why| {
        unseen.push(format!("names of addresses: {why}"));
        BTreeMap::new()
    });
    unseen.extend(unasked);
    let (shm, temporary, folder) = stored(folder, 3 * patience).await;
    Node {
        name: name.unwrap_or(&host).to_owned(),
        architecture,
        program: gather_hardware::program(),
        cpu: gather_hardware::cpu(Path::new("/")),
        memory: gather_hardware::memory(Path::new("/")),
        limits: gather_hardware::limits(),
        shm,
        temporary,
        folder,
        names: Names { own: Some(own), localhost: Some(localhost), master, peers: BTreeMap::new(), reverse },
        interfaces,
        fabric: gather_hardware::fabric(Path::new("/"), variables.get("LD_LIBRARY_PATH").map(String::as_str)),
        libtorch: gather_hardware::libtorch(&variables),
        container: gather_hardware::container(),
        runtimes: gather_hardware::runtimes(),
        host,
        variables,
        gpus,
        unseen,
        ..Node::default()
    }
}

fn variables(all: impl Iterator<Item = (String, std::ffi::OsString)>) -> BTreeMap<String, String> {
    let read = |name: &str| {
        let lower = name.to_lowercase();
        VARIABLES.iter().any(|wanted| match wanted.ends_with('_') {
            true => name.starts_with(wanted),
            false => name == *wanted || (wanted.ends_with("_proxy") && lower == *wanted),
        })
    };
    let found = all.filter(|(name, _)| read(name));
    // Proxies count in either spelling.
    let key = |name: String| if name.to_lowercase().ends_with("_proxy") { name.to_lowercase() } else { name };
    found.map(|(name, value)| (key(name), value.to_string_lossy().into_owned())).collect()
}

/// `/dev/shm`, the folder for temporary files, and that for snapshots. A file server that is gone makes every call for its files hang, so
/// the calls are made by another thread, with more patience: a busy disk takes seconds.
async fn stored(folder: &Path, patience: Duration) -> (Option<Space>, Option<Space>, Folder) {
    let spaces = [PathBuf::from("/dev/shm"), std::env::temp_dir()].map(|path| in_time(patience, move || space(&path)));
    let (path, place) = (folder.to_owned(), folder.to_owned());
    let [shm, temporary] = spaces;
    let (shm, temporary, folder) = tokio::join!(shm, temporary, in_time(patience, move || snapshot_folder(path)));
    let hangs = Folder { path: place, hangs: true, ..Folder::default() };
    (shm.flatten(), temporary.flatten(), folder.unwrap_or(hangs))
}

// ---- interfaces, and names as programs see them

/// All interfaces in the kernel's order.
pub(super) fn interfaces() -> std::io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in getifaddrs()? {
        let at = found.iter().position(|known| known.name == entry.name).unwrap_or_else(|| {
            let has = |flag| entry.flags.contains(flag);
            found.push(Interface {
                name: entry.name.clone(),
                up: has(InterfaceFlags::UP),
                running: has(InterfaceFlags::RUNNING),
                loopback: has(InterfaceFlags::LOOPBACK),
                addresses: Vec::new(),
            });
            found.len() - 1
        });
        found[at].addresses.extend(entry.address.ip_addr().filter(is_of_use));
    }
    Ok(found)
}

/// A job cannot use link-local addresses of IPv6.
fn is_of_use(address: &IpAddr) -> bool {
    !matches!(address, IpAddr::V6(six) if six.is_unicast_link_local())
}

/// The addresses of a name, IPv4 first.
pub(super) async fn resolve(name: &str, patience: Duration) -> Resolved {
    match timeout(patience, lookup_host((name, 0))).await {
        Err(_) => Resolved::Failed(format!("no answer within {} s", patience.as_secs())),
        Ok(Err(error)) => Resolved::Failed(error.to_string()),
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
            addresses.sort_by_key(IpAddr::is_ipv6);
            addresses.dedup();
            Resolved::Addresses(addresses)
        }
    }
}

/// The names of this machine's addresses of IPv4. Addresses without a name are left out.
pub(super) async fn reverse(interfaces: &[Interface], patience: Duration) -> Result<BTreeMap<IpAddr, String>, String> {
    let outer = interfaces.iter().filter(|interface| interface.up && !interface.loopback);
    let addresses = outer.flat_map(|interface| &interface.addresses).filter(|address| address.is_ipv4());
    let mut names = BTreeMap::new();
    for address in addresses {
        match output("getent", &["hosts", &address.to_string()], patience).await {
            Ok(text) => names.extend(text.split_whitespace().nth(1).map(|name| (*address, name.to_owned()))),
            // getent(1): 2 if it was not found.
            Err(why) if why.contains("exit status: 2") => {}
            Err(why) => return Err(why),
        }
    }
    Ok(names)
}

// ---- programs and files, with a limit on every wait

/// What a function returns; nothing, if it takes too long.
pub(crate) async fn in_time<T: Send + 'static>(
    patience: Duration,
    function: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    timeout(patience, tokio::task::spawn_blocking(function)).await.ok()?.ok()
}

/// What a program printed.
pub(super) async fn output(program: &str, arguments: &[&str], patience: Duration) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).env("LC_ALL", "C");
    let ended = timeout(patience, command.output()).await;
    let output = ended.map_err(|_| format!("{program} has not ended within {} s", patience.as_secs()))?;
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let words = if output.stderr.is_empty() { text(&output.stdout) } else { text(&output.stderr) };
    Err(format!(
        "{program} failed ({}): {}",
        output.status,
        quotation(words.lines().next().unwrap_or("without a word"))
    ))
}

/// The first line of a file of `/proc` or `/sys`.
pub(super) fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The entries of a folder, sorted; none, if it does not exist.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The last part of a path.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

// ---- space in file systems

/// The free space where this path is; `None` if it does not exist.
pub(super) fn space(path: &Path) -> Option<Space> {
    let found = statvfs(path).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Some(Space {
        path: path.to_owned(),
        total: found.f_blocks * found.f_frsize,
        free: found.f_bavail * found.f_frsize,
        inodes: (found.f_files > 0).then_some(found.f_favail),
        kind: kind(&mounts, &real).unwrap_or_default(),
    })
}

/// The folder for snapshots. A small file is written in it, and removed.
pub(super) fn snapshot_folder(path: PathBuf) -> Folder {
    let space = space(&path).filter(|_| path.is_dir());
    let unwritable = if space.is_some() { write_in(&path).err().map(|error| error.to_string()) } else { None };
    Folder { space, unwritable, hangs: false, path }
}

fn write_in(folder: &Path) -> std::io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".lockstep-doctor-").tempfile_in(folder)?;
    // More bytes than a file system stores within the inode.
    file.write_all(&[0; 1 << 16])?;
    file.as_file().sync_all()
}

/// The type of the file system that holds a path, in proc_pid_mountinfo(5).
fn kind(mounts: &str, path: &Path) -> Option<String> {
    let of_line = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let place = PathBuf::from(mount.split(' ').nth(4)?.replace("\\040", " "));
        path.starts_with(&place).then_some((place.components().count(), system.split(' ').next()?.to_owned()))
    };
    // Of several mounts on one place, the last one is visible.
    mounts.lines().filter_map(of_line).max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn keeps_only_variables_that_training_reads() {
        let all = ["NCCL_DEBUG", "FI_PROVIDER", "RANK", "HTTPS_PROXY", "HOME", "XRANK", "SECRET_TOKEN", "GLOOMY"];
        let found = variables(all.into_iter().map(|name| (name.to_owned(), "1".into())));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["FI_PROVIDER", "NCCL_DEBUG", "RANK", "https_proxy"]);
    }

    #[tokio::test]
    async fn the_facts_of_this_machine_are_plausible() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(Some("here"), dir.path(), PATIENCE).await;
        assert_eq!((node.name.as_str(), node.folder.unwritable.as_deref()), ("here", None));
        assert!(node.cpu.online > 0 && node.cpu.allowed > 0 && node.memory.total > Some(0), "{node:?}");
        assert!(node.interfaces.iter().any(|interface| interface.loopback), "{:?}", node.interfaces);
        assert!(node.program.checksum.is_some() && node.limits.open_files != Some(0));
        let json = serde_json::to_string(&node).unwrap();
        assert_eq!(serde_json::from_str::<Node>(&json).unwrap(), node);
    }

    #[tokio::test]
    async fn a_program_that_is_absent_or_fails_is_named_with_its_words() {
        assert_eq!(output("echo", &["a"], PATIENCE).await.unwrap(), "a");
        assert!(
            output("no-such-program", &[], PATIENCE).await.unwrap_err().starts_with("cannot run no-such-program: ")
        );
        let failed = output("sh", &["-c", "echo no driver; exit 9"], PATIENCE).await.unwrap_err();
        assert_eq!(failed, "sh failed (exit status: 9): no driver");
    }

    #[tokio::test]
    async fn a_call_that_hangs_is_given_up() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        assert_eq!(in_time(Duration::from_millis(1), move || held.recv()).await, None);
        drop(release);
        assert_eq!(in_time(PATIENCE, || 7).await, Some(7));
    }

    #[test]
    fn the_innermost_and_last_mount_holds_a_path() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /home rw shared:1 - nfs4 server:/home rw\n\
                      3 2 0:6 / /home/a\\040b rw - tmpfs tmpfs rw\n4 1 0:7 / /home rw - lustre x rw\n";
        let found = |path: &str| kind(mounts, Path::new(path)).unwrap();
        assert_eq!(["/x", "/home/c", "/home/a b/c"].map(found), ["ext4", "lustre", "tmpfs"]);
    }

    #[test]
    fn says_why_a_folder_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let good = snapshot_folder(dir.path().to_owned());
        assert!(good.unwritable.is_none() && good.space.is_some_and(|space| space.total > 0));
        assert_eq!(snapshot_folder(dir.path().join("absent")).space, None);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left");
        let device = snapshot_folder(PathBuf::from("/proc"));
        assert!(device.space.is_some() && device.unwritable.is_some(), "{device:?}");
    }
}
