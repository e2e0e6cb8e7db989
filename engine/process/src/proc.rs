//! Reads `/proc` (proc(5)): parents, sessions, times, threads, environments of processes, and the control
//! groups of this process. Nothing else reads
//! `/proc/PID`.
//!
//! A process that has ended, or that this user may not inspect, gives `None`; the caller decides what that means.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// At most this much of an environment is read, in bytes. Variables beyond it are not found.
const LARGEST_ENVIRONMENT: u64 = 8 << 20;
/// A clock tick of `/proc`: `USER_HZ` is 100 on Linux.
const TICK: Duration = Duration::from_millis(10);

/// The `stat` of a process or a thread, with the fields that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    /// The name of its program as the kernel stores it (15 bytes).
    pub name: String,
    /// `R`, `S`, `D`, `T`, `Z` and so on.
    pub state: char,
    /// The parent, which the kernel notifies of its end.
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// CPU time that it has used, in user and kernel mode.
    pub used: Duration,
    /// CPU time of the children that it has waited for.
    pub used_by_children: Duration,
    /// Start time in clock ticks since boot. Together with the pid, it identifies a process uniquely.
    pub start: u64,
}

impl Stat {
    pub fn of(pid: i32) -> Option<Self> {
        Self::seen_in(Path::new("/proc"), pid)
    }

    /// Reads the entry of a process in another mount of `/proc`: that of a container shows the container's process ids.
    pub fn seen_in(proc: &Path, pid: i32) -> Option<Self> {
        Self::in_folder(&proc.join(pid.to_string()))
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        Self::parse(&fs::read(folder.join("stat")).ok()?)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // The name is in parentheses and may contain any byte, including parentheses and spaces.
        let open = line.iter().position(|byte| *byte == b'(')?;
        let close = line.iter().rposition(|byte| *byte == b')')?;
        let pid = std::str::from_utf8(&line[..open]).ok()?.trim().parse().ok()?;
        let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let fields: Vec<&str> = std::str::from_utf8(&line[close + 1..]).ok()?.split_ascii_whitespace().collect();
        // Numbered as in proc_pid_stat(5), where the state is field 3.
        let field = |number: usize| fields.get(number - 3).copied();
        let id = |number| field(number)?.parse::<i32>().ok();
        let ticks = |number| Some(TICK * field(number)?.parse::<u32>().ok()?);
        Some(Stat {
            pid,
            name,
            state: field(3)?.chars().next()?,
            parent: id(4)?,
            group: id(5)?,
            session: id(6)?,
            used: ticks(14)? + ticks(15)?,
            used_by_children: ticks(16)? + ticks(17)?,
            start: field(22)?.parse().ok()?,
        })
    }

    /// Returns true if it has ended and waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The ids of all visible processes in this pid namespace.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The threads of a process; none if it has ended.
pub fn threads(pid: i32) -> Vec<Stat> {
    thread_folders(pid).iter().filter_map(|folder| Stat::in_folder(folder)).collect()
}

/// The folders of a process's threads in `/proc`, each named by the thread's id.
fn thread_folders(pid: i32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns true if a thread of this process is in a call that only sleeps for a given time.
pub fn is_in_sleep(thread: i32) -> bool {
    let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
    let number = call.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
    number.is_some_and(|number: i64| [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].contains(&number))
}

/// A thread's times on a core and in the run queue (the kernel's sched-stats.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// On a core.
    pub running: Duration,
    /// Ready to run, while all cores were busy.
    pub waiting: Duration,
    /// How often it was given a core.
    pub turns: u64,
}

impl Schedule {
    /// Reads the times of the calling thread. Zero if the kernel does not keep these numbers.
    pub fn of_this_thread() -> Self {
        Self::in_folder(Path::new("/proc/thread-self"))
    }

    /// Reads the times of a thread of this process.
    pub fn of_thread(thread: i32) -> Self {
        Self::in_folder(Path::new(&format!("/proc/self/task/{thread}")))
    }

    /// Reads the times of a process's threads, with the threads' ids.
    pub fn of_threads(pid: i32) -> Vec<(i32, Self)> {
        let numbered = |folder: PathBuf| Some((folder.file_name()?.to_str()?.parse().ok()?, Self::in_folder(&folder)));
        thread_folders(pid).into_iter().filter_map(numbered).collect()
    }

    fn in_folder(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
        let mut numbers = text.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        let (running, waiting, turns) = (next(), next(), next());
        Schedule { running: Duration::from_nanos(running), waiting: Duration::from_nanos(waiting), turns }
    }
}

/// The `status` of a process: lines with a field's name and its value.
#[derive(Clone, Debug)]
pub struct Status(String);

impl Status {
    pub fn of(pid: i32) -> Option<Self> {
        Some(Status(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?).into_owned()))
    }

    pub fn of_this_process() -> Option<Self> {
        Self::of(std::process::id() as i32)
    }

    /// The sums over all mappings of the process, with the same names as in smaps.
    pub fn of_memory(pid: i32) -> Option<Self> {
        Some(Status(fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?))
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns true if the process has a handler for this signal: it neither ignores it nor leaves it to the default action.
    pub fn handles(&self, signal: i32) -> bool {
        (1..=64).contains(&signal) && self.signals("SigCgt") >> (signal - 1) & 1 == 1
    }

    /// Returns true if the process has given its memory back, or has a signal before it that ends it: none that it handles, ignores or
    /// blocks.
    pub fn is_ending(&self) -> bool {
        let kept = self.signals("SigCgt") | self.signals("SigIgn") | self.signals("SigBlk");
        self.field("VmSize").is_none() || self.signals("ShdPnd") & !kept != 0
    }

    fn signals(&self, mask: &str) -> u64 {
        self.field(mask).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
    }

    /// The number at the start of a field.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.split_ascii_whitespace().next()?.parse().ok()
    }
}

/// Returns true if this process has children, dead or alive. It needs one system call; [`children`] needs many.
pub fn has_children() -> bool {
    // Also those that end without SIGCHLD (waitid(2)); rustix has no name for this flag.
    let all = WaitIdOptions::from_bits_retain(0x4000_0000);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT | all;
    !matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
}

pub fn children() -> Vec<i32> {
    children_of(std::process::id() as i32)
}

pub fn children_of(parent: i32) -> Vec<i32> {
    let is_child = |pid: &i32| Stat::of(*pid).is_some_and(|stat| stat.parent == parent);
    listed_children(parent).unwrap_or_else(|| pids().filter(is_child).collect())
}

/// Reads the kernel's lists for each thread, which exist if it was built with `CONFIG_PROC_CHILDREN`.
fn listed_children(pid: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for thread in thread_folders(pid) {
        match fs::read_to_string(thread.join("children")) {
            Ok(pids) => children.extend(pids.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            // The thread has ended meanwhile.
            Err(_) if !thread.exists() => {}
            Err(_) => return None,
        }
    }
    Some(children)
}

/// The parent of each visible process.
pub fn parents() -> BTreeMap<i32, i32> {
    pids().filter_map(|pid| Some((pid, Stat::of(pid)?.parent))).collect()
}

/// All descendants of `ancestor` among these processes, which are given with their parents. The listing is not atomic,
/// so it may contain a cycle.
pub fn descendants(ancestor: i32, parents: &BTreeMap<i32, i32>) -> BTreeSet<i32> {
    let descends = |pid: i32| {
        let line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        line.skip(1).take(parents.len()).any(|of| of == ancestor)
    };
    parents.keys().copied().filter(|pid| *pid != ancestor && descends(*pid)).collect()
}

/// The program and arguments of a process, as one line.
pub fn command_line(pid: i32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(String::from_utf8_lossy(&words).trim_end_matches('\0').replace('\0', " "))
}

/// The name of the file that a process executes, such as `python3.11`. The process itself cannot change it, unlike [`Stat::name`].
pub fn executable(pid: i32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    // The kernel marks a file that has been removed, or replaced by an upgrade.
    Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
}

/// Returns true if a program of this name or path is a Python interpreter: `python3.11`, `/usr/bin/pypy3`.
pub fn is_python(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or_default();
    name.starts_with("python") || name.starts_with("pypy")
}

/// The value of a variable in the environment that a process was started with.
pub fn variable(pid: i32, name: &str) -> Option<OsString> {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(LARGEST_ENVIRONMENT).read_to_end(&mut environment).ok()?;
    find_variable(&environment, name).map(|value| OsString::from_vec(value.to_vec()))
}

fn find_variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut entries = environment.split(|byte| *byte == 0);
    entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The soft limit on file locks of a process, if there is one.
pub fn lock_limit(pid: i32) -> Option<u64> {
    find_lock_limit(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

fn find_lock_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// A control group that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Its folder. In a container this is the host's path, which may not exist.
    pub folder: PathBuf,
    /// Where its hierarchy is mounted. In a container this is the container's own group.
    pub mount: PathBuf,
}

impl ControlGroup {
    /// The groups that control this resource, such as `memory`; files are read below `root`.
    pub fn of(root: &Path, controller: &str) -> Vec<Self> {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let unified = root.join("sys/fs/cgroup");
        // hierarchy:controllers:path; version 2 has number 0 and no controllers.
        let of_line = |line: &str| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let mount = match controllers {
                "" => unified.clone(),
                list if list.split(',').any(|name| name == controller) => unified.join(controller),
                _ => return None,
            };
            Some(ControlGroup { folder: mount.join(path.trim_start_matches('/')), mount })
        };
        text.lines().filter_map(of_line).collect()
    }

    /// The folders of this group and of its parents.
    pub fn around(&self) -> impl Iterator<Item = &Path> {
        self.folder.ancestors().take_while(|folder| folder.starts_with(&self.mount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "4242 (a) Z 1 (c) S 17 4240 4000 0 -1 4194304 1 0 0 0 30 12 5 1 20 0 1 0 987654 2600 1\n";

    #[test]
    fn reads_a_line_whose_name_holds_spaces_and_parentheses() {
        let stat = Stat::parse(LINE.as_bytes()).unwrap();
        let expected = Stat {
            pid: 4242,
            name: "a) Z 1 (c".into(),
            state: 'S',
            parent: 17,
            group: 4240,
            session: 4000,
            used: Duration::from_millis(420),
            used_by_children: Duration::from_millis(60),
            start: 987654,
        };
        assert_eq!(stat, expected);
        assert!(!stat.is_dead() && Stat { state: 'Z', ..stat }.is_dead());
        let fields = "S 7 41 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2";
        for name in ["sh", "a b", ") S 1 (", "("] {
            let stat = Stat::parse(format!("42 ({name}) {fields}").as_bytes()).unwrap();
            assert_eq!((stat.pid, stat.name.as_str(), stat.state, stat.parent, stat.start), (42, name, 'S', 7, 9876));
        }
    }

    #[test]
    fn rejects_lines_that_are_broken_or_cut_before_the_start_time() {
        let whole = LINE.find("987654").unwrap();
        assert!((0..whole).all(|end| Stat::parse(&LINE.as_bytes()[..end]).is_none()));
        for broken in ["", "7", "7 (sh)", "42 (sh) S 7", "7 (sh) S x", ") 7 (sh S 1"] {
            assert_eq!(Stat::parse(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn finds_this_process_itself() {
        let own = std::process::id() as i32;
        let stat = Stat::of(own).unwrap();
        assert_eq!((stat.pid, stat.parent), (own, std::os::unix::process::parent_id() as i32));
        assert!(pids().any(|pid| pid == own));
        assert!(command_line(own).unwrap().starts_with(&std::env::args().next().unwrap()));
        assert!(threads(own).iter().any(|thread| thread.pid == own));
        assert!(Schedule::of_threads(own).iter().any(|(thread, _)| *thread == own));
        assert_ne!(Schedule::of_thread(own), Schedule::default());
        assert!(threads(i32::MAX).is_empty() && Stat::of(i32::MAX).is_none());
    }

    #[test]
    fn finds_the_program_of_a_process_whatever_the_process_calls_itself() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(executable(std::process::id() as i32).as_deref(), own.file_name().unwrap().to_str());
        assert_eq!(executable(i32::MAX), None);
        assert!(["python", "/usr/bin/python3.11", "pypy3"].into_iter().all(is_python));
        assert!(!["", "/opt/python/bin/train", "ipython"].into_iter().any(is_python));
    }

    #[test]
    fn finds_grandchildren_and_survives_a_cycle() {
        let parents = [(7, 1), (5, 7), (6, 5), (8, 1), (11, 12), (12, 11)].into();
        assert_eq!(descendants(7, &parents), [5, 6].into());
        assert_eq!(descendants(11, &parents), [12].into());
    }

    #[test]
    fn reads_the_fields_of_a_status() {
        let status = Status("Name:\tx\nPPid:\t7\nVmRSS:\t  2048 kB\nSigIgn:\t00ff\n".into());
        assert_eq!((status.number("PPid"), status.number("VmRSS")), (Some(7), Some(2048)));
        assert_eq!((status.field("SigIgn"), status.field("Sig"), status.number("Name")), (Some("00ff"), None, None));
    }

    #[test]
    fn finds_the_signals_that_a_process_handles() {
        let status = Status("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000a01\n".into());
        let handled: Vec<i32> = (-1..=70).filter(|signal| status.handles(*signal)).collect();
        assert_eq!(handled, [1, 10, 12]);
        assert!(!Status(String::new()).handles(10));
    }

    #[test]
    fn a_process_ends_once_it_has_no_memory_or_a_signal_that_it_does_not_keep_away() {
        let is_ending = |lines: &str| Status(format!("{lines}ShdPnd:\t4000\n")).is_ending();
        assert!(is_ending("VmSize:\t4 kB\n"));
        for mask in ["SigBlk", "SigIgn", "SigCgt"] {
            assert!(!is_ending(&format!("VmSize:\t4 kB\n{mask}:\t4000\n")), "{mask}");
        }
        assert!(is_ending("SigCgt:\t4000\n"), "without memory");
    }

    #[test]
    fn finds_the_limit_on_locks() {
        let limits = |limit: &str| {
            format!("Max address space   unlimited  unlimited  bytes\nMax file locks     {limit}  unlimited  locks\n")
        };
        assert_eq!(find_lock_limit(&limits("1234567890123")), Some(1_234_567_890_123));
        assert_eq!(find_lock_limit(&limits("unlimited")), None);
        assert_eq!(find_lock_limit(""), None);
    }

    #[test]
    fn finds_a_variable_by_its_whole_name() {
        let environment = b"XMARK=no\0MARKER=no\0MARK=a=b\0MARK=second\0";
        assert_eq!(find_variable(environment, "MARK"), Some(&b"a=b"[..]));
        assert_eq!(find_variable(environment, "MAR"), None);
    }

    #[test]
    fn reads_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(ControlGroup::of(root, "memory"), []);
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(root.join("proc/self/cgroup"), "4:memory:/slurm/job_7\n2:cpu,cpuacct:/\nnoise\n0::/a\n").unwrap();
        let mount = root.join("sys/fs/cgroup");
        let group = |mount: &Path, path: &str| ControlGroup { folder: mount.join(path), mount: mount.to_owned() };
        let unified = group(&mount, "a");
        let memory = group(&mount.join("memory"), "slurm/job_7");
        assert_eq!(ControlGroup::of(root, "memory"), [memory.clone(), unified.clone()]);
        assert_eq!(ControlGroup::of(root, "cpuacct"), [group(&mount.join("cpuacct"), ""), unified.clone()]);
        assert_eq!(ControlGroup::of(root, "pids"), [unified]);
        let around: Vec<_> = memory.around().collect();
        assert_eq!(around, ["slurm/job_7", "slurm", ""].map(|path| memory.mount.join(path)));
    }
}
