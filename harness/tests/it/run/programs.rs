//! Which programs can run, how, and the errors for those that cannot.

use std::fs;

use rustix::process::Signal;

use crate::run::site::Site;
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

/// A worker prints the executable of its agent, which is its parent.
const AGENT: [&str; 6] =
    ["--standalone", "--no-python", "sh", "-c", "readlink /proc/$$PPID/exe; cat /proc/$$PPID/comm", "sh"];

#[test]
fn the_launcher_becomes_the_small_program_next_to_it() {
    let site = Site::new();
    let small = assert_cmd::cargo::cargo_bin!("lockstep-agent").canonicalize().unwrap().display().to_string();
    assert_eq!(site.run(&AGENT).code(0).out, format!("{small}\nlockstep\n"));
}

#[test]
fn the_reaper_is_the_small_program_next_to_the_launcher() {
    let site = Site::new();
    let running = site.start(&["--standalone", "--no-python", "sh", "-c", "echo up; exec sleep 1000"]);
    running.await_out("up", 1);
    let (reaper, _) = site.processes().into_iter().find(|(_, line)| line.starts_with("job-reaper")).unwrap();
    let program = fs::read_link(format!("/proc/{reaper}/exe")).unwrap();
    assert_eq!(program, assert_cmd::cargo::cargo_bin!("lockstep-helper").canonicalize().unwrap());
    running.signal(Signal::TERM);
    running.ended().code(1);
    site.await_no_process();
}

#[test]
fn the_launcher_runs_a_job_where_the_small_program_is_missing() {
    let site = Site::new();
    fs::hard_link(assert_cmd::cargo::cargo_bin!("lockstep"), site.path("lockstep")).unwrap();
    let mut command = std::process::Command::new(site.path("lockstep"));
    command.arg("run").args(AGENT);
    site.prepare(&mut command);
    assert_eq!(
        Running::start(command).ended().code(0).out,
        format!("{}\nlockstep\n", fs::canonicalize(site.path("lockstep")).unwrap().display())
    );
}

#[test]
fn the_small_program_prints_the_same_help_and_errors() {
    let site = Site::new();
    let whole = site.word("lockstep");
    fs::hard_link(assert_cmd::cargo::cargo_bin!("lockstep"), &whole).unwrap();
    for words in [&["--help"][..], &["-h"], &[], &["--no-such-flag"], &["--nnodes=x", "true"], &["--version"]] {
        let mut command = std::process::Command::new(&whole);
        command.arg("run").args(words);
        site.prepare(&mut command);
        let (whole, small) = (Running::start(command).ended(), site.run(words));
        assert_eq!((&whole.out, &whole.err), (&small.out, &small.err), "{words:?}");
        assert_eq!(whole.status, small.status, "{words:?}");
    }
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
