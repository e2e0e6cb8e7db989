//! Collects the evidence of a failure. Before a failure, only a counter is read.
//!
//! Nothing here may block: file systems that do not answer are given up after a second.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use lockstep_contract::scheduler::{Read as Environment, job_end};
use lockstep_process::{ControlGroup, NoProgress, end_of_file, proc};
use rustix::fs::{OFlags, StatVfsMountFlags, statvfs};

use super::flight_recorder::{self, Recordings};
use super::judge::blames_another;
use super::{Evidence, FileSystem, MemoryKills, Standing};
use crate::diagnose::port_owner;
use crate::report::Failure;

/// The longest wait for a file system.
const PATIENCE: Duration = Duration::from_secs(1);
/// A record of the kernel's log has at most this many bytes (`CONSOLE_EXT_LOG_MAX`, linux/printk.h).
const RECORD: usize = 8192;
/// Lines of the kernel's log that say why a process ended, or that a device failed.
const TELLING: [&str; 5] = ["Killed process", "segfault at", "trap ", "NVRM: Xid", "general protection"];
/// signal(7).
const SIGKILL: i32 = 9;
/// Marks of failures that the state of a file system explains.
const ON_DISK: [&str; 5] =
    ["No space left on device", "os error 28", "Read-only file system", "shared memory", "Bus error"];
const PORT_TAKEN: [&str; 2] = ["ddress already in use", "EADDRINUSE"];

/// What has to be known from the time before a failure.
#[derive(Debug, Default)]
pub struct AtStart {
    memory: Option<(PathBuf, u64)>,
    /// `None` if this user may not read it.
    kernel_log: Option<KernelLog>,
}

/// The kernel's log since then.
#[derive(Debug)]
struct KernelLog {
    file: File,
    /// The telling lines that were read; each can be read only once.
    lines: Mutex<Vec<String>>,
}

impl KernelLog {
    fn lines(&self) -> Vec<String> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend(new_lines(&self.file));
        lines.clone()
    }
}

impl AtStart {
    /// Reads it, when the workers are started.
    pub fn now() -> Self {
        AtStart { memory: memory_events(Path::new("/")), kernel_log: open_kernel_log() }
    }
}

/// Adds to what the agent itself has `seen`. With `search`, all processes of the machine are looked at, which takes some time.
pub fn gather(
    start: &AtStart,
    failures: &[Failure],
    master_port: Option<u16>,
    search: bool,
    seen: Evidence,
) -> Evidence {
    let killed = failures.iter().find(|failure| failure.death.exitcode == -SIGKILL && !failure.death.stopped);
    let killed = killed.map(|failure| failure.death.pid);
    Evidence {
        memory: start
            .memory
            .as_ref()
            .and_then(|(file, before)| Some(MemoryKills { file: file.clone(), before: *before, after: kills(file)? })),
        kernel_log: start.kernel_log.as_ref().map(KernelLog::lines).unwrap_or_default(),
        sender: killed.and_then(|pid| in_audit_log(pid, SIGKILL)),
        oom_daemons: killed.filter(|_| search).map(|_| oom_daemons()).unwrap_or_default(),
        file_systems: file_systems(failures),
        port_owner: port(failures, master_port),
        job_end: job_end(&Environment::here()),
        recordings: recordings(failures),
        ..seen
    }
}

/// PyTorch's recordings of all ranks that may lie on this node or in a folder that nodes share.
fn recordings(failures: &[Failure]) -> Recordings {
    let began = failures.iter().map(|failure| failure.death.started).min();
    match began.filter(|_| failures.iter().any(blames_another)) {
        Some(began) => patiently(move || flight_recorder::read(began)).unwrap_or_default(),
        None => Recordings::new(),
    }
}

/// The result of `find`; `None` if a file server does not answer. Its thread is left behind then.
fn patiently<T: Send + 'static>(find: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, answer) = mpsc::channel();
    let _ = thread::Builder::new().spawn(move || sender.send(find()));
    answer.recv_timeout(PATIENCE).ok()
}

/// The workers among these, given by rank and process id, that stand still.
pub fn standing(workers: impl Iterator<Item = (usize, u32)>) -> Vec<Standing> {
    workers.filter_map(|(rank, pid)| Some(Standing { rank, pid, at: NoProgress::of(pid as i32)? })).collect()
}

/// The file with the counter `oom_kill` of this process's cgroup: `memory.events` (v2) or `memory.oom_control` (v1), and its value.
fn memory_events(root: &Path) -> Option<(PathBuf, u64)> {
    let groups = ControlGroup::of(root, "memory");
    let folders = groups.iter().map(|group| &group.folder).chain(groups.iter().map(|group| &group.mount));
    let mut files = folders.flat_map(|folder| ["memory.events", "memory.oom_control"].map(|file| folder.join(file)));
    files.find_map(|file| kills(&file).map(|count| (file, count)))
}

fn kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

fn open_kernel_log() -> Option<KernelLog> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut log = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
    log.seek(SeekFrom::End(0)).ok()?;
    Some(KernelLog { file: log, lines: Mutex::default() })
}

/// The telling lines that were not read yet.
fn new_lines(mut log: &File) -> Vec<String> {
    let mut lines = Vec::new();
    let mut record = [0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => lines.extend(telling(&String::from_utf8_lossy(&record[..length]))),
            // The oldest records were overwritten meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    lines
}

/// The text of a record `6,1234,5678901,-;text`.
fn telling(record: &str) -> Option<String> {
    let (_, text) = record.split_once(';')?;
    let line = text.lines().next()?;
    (TELLING.iter().any(|mark| line.contains(mark))).then(|| line.to_owned())
}

/// Those that the failures may be about: shared memory, and the files that the workers' last lines name.
fn file_systems(failures: &[Failure]) -> Vec<FileSystem> {
    let lines = || failures.iter().flat_map(words);
    let concerned = lines().any(|line| ON_DISK.iter().any(|mark| line.contains(mark)));
    let logs =
        failures.iter().filter(|failure| failure.death.exitcode > 0).filter_map(|failure| failure.death.log.clone());
    let logs: Vec<PathBuf> = logs.collect();
    if !concerned && logs.is_empty() && !failures.iter().any(|failure| matches!(failure.death.exitcode, -7 | 135)) {
        return vec![];
    }
    let named =
        lines().filter(|line| ON_DISK.iter().any(|mark| line.contains(mark))).filter_map(|line| quoted_path(&line));
    let mut paths: Vec<PathBuf> = vec!["/dev/shm".into()];
    paths.extend(named.chain(logs));
    paths.dedup();
    let (sender, answers) = mpsc::channel();
    // A thread that waits for a file server is left behind.
    let _ = thread::Builder::new()
        .spawn(move || paths.into_iter().filter_map(file_system).try_for_each(|system| sender.send(system)));
    let mut found = Vec::new();
    while let Ok(system) = answers.recv_timeout(PATIENCE) {
        found.push(system);
    }
    found
}

/// The state of the file system that this path is in, or would be in.
fn file_system(path: PathBuf) -> Option<FileSystem> {
    let state = path.ancestors().find_map(|folder| statvfs(folder).ok())?;
    Some(FileSystem {
        path,
        free: state.f_bavail * state.f_frsize,
        size: state.f_blocks * state.f_frsize,
        free_files: (state.f_files > 0).then_some(state.f_favail),
        read_only: state.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

fn words(failure: &Failure) -> impl Iterator<Item = String> {
    let lines: Vec<String> =
        failure.traceback().lines().map(str::to_owned).chain(failure.death.tail.iter().cloned()).collect();
    lines.into_iter()
}

fn quoted_path(line: &str) -> Option<PathBuf> {
    let (rest, _) = line.rsplit_once('\'')?;
    let (_, path) = rest.rsplit_once('\'')?;
    path.starts_with('/').then(|| path.into())
}

/// The owner of the port that a worker could not get: the port that its message names, otherwise MASTER_PORT.
fn port(failures: &[Failure], master_port: Option<u16>) -> Option<String> {
    let line = failures.iter().flat_map(words).find(|line| PORT_TAKEN.iter().any(|mark| line.contains(mark)))?;
    let port = named_port(&line).or(master_port)?;
    port_owner(port).map(|owner| owner.to_string())
}

/// `('0.0.0.0', 29500)`, `port: 29500`, `127.0.0.1:29500`.
fn named_port(line: &str) -> Option<u16> {
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|text| text.parse::<u16>().ok());
    numbers.rfind(|port| *port >= 1024)
}

// ---- who may have sent a signal

/// Where auditd writes.
const AUDIT_LOG: &str = "/var/log/audit/audit.log";
/// How much of its end is read, in bytes.
const END: u64 = 1 << 20;
/// The system calls that send signals: kill, tkill, tgkill, whose arguments end with the signal. First the architecture as auditd writes it
/// (linux/audit.h), because the numbers differ between architectures.
const CALLS: [(&str, [(&str, usize); 3]); 2] = [
    ("c000003e", [("62", 1), ("200", 1), ("234", 2)]),  // x86-64
    ("c00000b7", [("129", 1), ("130", 1), ("131", 2)]), // AArch64
];
/// Programs that end others when memory gets short.
const OOM_DAEMONS: [&str; 5] = ["systemd-oomd", "earlyoom", "nohang", "oomd", "bustd"];

/// The sender of this signal to a process, as the end of the audit log names it.
pub(super) fn in_audit_log(pid: u32, signal: i32) -> Option<String> {
    let end = end_of_file(Path::new(AUDIT_LOG), END).ok()?;
    String::from_utf8_lossy(&end).lines().rev().find_map(|line| sender(line, pid, signal))
}

/// The programs that run here and end others when memory gets short.
pub(super) fn oom_daemons() -> Vec<String> {
    let stats = proc::pids().filter_map(proc::Stat::of);
    let killers = stats.filter(|stat| OOM_DAEMONS.contains(&stat.name.as_str()));
    killers.map(|stat| format!("{} (pid {})", stat.name, stat.pid)).collect()
}

/// `type=SYSCALL … arch=c000003e syscall=62 success=yes … a0=4d2 a1=9 … pid=77 auid=1000 uid=1000 … comm="bash" …`, where `a0` is the receiver, in
/// hexadecimal digits, or minus its process group.
fn sender(line: &str, pid: u32, signal: i32) -> Option<String> {
    let field = |name: &str| {
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"'))
    };
    let (_, calls) = CALLS.iter().find(|(arch, _)| line.starts_with("type=SYSCALL ") && field("arch") == Some(arch))?;
    let (_, last) = *calls.iter().find(|(number, _)| field("syscall") == Some(number))?;
    let argument = |place: usize| u64::from_str_radix(field(&format!("a{place}"))?, 16).ok();
    let to = argument(last - 1)? as u32 as i32;
    let fits = to.unsigned_abs() == pid && argument(last)? == signal as u64 && field("success") == Some("yes");
    fits.then(|| {
        let known = |name| field(name).unwrap_or("?");
        format!("{} (pid {}) of user {}", known("comm"), known("pid"), known("uid"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file below `root`, where this process is in `group`.
    fn counter(root: &Path, group: &str, file: &str, text: &str) -> PathBuf {
        let path = root.join("sys/fs/cgroup").join(file);
        for (path, text) in [(&root.join("proc/self/cgroup"), group), (&path, text)] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        path
    }

    #[test]
    fn finds_the_counter_of_kills_in_both_versions_of_cgroups() {
        let roots = [(); 4].map(|()| tempfile::tempdir().unwrap());
        let [old, new, inside, none] = roots.each_ref().map(tempfile::TempDir::path);
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let groups = "4:memory:/slurm/job_7\n1:cpu:/\n0::/\n";
        let file = counter(old, groups, "memory/slurm/job_7/memory.oom_control", text);
        assert_eq!(memory_events(old), Some((file, 3)));
        let text = "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n";
        let file = counter(new, "0::/job_8\n", "job_8/memory.events", text);
        assert_eq!(memory_events(new), Some((file, 1)));
        // In a container the path may not exist.
        let file = counter(inside, "0::/job_8\n", "memory.events", "oom_kill 0\n");
        assert_eq!(memory_events(inside), Some((file, 0)));
        assert_eq!(memory_events(none), None);
    }

    #[test]
    fn keeps_the_telling_lines_of_the_kernels_log() {
        let record =
            "6,6920,35703,-;Memory cgroup out of memory: Killed process 71 (python) total-vm:1kB\n SUBSYSTEM=x\n";
        assert!(telling(record).unwrap().ends_with("total-vm:1kB"));
        assert_eq!(telling("6,6920,35703,-;br0: port 1 entered blocking state\n"), None);
        assert_eq!(telling(""), None);
    }

    #[test]
    fn finds_the_port_and_the_path_in_a_message() {
        assert_eq!(
            named_port(
                "[Errno 98] error while attempting to bind on address ('0.0.0.0', 29500): address already in use"
            ),
            Some(29500)
        );
        assert_eq!(named_port("OSError: [Errno 98] Address already in use"), None);
        assert_eq!(quoted_path("OSError: [Errno 28] No space left on device: '/x/y'"), Some("/x/y".into()));
        assert_eq!(quoted_path("it isn't"), None);
        assert!(file_system("/dev/shm/no/such/folder".into()).is_some_and(|system| system.size > 0));
    }

    const LINE: &str = "type=SYSCALL msg=audit(1763635200.123:456): arch=c000003e syscall=62 success=yes exit=0 a0=4d2 a1=9 a2=0 a3=7f items=0 \
                        ppid=70 pid=77 auid=1000 uid=1000 gid=1000 tty=pts0 ses=3 comm=\"bash\" exe=\"/usr/bin/bash\" key=(null)";

    #[test]
    fn finds_the_sender_of_a_signal_in_the_audit_log() {
        let expected = Some("bash (pid 77) of user 1000".to_owned());
        assert_eq!(sender(LINE, 1234, 9), expected);
        assert_eq!(sender(&LINE.replace("a0=4d2", "a0=fffffb2e"), 1234, 9), expected, "to its group");
        let thread = LINE.replace("syscall=62", "syscall=234").replace("a1=9 a2=0", "a1=4d2 a2=9");
        assert_eq!(sender(&thread, 1234, 9), expected);
        for (pid, signal, line) in [
            (1235, 9, LINE.to_owned()),
            (1234, 15, LINE.to_owned()),
            (1234, 9, LINE.replace("success=yes", "success=no")),
            (1234, 9, LINE.replace("syscall=62", "syscall=59")),
            (1234, 9, LINE.replace("type=SYSCALL", "type=OBJ_PID")),
            (1234, 9, LINE.replace("c000003e", "c00000b7")),
            (1234, 9, LINE.replace("syscall=62", "syscall=129")),
            (1234, 9, "type=SYSCALL syscall=62".to_owned()),
        ] {
            assert_eq!(sender(&line, pid, signal), None, "{line}");
        }
    }
}
