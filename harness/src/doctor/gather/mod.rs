//! Collects the facts of this machine, each part from its own place: `/proc` and `/sys`, system calls, files, and two programs
//! (`nvidia-smi`, `getent`) that get a few seconds each.

mod fabric;
mod files;
mod gpu;
mod network;
mod software;
mod system;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::facts::{Folder, Names, Node, Space};

pub(super) use network::resolve;

/// The beginnings and whole names of the variables that training reads.
const VARIABLES: [&str; 17] = [
    "NCCL_",
    "GLOO_",
    "FI_",
    "TORCH_",
    "TORCHELASTIC_RUN_ID",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
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
pub(super) async fn node(name: Option<&str>, folder: &Path, patience: Duration) -> Node {
    let (host, architecture) = system::names();
    let variables = variables(std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value)));
    let visible = variables.get("CUDA_VISIBLE_DEVICES").cloned();
    let mut unseen = Vec::new();
    let interfaces = network::interfaces().unwrap_or_else(|error| {
        unseen.push(format!("network interfaces: {error}"));
        Vec::new()
    });
    let master = variables.get("MASTER_ADDR").cloned();
    let (gpus, own, localhost, master, reverse) = tokio::join!(
        gpu::gpus(visible.as_deref(), patience),
        resolve(&host, patience),
        resolve("localhost", patience),
        async {
            match &master {
                Some(name) => Some(resolve(name, patience).await),
                None => None,
            }
        },
        timeout(patience, network::reverse(&interfaces, patience)),
    );
    let reverse = reverse.unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs())));
    let reverse = reverse.unwrap_or_else(|why| {
        unseen.push(format!("names of addresses: {why}"));
        BTreeMap::new()
    });
    let (shm, temporary, folder) = stored(folder, 3 * patience).await;
    Node {
        name: name.unwrap_or(&host).to_owned(),
        architecture,
        program: software::program(),
        cpu: system::cpu(Path::new("/")),
        memory: system::memory(Path::new("/")),
        limits: system::limits(),
        shm,
        temporary,
        folder,
        names: Names { own: Some(own), localhost: Some(localhost), master, peers: BTreeMap::new(), reverse },
        interfaces,
        fabric: fabric::fabric(Path::new("/"), variables.get("LD_LIBRARY_PATH").map(String::as_str)),
        libtorch: software::libtorch(&variables),
        container: software::container(),
        runtimes: software::runtimes(),
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
    let spaces =
        [PathBuf::from("/dev/shm"), std::env::temp_dir()].map(|path| in_time(patience, move || files::space(&path)));
    let (path, place) = (folder.to_owned(), folder.to_owned());
    let [shm, temporary] = spaces;
    let (shm, temporary, folder) = tokio::join!(shm, temporary, in_time(patience, move || files::folder(path)));
    let hangs = Folder { path: place, hangs: true, ..Folder::default() };
    (shm.flatten(), temporary.flatten(), folder.unwrap_or(hangs))
}

/// What a function returns; nothing, if it takes too long.
pub(super) async fn in_time<T: Send + 'static>(
    patience: Duration,
    function: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    timeout(patience, tokio::task::spawn_blocking(function)).await.ok()?.ok()
}

/// What a program printed.
///
/// # Errors
/// A message, if it is not there, fails, or does not end in time.
async fn output(program: &str, arguments: &[&str], patience: Duration) -> Result<String, String> {
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
    Err(format!("{program} failed ({}): {}", output.status, words.lines().next().unwrap_or("without a word")))
}

/// The first line of a file of `/proc` or `/sys`.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The entries of a folder, sorted; none, if it does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The last part of a path.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
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
}
