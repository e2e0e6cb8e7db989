//! `lockstep run` from outside, without starting anything: usage, help, variables, and dry runs.

use std::process::Command;

use insta::assert_snapshot;
use lockstep_testkit::python::python_with;
use tempfile::TempDir;

use crate::running::ended;
use crate::shown::filtered;

/// The command of all tests, without the caller's variables that it would read.
fn lockstep_run(flags: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
    let ours = |name: &str| {
        ["PET_", "TORCH", "PYTHON", "VIRTUAL_ENV", "CUDA", "OMP_", "SLURM_", "PBS_", "OMPI_", "PMI_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command.arg("run").args(flags);
    command
}

/// The commands that would be started, one for each worker.
fn planned(command: &mut Command) -> Vec<String> {
    let ended = ended(command).code(0);
    let commands = ended.out.lines().filter_map(|line| line.strip_prefix("command ")).map(str::trim);
    commands.map(str::to_owned).collect()
}

fn plan(flags: &[&str]) -> Vec<String> {
    planned(&mut lockstep_run(&[&["--dry-run"], flags].concat()))
}

/// The errors of the command lines, as one text: each command, and its stderr.
fn refusals(code: i32, lines: &[&[&str]]) -> String {
    let refused = |flags: &&[&str]| {
        let ended = ended(&mut lockstep_run(flags)).code(code);
        assert_eq!(ended.out, "", "errors go to stderr");
        format!("$ lockstep run {}\n{}\n", flags.join(" "), ended.err)
    };
    lines.iter().map(refused).collect()
}

/// torchrun's flags in its own order (torch 2.15).
const TORCHRUN: [&str; 32] = [
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "standalone",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "module",
    "no-python",
    "run-path",
    "log-dir",
    "redirects",
    "tee",
    "log-line-prefix-template",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
    "virtual-local-rank",
    "print-completion",
];

#[test]
fn help_lists_each_of_torchruns_flags_and_says_which_are_not_its() {
    let help = ended(&mut lockstep_run(&["--help"])).code(0).out;
    let (torchruns, own) = help.split_once("Not torchrun's:").unwrap();
    for flag in TORCHRUN {
        assert!(torchruns.contains(&format!("--{flag}")), "--{flag}");
    }
    for flag in [
        "snapshot-on",
        "forward-signals",
        "time-limit",
        "save-before-limit",
        "exit-barrier-timeout",
        "keep-logs",
        "record",
        "prefix",
        "stacks",
        "status",
        "dry-run",
    ] {
        assert!(own.contains(&format!("--{flag}")), "--{flag}");
    }
}

#[test]
fn takes_the_command_line_of_torchs_older_launcher() {
    let flags = ["--pass-local-rank", "--nproc-per-node=2", "true", "--lr=1"];
    assert_eq!(plan(&flags), ["true --local-rank=0 --lr=1", "true --local-rank=1 --lr=1"]);
    let ended = ended(&mut lockstep_run(&["--dry-run", "--use_env", "true"])).code(0);
    assert!(ended.err.contains("note: --use-env has no effect here: workers always read LOCAL_RANK"), "{}", ended.err);
    let words = refusals(1, &[&["--use-env", "--pass-local-rank", "true"]]);
    assert!(words.contains("--use-env and --pass-local-rank contradict each other"), "{words}");
}

#[test]
fn takes_names_with_dashes_underscores_and_cut_short() {
    for flag in ["--nproc-per-node=2", "--nproc_per_node=2", "--nproc=2", "--np=2", "--nproc_per=2"] {
        assert_eq!(plan(&[flag, "true"]), ["true", "true"], "{flag}");
    }
    assert_eq!(plan(&["--nproc-per-node", "3", "--nproc-per-node", "1", "true"]).len(), 1, "the last one wins");
    for flag in TORCHRUN.iter().filter(|flag| flag.contains('-')) {
        let flag = format!("--{}", flag.replace('-', "_"));
        assert!(
            !ended(&mut lockstep_run(&["--dry-run", &flag, "1", "true"])).err.contains("unexpected argument"),
            "{flag}"
        );
    }
}

#[test]
fn leaves_everything_after_the_program_to_it() {
    assert_eq!(plan(&["true", "--nproc-per-node=2", "-h", "--", "-r3"]), ["true --nproc-per-node=2 -h -- -r3"]);
    assert_eq!(plan(&["--", "true", "--help"]), ["true --help"]);
    assert_eq!(
        plan(&["--nproc=2", "true", "--rank=${local_rank}", "$$x", "a b"]),
        ["true --rank=0 '$x' 'a b'", "true --rank=1 '$x' 'a b'"]
    );
}

#[test]
fn variables_stand_in_for_flags_and_the_command_line_wins() {
    let with = |variables: &[(&str, &str)], flags: &[&str]| {
        planned(lockstep_run(&[&["--dry-run"], flags].concat()).envs(variables.iter().copied()))
    };
    assert_eq!(with(&[("PET_NPROC_PER_NODE", "3")], &["true"]).len(), 3);
    assert_eq!(with(&[("PET_NPROC_PER_NODE", "3")], &["--nproc-per-node=2", "true"]).len(), 2);
    assert_eq!(with(&[("PET_NO_PYTHON", "1")], &["true"]), ["true"]);
    let standalone = |value: &str| {
        let flags = ["--dry-run", "--master-port=29500", "true"];
        ended(lockstep_run(&flags).env("PET_STANDALONE", value)).out
    };
    assert!(standalone("1").contains("c10d at localhost:0"));
    assert!(standalone("0").contains("static at 127.0.0.1:29500"));
}

#[test]
fn usage_errors_end_with_2_and_name_the_flag_the_value_and_what_would_do() {
    let _filtered = filtered(None);
    assert_snapshot!(refusals(
        2,
        &[
            &[],
            &["--bogus", "true"],
            &["--log-dir"],
            &["--standalone=1", "true"],
            &["--max-restarts=x", "true"],
            &["--monitor-interval", "fast", "true"],
            &["--start-method=thread", "true"],
            &["--numa-binding=gpu", "true"],
            &["--prefix=sometimes", "true"],
        ]
    ));
}

#[test]
fn usage_errors_in_variables_name_the_variable() {
    let refusal = |name: &str, value: &str| ended(lockstep_run(&["true"]).env(name, value)).code(2).err;
    assert_snapshot!(refusal("PET_MAX_RESTARTS", "many"), @r"
    error: PET_MAX_RESTARTS=many (in place of --max-restarts): expected a whole number

    For more information, try '--help'.
    ");
    assert_snapshot!(refusal("PET_STANDALONE", "yes"), @r"
    error: PET_STANDALONE=yes (in place of --standalone): expected 0 or 1

    For more information, try '--help'.
    ");
}

#[test]
fn configuration_errors_end_with_1_as_torchruns_do() {
    let _filtered = filtered(None);
    assert_snapshot!(refusals(
        1,
        &[
            &["--nnodes=abc", "true"],
            &["--nproc-per-node=many", "true"],
            &["--max-restarts=-1", "true"],
            &["-r", "4", "true"],
            &["--local-ranks-filter=a", "true"],
            &["--rdzv-backend=etcd", "true"],
            &["--rdzv-conf=join_timeout", "true"],
            &["--no-python", "--module", "true"],
            &["--standalone", "--nnodes=2", "true"],
        ]
    ));
}

#[test]
fn a_missing_program_is_named_before_anything_starts() {
    let dir = TempDir::new().unwrap();
    let _filtered = filtered(Some(&dir.path().canonicalize().unwrap()));
    let refusal = |program: &[&str]| ended(lockstep_run(program).current_dir(&dir)).code(1).err;
    assert_snapshot!(refusal(&["no-such-script.py"]), @"error: cannot find no-such-script.py: there is no such file (the current folder is [folder]), and PATH has no program of that name");
    assert_snapshot!(refusal(&["--no-python", "/no/such/program"]), @"error: cannot find /no/such/program: there is no such file (the current folder is [folder])");
    std::fs::write(dir.path().join("train.py"), "").unwrap();
    let without = ended(lockstep_run(&["train.py"]).current_dir(&dir).env("PATH", dir.path())).code(1);
    assert_snapshot!(without.err, @"error: cannot run train.py: neither python3 nor python is in PATH; set PYTHON_EXEC to a Python, or give --no-python for a program that needs none");
}

#[test]
fn finds_scripts_by_relative_paths_and_with_blanks_in_names() {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("my lab")).unwrap();
    std::fs::write(dir.path().join("my lab/train it.py"), "").unwrap();
    let plan = |script: &str| planned(lockstep_run(&["--dry-run", script]).current_dir(&dir).env("PYTHON_EXEC", "sh"));
    assert_eq!(plan("my lab/train it.py"), ["sh -u 'my lab/train it.py'"]);
    assert_eq!(plan("./my lab/../my lab/train it.py"), ["sh -u './my lab/../my lab/train it.py'"]);
}

#[test]
fn its_own_error_is_recorded_for_the_parent_process() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("error.json");
    ended(lockstep_run(&["--nnodes=abc", "true"]).env("TORCHELASTIC_ERROR_FILE", &file)).code(1);
    let left = std::fs::read_to_string(file).unwrap();
    assert!(left.contains("expected N or MIN:MAX"), "{left}");
}

#[test]
fn says_once_that_workers_get_one_thread_each_and_what_has_no_effect() {
    let notes = ended(&mut lockstep_run(&["--dry-run", "--nproc=2", "--start-method=fork", "true"])).err;
    assert_snapshot!(notes, @r"
    note: --start-method=fork has no effect here: workers are separate programs, not Python processes of the agent
    note: setting OMP_NUM_THREADS=1 for each of the 2 workers, so that they do not overload this host; set it yourself for more speed
    ");
    let quiet = ended(lockstep_run(&["--dry-run", "--nproc=2", "true"]).env("OMP_NUM_THREADS", "2")).err;
    assert_eq!(quiet, "");
}

/// Reads command lines, one a line with tabs between the words, and prints torchrun's exit code before any worker starts (0: it
/// would start).
const TORCHRUNS_JUDGEMENT: &str = r"
import contextlib, io, sys
from torch.distributed import run
for line in sys.stdin.read().splitlines():
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            run.config_from_args(run.parse_args(line.split('\t')))
            code = 0
        except SystemExit as end:
            code = end.code
        except Exception:
            code = 1
    print(code)
";

#[test]
fn ends_with_the_codes_that_torchrun_ends_with() {
    let Some(python) = python_with(&[], "equality with torchrun's own parser") else { return };
    let lines = [
        "true",
        "--bogus\ttrue",
        "--nnodes=1:2\ttrue",
        "--nnodes=2:1\ttrue",
        "--nnodes=x\ttrue",
        "--nnodes=1:2:3\ttrue",
        "--nproc_per_node=auto\ttrue",
        "--nproc-per-node=x\ttrue",
        "--max-restarts=-1\ttrue",
        "--max-restarts\t-1\ttrue",
        "--max-restarts=1.5\ttrue",
        "--monitor-interval=x\ttrue",
        "--monitor-interval=2\ttrue",
        "--start-method=x\ttrue",
        "--node-rank=x\ttrue",
        "--master-port=x\ttrue",
        "-r3\ttrue",
        "-r\t0:1,1:2\ttrue",
        "-r\t4\ttrue",
        "-t\t0:4\ttrue",
        "-t\t\ttrue",
        "--local-ranks-filter=0,1\ttrue",
        "--local-ranks-filter=x\ttrue",
        "--rdzv-conf=a=1\ttrue",
        "--rdzv-conf=a\ttrue",
        "--rdzv-conf==1\ttrue",
        "--numa-binding=x\ttrue",
        "--standalone=1\ttrue",
        "--module\t--no-python\ttrue",
        "--log-dir\t",
        "--redirects",
        "-m\ttrue",
        "--\ttrue\t--x",
        "--rdzv\tx\ttrue",
    ];
    let answer = assert_cmd::Command::new(python)
        .args(["-c", TORCHRUNS_JUDGEMENT])
        .write_stdin(lines.join("\n"))
        .output()
        .unwrap();
    let theirs: Vec<i32> =
        String::from_utf8(answer.stdout).unwrap().lines().map(|code| code.parse().unwrap()).collect();
    assert_eq!(theirs.len(), lines.len(), "{}", String::from_utf8_lossy(&answer.stderr));
    for (line, theirs) in lines.iter().zip(theirs) {
        let words: Vec<&str> = std::iter::once("--dry-run").chain(line.split('\t')).collect();
        let ours = ended(&mut lockstep_run(&words));
        assert_eq!(ours.status.code(), Some(theirs), "{line:?}: {}", ours.err);
    }
}

#[test]
fn knows_every_flag_that_torchrun_knows() {
    let Some(python) = python_with(&[], "equality with torchrun's own parser") else { return };
    let list = "from torch.distributed import run\nfor a in run.get_args_parser()._actions: print(*a.option_strings)";
    let answer = Command::new(python).args(["-c", list]).output().unwrap();
    let listed = String::from_utf8(answer.stdout).unwrap();
    let flags: Vec<&str> =
        listed.split_whitespace().filter(|flag| flag.starts_with("--") && *flag != "--help").collect();
    assert!(flags.len() > 40, "{listed}");
    for flag in flags {
        let message = ended(&mut lockstep_run(&["--dry-run", flag, "1", "true"])).err;
        assert!(!message.contains("unexpected argument"), "{flag}: {message}");
    }
}

/// On the second of three nodes, as `srun` starts it (Slurm 22.05).
const STEP: [(&str, &str); 7] = [
    ("SLURM_JOB_ID", "17"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NUM_NODES", "3"),
    ("SLURM_STEP_NODELIST", "n[1-3]"),
    ("SLURM_STEP_NUM_TASKS", "3"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x3)"),
    ("SLURM_NODEID", "1"),
];

#[test]
fn a_dry_run_shows_what_came_from_the_scheduler() {
    let _filtered = filtered(None);
    let mut step = lockstep_run(&["--dry-run", "--nproc-per-node=2", "--no-python", "/bin/true"]);
    assert_snapshot!(ended(step.envs(STEP)).code(0).out);
}

#[test]
fn what_contradicts_the_scheduler_is_refused() {
    let script = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]")];
    let refused = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = lockstep_run(&[&["--dry-run"], flags, &["/bin/true"]].concat());
        ended(command.envs(variables.iter().copied())).code(1).err
    };
    let several = [("SLURM_STEP_NUM_TASKS", "12"), ("SLURM_STEP_TASKS_PER_NODE", "4(x3)")];
    let several: Vec<_> = STEP.iter().chain(&several).copied().collect();
    let mpi = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
    let texts = [
        refused(&script, &[]),
        refused(&several, &[]),
        refused(&STEP, &["--nnodes=4"]),
        refused(&mpi, &[]),
        refused(&[], &["--hostfile=/no/such/file"]),
    ];
    assert_snapshot!(texts.join("\n"));
}

#[test]
fn a_host_file_names_the_nodes_of_a_loop_over_ssh() {
    let folder = TempDir::new().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "node-1 slots=4\nnode-2 slots=4\n").unwrap();
    let hostfile = format!("--hostfile={}", hosts.display());
    let shown =
        ended(&mut lockstep_run(&["--dry-run", &hostfile, "--rdzv-id=mine", "--no-python", "/bin/true"])).code(0).out;
    assert!(
        shown.contains("nodes        2\n") && shown.contains("c10d at node-1:") && shown.contains(", id mine\n"),
        "{shown}"
    );
}
