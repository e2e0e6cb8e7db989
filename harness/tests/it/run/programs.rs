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
