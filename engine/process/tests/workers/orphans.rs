//! No process outlives its agent: grandchildren, daemons, and an agent that is killed.

use std::fs;

use lockstep_process::proc::Status;
use rustix::process::Signal;

use crate::agent::{AgentProcess, children, exists, lives, reaper_of, reaper_other_than, signal, until, until_gone};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("orphans::a_sweep_ends_grandchildren_and_daemons", a_sweep_ends_grandchildren_and_daemons),
    ("orphans::a_sweep_spares_what_a_living_worker_started", a_sweep_spares_what_a_living_worker_started),
    ("orphans::a_sweep_ends_processes_that_ignore_signals", a_sweep_ends_processes_that_ignore_signals),
    ("orphans::an_orphan_that_ends_on_its_own_is_reaped", an_orphan_that_ends_on_its_own_is_reaped),
    ("orphans::a_killed_agent_leaves_nothing_behind", a_killed_agent_leaves_nothing_behind),
    (
        "orphans::a_killed_agent_leaves_nothing_behind_though_its_reaper_was_killed_before",
        though_its_reaper_was_killed_before,
    ),
    ("orphans::a_reaper_is_small_and_ends_with_the_agent", a_reaper_is_small_and_ends_with_the_agent),
];

/// A child, a child in its own session, one whose parents have ended, and another such one that has also cleared its
/// environment.
const FAMILY: &str = "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; \
    c=$(setsid sh -c 'sleep 1002 >/dev/null & echo $!'); d=$(setsid env -i sh -c 'sleep 1003 >/dev/null & echo $!'); \
    echo $a $b $c $d; ";

fn a_sweep_ends_grandchildren_and_daemons() {
    for end in ["exit 0", "kill -9 $$", "exit 1"] {
        let mut agent = AgentProcess::launch();
        let (_, family) = agent.start_family(0, &format!("{FAMILY} {end}"));
        assert!(agent.ask("next").starts_with("died 0 "));
        assert!(agent.ask("sweep").ends_with("left 0"));
        assert_eq!(family.len(), 4);
        assert!(!family.iter().any(|pid| lives(*pid)), "{family:?}");
        assert_eq!(children(agent.pid()), [reaper_of(agent.pid())]);
        agent.close();
    }
}

fn a_sweep_spares_what_a_living_worker_started() {
    let mut agent = AgentProcess::launch();
    let (_, spared) = agent.start_family(0, &format!("{FAMILY} exec sleep 1000"));
    let (_, ended) = agent.start_family(1, "sleep 1000 & echo $!; exit 0");
    assert_eq!(agent.ask("next"), "died 1 0 exit code 0");
    assert!(agent.ask("sweep").ends_with("left 0"));
    assert!(!lives(ended[0]) && spared.iter().all(|pid| lives(*pid)));
    agent.ask("kill");
    assert_eq!(agent.ask("next"), "died 0 -9 SIGKILL");
    assert!(agent.ask("sweep").ends_with("left 0"));
    assert!(!spared.iter().any(|pid| lives(*pid)));
    agent.close();
}

fn a_sweep_ends_processes_that_ignore_signals() {
    let mut agent = AgentProcess::launch();
    // It ignores signals and starts many children in new sessions.
    let script = "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP INT; n=0; echo $$; \
        while [ $n -lt 200 ]; do n=$((n+1)); setsid sleep 1000 & done; wait' & wait";
    let (_, refusing) = agent.start_family(0, script);
    agent.ask("kill");
    assert_eq!(agent.ask("next"), "died 0 -9 SIGKILL");
    assert!(agent.ask("sweep").ends_with("left 0"));
    assert!(!lives(refusing[0]));
    assert_eq!(children(agent.pid()), [reaper_of(agent.pid())]);
    agent.close();
}

fn an_orphan_that_ends_on_its_own_is_reaped() {
    let mut agent = AgentProcess::launch();
    let (_, daemon) = agent
        .start_family(0, "echo $(setsid sh -c '(trap : USR1; echo $$; sleep 1000) & echo $!' | head -1); sleep 1000");
    until("its adoption", || children(agent.pid()).contains(&daemon[0]) || !lives(daemon[0]));
    let (_, second) = agent.start_family(1, "echo $(setsid sh -c 'sleep 1000 >/dev/null & echo $!'); read x; exit 0");
    // Worker 1 ends immediately: its standard input is empty.
    assert_eq!(agent.ask("next"), "died 1 0 exit code 0");
    until("its adoption", || children(agent.pid()).contains(&second[0]));
    signal(second[0], Signal::KILL);
    // The agent cleans up while it waits for the next death.
    agent.send("next");
    until("its reaping", || !exists(format!("/proc/{}", second[0]).as_ref()));
    agent.kill();
    until_gone(&daemon);
}

fn a_killed_agent_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (asked_for, temporary) = (folder.path().join("logs"), folder.path().join("temporary logs"));
    for logs in [&asked_for, &temporary] {
        fs::create_dir_all(logs.join("attempt_0/0")).unwrap();
        fs::write(logs.join("attempt_0/0/stdout.log"), "x").unwrap();
    }
    let mut agent = AgentProcess::launch();
    assert_eq!(agent.ask(&format!("folder {}", temporary.display())), "registered");
    let (worker, family) = agent.start_family(0, &format!("{} exec sleep 1000", FAMILY));
    let reaper = reaper_of(agent.pid());
    agent.kill();
    // The last of the family has lost both its environment and its session.
    until_gone(&family);
    until_gone(&[worker, reaper]);
    assert!(!exists(&temporary) && exists(&asked_for));
}

fn though_its_reaper_was_killed_before() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let mut agent = AgentProcess::launch();
    agent.ask(&format!("folder {}", logs.display()));
    let (worker, family) = agent.start_family(0, "setsid sleep 1000 & echo $!; exec sleep 1000");
    let first = reaper_of(agent.pid());
    agent.send("next");
    signal(first, Signal::KILL);
    let second = reaper_other_than(first, agent.pid());
    assert!(lives(worker));
    agent.kill();
    until_gone(&[worker, family[0], second]);
    assert!(!exists(&logs));
}

fn a_reaper_is_small_and_ends_with_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = AgentProcess::launch();
    agent.ask(&format!("folder {}", folder.path().display()));
    let reaper = reaper_of(agent.pid());
    // The reaper ignores signals that end an agent.
    for signal_ in [Signal::TERM, Signal::INT, Signal::HUP] {
        signal(reaper, signal_);
    }
    let kib = Status::of(reaper).unwrap().number("RssAnon").unwrap();
    assert!(kib < 2048, "{kib} KiB");
    agent.close();
    assert!(!lives(reaper) && exists(folder.path()));
}
