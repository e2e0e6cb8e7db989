//! Scripts for sites where no srun starts the launchers: the batch script writes a second script into the shared
//! folder, and has it started on each node.
//!
//! pbsdsh and ssh do not pass on the variables that the batch script exports, and mpirun passes on few. So the second
//! script sets its environment itself and gets everything else as arguments.

use lockstep_launch::command::quoted;
use lockstep_launch::config::GpuVendor;

use super::job::{BatchJob, Group};
use super::profile::{Container, Profile, Rendezvous, Scheduler};
use crate::report::count;

/// What schedulers differ in.
pub(super) struct SchedulerParts {
    /// Sets `id`, which differs between jobs and names files.
    pub(super) id: String,
    /// A variable or a parameter with a number that differs between jobs; the port is made of it.
    pub(super) number: &'static str,
    /// The variable with the number of an array's task.
    pub(super) task: &'static str,
    /// A word of bash: a file that names the job's hosts, one a line.
    pub(super) hosts: String,
    /// Further lines, once the run's folder is there.
    pub(super) prepare: &'static str,
    /// Queues the job again.
    pub(super) again: String,
}

/// What comes after the directives.
pub(super) fn body(profile: &Profile, job: &BatchJob, place: &SchedulerParts) -> String {
    // mpirun is often in a module itself.
    let own = if command(profile, job).is_some_and(|command| !command.starts_with("pbsdsh")) {
        modules(profile)
    } else {
        String::new()
    };
    let mut text = strict(&own) + "\n";
    text.push_str(&files(profile, job, place));
    text.push_str(&values(profile, job, place));
    text.push_str(
        "# What runs on each node. It gets everything as arguments: variables of this script are not passed on there.\n",
    );
    text.push_str(&format!("cat >\"$run/agent.sh\" <<'AGENT'\n{}AGENT\n", agent(profile, job)));
    let arguments: Vec<String> = arguments(profile, job).iter().map(|(_, value)| format!("\"{value}\"")).collect();
    text.push_str(&format!("agent=(/bin/bash -l \"$run/agent.sh\" {})\n\n", arguments.join(" ")));
    text.push_str(&start(profile, job));
    text.push_str(&end(job, place));
    text
}

/// The folder that all nodes see, and in it the hosts.
fn files(profile: &Profile, job: &BatchJob, place: &SchedulerParts) -> String {
    let nodes = job.nodes();
    let (number, misses, needed) = match job.min_nodes {
        None => ("", format!("\"$(wc -l <\"$run/hosts\")\" -ne {nodes}"), count(nodes as usize, "node")),
        Some(min) => (
            "nodes=$(wc -l <\"$run/hosts\")\n",
            format!("\"$nodes\" -lt {min}"),
            format!("at least {}", count(min as usize, "node")),
        ),
    };
    format!(
        "{}# Files that all nodes see.\n\
         run={}/lockstep-$id\n\
         mkdir -p \"$run\"\n\
         find \"$run\" \\( -name 'exit.*' -o -name 'pid.*' -o -name time-is-up \\) -delete\n\
         {}\
         awk '$1 ~ /^[^#]/ && !seen[$1]++ {{ print $1 }}' {} | sed -n 1,{nodes}p >\"$run/hosts\"\n\
         {number}\
         if [ {misses} ]; then\n  \
           echo \"error: this job needs {needed}; those that it has are in $run/hosts\" >&2\n  \
           exit 1\n\
         fi\n",
        place.id,
        quoted(&profile.shared().display().to_string()),
        place.prepare,
        place.hosts,
    )
}

/// The launcher's `--nnodes`: the number of nodes, or the least and all that there are, by this variable.
pub(super) fn nnodes(job: &BatchJob, all: &str) -> String {
    job.min_nodes.map_or_else(|| job.nodes().to_string(), |min| format!("{min}:\"{all}\""))
}

/// The arguments of the second script: their names there, and their values here. The number of workers follows them, then the
/// node's name where it differs from node to node.
fn arguments(profile: &Profile, job: &BatchJob) -> Vec<(&'static str, String)> {
    let mut all = vec![("run", "$run"), ("folder", "$PWD")];
    all.extend((!job.build).then_some(("id", "$id")));
    if needs_flags(profile, job) {
        all.extend([("head", "$head"), ("port", "$port")]);
    }
    all.extend(job.min_nodes.map(|_| ("nodes", "$nodes")));
    all.extend(job.margin.map(|_| ("deadline", "$deadline")));
    all.extend(job.array.map(|_| ("task", "$task")));
    let toggle = profile.toggle().filter(|_| !job.build).map(|toggle| (IN_CONTAINER, chosen(toggle)));
    all.into_iter().map(|(name, value)| (name, value.to_owned())).chain(toggle).collect()
}

/// The script tells the launcher where nodes meet.
fn needs_flags(profile: &Profile, job: &BatchJob) -> bool {
    profile.rendezvous() == Rendezvous::Flags && !job.build
}

fn values(profile: &Profile, job: &BatchJob, place: &SchedulerParts) -> String {
    let mut text = String::new();
    if needs_flags(profile, job) {
        text.push_str("head=$(sed -n 1p \"$run/hosts\")\n");
        text.push_str(&format!("port=$((20000 + {} % 10000))\n", place.number));
    }
    if let (Some(time), Some(margin)) = (job.time, job.margin) {
        text.push_str(&format!("deadline=$(($(date +%s) + {}))\n", time - margin));
    }
    if job.array.is_some() {
        text.push_str(&format!("task=${}\n", place.task));
    }
    text + "\n"
}

/// The second script.
fn agent(profile: &Profile, job: &BatchJob) -> String {
    let arguments = arguments(profile, job);
    let names: Vec<String> =
        arguments.iter().enumerate().map(|(index, (name, _))| format!("{name}=${}", index + 1)).collect();
    let workers = arguments.len() + 1;
    let mut text = format!("#!/bin/bash\n{START_FILES}set -eo pipefail\n{}\n", names.join(" "));
    if !job.build {
        text.push_str(&format!("workers=${workers} "));
    }
    text.push_str(&format!("node=${{{}:-$(hostname).$$}}\n", workers + 1));
    text.push_str("trap 'echo \"$?\" >\"$run/exit.$node\"' EXIT\n");
    text.push_str("echo \"$$\" >\"$run/pid.$node\"\n");
    text.push_str(&format!("{}set -u\n{}", modules(profile), environment(profile, job)));
    text.push_str("command cd \"$folder\"\n");
    if !job.stage.is_empty() {
        text.push_str(&disk(profile, "id"));
        text.push_str("trap 'echo \"$?\" >\"$run/exit.$node\"; rm -rf \"$disk\"' EXIT\n");
        text.push_str("mkdir -p \"$disk\"\n");
        text.extend(job.stage.iter().map(|path| copy(path, "\"$disk\"") + "\n"));
    }
    let meeting = RendezvousWords {
        nodes: nnodes(job, "$nodes"),
        head: "head",
        port: "port",
        id: "id",
        hosts: Some("\"$run/hosts\""),
    };
    text.push_str(&in_or_out(profile, job, &meeting, ""));
    let launch = launch(profile, job, job.groups[0], "\"$workers\"", &meeting);
    if job.margin.is_none() {
        return text + &launch + WAIT + ENDS;
    }
    text.push_str("left=$((deadline - $(date +%s)))\n");
    text.push_str(&format!("timeout --signal={} \"$((left > 0 ? left : 1))\" {launch}", profile.end_signal()));
    text.push_str(WAIT);
    text.push_str("# No failure: mpirun would kill the nodes that are still writing their snapshot.\n");
    text.push_str("if [ \"$code\" -eq 124 ]; then\n  touch \"$run/time-is-up\"\n  code=0\nfi\n");
    text + ENDS
}

/// A script's beginning. Its shell may have read what the site and the user wrote for others: as a login shell, or from BASH_ENV. Modules do
/// not bear `set -u`, and files here are written more than once.
const START_FILES: &str = "# Undoes what start files may have set.\nset +Cfu\ntrap - DEBUG ERR EXIT\n";

/// Starts the command before it in the background, and waits for it; sets `code`. A shell without a trap would end at once, before the launcher
/// has its snapshot, and leave an exit code of 0.
const WAIT: &str = " &
launcher=$!
# Asked to end, this script asks the launcher, which may save a snapshot, and waits for it.
trap 'kill -TERM \"$launcher\" 2>/dev/null || true' INT TERM
code=0
wait \"$launcher\" || code=$?
# A signal ends a wait, not what it waits for.
while kill -0 \"$launcher\" 2>/dev/null; do
  code=0
  wait \"$launcher\" || code=$?
done
";

/// The end of a script that a login shell may run.
pub(super) const ENDS: &str = "# Not `exit`, after which a login shell reads ~/.bash_logout, whose result would be this script's.\n(exit \"$code\")\n";

/// Starts the second script on all nodes; sets `code`.
fn start(profile: &Profile, job: &BatchJob) -> String {
    let (nodes, workers) = (job.nodes(), job.groups[0].workers);
    let ended = if job.min_nodes.is_some() { ONE_ENDED } else { ALL_ENDED };
    let ended = ended.replace("{asked}", ASKED).replace("{nodes}", &nodes.to_string());
    if let Some(command) = command(profile, job) {
        let command = command.replace("{nodes}", &nodes.to_string()).replace("{hosts}", "\"$run/hosts\"");
        let start = format!("{command} \"${{agent[@]}}\" {workers}");
        let text = if command.starts_with("pbsdsh") {
            let start = format!("# One launcher on each node; it starts the workers there.\n{start} &\npids=($!)\n");
            [HAS_PBSDSH, AT_QDEL, &start, WAIT_FOR_PBSDSH].concat()
        } else {
            format!("# One launcher on each node; it starts the workers there.\ncode=0\n{start} || code=$?\n")
        };
        return text + &ended;
    }
    let counts: Vec<String> =
        job.groups.iter().flat_map(|group| vec![group.workers.to_string(); group.nodes as usize]).collect();
    let pbs = || [HAS_PBSDSH, AT_QDEL, PBSDSH_EACH, WAIT_FOR_PBSDSH].concat();
    let text = if profile.scheduler == Scheduler::Ssh { SSH.to_owned() } else { pbs() };
    text.replace("{workers}", &counts.join(" ")) + &ended
}

/// The command that starts a program once on each node, where one command does.
fn command(profile: &Profile, job: &BatchJob) -> Option<String> {
    if let Some(start) = &profile.start {
        return Some(start.clone());
    }
    match profile.scheduler {
        Scheduler::Mpirun => Some("mpirun --hostfile {hosts} -np {nodes} --map-by ppr:1:node --bind-to none".into()),
        Scheduler::Pbs if job.groups.len() == 1 => Some("pbsdsh --".into()),
        _ => None,
    }
}

const HAS_PBSDSH: &str = "\
if ! command -v pbsdsh >/dev/null; then
  echo \"error: pbsdsh is not on PATH on $(hostname): load the module that has PBS's commands, or add its folder to PATH\" >&2
  exit 127
fi
";

/// Of qdel PBS makes a SIGTERM to the job's processes, and ends what is left when this script ends, or after the queue's `kill_delay`. pbsdsh
/// sends the signal to the tasks that it has started, and ends at once (OpenPBS, src/cmds/pbsdsh.c).
const AT_QDEL: &str = "\
# At qdel, the launchers save a snapshot. They are waited for: PBS ends them when this script ends.
asked=
pids=()
trap 'asked=1; kill -TERM \"${pids[@]}\" 2>/dev/null || true' INT TERM
";

const WAIT_FOR_PBSDSH: &str = "\
code=0
for pid in \"${pids[@]}\"; do
  wait \"$pid\" || code=$?
  # A signal ends a wait, not what it waits for.
  while kill -0 \"$pid\" 2>/dev/null; do wait \"$pid\" || code=$?; done
done
";

/// pbsdsh does not report how each node's part ended, and a start file that ends the shell or replaces it, such as `exec zsh`, keeps a
/// node's part from running, with success.
const ALL_ENDED: &str = "\
# A node's part counts when it has left its exit code. Other nodes' files may take a while to be seen.
for _ in {1..60}; do
  if { [ \"$code\" -ne 0 ] && [ -z \"${asked:-}\" ]; } || [ \"$(find \"$run\" -name 'exit.*' | wc -l)\" -ge {nodes} ]; then break; fi
  sleep 1
done
{asked}elif [ \"$(find \"$run\" -name 'exit.*' -exec cat {} + | grep -cx 0)\" -ne {nodes} ]; then
  echo \"error: not all nodes ended well: $run/exit.NODE is a node's exit code; a node without one did not run $run/agent.sh to its end\" >&2
  if [ \"$code\" -eq 0 ]; then code=1; fi
fi
";

/// At qdel, the launchers end after their snapshot.
const ASKED: &str = "\
if [ -n \"${asked:-}\" ]; then
  echo \"asked to end: $run/exit.NODE is a node's exit code, 75 if it has saved a snapshot\" >&2
  code=143
";

/// A launcher ends well only if the training has: so does the job, whatever became of the nodes that were lost.
const ONE_ENDED: &str = "\
# One node's good end is the job's, since its launcher has waited for the others. Its file may take a while to be seen.
for _ in {1..60}; do
  if [ \"$(find \"$run\" -name 'exit.*' | wc -l)\" -gt 0 ]; then break; fi
  sleep 1
done
{asked}elif find \"$run\" -name 'exit.*' -exec cat {} + | grep -qx 0; then
  code=0
else
  echo \"error: no node ended well: $run/exit.NODE is a node's exit code; a node without one was lost, or did not run $run/agent.sh to its end\" >&2
  if [ \"$code\" -eq 0 ]; then code=1; fi
fi
";

const PBSDSH_EACH: &str = "\
# One launcher on each node; it starts the workers there.
workers=({workers})
while read -r host; do
  pbsdsh -n \"${#pids[@]}\" -- \"${agent[@]}\" \"${workers[${#pids[@]}]}\" \"$host\" </dev/null &
  pids+=($!)
done <\"$run/hosts\"
";

const SSH: &str = "\
# One launcher on each node; it starts the workers there. When this script is asked to end, so are they.
# Words as every login shell reads them: `printf %q` writes some as bash alone does.
quote() { local q=\"'\"; printf \"'%s' \" \"${@//$q/$q\\\"$q\\\"$q}\"; }
# shellcheck disable=SC2317
stop() {
  while read -r host; do
    # shellcheck disable=SC2029
    ssh -n -o BatchMode=yes \"$host\" \"kill -TERM \\$(cat $(quote \"$run/pid.$host\"))\" || true
  done <\"$run/hosts\"
}
trap stop INT TERM
code=0
workers=({workers})
pids=()
while read -r host; do
  # shellcheck disable=SC2029
  ssh -n -o BatchMode=yes \"$host\" \"$(quote \"${agent[@]}\" \"${workers[${#pids[@]}]}\" \"$host\")\" &
  pids+=($!)
done <\"$run/hosts\"
for pid in \"${pids[@]}\"; do
  wait \"$pid\" || code=1
  # A signal ends a wait, not what it waits for.
  while kill -0 \"$pid\" 2>/dev/null; do wait \"$pid\" || code=1; done
done
";

fn end(job: &BatchJob, place: &SchedulerParts) -> String {
    if job.margin.is_none() {
        return ENDS.into();
    }
    format!("if [ -e \"$run/time-is-up\" ]; then\n  {}\nfi\n{ENDS}", place.again)
}

// ---- what all scripts have in common

/// What continues a line, in scripts that break a long command.
pub(super) const BREAK: &str = " \\\n  ";

/// A comment on where the script comes from.
pub(super) fn origin(site: &str) -> String {
    format!("# Written by lockstep render for the site profile {}.\n", site.rsplit('/').next().unwrap_or(site))
}

/// Strict mode. It is complete after the modules only: they and `activate` scripts read variables that are not set.
pub(super) fn strict(modules: &str) -> String {
    let set_u =
        if modules.is_empty() { "set -euo pipefail\n".into() } else { format!("set -eo pipefail\n{modules}set -u\n") };
    START_FILES.to_owned() + &set_u
}

/// Variables, and for a build job the check of the architecture.
pub(super) fn environment(profile: &Profile, job: &BatchJob) -> String {
    let variables = variables(profile, job);
    let mut lines: Vec<String> =
        variables.iter().map(|(name, value)| format!("export {name}={}", quoted(value))).collect();
    if let Some(architecture) = profile.architecture.as_ref().filter(|_| job.build) {
        let architecture = quoted(architecture);
        lines.push(format!("if [ \"$(uname -m)\" != {architecture} ]; then"));
        lines.push(format!("  echo \"error: built on $(uname -m), but the nodes are {architecture}\" >&2"));
        lines.push("  exit 1".into());
        lines.push("fi".into());
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Modules and the site's own lines.
pub(super) fn modules(profile: &Profile) -> String {
    let load =
        (!profile.modules.is_empty()).then(|| format!("module purge\nmodule load {}\n", words(&profile.modules)));
    let setup = profile.setup.iter().map(|line| format!("{line}\n"));
    load.into_iter().chain(setup).collect()
}

/// The variables of all processes of the job; the site's own come last and take precedence.
fn variables(profile: &Profile, job: &BatchJob) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| all.push((name.into(), value));
    for name in ["http_proxy", "https_proxy"] {
        profile.proxy.iter().for_each(|proxy| set(name, proxy.clone()));
    }
    profile.no_proxy.iter().for_each(|hosts| set("no_proxy", hosts.clone()));
    if let Some(container) = profile.container.as_ref().filter(|_| !job.build) {
        let name = format!("{}_CACHEDIR", container.runtime.program().to_uppercase());
        container.cache.iter().for_each(|cache| set(&name, cache.display().to_string()));
    }
    if !job.build {
        for name in ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"] {
            profile.interface.iter().for_each(|interface| set(name, interface.clone()));
        }
        profile
            .cpus_per_node
            .iter()
            .for_each(|cpus| set("OMP_NUM_THREADS", (cpus / job.most_workers()).max(1).to_string()));
    }
    profile.environment.iter().for_each(|(name, value)| set(name, value.clone()));
    all
}

/// The value of the variable `disk`: a folder of this job on the node's own disk. `id` is a variable that differs between jobs.
pub(super) fn disk(profile: &Profile, id: &str) -> String {
    let local = profile.local.as_deref().unwrap_or("/tmp").replace(['"', '`', '\\'], "");
    format!("disk=\"{}/lockstep-${id}\"\n", local.trim_end_matches('/'))
}

/// The bash that copies `path` to the folder `to`, a word of bash.
pub(super) fn copy(path: &str, to: &str) -> String {
    let packed = [".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst"].iter().any(|ending| path.ends_with(ending));
    let path = quoted(path);
    if packed { format!("tar -xf {path} -C {to}") } else { format!("cp -R {path} {to}/") }
}

/// How launchers on several nodes find each other.
pub(super) struct RendezvousWords<'a> {
    /// A word of bash: the number of nodes, or the least and the largest.
    pub(super) nodes: String,
    /// A variable with the name of the first node.
    pub(super) head: &'a str,
    /// A variable with a port.
    pub(super) port: &'a str,
    /// A variable that is the same on all nodes of this job.
    pub(super) id: &'a str,
    /// A word of bash: a file with the hosts, for launchers that read one. Slurm's launchers ask Slurm.
    pub(super) hosts: Option<&'a str>,
}

/// The command that runs on each node: the container, in it the launcher, and what that starts. `workers` is a word of bash.
pub(super) fn launch(
    profile: &Profile,
    job: &BatchJob,
    group: Group,
    workers: &str,
    meeting: &RendezvousWords<'_>,
) -> String {
    let program = job.program.iter().map(|word| argument(word)).collect::<Vec<_>>().join(" ");
    if job.build {
        return program;
    }
    let mut parts = Vec::new();
    if let Some(container) = &profile.container {
        parts.push(match &container.toggle {
            Some(_) => "${container[@]+\"${container[@]}\"}".to_owned(),
            None => enter(profile, container, group.gpus > 0, meeting),
        });
    }
    let nodes = job.min_nodes.filter(|_| profile.rendezvous() == Rendezvous::Launcher);
    let nodes = nodes.map_or(String::new(), |_| format!(" --nnodes={}", meeting.nodes));
    parts.push(format!("{} --nproc-per-node={workers}{nodes}{}", profile.launcher, flags(profile, meeting)));
    parts.push(program);
    parts.join(BREAK)
}

/// The command that runs what follows in the container.
fn enter(profile: &Profile, container: &Container, gpus: bool, meeting: &RendezvousWords<'_>) -> String {
    let gpus = match profile.gpu_vendor {
        _ if !gpus => "",
        GpuVendor::Nvidia => " --nv",
        GpuVendor::Amd => " --rocm",
    };
    let binds = binds(profile, container, meeting);
    let binds = if binds.is_empty() { String::new() } else { format!(" --bind {}", quoted(&binds.join(","))) };
    let image = quoted(&container.image.display().to_string());
    format!("{} exec{gpus}{binds} {image}", container.runtime.program())
}

/// Where scripts keep the value of `container.toggle`.
const IN_CONTAINER: &str = "in_container";

/// The value of the variable `toggle`, a word of bash: the container is the default.
pub(super) fn chosen(toggle: &str) -> String {
    format!("${{{toggle}:-1}}")
}

/// Sets the array `container` to the words that run the launcher in the container, or to none, as the user of the script has chosen; nothing
/// where a profile leaves no choice. `set` comes first: it makes [`IN_CONTAINER`].
pub(super) fn in_or_out(profile: &Profile, job: &BatchJob, meeting: &RendezvousWords<'_>, set: &str) -> String {
    let Some((container, toggle)) = profile.container.as_ref().zip(profile.toggle()).filter(|_| !job.build) else {
        return String::new();
    };
    let gpus = job.groups.iter().any(|group| group.gpus > 0);
    format!(
        "# {toggle}=0 in the job's environment: without the container.\n{set}case \"${IN_CONTAINER}\" in\n  \
           1) container=({}) ;;\n  \
           0) container=() ;;\n  \
           *)\n    \
             echo \"error: {toggle} is ${IN_CONTAINER}: 1 is in the container, 0 without it\" >&2\n    \
             exit 2\n    \
             ;;\n\
         esac\n",
        enter(profile, container, gpus, meeting)
    )
}

/// The line that makes [`IN_CONTAINER`] in a script that has its user's environment.
pub(super) fn toggle_here(profile: &Profile) -> String {
    profile.toggle().map_or_else(String::new, |toggle| format!("{IN_CONTAINER}={}\n", chosen(toggle)))
}

/// The site's binds, and the folder of the host file where the launcher in the container reads one.
fn binds(profile: &Profile, container: &Container, meeting: &RendezvousWords<'_>) -> Vec<String> {
    let mut all = container.binds.clone();
    let shown = |bind: &String| !bind.contains(':') && profile.shared().starts_with(bind);
    if meeting.hosts.is_some() && profile.rendezvous() == Rendezvous::Launcher && !all.iter().any(shown) {
        all.push(profile.shared().display().to_string());
    }
    all
}

fn flags(profile: &Profile, meeting: &RendezvousWords<'_>) -> String {
    let RendezvousWords { nodes, head, port, id, hosts } = meeting;
    match (profile.rendezvous(), hosts) {
        (Rendezvous::Flags, _) => format!(
            "{BREAK}--nnodes={nodes} --rdzv-backend=c10d --rdzv-id=\"${id}\" --rdzv-endpoint=\"${head}:${port}\""
        ),
        (Rendezvous::Launcher, Some(hosts)) => format!(" --hostfile={hosts} --rdzv-id=\"${id}\""),
        (Rendezvous::Launcher, None) => String::new(),
    }
}

/// A word of the program's command line, with `{task}` and `{local}` as variables.
fn argument(word: &str) -> String {
    if !word.contains("{task}") && !word.contains("{local}") {
        return quoted(word);
    }
    let escaped: String =
        word.chars().flat_map(|c| "\\\"$`".contains(c).then_some('\\').into_iter().chain([c])).collect();
    format!("\"{}\"", escaped.replace("{task}", "$task").replace("{local}", "$disk"))
}

/// Words, each as a shell reads it back.
pub(super) fn words(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A time as Slurm and PBS read it: hours, minutes, seconds.
pub(super) fn clock(seconds: u64) -> String {
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_shell_from_reading_more_into_an_argument_than_placeholders() {
        assert_eq!(argument("--seed={task}"), "\"--seed=$task\"");
        assert_eq!(argument("{local}/a $b\""), "\"$disk/a \\$b\\\"\"");
        assert_eq!(argument("$HOME"), "'$HOME'");
    }

    #[test]
    fn shows_the_container_the_folder_of_the_host_file_once() {
        let binds_of = |scheduler: &str, given: &str| {
            let text = format!(
                "scheduler = \"{scheduler}\"\nshared = \"/s/job\"\n[container]\nruntime = \"apptainer\"\nimage = \"i.sif\"\nbinds = \
                 [{given}]\n"
            );
            let profile = super::super::profile::parse("site.toml", &text).unwrap();
            let hosts = (scheduler == "pbs").then_some("\"$run/hosts\"");
            let meeting = RendezvousWords { nodes: "2".into(), head: "head", port: "port", id: "id", hosts };
            binds(&profile, profile.container.as_ref().unwrap(), &meeting)
        };
        assert_eq!(binds_of("pbs", "\"/data:/d:ro\""), ["/data:/d:ro", "/s/job"]);
        assert_eq!(binds_of("pbs", "\"/s\""), ["/s"]);
        assert_eq!(binds_of("pbs", "\"/s:/elsewhere\""), ["/s:/elsewhere", "/s/job"]);
        assert!(binds_of("slurm", "").is_empty(), "launchers under srun ask Slurm");
    }

    #[test]
    fn unpacks_archives_and_copies_the_rest() {
        assert_eq!(copy("/d/a.tar.gz", "\"$disk\""), "tar -xf /d/a.tar.gz -C \"$disk\"");
        assert_eq!(copy("/d/a b", "\"$disk\""), "cp -R '/d/a b' \"$disk\"/");
    }

    #[test]
    fn writes_days_as_hours() {
        assert_eq!(clock(2 * 86400 + 65), "48:01:05");
    }
}
