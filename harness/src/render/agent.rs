//! Scripts for sites where no srun starts the launchers: the batch script writes a second script into the shared folder, and has it
//! started on each node.
//!
//! Variables that the batch script exports do not travel through pbsdsh or ssh, and hardly through mpirun. So the second script makes
//! its environment itself and gets everything else as arguments.

use super::job::Job;
use super::pieces::{self, Meeting, launch};
use super::profile::{Profile, Rendezvous, Scheduler};
use lockstep_launch::command::quoted;

/// What schedulers differ in.
pub(super) struct Place {
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
    pub(super) again: &'static str,
}

/// What comes after the directives.
pub(super) fn body(profile: &Profile, job: &Job, place: &Place) -> String {
    // mpirun is often in a module itself.
    let own = if command(profile, job).is_some_and(|command| !command.starts_with("pbsdsh")) {
        pieces::modules(profile)
    } else {
        String::new()
    };
    let mut text = pieces::strict(&own) + "\n";
    text.push_str(&files(profile, job, place));
    text.push_str(&values(profile, job, place));
    text.push_str(
        "# What runs on each node. It gets everything as arguments: variables of this script do not travel there.\n",
    );
    text.push_str(&format!("cat >\"$run/agent.sh\" <<'AGENT'\n{}AGENT\n", agent(profile, job)));
    let arguments: Vec<String> = arguments(profile, job).iter().map(|(_, value)| format!("\"{value}\"")).collect();
    text.push_str(&format!("agent=(/bin/bash -l \"$run/agent.sh\" {})\n\n", arguments.join(" ")));
    text.push_str(&start(profile, job));
    text.push_str(&end(job, place));
    text
}

/// The folder that all nodes see, and in it the hosts.
fn files(profile: &Profile, job: &Job, place: &Place) -> String {
    let nodes = job.nodes();
    format!(
        "{}# Files that all nodes see.\n\
         run={}/lockstep-$id\n\
         mkdir -p \"$run\"\n\
         rm -f \"$run\"/exit.* \"$run\"/pid.* \"$run\"/time-is-up\n\
         {}\
         awk '$1 ~ /^[^#]/ && !seen[$1]++ {{ print $1 }}' {} | sed -n 1,{nodes}p >\"$run/hosts\"\n\
         if [ \"$(wc -l <\"$run/hosts\")\" -ne {nodes} ]; then\n  \
           echo \"error: this job needs {nodes} nodes; those that there are stand in $run/hosts\" >&2\n  \
           exit 1\n\
         fi\n",
        place.id,
        quoted(&profile.shared().display().to_string()),
        place.prepare,
        place.hosts,
    )
}

/// The arguments of the second script: their names there, and their values here. The number of workers follows them, then the
/// node's name where it differs from node to node.
fn arguments(profile: &Profile, job: &Job) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![("run", "$run"), ("folder", "$PWD")];
    all.extend((!job.build).then_some(("id", "$id")));
    if needs_flags(profile, job) {
        all.extend([("head", "$head"), ("port", "$port")]);
    }
    all.extend(job.margin.map(|_| ("deadline", "$deadline")));
    all.extend(job.array.map(|_| ("task", "$task")));
    all
}

/// The script hands the launcher where nodes meet.
fn needs_flags(profile: &Profile, job: &Job) -> bool {
    profile.rendezvous() == Rendezvous::Flags && !job.build
}

fn values(profile: &Profile, job: &Job, place: &Place) -> String {
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
fn agent(profile: &Profile, job: &Job) -> String {
    let arguments = arguments(profile, job);
    let names: Vec<String> =
        arguments.iter().enumerate().map(|(index, (name, _))| format!("{name}=${}", index + 1)).collect();
    let workers = arguments.len() + 1;
    let mut text = format!("#!/bin/bash\nset -eo pipefail\n{}\n", names.join(" "));
    if !job.build {
        text.push_str(&format!("workers=${workers} "));
    }
    text.push_str(&format!("node=${{{}:-$(hostname).$$}}\n", workers + 1));
    text.push_str("trap 'echo \"$?\" >\"$run/exit.$node\"' EXIT\n");
    text.push_str("echo \"$$\" >\"$run/pid.$node\"\n");
    text.push_str(&format!("{}set -u\n{}", pieces::modules(profile), pieces::environment(profile, job)));
    text.push_str("cd \"$folder\"\n");
    if !job.stage.is_empty() {
        text.push_str(&pieces::disk(profile, "id"));
        text.push_str("trap 'echo \"$?\" >\"$run/exit.$node\"; rm -rf \"$disk\"' EXIT\n");
        text.push_str("mkdir -p \"$disk\"\n");
        text.extend(job.stage.iter().map(|path| pieces::copy(path, "\"$disk\"") + "\n"));
    }
    let meeting = Meeting { nodes: job.nodes(), head: "head", port: "port", id: "id", hosts: Some("\"$run/hosts\"") };
    let launch = launch(profile, job, job.groups[0], "\"$workers\"", &meeting);
    if job.margin.is_none() {
        return text + &launch + "\n";
    }
    text.push_str("left=$((deadline - $(date +%s)))\n");
    text.push_str("code=0\n");
    text.push_str(&format!(
        "timeout --signal={} \"$((left > 0 ? left : 1))\" {launch} || code=$?\n",
        profile.end_signal()
    ));
    text.push_str("# No failure: mpirun would kill the nodes that are still writing their snapshot.\n");
    text.push_str("if [ \"$code\" -eq 124 ]; then\n  touch \"$run/time-is-up\"\n  code=0\nfi\nexit \"$code\"\n");
    text
}

/// Starts the second script on all nodes; sets `code`.
fn start(profile: &Profile, job: &Job) -> String {
    let (nodes, workers) = (job.nodes(), job.groups[0].workers);
    if let Some(command) = command(profile, job) {
        let command = command.replace("{nodes}", &nodes.to_string()).replace("{hosts}", "\"$run/hosts\"");
        let mut text = String::from("# One launcher on each node; it starts the workers there.\ncode=0\n");
        text.push_str(&format!("{command} \"${{agent[@]}}\" {workers} || code=$?\n"));
        return text
            + if profile.start.is_none() && profile.scheduler == Scheduler::Pbs { PBSDSH } else { "" }
                .replace("{nodes}", &nodes.to_string())
                .as_str();
    }
    let counts: Vec<String> =
        job.groups.iter().flat_map(|group| vec![group.workers.to_string(); group.nodes as usize]).collect();
    let text = if profile.scheduler == Scheduler::Ssh { SSH.to_owned() } else { PBSDSH_EACH.to_owned() + PBSDSH };
    text.replace("{workers}", &counts.join(" ")).replace("{nodes}", &nodes.to_string())
}

/// The command that starts a program once on each node, where one command does.
fn command(profile: &Profile, job: &Job) -> Option<String> {
    if let Some(start) = &profile.start {
        return Some(start.clone());
    }
    match profile.scheduler {
        Scheduler::Mpirun => Some("mpirun --hostfile {hosts} -np {nodes} --map-by ppr:1:node --bind-to none".into()),
        Scheduler::Pbs if job.groups.len() == 1 => Some("pbsdsh --".into()),
        _ => None,
    }
}

/// How each node's part ended is not pbsdsh's to say.
const PBSDSH: &str = "\
# pbsdsh does not hand on how its programs ended, so each leaves its exit code. Other nodes' files may take a while to be seen.
for _ in $(seq 60); do
  if [ \"$(find \"$run\" -name 'exit.*' | wc -l)\" -ge {nodes} ]; then break; fi
  sleep 1
done
if [ \"$(cat \"$run\"/exit.* | grep -cx 0)\" -ne {nodes} ]; then
  echo \"error: not all nodes ended well: see $run/exit.*\" >&2
  code=1
fi
";

const PBSDSH_EACH: &str = "\
# One launcher on each node; it starts the workers there.
code=0
workers=({workers})
index=0
while read -r host; do
  pbsdsh -n \"$index\" -- \"${agent[@]}\" \"${workers[index]}\" \"$host\" </dev/null &
  index=$((index + 1))
done <\"$run/hosts\"
wait
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

fn end(job: &Job, place: &Place) -> String {
    if job.margin.is_none() {
        return "exit \"$code\"\n".into();
    }
    format!("if [ -e \"$run/time-is-up\" ]; then\n  {}\nfi\nexit \"$code\"\n", place.again)
}
