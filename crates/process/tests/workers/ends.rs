//! How workers end: in which order that is told, and what becomes of those who do not want to.

use rustix::process::Signal;

use crate::scene::{Scene, lives, signal, state, until, until_gone};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("ends::deaths_are_told_in_their_order", deaths_are_told_in_their_order),
    ("ends::each_end_is_told_as_it_was", each_end_is_told_as_it_was),
    ("ends::a_worker_that_ignores_the_request_is_killed", a_worker_that_ignores_the_request_is_killed),
    (
        "ends::a_stopped_worker_hears_the_request_and_dies_of_the_kill",
        a_stopped_worker_hears_the_request_and_dies_of_the_kill,
    ),
    ("ends::the_whole_group_hears_the_request", the_whole_group_hears_the_request),
];

fn deaths_are_told_in_their_order() {
    let mut scene = Scene::begin();
    for order in [[0, 1], [1, 0]].repeat(8) {
        let pids = [scene.start(0, "exec sleep 1000"), scene.start(1, "exec sleep 1000")];
        // The agent does not look while they die: both are news at once.
        scene.ask("block");
        for victim in order {
            signal(pids[victim], Signal::KILL);
            until("a death", || state(pids[victim]) == Some('Z'));
        }
        for victim in order {
            assert_eq!(scene.ask("next"), format!("died {victim} -9 SIGKILL"));
        }
        assert_eq!(scene.ask("sweep"), "swept 0 left 0");
    }
    scene.close();
}

fn each_end_is_told_as_it_was() {
    let mut scene = Scene::begin();
    for (script, told) in [
        ("exit 0", "0 exit code 0"),
        ("exit 255", "255 exit code 255"),
        ("kill -SEGV $$", "-11 SIGSEGV"),
        ("kill -ABRT $$", "-6 SIGABRT"),
        ("kill -KILL $$", "-9 SIGKILL"),
        ("kill -PIPE $$", "-13 SIGPIPE"),
    ] {
        scene.start(5, script);
        assert_eq!(scene.ask("next"), format!("died 5 {told}"));
    }
    scene.close();
}

fn a_worker_that_ignores_the_request_is_killed() {
    let mut scene = Scene::begin();
    let script = "trap '' TERM; echo $$; while :; do sleep 1000; done";
    let (pid, _) = scene.start_family(0, script);
    let (other, _) = scene.start_family(1, "trap 'exit 4' TERM; echo $$; while :; do sleep 1000 & wait; done");
    scene.ask("end");
    assert_eq!(scene.ask("next"), "died 1 4 exit code 4");
    assert!(lives(pid));
    scene.ask("kill");
    assert_eq!(scene.ask("next"), "died 0 -9 SIGKILL");
    scene.ask("sweep");
    until_gone(&[pid, other]);
    scene.close();
}

fn a_stopped_worker_hears_the_request_and_dies_of_the_kill() {
    let mut scene = Scene::begin();
    let (first, _) = scene.start_family(0, "echo $$; exec sleep 1000");
    signal(first, Signal::STOP);
    until("a stop", || state(first) == Some('T'));
    scene.ask("end");
    assert_eq!(scene.ask("next"), "died 0 -15 SIGTERM");
    let (second, _) = scene.start_family(0, "echo $$; exec sleep 1000");
    signal(second, Signal::STOP);
    until("a stop", || state(second) == Some('T'));
    scene.ask("kill");
    assert_eq!(scene.ask("next"), "died 0 -9 SIGKILL");
    scene.close();
}

fn the_whole_group_hears_the_request() {
    let mut scene = Scene::begin();
    let child = "sh -c \"trap 'exit 0' TERM; echo \\$\\$; while :; do sleep 1000 & wait; done\"";
    let (_, family) = scene.start_family(0, &format!("{child} & wait; exit 9"));
    scene.ask("end");
    assert_eq!(scene.ask("next"), "died 0 -15 SIGTERM");
    until_gone(&family);
    scene.ask("sweep");
    scene.close();
}
