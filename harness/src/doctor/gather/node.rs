//! All facts of this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use super::network::resolve;
use super::read::in_time;
use super::{fabric, files, gpu, network, software, system};
use crate::doctor::facts::{Folder, Names, Node, Space};

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
pub(crate) async fn node(name: Option<&str>, folder: &Path, patience: Duration) -> Node {
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
}
