//! `lockstep` on machines as sites set them up: a limit on processes, no loopback interface, readers that have gone. Root makes these in control
//! groups and namespaces of its own; where that cannot be, it is said that this was not verified.

use std::fs;
use std::io::pipe;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::run::site::Site;
use crate::running::{Ended, ended};

/// A control group with a limit on processes and threads.
struct PidsGroup(PathBuf);

impl PidsGroup {
    /// None where it cannot be made.
    fn of(limit: u32) -> Option<Self> {
        let name = format!("lockstep-test-{}-{limit}", std::process::id());
        // Of version 1, and of version 2.
        let mut folders =
            ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].iter().map(|mount| PathBuf::from(mount).join(&name));
        let group = PidsGroup(folders.find(|folder| fs::create_dir(folder).is_ok())?);
        fs::write(group.0.join("pids.max"), limit.to_string()).ok()?;
        Some(group)
    }

    /// Runs `lockstep` in the group.
    fn lockstep(&self, site: &Site, words: &[&str]) -> Ended {
        let mut command = Command::new("sh");
        site.prepare(&mut command);
        let enter = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.0.display());
        command.args(["-c", &enter, "sh"]).arg(assert_cmd::cargo::cargo_bin!("lockstep")).args(words);
        ended(&mut command)
    }
}

impl Drop for PidsGroup {
    fn drop(&mut self) {
        // The kernel takes a moment to forget processes that have ended.
        let _ = lockstep_process::watchdog::until(|| fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}

const HELLO: [&str; 6] = ["run", "--standalone", "--nproc-per-node=2", "--prefix=never", "echo", "hello"];
const NO_ROOM: &str = "more processes and threads, and the system has room for";

#[test]
fn procs_a_limit_on_processes_is_named_and_nothing_panics_or_hangs() {
    let site = Site::new();
    for limit in [1, 4, 6, 8, 12, 24] {
        let Some(group) = PidsGroup::of(limit) else {
            println!("not verified here: a limit on processes (no control group `pids` can be made)");
            return;
        };
        let run = group.lockstep(&site, &HELLO);
        assert!(!run.err.contains("panicked"), "{limit}: {run}");
        match limit {
            24 => assert_eq!(run.code(0).out, "hello\nhello\n"),
            12 if run.status.success() => assert_eq!(run.out, "hello\nhello\n"),
            _ => {
                let of_group = format!("pids.max of the control group {} is {limit}", group.0.display());
                run.code(1).says(&[NO_ROOM, &of_group]);
            }
        }
        let doctor = group.lockstep(&site, &["doctor"]);
        assert!(!doctor.err.contains("panicked"), "{limit}: {doctor}");
        let doctor = doctor.code(1);
        assert!(doctor.err.contains(NO_ROOM) || doctor.out.contains("[group-processes-low]"), "{limit}: {doctor}");
    }
    site.assert_no_process();
}

#[test]
fn procs_a_machine_whose_loopback_interface_is_down_is_told_so() {
    let site = Site::new();
    let alone = |words: &[&str]| {
        let mut command = Command::new("unshare");
        site.prepare(&mut command);
        let user = if rustix::process::getuid().is_root() { &[][..] } else { &["--user", "--map-root-user"][..] };
        command.args(user).args(["--net", "--"]).arg(assert_cmd::cargo::cargo_bin!("lockstep")).args(words);
        ended(&mut command)
    };
    let doctor = alone(&["doctor"]);
    if doctor.err.contains("unshare") {
        println!("not verified here: a network namespace ({})", doctor.err.trim());
        return;
    }
    assert!(doctor.code(1).out.contains("[loopback-down]"));
    alone(&HELLO).code(1).says(&["this machine's loopback interface is down", "ip link set lo up"]);
}

/// A command whose reader has gone, of its stdout or of its stderr: its code, and what it printed to the other one.
fn unread(mut command: Command, is_stdout: bool) -> (Option<i32>, String) {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    if is_stdout {
        command.stdout(writer).stderr(Stdio::piped());
    } else {
        command.stdout(Stdio::piped()).stderr(writer);
    }
    let output = command.output().unwrap();
    let other = if is_stdout { output.stderr } else { output.stdout };
    (output.status.code(), String::from_utf8(other).unwrap())
}

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    let site = Site::new();
    let command = |words: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
        site.prepare(&mut command);
        command.args(words);
        command
    };
    assert_eq!(unread(command(&["hint", "02", "average"]), true), (Some(0), String::new()));
    // Stderr would have a note on the folder for temporary files.
    let mut run = command(&HELLO);
    run.env("TMPDIR", "/no/such/folder");
    assert_eq!(unread(run, false), (Some(0), "hello\nhello\n".into()));
}
