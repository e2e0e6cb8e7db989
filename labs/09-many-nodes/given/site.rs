//! A simulated site with PBS: runs a batch script with the real bash, and simulates the commands that start programs on other nodes.
//! You do not change this file.
//!
//! The nodes are simulated: all processes run on this machine. What `pbsdsh`, `mpiexec` and `ssh` start gets a node's name, and none of
//! the variables that the script exported, as at a site. `lockstep` and `torchrun` do not train: they record where they were
//! started, and with which arguments, and wait for those of the other nodes. `pbsdsh` starts its program once for each line of the host
//! file, in which a node has `mpiprocs` lines, and never fails.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// The interval between two looks at the script's processes.
const LOOK: Duration = Duration::from_millis(20);
/// If all of them sleep in this many looks in a row, the script waits for its launchers.
const WAITS: u32 = 5;
/// If in this many, the script will not start a launcher that is still missing.
const ALONE: u32 = 50;

/// A launcher that was started.
#[derive(Serialize)]
pub struct Started {
    /// The node.
    pub node: String,
    /// Its arguments.
    pub words: Vec<String>,
}

/// The end of a script.
#[derive(Serialize)]
pub struct Ended {
    /// The launchers that were started, by node.
    pub launchers: Vec<Started>,
    /// True if at one moment each node had a launcher.
    pub met: bool,
    /// True if the script ended before its launchers, which PBS then kills.
    pub left: bool,
    /// Its exit code; `None` for a signal.
    pub code: Option<i32>,
    /// The last lines that it printed.
    pub printed: String,
}

/// Runs the script as a job on these nodes, in a new folder below the current one.
///
/// # Errors
/// The system's, or that bash is missing.
pub fn run(script: &str, hosts: &[String], id: &str) -> Result<Ended> {
    let folder = std::env::current_dir()?.join(format!("site-{id}"));
    for part in ["bin", "launchers", "home"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let slots: String =
        hosts.iter().flat_map(|host| std::iter::repeat_n(format!("{host}\n"), mpiprocs(script))).collect();
    fs::write(folder.join("nodes"), slots)?;
    fs::write(folder.join("job.sh"), script)?;
    programs(&folder, id)?;
    let made = Command::new("mkfifo").arg(folder.join("gate")).status().context("cannot run mkfifo")?;
    ensure!(made.success(), "mkfifo failed");
    let mut command = Command::new("bash");
    command.arg(folder.join("job.sh")).current_dir(folder.join("home")).env("PATH", path(&folder));
    let variables = [
        ("SITE_NODE", hosts[0].as_str()),
        ("HOSTNAME", &hosts[0]),
        ("PBS_JOBID", id),
        ("PBS_JOBNAME", "train"),
        ("PBS_QUEUE", "batch"),
        ("PBS_ENVIRONMENT", "PBS_BATCH"),
        ("PBS_TASKNUM", "1"),
    ];
    command.envs(variables);
    command.env("HOME", folder.join("home")).env("PBS_O_WORKDIR", folder.join("home"));
    let printed = File::create(folder.join("printed"))?;
    command.stdout(printed.try_clone()?).stderr(printed).process_group(0);
    let script = command.env("PBS_NODEFILE", folder.join("nodes")).spawn().context("cannot run bash")?;
    let (status, met, left) = watch(script, &folder, hosts)?;
    let printed = fs::read(folder.join("printed"))?;
    let (code, printed) = (status.code(), last(&String::from_utf8_lossy(&printed)));
    Ok(Ended { launchers: launchers(&folder)?, met, left, code, printed })
}

/// Lets the launchers end when the script waits for them: when all nodes have one, or no further one is started. Returns the script's
/// end, if the launchers have met, and if the script had ended before them.
fn watch(mut script: Child, folder: &Path, hosts: &[String]) -> Result<(ExitStatus, bool, bool)> {
    // Launchers read from the gate, and get nothing until it is closed.
    let gate = folder.join("gate");
    let open = File::options().read(true).write(true).open(&gate)?;
    let is_there = || -> Result<bool> {
        let nodes: BTreeSet<String> = launchers(folder)?.into_iter().map(|one| one.node).collect();
        Ok(hosts.iter().all(|host| nodes.contains(host)))
    };
    let mut asleep = 0;
    let (met, ended) = loop {
        std::thread::sleep(LOOK);
        let all = processes(script.id()).iter().all(|(state, name)| is_asleep(*state, name));
        asleep = if all { asleep + 1 } else { 0 };
        let (met, ended) = (is_there()?, script.try_wait()?.is_some());
        if ended || asleep >= if met { WAITS } else { ALONE } {
            break (met, ended);
        }
    };
    let left = ended && processes(script.id()).iter().any(|(state, _)| *state != 'Z');
    // Removed first: who comes later finds no gate, and does not wait.
    fs::remove_file(&gate)?;
    drop(open);
    let status = script.wait()?;
    while processes(script.id()).iter().any(|(state, _)| *state != 'Z') {
        std::thread::sleep(LOOK);
    }
    Ok((status, met, left))
}

/// State and name of each process that the script has started, by `/proc/PID/stat`: `12 (bash) S 1 12 …`.
fn processes(group: u32) -> Vec<(char, String)> {
    let stat = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("stat")).ok();
    let of_group = |stat: String| {
        let (head, tail) = stat.rsplit_once(") ")?;
        let mut words = tail.split(' ');
        let (state, its_group) = (words.next()?.chars().next()?, words.nth(1)?);
        (its_group == group.to_string()).then(|| (state, head.split_once('(').map_or("", |(_, name)| name).to_owned()))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(stat).filter_map(of_group).collect()
}

/// Who sleeps for a time wakes up by itself.
fn is_asleep(state: char, name: &str) -> bool {
    matches!(state, 'S' | 'Z') && name != "sleep"
}

/// `mpiprocs=` of the script's `select`: how many lines of the host file a node has. As qsub does, looks at lines before the first command.
fn mpiprocs(script: &str) -> usize {
    let head = script.lines().map(str::trim_start).take_while(|line| line.is_empty() || line.starts_with('#'));
    let directives = head.filter(|line| line.starts_with("#PBS"));
    let number = |line: &str| {
        let digits: String = line.split_once("mpiprocs=")?.1.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    directives.filter_map(number).next().unwrap_or(1)
}

fn path(folder: &Path) -> String {
    format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap_or_default())
}

fn programs(folder: &Path, id: &str) -> Result<()> {
    let (site, path) = (folder.display(), path(folder));
    // A process on another node: with a login's variables and those of PBS.
    let on = format!(
        "node=$1; shift\nexec env -i PATH='{path}' HOME='{site}/home' SITE_NODE=\"$node\" HOSTNAME=\"$node\" PBS_JOBID='{id}' \
         PBS_ENVIRONMENT=PBS_BATCH \"$@\""
    );
    // The name says that the record is complete.
    let record = format!(
        "file=$(mktemp '{site}/XXXXXXXX')\nprintf '%s\\0' \"$SITE_NODE\" \"$@\" >\"$file\"\nmv \"$file\" '{site}/launchers/'\n\
         if [ -p '{site}/gate' ]; then read -r _ <'{site}/gate'; fi 2>/dev/null\nexit 0"
    );
    let nodes = format!("'{site}/nodes'");
    let texts: [(&str, String); 10] = [
        ("on", on),
        ("hostname", "echo \"$SITE_NODE\"".into()),
        ("lockstep", record),
        ("torchrun", "exec lockstep run \"$@\"".into()),
        ("pbsdsh", PBSDSH.replace("NODES", &nodes)),
        ("mpiexec", MPIEXEC.replace("NODES", &nodes)),
        ("mpirun", "exec mpiexec \"$@\"".into()),
        ("ssh", SSH.replace("NODES", &nodes)),
        ("srun", "echo 'srun: this site has PBS' >&2; exit 1".into()),
        ("module", ":".into()),
    ];
    for (name, text) in texts {
        let file: PathBuf = folder.join("bin").join(name);
        // A rank that is confined cannot change modes afterwards.
        let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o755).open(&file)?;
        file.write_all(format!("#!/bin/bash\n{text}\n").as_bytes())?;
    }
    Ok(())
}

const PBSDSH: &str = "\
unique= only=
while [ $# -gt 0 ]; do
  case $1 in
    -u) unique=1 ;;
    -n) only=$2; shift ;;
    --) shift; break ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
index=0
while read -r node; do
  if [ -z \"$only\" ] || [ \"$only\" = \"$index\" ]; then on \"$node\" \"$@\" </dev/null & fi
  index=$((index + 1))
done < <(if [ -n \"$unique\" ]; then awk '!seen[$0]++' NODES; else cat NODES; fi)
wait
exit 0";

const MPIEXEC: &str = "\
count= each= file=NODES
while [ $# -gt 0 ]; do
  case $1 in
    -n | -np | --np) count=$2; shift ;;
    -ppn | --ppn | -N | --npernode) each=$2; shift ;;
    --map-by) each=${2#ppr:}; each=${each%%:*}; shift ;;
    --hostfile | -hostfile | -f | --machinefile | -machinefile) file=$2; shift ;;
    -x | --bind-to) shift ;;
    --) shift; break ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
if [ -n \"$each\" ]; then
  mapfile -t slots < <(awk -v each=\"$each\" '!seen[$1]++ { for (i = 0; i < each; i++) print $1 }' \"$file\")
else
  mapfile -t slots <\"$file\"
fi
pids=()
for rank in $(seq 0 $((${count:-${#slots[@]}} - 1))); do
  on \"${slots[rank % ${#slots[@]}]}\" \"$@\" </dev/null &
  pids+=($!)
done
code=0
for pid in \"${pids[@]}\"; do wait \"$pid\" || code=1; done
exit $code";

const SSH: &str = "\
while [ $# -gt 0 ]; do
  case $1 in
    -o | -p | -l) shift ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
node=$1; shift
if ! grep -qx -- \"$node\" NODES; then echo \"ssh: Could not resolve hostname $node\" >&2; exit 255; fi
on \"$node\" sh -c \"$*\"";

fn launchers(folder: &Path) -> Result<Vec<Started>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder.join("launchers"))? {
        let text = fs::read_to_string(entry?.path())?;
        let mut words = text.split_terminator('\0').map(str::to_owned);
        all.push(Started { node: words.next().unwrap_or_default(), words: words.collect() });
    }
    all.sort_by(|one, other| one.node.cmp(&other.node));
    Ok(all)
}

fn last(printed: &str) -> String {
    let lines: Vec<&str> = printed.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
