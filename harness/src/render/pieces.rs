//! Pieces that all scripts have in common: the environment of the job, the copy to the nodes' own disks, and the launcher's command.

use super::job::{Group, Job};
use super::profile::{Container, Profile, Rendezvous};
use lockstep_launch::command::quoted;

/// What the last line of a piece goes on with, in scripts that break a long command.
pub(super) const BREAK: &str = " \\\n  ";

/// A comment on where the script comes from.
pub(super) fn origin(site: &str) -> String {
    format!("# Written by lockstep render for the site profile {}.\n", site.rsplit('/').next().unwrap_or(site))
}

/// Strict mode. It is complete after the modules only: they and `activate` scripts read variables that are not set.
pub(super) fn strict(modules: &str) -> String {
    if modules.is_empty() {
        return "set -euo pipefail\n".into();
    }
    format!("set -eo pipefail\n{modules}set -u\n")
}

/// Variables, and for a build job the check of the architecture.
pub(super) fn environment(profile: &Profile, job: &Job) -> String {
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

/// The variables of all processes of the job; the site's own come last and win.
fn variables(profile: &Profile, job: &Job) -> Vec<(String, String)> {
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
pub(super) struct Meeting<'a> {
    /// A word of bash: the number of nodes.
    pub(super) nodes: u32,
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
pub(super) fn launch(profile: &Profile, job: &Job, group: Group, workers: &str, meeting: &Meeting<'_>) -> String {
    let program = job.program.iter().map(|word| argument(word)).collect::<Vec<_>>().join(" ");
    if job.build {
        return program;
    }
    let mut parts = Vec::new();
    if let Some(container) = &profile.container {
        let nv = if group.gpus > 0 { " --nv" } else { "" };
        let binds = binds(profile, container, meeting);
        let binds = if binds.is_empty() { String::new() } else { format!(" --bind {}", quoted(&binds.join(","))) };
        let image = quoted(&container.image.display().to_string());
        parts.push(format!("{} exec{nv}{binds} {image}", container.runtime.program()));
    }
    parts.push(format!("{} --nproc-per-node={workers}{}", profile.launcher, flags(profile, meeting)));
    parts.push(program);
    parts.join(BREAK)
}

/// The site's binds, and the folder of the host file where the launcher in the container reads one.
fn binds(profile: &Profile, container: &Container, meeting: &Meeting<'_>) -> Vec<String> {
    let mut all = container.binds.clone();
    let shown = |bind: &String| !bind.contains(':') && profile.shared().starts_with(bind);
    if meeting.hosts.is_some() && profile.rendezvous() == Rendezvous::Launcher && !all.iter().any(shown) {
        all.push(profile.shared().display().to_string());
    }
    all
}

fn flags(profile: &Profile, meeting: &Meeting<'_>) -> String {
    let Meeting { nodes, head, port, id, hosts } = meeting;
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
                "scheduler = \"{scheduler}\"\nshared = \"/s/job\"\n[container]\nruntime = \"apptainer\"\nimage = \"i.sif\"\nbinds = [{given}]\n"
            );
            let profile = crate::render::profile::parse("site.toml", &text).unwrap();
            let hosts = (scheduler == "pbs").then_some("\"$run/hosts\"");
            let meeting = Meeting { nodes: 2, head: "head", port: "port", id: "id", hosts };
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
