//! Ends from outside: signals to the agent, its own death, and processes that workers leave behind.

use std::os::unix::process::CommandExt;
use std::process::Command;

use lockstep_process::free_port;
use lockstep_process::proc::Stat;
use rustix::process::Signal;

use crate::run::site::Site;
use crate::running::{Running, lockstep};

/// A worker that prints the signal that it got, and exits with a code of its own. It sleeps shortly each time: a signal just before a sleep is
/// handled after it.
const TELLS: &str = r#"
import os, signal, sys, time
def report(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, report)
print("up", flush=True)
while True: time.sleep(0.05)
"#;

#[test]
fn signals_are_forwarded_and_the_command_exits_with_1() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let site = Site::new();
        let script = site.file("tells.py", TELLS);
        let running = site.start(&["--standalone", "--nproc-per-node=2", &script]);
        running.await_out("up", 2);
        running.signal(signal);
        let ended = running.ended().code(1);
        let name =
            ["HUP", "INT", "QUIT", "TERM"].into_iter().find(|name| ended.err.contains(&format!("received SIG{name}")));
        let name = name.unwrap_or_else(|| panic!("{}", ended.err));
        assert_eq!(ended.out.matches(&format!("got SIG{name}")).count(), 2, "{}", ended.out);
        site.assert_no_process();
    }
}

/// Asks its child before it ends.
const NEEDS_CHILD: &str = r#"
import os, signal, subprocess, time
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def save(number, frame):
    child.stdin.write(b"saved by the child\n"); child.stdin.flush()
    print(child.stdout.readline().decode(), flush=True)
    os._exit(3)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, save)
print("up", flush=True)
while True: time.sleep(0.05)
"#;

#[test]
fn a_signal_reaches_a_worker_that_handles_it_and_spares_its_children() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let site = Site::new();
        let script = site.file("needs_child.py", NEEDS_CHILD);
        let running = site.start(&["--standalone", "--nproc-per-node=2", &script]);
        running.await_out("up", 2);
        running.signal(signal);
        let ended = running.ended().code(1);
        assert_eq!(ended.out.matches("saved by the child").count(), 2, "{ended}");
        site.assert_no_process();
    }
}

/// Saves on SIGTERM. A shell that waits for it has a trap, which waits until it has saved.
const SAVES_UNDER_A_SHELL: &str = r#"
import os, signal, time
def save(number, frame):
    open("saved." + os.environ["RANK"], "w").close()
    os._exit(3)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True: time.sleep(0.05)
"#;

#[test]
fn a_signal_reaches_the_program_of_a_shell_that_has_a_trap() {
    for trap in ["EXIT", "TERM"] {
        let site = Site::new();
        site.file("saves.py", SAVES_UNDER_A_SHELL);
        // The last command keeps the shell from replacing itself by the program.
        let shell =
            format!("trap 'until [ -e saved.$RANK ]; do sleep 0.02; done' {trap}; \"$PYTHON_EXEC\" saves.py; exit 3");
        let words = ["--standalone", "--nproc-per-node=2", "--stop-timeout=100000", "bash", "-c", &shell];
        let running = site.start(&words);
        running.await_out("up", 2);
        running.signal(Signal::TERM);
        running.ended().code(1).says(&["received SIGTERM: stopping the workers"]);
        assert!([0, 1].iter().all(|rank| site.path(&format!("saved.{rank}")).exists()), "{trap}");
        site.assert_no_process();
    }
}

#[test]
fn a_second_signal_does_not_wait_for_workers_that_ignore_the_first() {
    let site = Site::new();
    let stubborn = "trap '' TERM INT; echo up; while :; do sleep 1; done";
    let running = site.start(&["--standalone", "--nproc-per-node=2", "--stop-timeout=1000", "sh", "-c", stubborn]);
    running.await_out("up", 2);
    running.signal(Signal::INT);
    running.await_err("received SIGINT");
    running.signal(Signal::INT);
    running.ended().code(1);
    site.assert_no_process();
}

/// Another process has the worker's output open and continues to write, so that it never ends.
const HOLDER: &str = r#"
until [ -e worker ]; do sleep 0.01; done
exec 3>/proc/$(cat worker)/fd/1
echo > held
while [ -e held ]; do echo -n . >&3; sleep 0.05; done
"#;

#[test]
fn a_second_signal_does_not_wait_for_leftover_processes() {
    let site = Site::new();
    let holder = site.file("holder.sh", HOLDER);
    let mut command = Command::new("bash");
    site.prepare(&mut command);
    command.arg(holder);
    let held = Running::start(command);
    let worker = "[ $RANK = 1 ] || { echo $$ > own; mv own worker; }; until [ -e held ]; do sleep 0.01; done";
    let script = site.file("worker.sh", worker);
    let running = site.start(&["--standalone", "--nproc-per-node=2", "sh", &script]);
    site.until("the holder writes", || site.path("held").exists());
    let pid = site.read("worker");
    // The worker is reaped when everything that workers left is gone, except for this pipe.
    site.until("the worker is reaped", || !std::path::Path::new("/proc").join(pid.trim()).exists());
    running.signal(Signal::INT);
    running.await_err("received SIGINT");
    running.signal(Signal::INT);
    running.ended().code(1).says(&["not waiting for what the workers left behind", "ended by SIGINT"]);
    std::fs::remove_file(site.path("held")).unwrap();
    held.ended();
    site.assert_no_process();
}

/// As by a batch system or a program with threads that masks signals before it starts others.
#[test]
fn signals_that_the_caller_has_blocked_or_ignores_are_handled() {
    for mask in ["signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))", "signal.signal(15, signal.SIG_IGN)"] {
        let site = Site::new();
        let python = format!("import os, signal, sys; {mask}; os.execv(sys.argv[1], sys.argv[1:])");
        let mut command = Command::new("sh");
        site.prepare(&mut command);
        let worker = "grep -q 'SigBlk:.0*$' /proc/self/status && echo up; exec sleep 1000";
        let words = ["run", "--standalone", "--nproc-per-node=2", "sh", "-c", worker];
        let exec = format!("exec \"$PYTHON_EXEC\" -c \"$0\" {} \"$@\"", lockstep());
        command.args(["-c", &exec, &python]).args(words);
        let running = Running::start(command);
        running.await_out("up", 2);
        running.signal(Signal::TERM);
        running.ended().code(1).says(&["received SIGTERM"]);
        site.assert_no_process();
    }
}

#[test]
fn only_the_requested_signals_are_handled() {
    let site = Site::new();
    let running =
        site.start(&["--standalone", "--signals-to-handle=SIGTERM,SIGUSR1", "sh", "-c", "echo up; exec sleep 1000"]);
    running.await_out("up", 1);
    running.signal(Signal::USR1);
    running.ended().code(1).says(&["received SIGUSR1"]);
    let running = site.start(&["--standalone", "--signals-to-handle=SIGTERM", "sh", "-c", "echo up; exec sleep 1000"]);
    running.await_out("up", 1);
    running.signal(Signal::INT);
    running.ended().killed_by(Signal::INT);
    site.await_no_process();
}

#[test]
fn a_signal_that_the_user_names_reaches_every_worker() {
    let site = Site::new();
    let words = ["--standalone", "--forward-signals=SIGUSR1", "sh", "-c", "echo up; exec sleep 1000"];
    let running = site.start(&words);
    running.await_out("up", 1);
    running.signal(Signal::USR1);
    running.ended().code(1).says(&["received SIGUSR1: passed it on to local rank 0", "SIGUSR1"]);
}

/// The scheduler gives more time between SIGTERM and SIGKILL than the launcher would by itself.
#[test]
fn workers_get_the_grace_that_the_scheduler_gives() {
    let site = Site::new();
    site.program("scontrol", "#!/bin/sh\necho 'KillWait = 600 sec'\n");
    let slow = "trap 'until [ -e go ]; do sleep 0.05; done; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    let [port, address] = site.master();
    let mut command = site.lockstep(&[&*port, &*address, "sh", "-c", slow]);
    command.env("SLURM_JOB_ID", "17").env("PATH", format!("{}:{}", site.word(""), std::env::var("PATH").unwrap()));
    let running = Running::start(command);
    running.await_out("up", 1);
    running.signal(Signal::TERM);
    running.await_err("the workers have 540 s to end, as the scheduler gives 600 s (scontrol)");
    site.file("go", "");
    running.ended().code(1);
}

/// Starts a child, one in its own session, and a daemon that has closed all of its files.
const FAMILY: &str = r#"
import os, subprocess, sys, time
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0: os._exit(0)
    os.chdir("/")
    os.closerange(0, 256)
    time.sleep(1000)
os.wait()
print("up", flush=True)
if sys.argv[1] == "stay": time.sleep(1000)
sys.exit(int(sys.argv[1]))
"#;

#[test]
fn child_processes_of_workers_end_with_them_after_success_and_failure() {
    let site = Site::new();
    let script = site.file("family.py", FAMILY);
    for code in ["0", "5"] {
        let ended = site.run(&["--standalone", "--nproc-per-node=2", &script, code]);
        ended.code(i32::from(code != "0")).says(&["ended what the workers left behind: ", "sleep (pid "]);
        site.assert_no_process();
    }
}

/// As in a container: the session's leader is outside of the process id namespace, so the session's id is shown as 0.
#[test]
fn works_if_its_session_began_outside_the_container() {
    const CONTAINER: [&str; 4] = ["-Ur", "--pid", "--fork", "--mount-proc"];
    /// Runs its arguments, and exits with 99 if a child of theirs is alive.
    const WATCH: &str = r#""$@"; code=$?; grep -l sleep /proc/[0-9]*/comm && exit 99; exit $code"#;
    let site = Site::new();
    let mut probe = Command::new("unshare");
    site.prepare(&mut probe);
    let probed = probe.args(CONTAINER).args(["cut", "-d ", "-f6", "/proc/self/stat"]).output();
    if !probed.is_ok_and(|output| output.stdout == b"0\n") {
        println!("not verified here: a process id namespace (unshare {})", CONTAINER.join(" "));
        return;
    }
    let script = site.file("family.py", FAMILY);
    let lockstep = assert_cmd::cargo::cargo_bin!("lockstep").to_str().unwrap();
    let job = [lockstep, "run", "--standalone", "--nproc-per-node=2", &script];
    for code in ["0", "5"] {
        for words in [vec![], vec!["sh", "-c", WATCH, "watch"]] {
            let mut command = Command::new("unshare");
            site.prepare(&mut command);
            command.args(CONTAINER).args(words).args(job).arg(code);
            let ended = Running::start(command).ended().code(i32::from(code != "0"));
            // A worker that fails stops the other, which may not have started yet.
            assert!(ended.out.matches("up").count() >= if code == "0" { 2 } else { 1 }, "{}", ended.out);
            site.assert_no_process();
        }
    }
}

#[test]
fn nothing_survives_an_agent_that_is_killed() {
    let site = Site::new();
    let script = site.file("family.py", FAMILY);
    let running = site.start(&["--standalone", "--nproc-per-node=2", &script, "stay"]);
    running.await_out("up", 2);
    assert!(site.processes().len() > 8, "{:?}", site.processes());
    running.signal(Signal::KILL);
    running.ended().killed_by(Signal::KILL);
    site.await_no_process();
    site.until("the temporary logs are gone", || site.leftovers().is_empty());
}

#[test]
fn a_restart_leaves_no_process_of_the_previous_attempt() {
    let site = Site::new();
    site.file("family.py", FAMILY);
    let words = "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then echo again; exec sleep 1001; fi; exec \"$PYTHON_EXEC\" family.py 5";
    let running = site.start(&["--standalone", "--max-restarts=1", "sh", "-c", words]);
    running.await_out("again", 1);
    let sleeps = || site.processes().into_iter().filter(|(_, words)| words.contains("sleep 1000")).collect::<Vec<_>>();
    assert_eq!(sleeps(), []);
    running.signal(Signal::TERM);
    running.ended().code(1);
    site.assert_no_process();
}

#[test]
fn a_signal_before_the_workers_start_ends_the_command() {
    let site = Site::new();
    let endpoint = format!("--rdzv-endpoint={}:{}", site.address(0), free_port().unwrap());
    let meets = site.start(&["--nnodes=2", "--rdzv-backend=c10d", &endpoint, "true"]);
    let [port, address] = site.master();
    let looks = site.start(&["--nnodes=2", "--node-rank=1", &port, &address, "true"]);
    meets.await_err("waiting for other nodes");
    meets.signal(Signal::TERM);
    meets.ended().code(1).says(&["SIGTERM"]);
    looks.await_err("waiting for the rendezvous");
    looks.signal(Signal::INT);
    looks.ended().code(1).says(&["stopped by SIGINT"]);
    site.assert_no_process();
    assert_eq!(site.leftovers().len(), 0);
}

#[test]
fn a_terminals_interrupt_of_the_whole_group_ends_all_cleanly() {
    let site = Site::new();
    let script = site.file("tells.py", TELLS);
    let mut command = site.lockstep(&["--standalone", "--nproc-per-node=2", &script]);
    command.process_group(0);
    let running = Running::start(command);
    running.await_out("up", 2);
    let group = rustix::process::Pid::from_raw(running.pid() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::INT).unwrap();
    let ended = running.ended().code(1);
    assert_eq!(ended.out.matches("got SIGINT").count(), 2, "{}", ended.out);
    site.assert_no_process();
}

#[test]
fn a_suspended_worker_is_ended_too() {
    let site = Site::new();
    let script = "echo up; [ $RANK = 0 ] && kill -STOP $$$$; while [ ! -e go ]; do sleep 0.01; done; exit 3";
    let running = site.start(&["--standalone", "--nproc-per-node=2", "--stop-timeout=1000", "sh", "-c", script]);
    running.await_out("up", 2);
    site.until("rank 0 is stopped", || {
        let stopped = |pid: &i32| Stat::of(*pid).is_some_and(|stat| stat.state == 'T');
        site.processes().iter().any(|(pid, _)| stopped(pid))
    });
    site.file("go", "");
    running.ended().code(1).says(&["exitcode  : 3 ", "rank 0 (local_rank: 0, pid: "]);
    site.assert_no_process();
}

#[test]
fn a_job_inside_a_job_ends_with_it() {
    let site = Site::new();
    let script = site.file("family.py", FAMILY);
    let inner = assert_cmd::cargo::cargo_bin!("lockstep").to_str().unwrap().to_owned();
    let words =
        ["--standalone", &inner, "run", "--standalone", "--nproc-per-node=2", "--prefix=never", &script, "stay"];
    for signal in [Signal::KILL, Signal::TERM] {
        let running = site.start(&words);
        running.await_out("up", 2);
        running.signal(signal);
        let ended = running.ended();
        match signal {
            Signal::KILL => drop(ended.killed_by(Signal::KILL)),
            _ => drop(ended.code(1)),
        }
        site.await_no_process();
    }
    let words = [&words[..7], &["5"]].concat();
    site.run(&words).code(1).says(&["exitcode  : 5 ", "exitcode  : 1 "]);
    site.assert_no_process();
}

#[test]
fn a_job_without_standard_streams_runs_normally() {
    let site = Site::new();
    let text = format!(
        "{} run --standalone --nproc-per-node=2 sh -c 'cat; echo said; echo $RANK >> done' <&- >&- 2>&-; echo code $?",
        lockstep()
    );
    let mut shell = Command::new("sh");
    site.prepare(shell.args(["-c", &text]));
    assert_eq!(Running::start(shell).ended().code(0).out, "code 0\n");
    assert_eq!(site.read("done").lines().count(), 2);
    site.assert_no_process();
}
