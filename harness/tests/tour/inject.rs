//! `lockstep inject` for scenarios that pass, fail, cannot run, or cannot be parsed. And commands that are ended from outside: they leave
//! nothing. All processes of a run have the run's folder in their arguments, so that they are found in `/proc` whatever their parent is by then.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use assert_cmd::assert::OutputAssertExt;
use lockstep_process::{KillOnDrop, proc};
use rustix::process::{Pid, Signal, kill_process};

use crate::site::{Site, entries, finding, json, stderr, stdout};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lists_and_shows_the_library", lists),
    ("runs_scenarios_of_every_kind_of_fault", plays),
    ("fails_a_lab_that_forgets_its_snapshots", fails_forgetting),
    ("leaves_no_daemon_of_a_run_behind", finds_leak),
    ("reads_a_file_and_runs_the_program_that_it_names", runs_file),
    ("fails_a_fault_that_never_comes", fails_missed_fault),
    ("starts_a_failed_job_again_with_its_nodes_and_their_disks_in_another_order", requeues),
    ("refuses_nodes_that_do_not_share_the_ranks_equally", refuses_shares),
    ("ends_a_run_that_takes_too_long_with_all_its_processes", ends_late_run),
    ("replays_one_of_the_random_scenarios_alone", replays),
    ("stops_the_soak_at_the_first_failure_and_says_how_to_replay_it", stops_soak),
    ("names_the_line_of_a_broken_file", names_line),
    ("refuses_invalid_arguments", refuses),
    ("says_what_this_machine_cannot_run", not_here),
    ("writes_the_report_in_every_form", writes_reports),
];

fn lists() {
    let site = Site::without_labs();
    let output = stdout(&site.run("", &["inject", "--list"]).success());
    assert!(output.lines().count() >= 20 && output.starts_with("kill-one-worker "), "{output}");
    let file = stdout(&site.run("", &["inject", "--show", "lost-node"]).success());
    assert!(file.contains("name = \"lost-node\"") && file.contains("replace-after-seconds"), "{file}");
}

fn plays() {
    let site = Site::new();
    let names = [
        "kill-one-worker",
        "kill-twice",
        "kill-in-the-middle-of-a-save",
        "panic",
        "exit-code",
        "kill-at-a-line",
        "stop-for-a-while",
        "out-of-restarts",
        "crash-loop",
    ];
    let assert = site.run("", &[&["inject", "--report", "-"], &names[..]].concat());
    let report = json(&assert);
    for (index, name) in names.iter().enumerate() {
        assert_eq!(report["cases"][index]["verdict"], "passed", "{name}: {:#}", report["cases"][index]["findings"]);
    }
    assert_eq!(report["counts"]["passed"], names.len());
    assert_eq!(site.leftovers().len(), 0);
}

fn fails_forgetting() {
    let site = Site::new();
    let report = json(&site.run("forgets", &["inject", "kill-one-worker", "--report", "-"]).code(1));
    assert_eq!(finding(&report, 0, "are done again")["verdict"], "FAILED");
    assert_eq!(finding(&report, 0, "bit for bit")["verdict"], "passed");
}

/// Starts a process that drops the launcher's marks. It is still found by the run's folder in its arguments, unless the
/// launcher finds and ends it first.
fn finds_leak() {
    let site = Site::new();
    let script = "setsid -f sh -c 'sleep 300; : {folder}' </dev/null >/dev/null 2>&1; exit 0";
    let file = format!(
        "name = \"leak\"\ntitle = \"A daemon stays\"\nshows = \"x\"\n[run]\nprogram = \"/bin/sh\"\nranks = 1\n\
         args = [\"-c\", \"{script}\"]\n[expect]\nsame-weights = false\n"
    );
    fs::write(site.path("leak.toml"), file).unwrap();
    let report = json(&site.run("", &["inject", "leak.toml", "--report", "-"]).code(1));
    assert_eq!(finding(&report, 0, "same weights")["evidence"], "no rank saved weights");
    let left = finding(&report, 0, "is left");
    let evidence = left["evidence"].as_str().unwrap();
    assert!(left["verdict"] == "passed" || evidence.contains("runs: sh -c sleep 300"), "{left:#}");
    assert_eq!(processes(&site.path("tmp")), 0);
}

/// No lab is needed, and none is there.
fn runs_file() {
    let site = Site::without_labs();
    // Rank 1 fails after rank 0 has printed its line.
    let script = "if test $RANK = 0; then echo rank 0 of $WORLD_SIZE in '{folder}'; touch '{folder}/said'; \
                  else until test -e '{folder}/said'; do sleep 0.01; done; exit 5; fi";
    let program = format!(
        "name = \"own\"\ntitle = \"Its own program\"\nshows = \"x\"\n[run]\nprogram = \"/bin/sh\"\nmax-restarts = 0\n\
         args = [\"-c\", \"{script}\"]\n[expect]\nexit-code = 1\nroot-cause = 1\nsays = [\"rank 0 of 2 in /\"]\n"
    );
    fs::write(site.path("own.toml"), program).unwrap();
    let output = stdout(&site.run("", &["inject", "own.toml"]).success());
    assert!(output.contains("1/1 ✓ passed  own: Its own program") && output.contains("1 passed in"), "{output}");
}

fn fails_missed_fault() {
    let site = Site::new();
    let file = "name = \"late\"\ntitle = \"Too late\"\nshows = \"x\"\n[[fault]]\nwho = { rank = 0 }\n\
                when = { log-line = \"never printed\" }\nwhat = \"kill\"\n";
    fs::write(site.path("late.toml"), file).unwrap();
    let report = json(&site.run("", &["inject", "late.toml", "--report", "-"]).code(1));
    let came = finding(&report, 0, "faults came");
    assert_eq!(came["evidence"], "never came: rank 0: SIGKILL at a line like \"never printed\"");
    assert_eq!(finding(&report, 0, "bit for bit")["verdict"], "passed");
}

/// The first start leaves a file with its rank on each node's disk, and fails; the second finds the other rank's.
fn requeues() {
    let site = Site::without_labs();
    let script = "mkdir -p '{snapshots}'; if test -e '{snapshots}/rank'; \
                  then echo rank $RANK in run $TORCHELASTIC_RUN_ID finds the disk of rank $(cat '{snapshots}/rank'); \
                  else echo $RANK > '{snapshots}/rank'; touch '{folder}'/left-$RANK; \
                  until test -e '{folder}'/left-0 -a -e '{folder}'/left-1; do sleep 0.01; done; exit 5; fi";
    let program = format!(
        "name = \"again\"\ntitle = \"The job is started again\"\nshows = \"x\"\n[run]\nprogram = \"/bin/sh\"\n\
         nodes = 2\nmax-restarts = 0\ndisks = \"of-nodes\"\nrequeues = 1\nrequeue-order = [1, 0]\nargs = [\"-c\", \"{script}\"]\n\
         [expect]\nsame-weights = false\nsays = [\"rank 0 in run .+ finds the disk of rank 1\", \"rank 1 in run .+ finds the disk of rank 0\"]\n"
    );
    fs::write(site.path("again.toml"), program).unwrap();
    let report = json(&site.run("", &["inject", "again.toml", "--report", "-"]).code(1));
    for claim in ["ends with exit code 0", "disk of rank 1", "disk of rank 0", "is left"] {
        assert_eq!(finding(&report, 0, claim)["verdict"], "passed", "{claim}: {report:#}");
    }
}

fn refuses_shares() {
    let site = Site::new();
    let message = stderr(&site.run("", &["inject", "--soak", "1", "--ranks", "3", "--nodes", "2"]).code(2));
    assert!(message.contains("--ranks is 3 and --nodes 2: each node has equally many ranks"), "{message}");
}

fn ends_late_run() {
    let site = Site::new();
    let output = stdout(&site.run("hangs", &["inject", "out-of-restarts", "--timeout", "1"]).code(1));
    // A busy machine may not have printed a line by then.
    assert!(output.contains("it had not ended after 1 s and was killed: "), "{output}");
    assert!(output.contains("again: lockstep inject out-of-restarts"), "{output}");
    assert_eq!(entries(&site.leftovers()[0]).len(), 1, "the failed run is kept");
}

fn replays() {
    let site = Site::new();
    // The scenario's name and description, without the run's times.
    let line = |text: String, name: &str| {
        let line = text.lines().find_map(|line| line.find(name).map(|at| line[at..].to_owned()));
        line.unwrap_or_else(|| panic!("{text}")).split_once("  (").unwrap().0.to_owned()
    };
    let alone = stdout(&site.run("", &["inject", "--soak", "1", "--seed", SEED, "--skip", "1"]).success());
    let series = stdout(&site.run("", &["inject", "--soak", "2", "--seed", SEED]).success());
    let name = format!("soak-{SEED}-1");
    assert_eq!(line(alone, &name), line(series, &name));
}

/// A seed whose first two scenarios the fake lab supports.
const SEED: &str = "3";

fn stops_soak() {
    let site = Site::new();
    let output = stdout(&site.run("other bits", &["inject", "--soak", "2", "--seed", SEED]).code(1));
    assert!(output.contains(&format!("again: lockstep inject --soak 1 --seed {SEED} --skip 0 --ranks 2")), "{output}");
    assert!(!output.contains("2/2") && output.contains("files in "), "{output}");
}

fn names_line() {
    let site = Site::new();
    fs::write(site.path("x.toml"), "name = \"x\"\ntitle = \"x\"\nshows = \"x\"\n[run]\nrank = 2\n").unwrap();
    let message = stderr(&site.run("", &["inject", "x.toml"]).code(2));
    assert!(
        message.starts_with("error: x.toml:5:1: unknown field `rank`, expected one of `lab`, `program`"),
        "{message}"
    );
    let message = stderr(&site.run("", &["inject", "gone.toml"]).code(2));
    assert!(message.starts_with("error: cannot read the scenario gone.toml: No such file"), "{message}");
}

fn refuses() {
    let site = Site::new();
    let message_of = |args: &[&str]| stderr(&site.run("", &[&["inject"], args].concat()).code(2));
    assert!(message_of(&[]).contains("name a scenario, or --all, or --soak COUNT"));
    assert!(message_of(&["kill-one-wroker"]).contains("did you mean kill-one-worker?"));
    assert!(message_of(&["--seed", "1", "panic"]).contains("--soak"));
    assert!(message_of(&["--soak", "1", "--elastic", "--ranks", "3"]).contains("--ranks"));
    assert!(message_of(&["panic", "--report", "x.pdf"]).contains(".html (a page)"));
    let bare = Site::without_labs();
    assert!(stderr(&bare.run("", &["inject", "panic"]).code(2)).contains("cannot find the program lab-06"));
}

/// Without the system's programs there are no namespaces.
fn not_here() {
    let site = Site::new();
    let mut command = site.command("", &["inject", "slow-network", "full-disk", "--report", "-"]);
    command.env("PATH", site.path("tmp"));
    let report = json(&lockstep_process::watchdog::output(command).assert().success());
    for case in [0, 1] {
        let found = finding(&report, case, "This machine can do what the scenario needs");
        assert_eq!(found["verdict"], "not verified here");
        assert!(found["evidence"].as_str().unwrap().contains("cannot start unshare"), "{found:#}");
    }
    assert_eq!(report["verdict"], "not verified here");
}

fn writes_reports() {
    let site = Site::new();
    let reports = ["--report", "r.json", "--report", "r.xml", "--report", "r.html", "--report", "r.txt"];
    site.run("", &[&["inject", "kill-one-worker"], &reports[..]].concat()).success();
    for (file, text) in [
        ("r.json", "lockstep-report"),
        ("r.xml", "<testsuite"),
        ("r.html", "kill-one-worker"),
        ("r.txt", "kill-one-worker"),
    ] {
        assert!(fs::read_to_string(site.path(file)).unwrap().contains(text), "{file}");
    }
}

pub(crate) const ENDS: &[(&str, fn())] = &[
    ("ends_all_that_it_started_at_a_signal_and_dies_of_it", ends_at_signal),
    ("leaves_no_process_when_it_is_killed", leaves_no_process),
];

fn ends_at_signal() {
    for (signal, args) in
        [(Signal::INT, &["tour"][..]), (Signal::TERM, &["inject", "kill-one-worker"]), (Signal::HUP, &["verify", "06"])]
    {
        let site = Site::new();
        let mut command = Running::start(site.command("hangs", args));
        // At least an agent and two ranks.
        command.await_processes(&site.path("tmp"), |count| count > 2);
        let status = command.ended_by(signal);
        assert_eq!(status.signal(), Some(signal.as_raw()), "{args:?}: {status}");
        assert_eq!(processes(&site.path("tmp")), 0, "{args:?}");
        assert_eq!(site.leftovers().len(), 0, "{args:?}");
    }
}

fn leaves_no_process() {
    let site = Site::new();
    let mut command = Running::start(site.command("hangs", &["tour"]));
    command.await_processes(&site.path("tmp"), |count| count > 2);
    command.ended_by(Signal::KILL);
    command.await_processes(&site.path("tmp"), |count| count == 0);
}

/// A command in the background, killed and reaped when a test fails.
pub(crate) struct Running {
    child: KillOnDrop,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Running { child: KillOnDrop(child) }
    }

    /// Waits until the given number of processes have `folder` in their arguments.
    pub(crate) fn await_processes(&mut self, folder: &Path, wanted: impl Fn(usize) -> bool) {
        // Other processes provide no event to wait for.
        if let Err(why) = lockstep_process::watchdog::until(|| wanted(processes(folder))) {
            panic!("{} processes are at work in {}: {why}", processes(folder), folder.display());
        }
    }

    /// Sends the signal and waits for the command's end.
    pub(crate) fn ended_by(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child.0), signal).unwrap();
        self.child.0.wait().unwrap()
    }
}

/// The number of processes with `folder` in their arguments.
pub(crate) fn processes(folder: &Path) -> usize {
    let folder = folder.to_string_lossy();
    proc::pids().filter_map(proc::command_line).filter(|text| text.contains(&*folder)).count()
}
