//! The test of all solutions: the course's right answers pass, and wrong ones get their diagnoses.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let program = env!(concat!("CARGO_BIN_EXE_", env!("CARGO_PKG_NAME")));
    lockstep_grading::labs::try_answers(env!("CARGO_PKG_NAME"), program, env!("CARGO_MANIFEST_DIR"), compare)
}

/// Compares the diagnoses of a task's wrong answers with `expected.snap` or `expected_python.snap` in the task's folder. The inputs are random,
/// so `#` stands for each number or list of numbers, and so are the names of temporary folders.
fn compare(task: &str, snapshot: &str, diagnoses: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new(env!("CARGO_MANIFEST_DIR")).join(task));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(r"(/[\w.-]+)*/\.tmp\w+(/\.tmp\w+)*", "[folder]");
    settings.add_filter(r"-?\b\d[\d.]*(e-?\d+)?\b", "#");
    settings.add_filter("#(, #)+", "#");
    // Where the other ranks are, and which processes are left, depends on the moment.
    settings.add_filter(r"timed out after # s: .*", "timed out after # s: [ranks]");
    settings.add_filter(r"(\w+ \(process #\)(, )?)+", "[processes]");
    // The order of a hash map is random.
    settings
        .add_filter(r"`\w+` holds the mean of (rank #'s \w+(, )?)+", "`[metric]` holds the mean of [other metrics]");
    settings.bind(|| insta::assert_snapshot!(snapshot, diagnoses));
}
