//! Failures that need more than one program: ranks that notice another one's end first, control groups, two nodes.

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_process::{ControlGroup, Stacks};
use rustix::process::Signal;

use crate::run::nodes::AgentGroup;
use crate::run::site::Site;
use crate::running::Running;
use crate::verdict::assert_verdict;

/// Three ranks: the one that the first argument names accepts a connection of each other and then ends, or stops, as the second
/// argument says. The others see that, and fail as ranks of a process group do.
const RANKS: &str = r#"
import atexit, os, signal, socket, sys, time
rank, bad, how = int(os.environ["RANK"]), int(sys.argv[1]), sys.argv[2]
name = f"socket.{bad}.{how}"

def state(pid):
    return open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1][0]

if rank == bad:
    server = socket.socket(socket.AF_UNIX)
    server.bind(name + ".new")
    server.listen()
    os.rename(name + ".new", name)
    peers = [server.accept()[0] for _ in range(2)]
    for peer in peers:
        peer.send(str(os.getpid()).encode())
    if how == "returns":
        os._exit(0)
    if how == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    def end_slowly():
        for peer in peers:
            peer.shutdown(socket.SHUT_RDWR)
        time.sleep(1000)
    atexit.register(end_slowly)
    raise ValueError("no such layer")

while not os.path.exists(name):
    time.sleep(0.01)
peer = socket.socket(socket.AF_UNIX)
peer.connect(name)
pid = int(peer.recv(20))
if how == "stops":
    while state(pid) != "T":
        time.sleep(0.01)
    raise RuntimeError("[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete")
while peer.recv(1):
    pass
while how == "returns" and state(pid) != "Z":
    time.sleep(0.01)
raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40112")
"#;

fn ranks(how: &str, says: &[&str]) {
    let site = Site::new();
    let script = site.file("ranks.py", RANKS);
    for bad in [0, 1] {
        let ended = site.run(&["--standalone", "--nproc-per-node=3", &script, &bad.to_string(), how]).code(1);
        assert_verdict(&ended, bad, says);
        // torchrun's form names the same rank.
        let root = ended.err.split_once("Root Cause").map(|(_, root)| root.to_owned());
        if how == "fails" {
            assert!(root.unwrap().contains(&format!("rank      : {bad} ")), "{ended}");
        }
    }
    site.assert_no_process();
}

#[test]
fn a_rank_that_fails_but_ends_late_is_named_instead_of_those_that_lost_it() {
    ranks("fails", &["ValueError: no such layer (", "ended first, but as a consequence: it lost a connection"]);
}

#[test]
fn a_rank_that_returned_early_is_named_instead_of_those_that_lost_it() {
    ranks("returns", &["it returned with exit code 0 while other ranks still waited for it", "as a consequence"]);
}

#[test]
fn a_rank_that_is_stopped_is_named_instead_of_those_that_waited_for_it() {
    ranks(
        "stops",
        &["it is stopped by a signal (SIGSTOP, or Ctrl-Z)", "did not take part in a collective in time (1000 ms)"],
    );
}

/// Rank 0 waits in vain for rank 1, which sleeps in a function of its own.
const SLEEPS: &str = r#"
import os, time
note = "sleeps." + os.environ["TORCHELASTIC_RESTART_COUNT"]
def sleeps_for_ever():
    with open(note + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(note + ".new", note)
    time.sleep(1000)
if os.environ["RANK"] == "1":
    sleeps_for_ever()
while not os.path.exists(note):
    time.sleep(0.01)
# The note comes before the sleep.
stat = f"/proc/{open(note).read()}/stat"
while open(stat).read().rsplit(") ", 1)[1][0] != "S":
    time.sleep(0.01)
raise RuntimeError("[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete")
"#;

#[test]
fn the_report_of_a_wait_in_vain_has_the_stacks_of_the_other_ranks() {
    let title = "Where the other ranks of this node were, innermost call first:\n  rank 1";
    let site = Site::new();
    let script = site.file("sleeps.py", SLEEPS);
    let logs = format!("--log-dir={}", site.word("logs"));
    // The first attempt is restarted, so that nobody would see its stacks.
    let ended = site.run(&["--standalone", "--nproc-per-node=2", "--max-restarts=1", &logs, &script]).code(1);
    site.assert_no_process();
    let taken = usize::from(Stacks::has_tool());
    assert!((taken..=1).contains(&ended.err.matches("lockstep: provisional verdict: ").count()), "{ended}");
    assert_eq!(ended.err.matches(title).count(), taken, "{ended}");
    let denied = |line: &&str| ["ptrace", "not permitted", "not read in time"].iter().any(|why| line.contains(why));
    let why = if taken == 0 { Some("no tool is installed") } else { ended.err.lines().find(denied) };
    if let Some(why) = why {
        println!("not verified here: stacks in a report ({})", why.trim());
        return;
    }
    let (_, stacks) = ended.err.split_once(" (by ").unwrap_or_else(|| panic!("{ended}"));
    let mut frames = stacks.lines().skip(1).take_while(|line| line.starts_with("    "));
    assert!(frames.any(|frame| frame.contains("sleep") || frame.contains("select")), "{ended}");
    let (_, file) = stacks.split_once("in the logs of its rank, such as ").unwrap();
    assert!(fs::read_to_string(file.lines().next().unwrap()).unwrap().contains("main"), "{ended}");
}

/// A `gdb` that never answers, and shows that it was asked.
const ASKED: &str = "#!/bin/sh\ntouch asked\nexec sleep 1000\n";

#[test]
fn a_signal_while_stacks_are_read_comes_after_the_failure() {
    let site = Site::new();
    site.program("gdb", ASKED);
    let waits = "until [ -e up ]; do sleep 0.02; done; echo 'Timed out waiting 1000ms for recv operation to complete' >&2; exit 1";
    // It could save, and ends by SIGKILL only, so that the launcher lives until both signals have come.
    let other = "trap : USR1 USR2; trap '' TERM; touch up; while [ ! -e go ]; do sleep 0.02; done; exit 3";
    let script = format!("if [ $RANK = 0 ]; then {waits}; else {other}; fi");
    let words =
        ["--standalone", "--nproc-per-node=2", "--snapshot-on=SIGTERM", "--stop-timeout=100000", "sh", "-c", &script];
    let mut command = site.lockstep(&words);
    command.env("PATH", format!("{}:{}", site.word(""), std::env::var("PATH").unwrap()));
    let running = Running::start(command);
    site.until("stacks are read", || site.path("asked").exists());
    running.signal(Signal::USR1);
    running.signal(Signal::TERM);
    running.await_err("received SIGTERM: stopping the workers");
    site.file("go", "");
    let ended = running.ended().code(1).never_says(&["asking the workers"]);
    let [verdict, signals @ ..] =
        ["provisional verdict", "received SIGUSR1", "received SIGTERM"].map(|text| ended.err.find(text));
    // Signals of different numbers that wait at the same time have no order.
    assert!(verdict.is_some() && signals.iter().all(|signal| *signal > verdict), "{ended}");
    site.assert_no_process();
}

#[test]
fn a_node_that_others_waited_for_shows_where_its_ranks_were() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let script = site.file("sleeps.py", SLEEPS);
    let words = ["--nnodes=2", "--max-restarts=0", "--tee=3", &script];
    let nodes = [0, 1].map(|n| Running::start(job.c10d(n, &words))).map(|node| node.ended().code(1));
    site.assert_no_process();
    // Either node may have got rank 0, which has no other rank on its node.
    let shown = nodes.iter().filter(|node| node.err.contains("Where the other ranks of this node were"));
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown.len(), 1, "{} {}", nodes[0], nodes[1]);
    for text in ["rank 1", "verdict: unknown which rank is at fault; rank 0"] {
        assert!(shown[0].err.contains(text), "{} {}", nodes[0], nodes[1]);
    }
}

#[test]
fn no_stacks_are_taken_after_other_failures_or_if_nobody_wants_them() {
    let site = Site::new();
    let waits = site.file("sleeps.py", SLEEPS);
    for words in [&["--stacks=never", &*waits][..], &["sh", "-c", "[ $$RANK = 0 ] && exit 3; exec sleep 1000"]] {
        let _ = fs::remove_file(site.path("sleeps.0"));
        let words = [&["--standalone", "--nproc-per-node=2"], words].concat();
        site.run(&words).code(1).never_says(&["Where the other ranks"]);
    }
}

#[test]
fn the_verdict_is_printed_before_a_rank_that_takes_long_to_end() {
    let site = Site::new();
    let fails = "until [ -e up ]; do sleep 0.02; done; exit 3";
    let takes_long = "trap '' TERM; touch up; until [ -e go ]; do sleep 0.02; done";
    let script = format!("if [ $RANK = 0 ]; then {fails}; else {takes_long}; fi");
    let words = ["--standalone", "--nproc-per-node=2", "--stop-timeout=100000", "sh", "-c", &script];
    let running = Running::start(site.lockstep(&words));
    running.await_err("provisional verdict: rank 0 on ");
    site.file("go", "");
    let ended = running.ended().code(1);
    assert_eq!(ended.err.matches("provisional verdict: ").count(), 1, "{ended}");
    assert_eq!(ended.err.matches("\nverdict: rank 0 on ").count(), 1, "{ended}");
    site.assert_no_process();
}

/// A control group of this test in a hierarchy of version 1, within this process's own. Removed when it is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Prints why if there is none.
    fn new(controller: &str, what: &str) -> Option<Self> {
        let own =
            ControlGroup::of(Path::new("/"), controller).into_iter().find(|group| group.mount.ends_with(controller));
        let folder = own.map(|own| own.folder.join(format!("lockstep-test-{}", std::process::id())));
        let made = folder.as_ref().map(fs::create_dir);
        match (folder, made) {
            (Some(folder), Some(Ok(()))) => Some(Cgroup(folder)),
            (_, made) => {
                let why = made
                    .and_then(Result::err)
                    .map_or_else(|| "no such controller".to_owned(), |error| error.to_string());
                println!("not verified here: {what} (no control group for {controller}: {why})");
                None
            }
        }
    }

    fn set(&self, file: &str, value: &str) -> std::io::Result<()> {
        fs::write(self.0.join(file), value)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.set("freezer.state", "THAWED");
        // It is busy until the kernel has removed its last process.
        let _ = lockstep_process::watchdog::until(|| fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn a_rank_that_the_memory_killer_ended_is_told_from_one_that_somebody_killed() {
    let Some(cgroup) = Cgroup::new("memory", "the kernel's OOM killer") else { return };
    let site = Site::new();
    cgroup.set("memory.limit_in_bytes", "134217728").unwrap();
    let greedy = "exec \"$PYTHON_EXEC\" -c 'b\"x\" * (1 << 28)'";
    for (bad, script, says) in [
        (0, greedy, "the kernel's OOM killer ended it"),
        (1, greedy, "the kernel's OOM killer ended it"),
        (1, "kill -KILL $$", "somebody else killed it"),
    ] {
        let script = format!("[ $RANK = {bad} ] || exec sleep 1000; {script}").replace('$', "$$");
        let job = site.lockstep(&["--standalone", "--nproc-per-node=3", "sh", "-c", &script]);
        let mut command = std::process::Command::new("sh");
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.0.display());
        command.args(["-c", &enter, "sh"]).arg(job.get_program()).args(job.get_args());
        site.prepare(&mut command);
        let ended = Running::start(command).ended().code(1);
        assert_verdict(&ended, bad, &[says, "memory.oom_control"]);
    }
}

#[test]
fn a_rank_that_hangs_in_the_kernel_is_given_up_and_named() {
    let Some(cgroup) = Cgroup::new("freezer", "a rank that hangs in the kernel") else { return };
    let site = Site::new();
    // SIGKILL does not reach a process that this version of the freezer has frozen: its state is D.
    let enter = format!("echo $$ > {}/cgroup.procs; echo up; exec sleep 1000", cgroup.0.display());
    let waits = "until [ -e go ]; do sleep 0.01; done; echo 'Timed out waiting 1000ms for recv operation to complete' >&2; exit 1";
    let script = format!("[ $RANK = 0 ] && {{ {waits}; }}; {enter}").replace('$', "$$");
    let running = site.start(&["--standalone", "--nproc-per-node=2", "--stop-timeout=0.2", "sh", "-c", &script]);
    running.await_out("up", 1);
    cgroup.set("freezer.state", "FROZEN").unwrap();
    let state = || fs::read_to_string(cgroup.0.join("freezer.state")).unwrap();
    site.until("the rank is frozen", || state().trim() == "FROZEN");
    site.file("go", "");
    let ended = running
        .ended()
        .code(1)
        .says(&["rank 1 (local rank 1, pid ", "cannot be killed and is abandoned: it waits in the kernel"]);
    assert_verdict(
        &ended,
        1,
        &["it waits in the kernel, where no signal reaches it (state D)", "rank 0 ended first, but as a consequence"],
    );
    drop(cgroup);
    site.await_no_process();
}

#[test]
fn the_other_node_prints_the_verdict_too() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let script = site.file(
        "fails.py",
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no such layer')\ntime.sleep(1000)\n",
    );
    let [first, second] =
        [0, 1].map(|n| Running::start(job.c10d(n, &["--nnodes=2", "--max-restarts=0", "--tee=3", &script])));
    let (first, second) = (first.ended().code(1), second.ended().code(1));
    let [own, other] = if first.err.contains("Root Cause") { [first, second] } else { [second, first] };
    assert_verdict(&own, 1, &["ValueError: no such layer (", "fails.py:3)"]);
    assert_verdict(&other, 1, &["ValueError: no such layer (", "the verdict of its node, which ended the job"]);
    site.assert_no_process();
}

/// Two nodes of one rank each: the rank that the first argument names fails by itself, the other one because it lost that rank.
const NODES: &str = r#"
import os, socket, sys
if os.environ["RANK"] == sys.argv[1]:
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket.new")
    server.listen()
    os.rename("socket.new", "socket")
    peer = server.accept()[0]
    peer.send(str(os.getpid()).encode())
    raise ValueError("no such layer")
import time
while not os.path.exists("socket"):
    time.sleep(0.01)
peer = socket.socket(socket.AF_UNIX)
peer.connect("socket")
pid = int(peer.recv(20))
while os.path.exists(f"/proc/{pid}"):  # its launcher has not reaped it
    time.sleep(0.01)
raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:40112")
"#;

#[test]
fn a_node_that_only_lost_a_rank_of_another_takes_that_nodes_verdict() {
    for bad in [0, 1] {
        let site = Site::new();
        let job = AgentGroup::new(&site);
        let script = site.file("nodes.py", NODES);
        let words = ["--nnodes=2", "--max-restarts=0", "--tee=3", &script, &bad.to_string()];
        let ended = [0, 1].map(|n| Running::start(job.c10d(n, &words))).map(|node| node.ended().code(1));
        for node in ended {
            assert_verdict(&node, bad, &["ValueError: no such layer ("]);
        }
        site.assert_no_process();
    }
}

#[test]
fn a_signal_to_the_launcher_blames_nobody() {
    let site = Site::new();
    let running = site.start(&["--standalone", "--nproc-per-node=2", "sh", "-c", "echo up; exec sleep 1000"]);
    running.await_out("up", 2);
    running.signal(Signal::TERM);
    running.ended().code(1).never_says(&["verdict"]);
}
