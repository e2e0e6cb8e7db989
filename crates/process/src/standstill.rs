//! Why a process makes no progress: it is stopped, traced, or waits in the kernel so that not even SIGKILL ends it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::proc::{Stat, Status, threads};

/// How often a process that waits in the kernel is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Why a process makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// `T`, `t` or `D`, as in proc_pid_stat(5).
    pub state: char,
    /// The kernel function in which it waits, if this user may know.
    pub wait_channel: Option<String>,
    /// The file that it waits for, if its system call names one.
    pub file: Option<PathBuf>,
    /// The process that traces it, such as a debugger, with its program's name.
    pub tracer: Option<(i32, String)>,
}

impl Standstill {
    /// Looks at a process; `None` if it does not stand still, or has ended.
    pub fn of(pid: i32) -> Option<Self> {
        let waits = |stat: &Stat| matches!(stat.state, 'T' | 't' | 'D');
        let main = Stat::of(pid)?;
        // The thread that waits in the kernel need not be the main one.
        let thread = if waits(&main) { main } else { threads(pid).into_iter().find(|stat| stat.state == 'D')? };
        let tracer = Status::of(thread.pid).and_then(|status| status.number("TracerPid")).filter(|tracer| *tracer != 0);
        let named = |tracer: u64| Some((i32::try_from(tracer).ok()?, Stat::of(i32::try_from(tracer).ok()?)?.name));
        let in_task = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{}/{file}", thread.pid)).ok();
        let channel = in_task("wchan").filter(|name| !name.is_empty() && name != "0");
        let file = in_task("syscall").and_then(|call| descriptor(&call)).and_then(|number| file_of(pid, number));
        Some(Standstill { state: thread.state, wait_channel: channel, file, tracer: tracer.and_then(named) })
    }

    /// Looks at a process that may wait in the kernel for this long; `None` as soon as it does not. A short wait there is common: for a
    /// disk, or for a child that was just started.
    pub fn in_kernel_for(pid: i32, period: Duration) -> Option<Self> {
        let lasts = lasts(period, || waits_in_kernel(pid));
        Self::of(pid).filter(|at| lasts && at.in_kernel())
    }

    /// Returns true if it waits in the kernel, so that signals do not reach it.
    pub fn in_kernel(&self) -> bool {
        self.state == 'D'
    }
}

/// The threads of a process that wait in the kernel, and how often each has waited anywhere.
fn waits_in_kernel(pid: i32) -> BTreeSet<(i32, u64)> {
    let waiting = threads(pid).into_iter().filter(|stat| stat.state == 'D');
    let counted = |stat: Stat| Some((stat.pid, Status::of(stat.pid)?.number("voluntary_ctxt_switches")?));
    waiting.filter_map(counted).collect()
}

/// Returns true if one wait is in all looks of this period.
fn lasts(period: Duration, mut look: impl FnMut() -> BTreeSet<(i32, u64)>) -> bool {
    let deadline = Instant::now() + period;
    let mut waits = look();
    while !waits.is_empty() && Instant::now() < deadline {
        sleep(POLL);
        let now = look();
        waits.retain(|wait| now.contains(wait));
    }
    !waits.is_empty()
}

/// The file descriptor that is the first argument of a system call: `0 0x3 0x7f… …`.
fn descriptor(call: &str) -> Option<u32> {
    /// read, write, fstat, ioctl, pread64, pwrite64, readv, writev, fsync, fdatasync, getdents, getdents64 on x86-64.
    const WITH_DESCRIPTOR: [u32; 12] = [0, 1, 5, 16, 17, 18, 19, 20, 74, 75, 78, 217];
    let mut fields = call.split_whitespace();
    let number: u32 = fields.next()?.parse().ok()?;
    let known = cfg!(target_arch = "x86_64") && WITH_DESCRIPTOR.contains(&number);
    u32::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok().filter(|_| known)
}

fn file_of(pid: i32, descriptor: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.tracer, self.state) {
            (Some((pid, name)), _) if self.state != 'D' => {
                write!(f, "it is stopped by {name} (pid {pid}), which traces it")?
            }
            (_, 'D') => f.write_str("it waits in the kernel, where no signal reaches it (state D)")?,
            _ => f.write_str("it is stopped by a signal (SIGSTOP, or Ctrl-Z)")?,
        }
        if let Some(channel) = self.wait_channel.as_ref().filter(|_| self.in_kernel()) {
            write!(f, ", in {channel}")?;
        }
        match self.file.as_ref().filter(|_| self.in_kernel()) {
            Some(file) => write!(f, ", for {}", file.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::KillOnDrop;

    #[test]
    fn reads_the_descriptor_of_a_system_call_that_has_one() {
        let expected = cfg!(target_arch = "x86_64").then_some(3);
        assert_eq!(descriptor("0 0x3 0x7ffc 0x400 0x0 0x0 0x0 0x7ffc 0x7f01\n"), expected);
        assert_eq!(
            (descriptor("running\n"), descriptor("-1 0x7ffc 0x7f"), descriptor("202 0x3 0x0")),
            (None, None, None)
        );
    }

    #[test]
    fn describes_where_a_process_waits() {
        let base = Standstill {
            state: 'D',
            wait_channel: Some("nfs_wait".into()),
            file: Some("/data/1".into()),
            tracer: None,
        };
        assert_eq!(
            base.to_string(),
            "it waits in the kernel, where no signal reaches it (state D), in nfs_wait, for /data/1"
        );
        let traced = Standstill { state: 't', tracer: Some((7, "gdb".into())), ..base.clone() };
        assert_eq!(traced.to_string(), "it is stopped by gdb (pid 7), which traces it");
        let stopped = Standstill { state: 'T', ..base };
        assert_eq!(stopped.to_string(), "it is stopped by a signal (SIGSTOP, or Ctrl-Z)");
    }

    #[test]
    fn one_wait_in_the_kernel_lasts_and_many_short_ones_do_not() {
        let period = Duration::from_millis(50);
        assert!(lasts(period, || BTreeSet::from([(7, 1), (8, 1)])));
        assert!(!lasts(period, BTreeSet::new));
        let mut waits = 0;
        let short = || {
            waits += 1;
            BTreeSet::from([(7, waits)])
        };
        assert!(!lasts(Duration::from_secs(1000), short));
        assert_eq!(waits, 2, "the second look ends it");
    }

    #[test]
    fn tells_a_stopped_process_from_a_sleeping_one() {
        let child = KillOnDrop(Command::new("sleep").arg("1000").spawn().unwrap());
        let pid = child.0.id() as i32;
        let sleeps = |stat: Stat| stat.state == 'S' && stat.name == "sleep";
        let begun = Instant::now();
        while !Stat::of(pid).is_some_and(sleeps) {
            assert!(begun.elapsed() < Duration::from_secs(60), "sleep (pid {pid}) does not sleep: {:?}", Stat::of(pid));
            std::thread::yield_now();
        }
        assert_eq!(Standstill::of(pid), None);
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
        while Stat::of(pid).is_some_and(|stat| stat.state != 'T') {
            assert!(begun.elapsed() < Duration::from_secs(60), "sleep (pid {pid}) does not stop: {:?}", Stat::of(pid));
            std::thread::yield_now();
        }
        assert_eq!(Standstill::of(pid).map(|at| at.state), Some('T'));
        assert_eq!(Standstill::of(i32::MAX), None);
    }
}
