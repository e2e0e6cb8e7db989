//! What a cluster requires of this machine: programs, and the right to make namespaces. Also how to get what is missing.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use lockstep_process::find_program;
use rustix::process::getuid;

use crate::exit::Refused;

/// Programs of a machine without which there is no cluster, with their packages in Debian and Ubuntu.
const NEEDED: [(&str, &str); 6] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("setpriv", "util-linux"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
];
/// The same for Slurm.
const SLURM: [(&str, &str); 6] = [
    ("slurmctld", "slurm-wlm"),
    ("slurmd", "slurm-wlm"),
    ("srun", "slurm-wlm"),
    ("sinfo", "slurm-wlm"),
    ("scontrol", "slurm-wlm"),
    ("munged", "munge"),
];
/// Where daemons are, and a user's `PATH` may not lead.
const SBIN: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The namespaces of a machine, as `unshare` has them. With the process that asked for them, all in them ends.
pub(super) const NAMESPACES: [&str; 7] = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"];
/// What goes before them where the user is not root.
pub(super) const USER_NAMESPACE: [&str; 2] = ["--user", "--map-root-user"];

/// `PATH`, with the folders of daemons at its end.
pub(super) fn path() -> OsString {
    let own = std::env::var_os("PATH").unwrap_or_default();
    if own.is_empty() { SBIN.into() } else { [&own, OsStr::new(":"), OsStr::new(SBIN)].into_iter().collect() }
}

/// The packages, each once, whose programs are missing.
fn missing(programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    let absent = |name: &str| find_program(OsStr::new(name), Some(&path())).is_err();
    let mut packages: Vec<_> = programs.iter().filter(|(name, _)| absent(name)).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// Why Slurm cannot run here, in words; `None` if it can.
pub(super) fn why_no_slurm(user_namespace: bool) -> Option<String> {
    let packages = missing(&SLURM);
    if user_namespace {
        Some("its daemons must be started by root".to_owned())
    } else if packages.is_empty() {
        None
    } else {
        Some(format!("it is not installed ({})", install(&packages)))
    }
}

/// # Errors
/// [`Refused`], if `nft` is missing: packets are dropped by it.
pub(super) fn packet_filter() -> Result<(), Refused> {
    match missing(&[("nft", "nftables")]).as_slice() {
        [] => Ok(()),
        _ => Err(Refused(format!("this fault needs the program nft: {}", install(&["nftables"])))),
    }
}

/// The command that installs packages.
pub(super) fn install(packages: &[&str]) -> String {
    format!("apt-get install --no-install-recommends {}", packages.join(" "))
}

/// Whether the cluster must be in a user namespace: root needs none, unless it is a container's.
///
/// # Errors
/// [`Refused`], with what is missing and what to do.
pub(super) fn needs_user_namespace() -> Result<bool, Refused> {
    let packages = missing(&NEEDED);
    if !packages.is_empty() {
        return Err(Refused(format!("programs are missing: {}", install(&packages))));
    }
    let root = getuid().is_root();
    if root && allowed(&[]).is_ok() {
        return Ok(false);
    }
    let Err(why) = allowed(&USER_NAMESPACE) else { return Ok(true) };
    let hint = if root {
        "start the container with more rights (`--privileged`), or use a virtual machine"
    } else {
        "run it as root, or let users make namespaces: `sysctl -w kernel.unprivileged_userns_clone=1` (Debian), \
         `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), `sysctl -w user.max_user_namespaces=10000`"
    };
    Err(Refused(format!("this system does not let you make namespaces ({why}): {hint}")))
}

/// Tries all namespaces once, with what a machine mounts in them.
fn allowed(before: &[&str]) -> Result<(), String> {
    let mut command = Command::new("unshare");
    command.args(before).args(NAMESPACES).args(["--mount-proc", "ip", "link", "add", "br0", "type", "bridge"]);
    let output = command.env("PATH", path()).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let message = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(message()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_each_missing_package_once() {
        let programs = [("no-such-program", "a"), ("neither-this", "a"), ("sh", "b"), ("nor-this", "c")];
        assert_eq!(missing(&programs), ["a", "c"]);
        assert_eq!(install(&["a", "c"]), "apt-get install --no-install-recommends a c");
    }
}
