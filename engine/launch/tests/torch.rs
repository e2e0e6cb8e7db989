//! The final report and the copy of the root cause, compared with torch's own.

#![allow(clippy::unwrap_used)] // a panic fails the test

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use lockstep_launch::report::{Death, Failure, Report, propagate_error};
use lockstep_testkit::python::python_with;

/// Prints torch's report of two failures, then writes its copy of the root cause. Arguments: the program's name, the
/// error file of rank 3, the exit code and pid of both, the time of the other's death, the path of the copy.
const TORCH: &str = r"
import os, socket, sys
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, get_error_handler
name, error_file, died, copy = sys.argv[1:]
root = ProcessFailure(local_rank=1, pid=101, exitcode=1, error_file=error_file)
other = ProcessFailure(local_rank=0, pid=100, exitcode=-6, error_file='/nowhere')
other.timestamp = int(died)
print(socket.getfqdn())
print(ChildFailedError(name, {3: root, 2: other}).format_msg().strip())
os.environ['TORCHELASTIC_ERROR_FILE'] = copy
get_error_handler().dump_error_file(error_file, 1)
";

fn failure(rank: usize, exitcode: i32, at: SystemTime, error_file: PathBuf, host: &str) -> Failure {
    let death = Death {
        rank,
        local_rank: rank - 2,
        pid: 98 + rank as u32,
        exitcode,
        started: at - Duration::from_secs(100),
        at,
        stopped: false,
        not_started: None,
        error_file: Some(error_file),
        tail: vec![],
        stdout: vec![],
        together: false,
        log: None,
        unread: false,
    };
    Failure::of(death, host)
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn reports_what_torch_reports_line_by_line() {
    let Some(python) = python_with(&[], "equality with torch's own report") else { return };
    let dir = tempfile::tempdir().unwrap();
    let [error_file, theirs, ours] = ["error.json", "theirs.json", "ours.json"].map(|name| dir.path().join(name));
    let content = r#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"x.py\", line 3\nValueError: nö", "timestamp": "1763635203"}}}"#;
    std::fs::write(&error_file, content).unwrap();
    let died = SystemTime::UNIX_EPOCH + Duration::from_secs(1_763_635_205);
    let output = Command::new(python)
        .args(["-c", TORCH, "my train.py"])
        .arg(&error_file)
        .arg("1763635205")
        .arg(&theirs)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let (host, expected) = printed.split_once('\n').unwrap();
    let deaths = vec![failure(3, 1, died, error_file, host), failure(2, -6, died, dir.path().join("none"), host)];
    let report = Report::new("my train.py", deaths, None).unwrap();
    // torchrun names the signal since 2.15, and so does this report; the peer is of 2.11.
    let unnamed = "exitcode  : -6 (pid: 100)";
    assert_eq!(expected.matches(unnamed).count(), 1, "{expected}");
    let expected = expected.replace(unnamed, &format!("{unnamed} (SIGABRT)"));
    assert_eq!(report.to_string(), expected.trim_end());
    propagate_error(report.root(), &ours).unwrap();
    assert_eq!(json(&ours), json(&theirs));
}
