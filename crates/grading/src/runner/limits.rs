//! What the ranks of a call may use, where they may write, and whom they may signal. The runner adds up their memory, threads and files; the
//! kernel limits each process (setrlimit(2)), confines writing and signals (landlock(7)), and refuses calls that change what Landlock leaves
//! alone (seccomp(2)).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use lockstep_process::proc::{self, Status};
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use crate::{Finding, Verdict};

/// Limits for all ranks of one call together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes in all files of the private folder, including what the ranks print.
    pub disk: u64,
    /// Processes and threads, including libtorch's.
    pub threads: u64,
    /// Bytes of memory.
    pub memory: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { disk: 256 << 20, threads: 400, memory: 8 << 30 }
    }
}

/// What a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Taken {
    threads: u64,
    memory: u64,
}

impl Bounds {
    /// Returns a finding if the descendants of this process or the files in the folder exceed a limit.
    pub(super) fn broken(&self, folder: &Path) -> Option<Finding> {
        self.broken_by(&descendants(std::process::id() as i32), folder)
    }

    fn broken_by(&self, taken: &[Taken], folder: &Path) -> Option<Finding> {
        let (threads, memory) =
            taken.iter().fold((0, 0), |(threads, memory), of| (threads + of.threads, memory + of.memory));
        let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
        let disk = size(folder);
        let diagnosis = if threads > self.threads {
            format!("the ranks run {threads} threads and processes; {} are allowed", self.threads)
        } else if memory > self.memory {
            format!("the ranks use {} of memory; {} are allowed", mebibytes(memory), mebibytes(self.memory))
        } else if disk > self.disk {
            format!("the ranks have printed and written {}; {} are allowed", mebibytes(disk), mebibytes(self.disk))
        } else {
            return None;
        };
        Some(Finding::new(Verdict::OutOfBounds, diagnosis))
    }
}

/// What each descendant of this process uses.
fn descendants(this: i32) -> Vec<Taken> {
    let all: BTreeMap<i32, (i32, Taken)> = proc::pids().filter_map(|pid| Some((pid, read(pid)?))).collect();
    let below = proc::descendants(this, &all.iter().map(|(pid, (parent, _))| (*pid, *parent)).collect());
    all.iter().filter(|(pid, _)| below.contains(pid)).map(|(_, (_, taken))| *taken).collect()
}

/// The parent of a process and what it uses.
fn read(pid: i32) -> Option<(i32, Taken)> {
    let status = Status::of(pid)?;
    let number = |field| status.number(field).unwrap_or(0);
    let taken = Taken { threads: number("Threads"), memory: number("VmRSS") << 10 };
    Some((i32::try_from(status.number("PPid")?).ok()?, taken))
}

/// Bytes of all files below a folder. Does not follow links.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

/// The hidden subcommand that executes a program which can write only to its own folders, under resource limits.
///
/// Landlock (landlock(7), Linux 5.13) confines writing. [`writes_are_confined`] returns false where the kernel lacks it. The
/// limits are those of setrlimit(2). Its limit on processes does not bind root, so the runner counts processes as well.
pub const CONFINED: &str = "confined-exec";

/// The rules of Linux 6.12. An older kernel applies those that it has: before 6.2 it lets files be cut off, and before 6.12 signals pass,
/// except for what [`refuse_changes`] refuses.
const RULES: ABI = ABI::V6;
/// Devices that any program may write to.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/zero"];
/// The limits, in bytes (`Fsize`, `Core`), seconds (`Cpu`) or as a count.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::Fsize, 256 << 20),
    (Resource::Cpu, 120),
    (Resource::Core, 0),
    (Resource::Nproc, 4096),
    (Resource::Nofile, 1024),
];

/// Calls that change the mode, owner, times or attributes of any file, or the priority of any process, which Landlock does not confine; those
/// that remove what processes share under a number or a name; and io_uring's, which makes such changes without a call.
const CHANGING: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmodat,
    452, // fchmodat2, the same number on all architectures; libc names it on some
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    463, // setxattrat, the same number on all architectures, as the next two
    466, // removexattrat
    469, // file_setattr
    libc::SYS_setpriority,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_ioprio_set,
    libc::SYS_shmctl,
    libc::SYS_semctl,
    libc::SYS_msgctl,
    libc::SYS_mq_unlink,
    libc::SYS_keyctl,
    libc::SYS_pidfd_send_signal,
    libc::SYS_io_uring_setup,
];
/// Calls that signal or limit the process that their first argument names: a rank's own, or none. A program that aborts signals itself.
const OF_A_PROCESS: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_prlimit64,
];
/// Requests of ioctl(2) that change a file's attributes: `FS_IOC_SETFLAGS`, `FS_IOC_FSSETXATTR` (linux/fs.h).
const ATTRIBUTES: [u64; 2] = [0x4008_6602, 0x401c_5820];
/// Has no effect, and is no error: copying a file calls it.
const WITHOUT_EFFECT: i64 = libc::SYS_fchmod;

/// What programs read of a system, whichever they are.
const SYSTEM: [&str; 12] =
    ["/bin", "/dev", "/etc", "/lib", "/lib64", "/nix", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr"];

/// The arguments that precede the program. It may write to two folders, and read what is in `readable` and [`SYSTEM`], or all if that is empty.
pub(super) fn words(folders: [&Path; 2], readable: &[PathBuf]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![CONFINED.into()];
    words.extend(folders.map(Into::into));
    words.push(readable.len().to_string().into());
    words.extend(readable.iter().map(Into::into));
    words
}

/// Executes the program, confined as [`words`] says. Returns only on failure.
pub(crate) fn exec(args: &[OsString]) -> anyhow::Result<()> {
    let internal = || format!("{CONFINED} is an internal command: use `lockstep grade`");
    let [one, other, number, rest @ ..] = args else { bail!(internal()) };
    let number = number.to_str().and_then(|number| number.parse().ok()).with_context(internal)?;
    let (readable, rest) = rest.split_at_checked(number).with_context(internal)?;
    let [program, args @ ..] = rest else { bail!(internal()) };
    for (resource, most) in LIMITS {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // This fails only where a lower limit is already in place.
        let _ = setrlimit(resource, limit);
    }
    confine([one, other], readable).context("cannot confine the program")?;
    refuse_changes().context("cannot confine the program's calls")?;
    Err(Command::new(program).args(args).exec())
        .with_context(|| format!("cannot start {}", Path::new(program).display()))
}

/// Returns true if this kernel can confine where programs write.
pub fn writes_are_confined() -> bool {
    // Creates a ruleset without applying it.
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

fn confine(folders: [&OsString; 2], readable: &[OsString]) -> anyhow::Result<RulesetStatus> {
    let all = readable.is_empty().then_some(Path::new("/"));
    let system = SYSTEM.iter().map(Path::new).filter(|_| !readable.is_empty());
    let reading = path_beneath_rules(
        all.into_iter().chain(system).chain(readable.iter().map(Path::new)),
        AccessFs::from_read(RULES),
    );
    let writing = path_beneath_rules(folders, AccessFs::from_all(RULES));
    let devices = path_beneath_rules(DEVICES, AccessFs::from_file(RULES));
    let rules = Ruleset::default().handle_access(AccessFs::from_all(RULES))?.scope(Scope::Signal)?.create()?;
    let rules = rules.add_rules(reading)?.add_rules(writing)?.add_rules(devices)?;
    Ok(rules.restrict_self()?.ruleset)
}

/// A kernel without seccomp leaves modes unprotected, as one without Landlock leaves files.
fn refuse_changes() -> anyhow::Result<()> {
    for (rules, code) in [(refused_calls()?, libc::EPERM), ([(WITHOUT_EFFECT, vec![])].into(), 0)] {
        let refused = SeccompAction::Errno(code as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?;
        match apply_filter(&BpfProgram::try_from(filter)?) {
            Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error))
                if error.raw_os_error() == Some(libc::EINVAL) => {}
            applied => applied?,
        }
    }
    Ok(())
}

/// The refused calls, with the arguments with which they are; with none, always.
fn refused_calls() -> anyhow::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let if_all = |conditions: &[(u8, SeccompCmpOp, u64)]| {
        let of = |(argument, is, value): &(u8, SeccompCmpOp, u64)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, is.clone(), *value)
        };
        conditions.iter().map(of).collect::<Result<_, _>>().and_then(SeccompRule::new)
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CHANGING.iter().map(|call| (*call, vec![])).collect();
    let this = u64::from(std::process::id());
    for call in OF_A_PROCESS {
        // To signal 0 is to signal the group, in which the grader may be.
        let itself: &[_] = if *call == libc::SYS_prlimit64 { &[(0, Ne, this), (0, Ne, 0)] } else { &[(0, Ne, this)] };
        rules.insert(*call, vec![if_all(itself)?]);
    }
    let attributes = ATTRIBUTES.map(|request| if_all(&[(1, Eq, request)]));
    rules.insert(libc::SYS_ioctl, attributes.into_iter().collect::<Result<_, _>>()?);
    // To open for reading and cut off is no writing to Landlock before Linux 6.2.
    let cuts = (MaskedEq((libc::O_TRUNC | libc::O_ACCMODE) as u64), libc::O_TRUNC as u64);
    rules.insert(libc::SYS_openat, vec![if_all(&[(2, cuts.0.clone(), cuts.1)])?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, vec![if_all(&[(1, cuts.0, cuts.1)])?]);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_process_uses() {
        let (parent, taken) = read(std::process::id() as i32).unwrap();
        assert_eq!(parent, std::os::unix::process::parent_id() as i32);
        assert!(taken.threads >= 1 && taken.memory >= 1 << 20, "{taken:?}");
        assert_eq!(read(i32::MAX), None);
    }

    #[test]
    fn names_the_exceeded_limit() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        fs::write(folder.path().join("in/file"), [0; 1000]).unwrap();
        let taken = [Taken { threads: 3, memory: 5 << 20 }; 2];
        let diagnosis = |bounds: Bounds| bounds.broken_by(&taken, folder.path()).map(|finding| finding.diagnosis);
        let bounds = Bounds { disk: 1000, threads: 6, memory: 10 << 20 };
        assert_eq!(diagnosis(bounds), None);
        for (bounds, named) in [
            (Bounds { disk: 999, ..bounds }, "written"),
            (Bounds { threads: 5, ..bounds }, "6 threads and processes; 5 are allowed"),
            (Bounds { memory: 9 << 20, ..bounds }, "10 MiB of memory; 9 MiB are allowed"),
        ] {
            assert!(diagnosis(bounds).unwrap().contains(named), "{named}");
        }
    }
}
