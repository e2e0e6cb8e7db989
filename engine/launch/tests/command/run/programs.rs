//! Which programs can run, how, and the errors for those that cannot; a worker's environment; and workers that are shells or timeout(1): a
//! signal reaches the program for which they wait, once, and it has time to save.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use lockstep_process::free_port;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::site::{Site, longer_and_longer, python};
use crate::running::Running;

#[test]
fn a_python_script_is_run_unbuffered_by_the_chosen_python() {
    let site = Site::new();
    let script = site.file("train.py", "import sys; print(sys.flags.unbuffered if hasattr(sys.flags, 'unbuffered') else '', sys.argv)\nprint(sys.stdout.write_through)");
    let ended = site.run(&["--standalone", &script, "--lr", "1"]).code(0);
    assert!(ended.out.ends_with(&format!("['{script}', '--lr', '1']\nTrue\n")), "{}", ended.out);
    let mut command = site.lockstep(&["--standalone", &script]);
    let other = site.program("other-python", "#!/bin/sh\necho other python: \"$@\"\n");
    command.env("PYTHON_EXEC", &other);
    assert_eq!(Running::start(command).ended().code(0).out, format!("other python: -u {script}\n"));
}

#[test]
fn the_agent_and_its_reaper_are_the_command_itself() {
    let site = Site::new();
    // A worker prints the executable of its agent, which is its parent.
    let script = "readlink /proc/$$PPID/exe; cat /proc/$$PPID/comm; exec sleep 1000";
    let running = site.start(&["--standalone", "--no-python", "sh", "-c", script]);
    let command = assert_cmd::cargo::cargo_bin!("lockstep").canonicalize().unwrap();
    running.await_out(&format!("{}\nlockstep\n", command.display()), 1);
    let (reaper, _) = site.processes().into_iter().find(|(_, line)| line.starts_with("job-reaper")).unwrap();
    assert_eq!(fs::read_link(format!("/proc/{reaper}/exe")).unwrap(), command);
    running.signal(Signal::TERM);
    running.ended().code(1);
    site.await_no_process();
}

#[test]
fn a_module_is_run_by_its_name() {
    let site = Site::new();
    fs::create_dir(site.path("package")).unwrap();
    site.file("package/__init__.py", "");
    site.file("package/train.py", "import sys; print(__name__, __spec__.name, sys.argv[1:])");
    let ended = site.run(&["--standalone", "-m", "package.train", "-m", "x"]).code(0);
    assert_eq!(ended.out, "__main__ package.train ['-m', 'x']\n");
}

#[test]
fn run_path_runs_a_script_under_runpy() {
    let site = Site::new();
    let script = site.file("train.py", "import sys; print(__name__, sys.argv)");
    let ended = site.run(&["--standalone", "--run-path", &script, "7"]).code(0);
    assert_eq!(ended.out, format!("__main__ ['{script}', '7']\n"));
}

#[test]
fn executables_and_names_in_the_path_run_directly() {
    let site = Site::new();
    let tool = site.program("tool", "#!/bin/sh\necho tool \"$1\"\n");
    for words in [
        &["--standalone", &tool, "x"][..],
        &["--standalone", "./tool", "x"],
        &["--standalone", "--no-python", &tool, "x"],
    ] {
        assert_eq!(site.run(words).code(0).out, "tool x\n", "{words:?}");
    }
    assert_eq!(site.run(&["--standalone", "echo", "x"]).code(0).out, "x\n");
}

#[test]
fn a_program_that_cannot_run_is_named_before_the_start() {
    let site = Site::new();
    site.run(&["--standalone", "no-such-program"]).code(1).says(&["no-such-program"]).never_says(&["FAILED"]);
    site.run(&["--standalone", "./no/such.py"]).code(1).says(&["no/such.py"]).never_says(&["FAILED", "Traceback"]);
    let plain = site.file("plain", "#!/bin/sh\necho hi\n");
    site.run(&["--standalone", "--no-python", &plain]).code(1).says(&[&plain, "chmod +x"]).never_says(&["FAILED"]);
    let plain = site.program("plain.sh", "echo hi\n");
    site.run(&["--standalone", &plain])
        .code(1)
        .says(&["has no first line such as `#!/bin/bash`"])
        .never_says(&["FAILED"]);
    site.run(&["–nproc-per-node=2", &plain]).code(2).says(&["an en dash (U+2013) where `--`"]);
    site.run(&["--nproc\u{2011}per-node=2", &plain]).code(2).says(&["hyphen or minus sign (U+2011)"]);
    site.run(&["--start-method=zzz", "no-such-program"]).code(2).says(&["expected spawn, fork or forkserver"]);
    let folder = site.word("tmp");
    site.run(&["--standalone", "--no-python", &folder]).code(1).says(&[&folder]).never_says(&["FAILED"]);
    site.assert_no_process();
    assert_eq!(site.leftovers().len(), 0);
}

#[test]
fn a_program_with_a_missing_interpreter_is_not_retried() {
    let site = Site::new();
    let tool = site.program("tool", "#!/no/such/interpreter\n");
    let ended = site.run(&["--standalone", "--max-restarts=3", "--no-python", &tool]).code(1);
    ended.says(&["/no/such/interpreter"]).never_says(&["restart them"]);
    site.assert_no_process();
}

/// Prints the variables of the worker that a launcher sets, in one line, which is one write: `python -u` writes each word of
/// `print` by itself, and lines of two ranks mix.
const SHOW: &str = r#"
import os, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS",
    "MASTER_ADDR", "MASTER_PORT"]
sys.stdout.write(" ".join(f"{name}={os.environ.get(name)}" for name in names) + "\n")
"#;

#[test]
fn every_variable_of_the_contract_is_set() {
    let site = Site::new();
    let script = site.file("show.py", SHOW);
    let address = site.address(0);
    let port = free_port().unwrap().to_string();
    let place = ["--master-addr", &address, "--master-port", &port];
    let flags = [&place[..], &["--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=job7", "--role=trainer"]].concat();
    let ended = site.run(&[&flags[..], &["--prefix=never", &script]].concat()).code(0);
    let expected = |rank: u8| {
        format!(
            "RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 \
             ROLE_NAME=trainer ROLE_RANK={rank} ROLE_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=0 \
             TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_USE_AGENT_STORE=True \
             TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT TORCH_NCCL_ASYNC_ERROR_HANDLING=1 \
             OMP_NUM_THREADS=1 MASTER_ADDR={address} MASTER_PORT={port}"
        )
    };
    assert_eq!(ended.sorted(), [expected(0), expected(1)]);
    site.assert_no_process();
}

#[test]
fn every_variable_that_a_worker_gets_is_on_the_reference_page() {
    let mut printed = std::process::Command::new(env!("CARGO_BIN_EXE_lockstep"));
    let page = printed.args(["course", "reference", "variables"]).output().unwrap().stdout;
    let page = String::from_utf8(page).unwrap();
    let ended =
        Site::new().run(&["--standalone", "--nproc-per-node=2", "--virtual-local-rank", "--prefix=never", "env"]);
    let names: BTreeSet<_> =
        ended.code(0).out.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned()).collect();
    assert!(names.contains("ROLE_WORLD_SIZE") && names.contains("CUDA_VISIBLE_DEVICES"), "{names:?}");
    let of_the_test = ["HOME", "LC_ALL", "LOCKSTEP_TEST_SITE", "PYTHONDONTWRITEBYTECODE", "TMPDIR"];
    let is_inherited = |name: &&String| std::env::var_os(name).is_some() || of_the_test.contains(&name.as_str());
    let from_launcher = names.iter().filter(|name| !is_inherited(name));
    let missing: Vec<_> = from_launcher.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn variables_of_the_user_are_kept_and_a_single_worker_gets_no_thread_limit() {
    let site = Site::new();
    let script = site.file("show.py", SHOW);
    let mut command = site.lockstep(&["--standalone", "--prefix=never", "--nproc-per-node=2", &script]);
    command.env("OMP_NUM_THREADS", "5").env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3").env("RANK", "77");
    let ended = Running::start(command).ended().code(0).never_says(&["OMP_NUM_THREADS"]);
    assert_eq!(ended.out.matches("TORCH_NCCL_ASYNC_ERROR_HANDLING=3 OMP_NUM_THREADS=5").count(), 2, "{}", ended.out);
    assert!(!ended.out.contains("RANK=77"));
    let alone = site.run(&["--standalone", &script]).code(0);
    assert!(alone.out.contains("OMP_NUM_THREADS=None"), "{}", alone.out);
}

#[test]
fn a_standalone_job_has_a_random_id_and_its_own_store() {
    let site = Site::new();
    let show = ["sh", "-c", "echo $TORCHELASTIC_RUN_ID $MASTER_PORT"];
    let [first, second] = [0, 1].map(|_| site.run(&[&["--standalone"], &show[..]].concat()).code(0).out);
    assert_ne!(first.split(' ').next(), second.split(' ').next());
    assert_eq!(first.split(' ').next().unwrap().len(), 36, "a UUID: {first}");
}

#[test]
fn arguments_are_templates_and_everything_else_is_passed_unchanged() {
    let site = Site::new();
    let script = site.file("args.py", "import sys; print(sys.argv[1:])");
    let given = ["${local_rank}", "a$$b", "$HOME", "--max-restarts", "-t", "--", "", "two words", "é", "${rank}"];
    let flags = ["--standalone", "--nproc-per-node=2", "--prefix=never", &script];
    let ended = site.run(&[&flags[..], &given[..]].concat()).code(0);
    let expected = |rank: u8| {
        format!("['{rank}', 'a$b', '$HOME', '--max-restarts', '-t', '--', '', 'two words', 'é', '${{rank}}']")
    };
    assert_eq!(ended.sorted(), [expected(0), expected(1)]);
}

#[test]
fn workers_read_the_standard_input_of_the_command() {
    let site = Site::new();
    let mut command = site.lockstep(&["--standalone", "sh", "-c", "read line; echo got $line"]);
    let mut running = Running::start({
        command.stdin(Stdio::piped());
        command
    });
    running.write_stdin(b"from outside\n");
    assert_eq!(running.ended().code(0).out, "got from outside\n");
}

#[test]
fn all_workers_of_a_node_reach_the_store_at_the_master_address() {
    let site = Site::new();
    let script = site.file("reach.py", REACH);
    let [port, address] = site.master();
    for flags in [&["--standalone"][..], &[&port, &address]] {
        let ended = site.run(&[flags, &["--nproc-per-node=3", "--prefix=never", &script]].concat()).code(0);
        assert_eq!(ended.out, "reached\n".repeat(3));
    }
}

/// Sends the first bytes of c10d's client, then requests a number and gets it.
pub(crate) const REACH: &str = r#"
import os, socket, struct, sys
with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 30) as store:
    key = b"visits"
    store.sendall(bytes([0]) + struct.pack("<I", 0x3C85F7CE) + bytes([4]) + struct.pack("<Q", len(key)) + key + struct.pack("<q", 1))
    number = store.recv(8, socket.MSG_WAITALL)
    assert 1 <= struct.unpack("<q", number)[0] <= int(os.environ["WORLD_SIZE"]), number
sys.stdout.write("reached\n")
"#;

#[test]
fn virtual_local_ranks_are_all_zero_with_one_device_each() {
    let site = Site::new();
    let show = ["sh", "-c", "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"];
    let flags = ["--standalone", "--virtual-local-rank", "--nproc-per-node=2", "--prefix=never"];
    let mut command = site.lockstep(&[&flags[..], &show[..]].concat());
    command.env("CUDA_VISIBLE_DEVICES", "4,7");
    assert_eq!(Running::start(command).ended().code(0).sorted(), ["0 0 4", "1 0 7"]);
}

#[test]
fn sixty_four_workers_run_and_each_has_its_rank() {
    let site = Site::new();
    let flags = ["--standalone", "--nproc-per-node=64", "--prefix=never", "sh", "-c", "echo $RANK"];
    let ended = site.run(&flags).code(0);
    let mut ranks: Vec<u32> = ended.out.lines().map(|line| line.parse().unwrap()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..64).collect::<Vec<u32>>());
    site.assert_no_process();
}

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
fn requests_reach_the_program_under_a_shell_or_timeout_once() {
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
