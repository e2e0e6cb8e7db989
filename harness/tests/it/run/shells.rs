//! Workers that are shells or timeout(1): signals reach the program for which they wait, once, and it has time to save.

use rustix::process::{Pid, Signal, kill_process};

use crate::run::site::{Site, longer_and_longer, python};
use crate::running::Running;

/// Saves with the help of its child, when the test lets it, and prints the signal, and those that came meanwhile.
const SAVES: &str = r#"
import os, signal, subprocess, sys, time
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
got = []
def save(number, frame):
    got.append(signal.Signals(number).name)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, save)
print("up", flush=True)
while True:
    while not got: time.sleep(0.01)
    while sys.argv[1:] and not os.path.exists(sys.argv[1]): time.sleep(0.01)
    child.stdin.write(b"by the child\n"); child.stdin.flush()
    name = got.pop(0)
    print("saved", child.stdout.readline().decode().strip(), "on", name, *got, flush=True)
    ends = {"SIGTERM": 3, "SIGINT": 3, "SIGUSR2": 75}.get(name)
    if ends: os._exit(ends)
"#;

/// Where [`SAVES`] is, in the folder of the workers: a path from the root would have to be quoted once for each shell.
const SCRIPT: &str = "saves.py";

/// The ways in which a program can be started: words, and after `|` the last word, or words, with the script's place.
const FORMS: [&str; 5] = [
    // A last command keeps the shell from replacing itself by the program.
    "sh -c|\"$PYTHON_EXEC\" {}; exit $?",
    "bash -c|sh -c '\"$PYTHON_EXEC\" {}; exit $?'; exit $?",
    "bash -c|set -o pipefail; \"$PYTHON_EXEC\" {} | cat; exit $?",
    "timeout 100000|PYTHON {}",
    "env nice -n 1 timeout -k 5 100000 sh -c|timeout 100000 \"$PYTHON_EXEC\" {}; exit $?",
];

fn start(site: &Site, form: &str, script: &str, flags: &[&str]) -> Running {
    let (program, last) = form.split_once('|').unwrap();
    let last = last.replace("{}", script);
    let last: Vec<&str> = if program.ends_with("-c") { vec![&last] } else { last.split(' ').collect() };
    let mut words = vec!["--standalone", "--nproc-per-node=2", "--stop-timeout=100000", "--no-python"];
    words.extend(flags);
    words.extend(program.split(' '));
    words.extend(last.iter().map(|word| if *word == "PYTHON" { python() } else { word }));
    site.start(&words)
}

#[test]
fn a_program_under_a_shell_or_timeout_gets_the_end_signal_once_and_time_to_save() {
    for form in FORMS {
        for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
            let site = Site::new();
            site.file(SCRIPT, SAVES);
            let running = start(&site, form, &format!("{SCRIPT} go"), &[]);
            running.await_out("up", 2);
            running.signal(signal);
            running.await_err(&format!("received {name}: stopping the workers"));
            // A shell ends at once on SIGTERM, and on SIGINT when its program has.
            if form == FORMS[0] && signal == Signal::TERM {
                running.await_err(&format!("which goes on after its shell because it handles {name}"));
            }
            site.file("go", "");
            let ended = running.ended().code(1);
            assert_eq!(ended.out.matches(&format!("saved by the child on {name}\n")).count(), 2, "{form}\n{ended}");
            site.assert_no_process();
        }
    }
}

#[test]
fn wishes_reach_the_program_under_a_shell_or_timeout_once() {
    for form in FORMS {
        let site = Site::new();
        site.file(SCRIPT, SAVES);
        let running = start(&site, form, SCRIPT, &[]);
        running.await_out("up", 2);
        running.signal(Signal::USR1);
        running.await_out("saved by the child on SIGUSR1\n", 2);
        running.await_err("received SIGUSR1: passed it on to local rank 0, 1");
        running.signal(Signal::USR2);
        let ended = running.ended().code(75);
        assert_eq!(ended.out.matches("saved by the child on SIGUSR2\n").count(), 2, "{form}\n{ended}");
        assert_eq!(ended.out.matches("saved").count(), 4, "{form}\n{ended}");
        site.assert_no_process();
    }
}

/// As Slurm does: the signal goes to all processes, and the shells are dead before the launcher has read its own.
#[test]
fn a_program_has_time_to_save_when_somebody_else_ends_its_shell() {
    let site = Site::new();
    site.file(SCRIPT, SAVES);
    let running = start(&site, FORMS[0], &format!("{SCRIPT} go"), &[]);
    running.await_out("up", 2);
    for (pid, _) in site.processes().iter().filter(|(_, words)| words.starts_with("sh -c")) {
        kill_process(Pid::from_raw(*pid).unwrap(), Signal::TERM).unwrap();
    }
    running.await_err("which goes on after its shell");
    site.file("go", "");
    let ended = running.ended().code(1).says(&["a signal that this launcher did not send ended it: SIGTERM"]);
    assert_eq!(ended.out.matches("saved by the child on SIGTERM\n").count(), 2, "{ended}");
    site.assert_no_process();
}

#[test]
fn the_grace_of_what_a_shell_left_behind_ends() {
    let site = Site::new();
    site.file(SCRIPT, SAVES);
    let script = format!("{SCRIPT} never");
    // If the shells die later than that, on a busy machine, they are killed with all that they left.
    longer_and_longer(
        |stop_timeout| {
            let running = start(&site, FORMS[0], &script, &[stop_timeout]);
            running.await_out("up", 2);
            running.signal(Signal::TERM);
            running.ended().code(1)
        },
        |ended| ended.err.contains("the grace of what the workers left behind is over"),
    );
    site.assert_no_process();
    // A second signal ends it, too.
    let running = start(&site, FORMS[0], &script, &[]);
    running.await_out("up", 2);
    running.signal(Signal::TERM);
    running.await_err("which goes on after its shell");
    running.signal(Signal::INT);
    running.ended().code(1).says(&["not waiting for what the workers left behind"]);
    site.assert_no_process();
}

#[test]
fn the_verdict_names_the_limit_of_timeout() {
    let stubborn = "trap '' TERM; while :; do sleep 0.1; done";
    for words in
        [&["timeout", "0.3", "sleep", "1000"][..], &["env", "timeout", "-k", "0.2", "0.3", "sh", "-c", stubborn]]
    {
        let site = Site::new();
        let ended = site.run(&[&["--standalone", "--no-python"], words].concat()).code(1);
        assert!(ended.err.contains("verdict: rank 0 on "), "{ended}");
        assert!(ended.err.contains(": timeout(1) ended it at its limit of 0.3 (evidence: "), "{ended}");
        site.assert_no_process();
    }
}
