//! Nothing outlives its agent: grandchildren, daemons, and an agent that is killed.

use std::fs;

use lockstep_process::proc::Status;
use rustix::process::Signal;

use crate::scene::{Scene, children, exists, lives, reaper_of, reaper_other_than, signal, until, until_gone};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("orphans::a_sweep_ends_grandchildren_and_daemons", a_sweep_ends_grandchildren_and_daemons),
    ("orphans::a_sweep_spares_what_a_living_worker_started", a_sweep_spares_what_a_living_worker_started),
    ("orphans::a_sweep_ends_those_who_refuse", a_sweep_ends_those_who_refuse),
    ("orphans::what_ends_by_itself_is_reaped", what_ends_by_itself_is_reaped),
    ("orphans::a_killed_agent_leaves_nothing_behind", a_killed_agent_leaves_nothing_behind),
    (
        "orphans::a_killed_agent_leaves_nothing_behind_though_its_reaper_was_killed_before",
        though_its_reaper_was_killed_before,
    ),
    ("orphans::a_reaper_is_small_and_goes_home_with_the_agent", a_reaper_is_small_and_goes_home_with_the_agent),
];

/// A child, one in a session of its own, one whose parents are gone, and one of those that forgot its environment.
const FAMILY: &str = "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; \
    c=$(setsid sh -c 'sleep 1002 >/dev/null & echo $!'); d=$(setsid env -i sh -c 'sleep 1003 >/dev/null & echo $!'); \
    echo $a $b $c $d; ";

fn a_sweep_ends_grandchildren_and_daemons() {
    for end in ["exit 0", "kill -9 $$", "exit 1"] {
        let mut scene = Scene::begin();
        let (_, family) = scene.start_family(0, &format!("{FAMILY} {end}"));
        assert!(scene.ask("next").starts_with("died 0 "));
        assert!(scene.ask("sweep").ends_with("left 0"));
        assert_eq!(family.len(), 4);
        assert!(!family.iter().any(|pid| lives(*pid)), "{family:?}");
        assert_eq!(children(scene.agent()), [reaper_of(scene.agent())]);
        scene.close();
    }
}

fn a_sweep_spares_what_a_living_worker_started() {
    let mut scene = Scene::begin();
    let (_, spared) = scene.start_family(0, &format!("{FAMILY} exec sleep 1000"));
    let (_, ended) = scene.start_family(1, "sleep 1000 & echo $!; exit 0");
    assert_eq!(scene.ask("next"), "died 1 0 exit code 0");
    assert!(scene.ask("sweep").ends_with("left 0"));
    assert!(!lives(ended[0]) && spared.iter().all(|pid| lives(*pid)));
    scene.ask("kill");
    assert_eq!(scene.ask("next"), "died 0 -9 SIGKILL");
    assert!(scene.ask("sweep").ends_with("left 0"));
    assert!(!spared.iter().any(|pid| lives(*pid)));
    scene.close();
}

fn a_sweep_ends_those_who_refuse() {
    let mut scene = Scene::begin();
    // Each of these replaces itself by a child in a new session, again and again.
    let script = "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP INT; n=0; echo $$; \
        while [ $n -lt 200 ]; do n=$((n+1)); setsid sleep 1000 & done; wait' & wait";
    let (_, refusing) = scene.start_family(0, script);
    scene.ask("kill");
    assert_eq!(scene.ask("next"), "died 0 -9 SIGKILL");
    assert!(scene.ask("sweep").ends_with("left 0"));
    assert!(!lives(refusing[0]));
    assert_eq!(children(scene.agent()), [reaper_of(scene.agent())]);
    scene.close();
}

fn what_ends_by_itself_is_reaped() {
    let mut scene = Scene::begin();
    let (_, daemon) = scene
        .start_family(0, "echo $(setsid sh -c '(trap : USR1; echo $$; sleep 1000) & echo $!' | head -1); sleep 1000");
    until("its adoption", || children(scene.agent()).contains(&daemon[0]) || !lives(daemon[0]));
    let (_, second) = scene.start_family(1, "echo $(setsid sh -c 'sleep 1000 >/dev/null & echo $!'); read x; exit 0");
    // Worker 1 ends at once: nothing is to be read.
    assert_eq!(scene.ask("next"), "died 1 0 exit code 0");
    until("its adoption", || children(scene.agent()).contains(&second[0]));
    signal(second[0], Signal::KILL);
    // The agent cleans up while it waits for the next death.
    scene.say("next");
    until("its reaping", || !exists(format!("/proc/{}", second[0]).as_ref()));
    scene.kill_agent();
    until_gone(&daemon);
}

fn a_killed_agent_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (asked_for, temporary) = (folder.path().join("logs"), folder.path().join("temporary logs"));
    for logs in [&asked_for, &temporary] {
        fs::create_dir_all(logs.join("attempt_0/0")).unwrap();
        fs::write(logs.join("attempt_0/0/stdout.log"), "x").unwrap();
    }
    let mut scene = Scene::begin();
    assert_eq!(scene.ask(&format!("folder {}", temporary.display())), "registered");
    let (worker, family) = scene.start_family(0, &format!("{} exec sleep 1000", FAMILY));
    let reaper = reaper_of(scene.agent());
    scene.kill_agent();
    // The last of the family gave up both its environment and its session.
    until_gone(&family);
    until_gone(&[worker, reaper]);
    assert!(!exists(&temporary) && exists(&asked_for));
}

fn though_its_reaper_was_killed_before() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let mut scene = Scene::begin();
    scene.ask(&format!("folder {}", logs.display()));
    let (worker, family) = scene.start_family(0, "setsid sleep 1000 & echo $!; exec sleep 1000");
    let first = reaper_of(scene.agent());
    scene.say("next");
    signal(first, Signal::KILL);
    let second = reaper_other_than(first, scene.agent());
    assert!(lives(worker));
    scene.kill_agent();
    until_gone(&[worker, family[0], second]);
    assert!(!exists(&logs));
}

fn a_reaper_is_small_and_goes_home_with_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::begin();
    scene.ask(&format!("folder {}", folder.path().display()));
    let reaper = reaper_of(scene.agent());
    // Signals that end an agent are not for it.
    for signal_ in [Signal::TERM, Signal::INT, Signal::HUP] {
        signal(reaper, signal_);
    }
    let kib = Status::of(reaper).unwrap().number("RssAnon").unwrap();
    assert!(kib < 2048, "{kib} KiB");
    scene.close();
    assert!(!lives(reaper) && exists(folder.path()));
}
