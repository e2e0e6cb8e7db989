//! What the kernel reports about processes: threads, CPU time, children (proc_pid_stat(5)).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A clock tick of `/proc`: `USER_HZ` is 100 on Linux.
const TICK: Duration = Duration::from_millis(10);

/// The threads of a process: whether one of them is awake, and their CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awake {
    /// True if a thread runs, is ready to run, is stopped, or waits for a disk.
    pub awake: bool,
    /// CPU time so far, in user and kernel mode.
    pub used: Duration,
}

/// One line of `stat`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: u32,
    /// CPU time of the process or thread itself.
    pub(crate) own: Duration,
    /// CPU time of the children that it has waited for.
    pub(crate) children: Duration,
}

impl Stat {
    /// The second field is the name, which may contain any character. The others that we read: 3 state, 4 parent, 14 to
    /// 17 ticks.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        let ticks = |field: usize| Some(TICK * fields.get(field - 3)?.parse::<u32>().ok()?);
        Some(Stat {
            name: before.split_once('(')?.1.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            own: ticks(14)? + ticks(15)?,
            children: ticks(16)? + ticks(17)?,
        })
    }

    fn read(folder: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(folder.join("stat")).ok()?)
    }
}

/// Reads the threads of a process; `None` if it has ended.
pub fn threads(pid: u32) -> Option<Awake> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let stats: Vec<Stat> = tasks.filter_map(|task| Stat::read(&task.ok()?.path())).collect();
    let awake = stats.iter().any(|thread| thread.state != 'S');
    (!stats.is_empty()).then(|| Awake { awake, used: stats.iter().map(|thread| thread.own).sum() })
}

/// This process and all of its descendants.
pub(crate) fn family() -> BTreeMap<u32, Stat> {
    let mut others: BTreeMap<u32, Stat> = everybody().collect();
    let mut family = BTreeMap::new();
    let mut next = vec![std::process::id()];
    while let Some(pid) = next.pop() {
        family.extend(others.remove(&pid).map(|stat| (pid, stat)));
        next.extend(others.iter().filter(|(_, stat)| stat.parent == pid).map(|(pid, _)| *pid));
    }
    family
}

fn everybody() -> impl Iterator<Item = (u32, Stat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, Stat::read(&entry.path())?))
    })
}

/// CPU time of one thread and its time in the run queue (the kernel's sched-stats.rst). Zero if the kernel does not
/// keep these.
pub(crate) fn schedule(thread: &Path) -> [Duration; 2] {
    let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    let mut nanos = text.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0));
    [(); 2].map(|()| Duration::from_nanos(nanos.next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_with_any_name_in_it() {
        let line = "7 (a) R (b) S 3 7 7 0 -1 4194304 90 0 0 0 30 12 5 1 20 0 4 0 100";
        let stat = Stat {
            name: "a) R (b".into(),
            state: 'S',
            parent: 3,
            own: Duration::from_millis(420),
            children: Duration::from_millis(60),
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn sees_that_this_process_is_awake() {
        assert!(threads(std::process::id()).unwrap().awake);
        assert_eq!(threads(u32::MAX), None);
    }

    #[test]
    fn finds_grandchildren() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let family = family();
        assert_eq!(family[&child.id()].name, "sh");
        let (grandchild, _) = family.iter().find(|(_, stat)| stat.parent == child.id()).unwrap();
        assert!(std::process::Command::new("kill").arg(grandchild.to_string()).status().unwrap().success());
        child.wait().unwrap();
    }
}
