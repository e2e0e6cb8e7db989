//! Slurm on the cluster: its configuration, its daemons, and the nodes' states.
//!
//! Everything runs as root. Nothing is limited by cgroups: they belong to the machine. slurmd drops its groups, which a user namespace
//! with a single user does not allow, so Slurm needs root.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_process::{Listener, Signals};

use super::folder::{Folder, tail};
use super::machine::{ClusterProcess, check, wait_for};
use super::running::Cluster;
use super::{ClusterSpec, Machine, Node};
use crate::exit::Refused;

/// How long a daemon may take to go to the background.
const DAEMON: Duration = Duration::from_secs(60);
/// How long all nodes may take to be ready for jobs.
const START: Duration = Duration::from_secs(120);
/// How often to ask. Slurm has nothing to wait on.
const PAUSE: Duration = Duration::from_millis(50);
/// States in which a node takes jobs, or has some (sinfo(1)). A `*` behind them says that it does not answer.
const READY: [&str; 4] = ["idle", "mixed", "allocated", "completing"];
/// The port on which slurmd listens (slurm.conf(5), `SlurmdPort`).
const PORT: u16 = 6818;
/// The kernel's device behind the files that stand for GPUs: `null`.
const NULL: [&str; 3] = ["c", "1", "3"];

pub(super) fn can_name(folder: &Folder) -> Result<(), Refused> {
    let path = folder.path().to_string_lossy();
    let Some(sign) = path.chars().find(|sign| !sign.is_alphanumeric() && !"/._-+@~:=".contains(*sign)) else {
        return Ok(());
    };
    Err(Refused(format!(
        "Slurm cannot read the path {path}, for its {sign:?}: set XDG_RUNTIME_DIR to a folder with a plainer one, or leave Slurm out \
         (--no-slurm)"
    )))
}

/// Writes the configuration, a key, and files that stand for GPUs.
pub(super) fn configure(folder: &Folder, spec: &ClusterSpec) -> anyhow::Result<()> {
    folder.write("slurm.conf", &slurm_conf(folder.path(), spec))?;
    folder
        .write("cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainDevices=no\n")?;
    folder.write("gres.conf", &gres_conf(folder.path(), spec))?;
    make_key(&folder.file("munge.key")).context("cannot make a key for munge")?;
    (0..spec.gpus).try_for_each(|gpu| make_gpu(&folder.file("dev").join(format!("nvidia{gpu}"))))
}

/// What differs from Slurm's defaults. The timeouts make a lost node show within half a minute, and are long enough for a machine that
/// is busy with other things.
fn slurm_conf(folder: &Path, spec: &ClusterSpec) -> String {
    let (folder, head) = (folder.display(), Machine::Head);
    let mut text = format!(
        "ClusterName=lockstep\n\
         SlurmctldHost={head}({})\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         CredType=cred/munge\n\
         AuthInfo=socket={folder}/munge.socket,cred_expire=10\n\
         StateSaveLocation={folder}/slurm/state\n\
         SlurmdSpoolDir={folder}/slurm/%n\n\
         SlurmctldPidFile={folder}/slurm/slurmctld.pid\n\
         SlurmdPidFile={folder}/slurm/slurmd.%n.pid\n\
         SlurmctldLogFile={folder}/log/slurmctld.log\n\
         SlurmdLogFile={folder}/log/slurmd.%n.log\n\
         SlurmdParameters=config_overrides\n\
         TaskPlugin=task/none\n\
         ProctrackType=proctrack/linuxproc\n\
         JobCompType=jobcomp/filetxt\n\
         JobCompLoc={folder}/log/jobs.log\n\
         MailProg=/bin/true\n\
         RebootProgram=/bin/true\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         SchedulerParameters=sched_interval=1,bf_interval=1\n\
         ReturnToService=2\n\
         JobRequeue=1\n\
         KillWait=3\n\
         SlurmctldTimeout=10\n\
         SlurmdTimeout=10\n\
         MessageTimeout=10\n\
         BatchStartTimeout=60\n",
        head.address()
    );
    let (memory, gpus) = (memory_mib() / u64::from(spec.nodes.max(1)), spec.gpus);
    let gres = if gpus > 0 { format!(" Gres=gpu:{gpus}") } else { String::new() };
    text.push_str(if gpus > 0 { "GresTypes=gpu\n" } else { "" });
    for node in spec.nodes() {
        let address = Machine::Node(node).address();
        let _ = writeln!(
            text,
            "NodeName={node} NodeAddr={address} CPUs={} RealMemory={memory}{gres} State=UNKNOWN",
            spec.cpus
        );
    }
    text + "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
}

/// Slurm gives a job the GPUs whose files are listed; if only their number is given, it refuses the node.
fn gres_conf(folder: &Path, spec: &ClusterSpec) -> String {
    let Some(last) = spec.gpus.checked_sub(1) else { return String::new() };
    let line = |node| format!("NodeName={node} Name=gpu File={}/dev/nvidia[0-{last}]\n", folder.display());
    spec.nodes().map(line).collect()
}

/// This machine's memory.
fn memory_mib() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion)] // the types depend on the processor
    let bytes = u64::from(info.totalram).saturating_mul(info.mem_unit.into());
    bytes >> 20
}

/// As `mungekey` makes it: random bytes that only the owner can read.
fn make_key(path: &Path) -> std::io::Result<()> {
    let mut random = std::io::Read::take(File::open("/dev/urandom")?, 128);
    let mut key = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    std::io::copy(&mut random, &mut key).map(|_| ())
}

/// A device like `/dev/null`. Where a container may not make one, a plain file: Slurm counts it just as well.
fn make_gpu(path: &Path) -> anyhow::Result<()> {
    let made = Command::new("mknod").arg(path).args(NULL).stdin(Stdio::null()).stderr(Stdio::null()).status();
    if made.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    File::create(path).map(|_| ()).with_context(|| format!("cannot make {}", foreign::path(path)))
}

/// Starts munged, which serves all machines, and the controller.
pub(super) fn start_controller(cluster: &Cluster, signals: &Signals) -> anyhow::Result<()> {
    let folder = &cluster.folder;
    let option = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
    let options = [
        option("key-file", folder.file("munge.key")),
        option("socket", folder.munge_socket()),
        option("pid-file", folder.file("munge.pid")),
        option("seed-file", folder.file("munge.seed")),
        option("log-file", folder.log("munged.log")),
        "--force".to_owned(), // it minds that only one user may enter the folder
    ];
    start(cluster, Machine::Head, "munged", &options, "munged.log", signals)?;
    start(cluster, Machine::Head, "slurmctld", &["-c".to_owned()], "slurmctld.log", signals)
}

/// Starts slurmd on a node.
pub(super) fn start_node(cluster: &Cluster, node: Node, signals: &Signals) -> anyhow::Result<()> {
    let name = format!("slurmd.{node}");
    // Left from before the node was lost.
    let _ = fs::remove_file(cluster.folder.file("slurm").join(format!("{name}.pid")));
    let options = ["-N".to_owned(), node.to_string()];
    start(cluster, Machine::Node(node), "slurmd", &options, &format!("{name}.log"), signals)
}

/// Starts a daemon, and waits until it has gone to the background.
fn start(
    cluster: &Cluster,
    machine: Machine,
    program: &str,
    options: &[String],
    log: &str,
    signals: &Signals,
) -> anyhow::Result<()> {
    let log = cluster.folder.log(log);
    let file = File::options().create(true).append(true).open(&log);
    let file = file.with_context(|| format!("cannot open {}", foreign::path(&log)))?;
    let mut command = cluster.command(machine, program)?;
    command.args(options).current_dir("/").stdin(Stdio::null());
    command.stdout(file.try_clone().context("cannot share the log")?).stderr(file);
    let cannot = || format!("cannot start {program} on {machine}");
    let mut child = command.spawn().with_context(cannot)?;
    match wait_for(&mut child, Instant::now() + DAEMON, signals) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(anyhow::anyhow!("{program} did not start on {machine} ({status}){}", tail(&log))),
        failed => {
            child.kill().and_then(|()| child.wait()).with_context(cannot)?;
            failed?;
            Err(anyhow::anyhow!(
                "{program} was not in the background of {machine} after {} s{}",
                DAEMON.as_secs(),
                tail(&log)
            ))
        }
    }
}

/// Waits until all of these nodes take jobs.
pub(super) fn wait(cluster: &Cluster, nodes: &[Node], signals: &Signals) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        check(signals)?;
        let seen = states(cluster);
        let is_missing = |node: &&Node| !(is_ready(&seen, **node) && listens(cluster, **node));
        let missing: Vec<&Node> = nodes.iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let ended = ended(cluster, &missing);
        if ended.is_some() || begin.elapsed() > START {
            return Err(never_ready(cluster, &missing, &seen, ended, begin.elapsed()));
        }
        thread::sleep(PAUSE);
    }
}

/// What the controller says of each node, by name; nothing, as long as it does not answer.
pub(super) fn states(cluster: &Cluster) -> BTreeMap<String, String> {
    let shown = cluster.run(Machine::Head, &["sinfo", "--noheader", "--Node", "--format=%N %T"]).unwrap_or_default();
    let lines = shown.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(node, state)| (node.to_owned(), state.trim().to_owned())).collect()
}

fn is_ready(states: &BTreeMap<String, String>, node: Node) -> bool {
    states.get(&node.to_string()).is_some_and(|state| READY.contains(&state.as_str()))
}

/// The controller may not have noticed yet that a slurmd was lost.
fn listens(cluster: &Cluster, node: Node) -> bool {
    let Some(init) = cluster.init_of(node) else { return false };
    Listener::seen_in(&cluster.proc().join(init.pid.to_string())).iter().any(|listener| listener.port == PORT)
}

/// A daemon that wrote its number and has ended: there is nothing to wait for.
fn ended(cluster: &Cluster, missing: &[&Node]) -> Option<(Machine, String)> {
    let nodes = missing.iter().map(|node| (Machine::Node(**node), format!("slurmd.{node}")));
    [(Machine::Head, "slurmctld".to_owned())].into_iter().chain(nodes).find(|(machine, name)| {
        let number = fs::read_to_string(cluster.folder.file("slurm").join(format!("{name}.pid")));
        let number: Option<i32> = number.ok().and_then(|text| text.trim().parse().ok());
        let lives =
            |pid| cluster.root(*machine).is_ok_and(|root| ClusterProcess::find(&root.join("proc"), pid).is_some());
        number.is_some_and(|pid| !lives(pid))
    })
}

fn never_ready(
    cluster: &Cluster,
    missing: &[&Node],
    seen: &BTreeMap<String, String>,
    ended: Option<(Machine, String)>,
    waited: Duration,
) -> anyhow::Error {
    let state = |node: &&Node| seen.get(&node.to_string()).map_or("unknown", String::as_str).to_owned();
    let names: Vec<String> = missing.iter().map(|node| format!("{node} ({})", state(node))).collect();
    let log = |name: &str| tail(&cluster.folder.log(&format!("{name}.log")));
    let first = missing.first().map(|node| log(&format!("slurmd.{node}"))).unwrap_or_default();
    let waited = format!("{:.1} s", waited.as_secs_f64());
    let names = names.join(", ");
    match ended {
        Some((machine, daemon)) => {
            anyhow::anyhow!("{daemon} has ended on {machine} after {waited}; not ready: {names}{}", log(&daemon))
        }
        None => anyhow::anyhow!("Slurm has waited {waited} for {names}{}{first}", log("slurmctld")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(gpus: u8) -> ClusterSpec {
        ClusterSpec { nodes: 2, gpus, cpus: 4, slurm: true, user_namespace: false, shared: vec![] }
    }

    #[test]
    fn lists_each_node_with_its_address_and_its_gpus() {
        let conf = slurm_conf(Path::new("/run/c"), &spec(2));
        assert!(conf.contains("\nNodeName=n2 NodeAddr=10.88.0.2 CPUs=4 RealMemory="), "{conf}");
        assert!(conf.contains(" Gres=gpu:2 ") && conf.contains("\nSlurmctldHost=ctl(10.88.0.254)\n"), "{conf}");
        assert_eq!(
            gres_conf(Path::new("/run/c"), &spec(2)),
            "NodeName=n1 Name=gpu File=/run/c/dev/nvidia[0-1]\nNodeName=n2 Name=gpu File=/run/c/dev/nvidia[0-1]\n"
        );
    }

    #[test]
    fn refuses_a_folder_whose_path_its_configuration_cannot_hold() {
        let refused = |path: &str| can_name(&Folder::at(Path::new(path))).map_err(|refused| refused.to_string());
        assert_eq!(refused("/run/user/1000/lockstep-cluster/ä_1.2"), Ok(()));
        for path in ["/a b/c", "/a,b", "/a[1]", "/a\"b", "/a#b", "/%n"] {
            assert!(refused(path).unwrap_err().contains("set XDG_RUNTIME_DIR"), "{path}");
        }
    }

    #[test]
    fn says_nothing_of_gpus_where_there_are_none() {
        assert!(!slurm_conf(Path::new("/run/c"), &spec(0)).to_lowercase().contains("gpu"));
        assert_eq!(gres_conf(Path::new("/run/c"), &spec(0)), "");
    }

    #[test]
    fn takes_a_node_for_ready_only_if_it_answers() {
        let states = |state: &str| [("n1".to_owned(), state.to_owned())].into();
        assert!(is_ready(&states("idle"), Node(1)) && is_ready(&states("mixed"), Node(1)));
        for state in ["idle*", "down", "unknown", "drained", ""] {
            assert!(!is_ready(&states(state), Node(1)), "{state}");
        }
        assert!(!is_ready(&states("idle"), Node(2)));
    }
}
