//! A simulated site with PBS: runs a batch script with the real bash, and simulates the commands that start programs on other nodes.
//! You do not change this file.
//!
//! The nodes are simulated: all processes run on this machine. What `pbsdsh`, `mpiexec` and `ssh` start gets a node's name, and none of
//! the variables that the script exported, as at a site. `lockstep` and `torchrun` do not train: they record where they were
//! started, and with which arguments. `pbsdsh` starts its program once for each line of the host file, in which a node has
//! `mpiprocs` lines, and never fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

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
    let ended = command.env("PBS_NODEFILE", folder.join("nodes")).output().context("cannot run bash")?;
    let printed = [ended.stdout, ended.stderr].concat();
    Ok(Ended {
        launchers: launchers(&folder)?,
        code: ended.status.code(),
        printed: last(&String::from_utf8_lossy(&printed)),
    })
}

/// `mpiprocs=` of the script's `select`: how many lines of the host file a node has.
fn mpiprocs(script: &str) -> usize {
    let directives = script.lines().filter(|line| line.starts_with("#PBS"));
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
    let record = format!("file=$(mktemp '{site}/launchers/XXXXXXXX')\nprintf '%s\\0' \"$SITE_NODE\" \"$@\" >\"$file\"");
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
        fs::write(&file, format!("#!/bin/bash\n{text}\n"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
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
