//! How workers failed, which failure came first, and the final report in torchrun's format.
//!
//! The agent reports each [`Death`] in the kernel's order; [`Failure::of`] adds the contents of the worker's error
//! file, and [`Report::new`] finds the root cause and separates workers that failed on their own from those that the
//! agent stopped. The report's first line is the [`Verdict`]; then its `Display` has the format that
//! torchrun's users and their scripts expect. [`propagate_error`] passes the root cause to the process that started the agent. This
//! module does not decide about restarts.

mod failure;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Local};
use lockstep_contract::{error_file, foreign};
use serde_json::{Value, json};

use crate::config::signal_name;
use crate::verdict::Verdict;
use failure::indented;

pub use failure::{Death, Failure, Reason};
pub(crate) use failure::{describe_exit, first_failure};

#[cfg(test)]
pub(crate) use failure::tests as testing;

/// torch's maximum width of a rule, in characters.
const WIDEST: usize = 60;
/// The number of last lines that are shown.
const SHOWN: usize = 20;

/// The verdict, then torchrun's format, line by line, then additional information. The format is that of
/// `ChildFailedError.format_msg` (torch/distributed/elastic/multiprocessing/errors/__init__.py). Users' scripts search
/// it for `FAILED`, `Root Cause` and `exitcode`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{} FAILED", foreign::one_line(&self.program));
        let blocks: Vec<String> = self.failures.iter().enumerate().map(|(at, failure)| block(at, failure)).collect();
        let lines = blocks.iter().flat_map(|block| block.lines()).chain([title.as_str()]);
        let width = lines.map(|line| line.chars().count()).max().unwrap_or(0).min(WIDEST);
        let (border, rule) = ("=".repeat(width), "-".repeat(width));
        if let Some(verdict) = &self.verdict {
            writeln!(f, "{verdict}")?;
        }
        writeln!(f, "{border}\n{title}\n{rule}\nFailures:")?;
        let others = blocks.iter().enumerate().filter(|(at, _)| *at != self.root);
        let others: Vec<&str> = others.map(|(_, block)| block.as_str()).collect();
        writeln!(f, "{}", if others.is_empty() { "  <NO_OTHER_FAILURES>".to_owned() } else { others.join("\n") })?;
        writeln!(f, "{rule}\nRoot Cause (first observed failure):\n{}", blocks[self.root])?;
        for section in
            [self.stopped_text(), self.tail_text(), self.stacks.clone(), self.logs_text()].into_iter().flatten()
        {
            writeln!(f, "{rule}\n{section}")?;
        }
        write!(f, "{border}")
    }
}

impl Report {
    fn stopped_text(&self) -> Option<String> {
        let one = |failure: &Failure| {
            let death = &failure.death;
            let (rank, local_rank, pid) = (death.rank, death.local_rank, death.pid);
            format!("\n  rank {rank} (local_rank: {local_rank}, pid: {pid}): {}", describe_exit(death.exitcode))
        };
        let text: String = self.stopped.iter().map(one).collect();
        (!text.is_empty()).then(|| format!("Stopped by the agent because of this (no failures of their own):{text}"))
    }

    fn tail_text(&self) -> Option<String> {
        let death = &self.root().death;
        let lines = &death.tail[death.tail.len().saturating_sub(SHOWN)..];
        let lines: String = lines.iter().map(|line| format!("\n  {}", foreign::escaped(line))).collect();
        (!lines.is_empty()).then(|| format!("Last lines of rank {}:{lines}", death.rank))
    }

    fn logs_text(&self) -> Option<String> {
        self.logs.as_ref().map(|logs| format!("Logs: {}", foreign::path(logs)))
    }
}

fn block(at: usize, failure: &Failure) -> String {
    let death = &failure.death;
    let error_file = failure.error_file().map_or_else(|| "<N/A>".to_owned(), foreign::path);
    let signal = signal_name(death.exitcode.saturating_neg()).map_or_else(String::new, |name| format!(" ({name})"));
    format!(
        "[{at}]:\n  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: {}){signal}\n  \
         error_file: {error_file}\n  traceback : {}",
        stamp(failure.time()),
        foreign::one_line(&failure.host),
        death.rank,
        death.local_rank,
        death.exitcode,
        death.pid,
        indented(&failure.traceback()),
    )
}

/// Local time without a time zone, as Python's `isoformat(sep="_")` of a whole second.
fn stamp(time: SystemTime) -> String {
    DateTime::<Local>::from(time).format("%Y-%m-%d_%H:%M:%S").to_string()
}

/// The final report of a job that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The program's name.
    pub program: String,
    /// Workers that failed on their own, in the order of their deaths.
    pub failures: Vec<Failure>,
    /// The index of the root cause in `failures`.
    pub root: usize,
    /// Workers that the agent stopped because of the others.
    pub stopped: Vec<Failure>,
    /// Who is at fault, and why.
    pub verdict: Option<Verdict>,
    /// Where the living workers were when one's wait for another timed out.
    pub stacks: Option<String>,
    /// Where the logs are, if they are kept.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// A report of failures in the kernel's order of deaths; `None` if no worker failed on its own. If the verdict is on the
    /// end of one of these workers, that is the root cause.
    pub fn new(program: &str, deaths: Vec<Failure>, verdict: Option<Verdict>) -> Option<Self> {
        let first = &deaths[first_failure(&deaths)?];
        let blamed = verdict
            .as_ref()
            .filter(|verdict| verdict.own)
            .and_then(|verdict| deaths.iter().find(|failure| failure.death.rank == verdict.rank));
        let root_rank = blamed.unwrap_or(first).death.rank;
        let (stopped, failures): (Vec<_>, Vec<_>) =
            deaths.into_iter().partition(|failure| failure.death.stopped && failure.death.rank != root_rank);
        let root = failures.iter().position(|failure| failure.death.rank == root_rank)?;
        Some(Report { program: program.to_owned(), failures, root, stopped, verdict, stacks: None, logs: None })
    }

    /// The failure that caused the others.
    pub fn root(&self) -> &Failure {
        // `new` found this index.
        &self.failures[self.root]
    }
}

/// Writes the root cause to `path`: a copy of the worker's error file with `message.errorCode`, as torch's
/// `dump_error_file` does (torch/distributed/elastic/multiprocessing/errors/error_handler.py). If the worker left no
/// readable file, its contents are made from what is known.
///
/// # Errors
/// When the file cannot be written.
pub fn propagate_error(root: &Failure, path: &Path) -> io::Result<()> {
    let mut content = match &root.reason {
        Reason::Recorded { content, .. } => content.clone(),
        _ => substitute(root),
    };
    // A message that is a plain string has no place for the code; torch omits it, too.
    if let Some(message) = content.get_mut("message").and_then(Value::as_object_mut) {
        message.insert("errorCode".to_owned(), json!(root.death.exitcode));
    }
    fs::write(path, content.to_string())
}

/// Records an error of the agent itself, such as a wrong configuration, at `path`.
///
/// # Errors
/// When the file cannot be written.
pub fn propagate_agent_error(error: &anyhow::Error, path: &Path) -> io::Result<()> {
    // The location in this program does not help a user with a wrong configuration.
    error_file::record_text(path, &format!("{error:#}"))
}

fn substitute(root: &Failure) -> Value {
    let second = root.time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = root.traceback();
    json!({"message": {"message": text, "extraInfo": {"py_callstack": text, "timestamp": second.to_string()}}})
}

#[cfg(test)]
mod tests {
    use super::failure::Death;
    use super::failure::tests::{at, death, with_file};
    use super::*;
    use crate::verdict::Class;

    fn shown(report: &Report, dir: &tempfile::TempDir) -> String {
        // The time zone depends on the host, the folder on the test.
        let text = report.to_string().replace(&dir.path().display().to_string(), "DIR");
        [3_000, 4_000].iter().fold(text, |text, millis| text.replace(&stamp(at(*millis)), &format!("T+{millis}")))
    }

    /// The width of a rule depends on the widest line, and thus on the test's folder.
    fn without_rules(text: &str) -> Vec<&str> {
        text.lines().map(|line| if line.trim_matches(['=', '-']).is_empty() { &line[..1] } else { line }).collect()
    }

    #[test]
    fn looks_like_torchruns_report() {
        let dir = tempfile::tempdir().unwrap();
        let file = r#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File x\nValueError: no\n", "timestamp": "1763635203"}}}"#;
        let deaths = vec![with_file(&dir, death(1, 1, 3_200), file), Failure::of(death(0, -6, 4_000), "node0")];
        let report = Report::new("train.py", deaths, None).unwrap();
        let expected = "\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : T+4000
  host      : node0
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 100) (SIGABRT)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 100
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : T+3000
  host      : node0
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 101)
  error_file: DIR/1.json
  traceback : Traceback (most recent call last):
    File x
  ValueError: no
============================================================";
        assert_eq!(without_rules(&shown(&report, &dir)), without_rules(expected));
    }

    #[test]
    fn begins_with_the_verdict_and_ends_with_stopped_workers_last_lines_and_logs() {
        let root = Death { tail: vec!["step 3".into(), "\u{1b}[31mout of memory".into()], ..death(1, -9, 3_000) };
        let stopped = Death { stopped: true, ..death(0, -15, 4_000) };
        let deaths = [root, stopped].map(|death| Failure::of(death, "node0")).to_vec();
        let mut report = Report::new("train.py", deaths, None).unwrap();
        report.verdict = Some(Verdict {
            rank: 1,
            host: Some("node0".into()),
            cause: "somebody killed it".into(),
            how_known: "SIGKILL".into(),
            advice: "ask".into(),
            rule: "killed",
            class: Class::Cause,
            own: true,
        });
        report.logs = Some("/logs/none_x".into());
        let expected = "\
verdict: rank 1 on node0: somebody killed it (evidence: SIGKILL); advice: ask
====================================================
train.py FAILED
----------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
----------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : T+3000
  host      : node0
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 101) (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 101
----------------------------------------------------
Stopped by the agent because of this (no failures of their own):
  rank 0 (local_rank: 0, pid: 100): SIGTERM
----------------------------------------------------
Last lines of rank 1:
  step 3
  \\u{1b}[31mout of memory
----------------------------------------------------
Logs: /logs/none_x
====================================================";
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(shown(&report, &dir), expected);
    }

    #[test]
    fn shows_names_and_last_lines_in_one_line_each() {
        let tail = vec!["a\rb".into()];
        let root = Death { tail, error_file: Some("/no/such\nfile".into()), ..death(1, 3, 3_000) };
        let mut report = Report::new("a\nb.py", vec![Failure::of(root, "no\nde")], None).unwrap();
        report.logs = Some("/logs\n/x".into());
        let text = report.to_string();
        for line in ["a\\nb.py FAILED", "  host      : no\\nde", "  a\\rb", "Logs: /logs\\n/x"] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} in\n{text}");
        }
    }

    fn bare(death: Death) -> Failure {
        Failure::of(death, "node0")
    }

    fn said_at(second: u64) -> String {
        format!(r#"{{"message": "x", "timestamp": {}}}"#, 1_763_635_200 + second)
    }

    fn ranks(failures: &[Failure]) -> Vec<usize> {
        failures.iter().map(|failure| failure.death.rank).collect()
    }

    #[test]
    fn the_first_worker_that_dies_on_its_own_is_the_root_cause() {
        let stopped = Death { stopped: true, ..death(2, -15, 3_030) };
        let report =
            Report::new("x", vec![bare(death(1, -9, 3_000)), bare(death(0, 1, 3_020)), bare(stopped)], None).unwrap();
        assert_eq!(
            (report.root().death.rank, ranks(&report.failures), ranks(&report.stopped)),
            (1, vec![1, 0], vec![2])
        );
        // The clock was set back between the two deaths.
        let deaths = vec![bare(death(1, -9, 3_000)), bare(death(0, 1, 2_000))];
        assert_eq!(Report::new("x", deaths, None).unwrap().root().death.rank, 1);
    }

    #[test]
    fn an_error_without_an_exact_time_does_not_override_the_kernels_order() {
        let dir = tempfile::tempdir().unwrap();
        // Both have the same second, which proves nothing.
        let deaths =
            vec![with_file(&dir, death(1, 1, 3_100), said_at(3)), with_file(&dir, death(0, 1, 3_900), said_at(3))];
        assert_eq!(Report::new("x", deaths, None).unwrap().root().death.rank, 1);
        // Rank 0's error happened in the second in which rank 1 was killed, which proves nothing either.
        let deaths = vec![bare(death(1, -9, 3_100)), with_file(&dir, death(0, 1, 3_900), said_at(3))];
        assert_eq!(Report::new("x", deaths, None).unwrap().root().death.rank, 1);
    }

    #[test]
    fn an_error_that_is_older_than_the_first_death_is_the_root_cause() {
        let dir = tempfile::tempdir().unwrap();
        let deaths = vec![bare(death(1, -6, 5_000)), with_file(&dir, death(0, 1, 6_000), said_at(3))];
        let report = Report::new("x", deaths, None).unwrap();
        assert_eq!((report.root().death.rank, ranks(&report.failures)), (0, vec![1, 0]));
        // Rank 1's own file shows that its error is even older.
        let deaths =
            vec![with_file(&dir, death(1, 1, 5_000), said_at(2)), with_file(&dir, death(0, 1, 6_000), said_at(3))];
        assert_eq!(Report::new("x", deaths, None).unwrap().root().death.rank, 1);
    }

    #[test]
    fn a_worker_that_hung_after_its_error_and_was_stopped_failed_on_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let hung = Death { stopped: true, ..death(0, -15, 6_000) };
        let report =
            Report::new("x", vec![bare(death(1, -6, 5_000)), with_file(&dir, hung, said_at(3))], None).unwrap();
        assert_eq!(
            (report.root().death.rank, ranks(&report.failures), ranks(&report.stopped)),
            (0, vec![1, 0], vec![])
        );
    }

    #[test]
    fn there_is_no_report_if_all_workers_were_stopped() {
        let stopped = Death { stopped: true, ..death(0, -15, 1_000) };
        assert_eq!(Report::new("x", vec![bare(stopped)], None), None);
        assert_eq!(Report::new("x", vec![], None), None);
    }

    fn handed(root: &Failure) -> Value {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own.json");
        fs::write(&path, "the contents of an earlier file, which must be longer than the new contents".repeat(50))
            .unwrap();
        propagate_error(root, &path).unwrap();
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn copies_the_workers_file_with_the_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let file = r#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "x", "timestamp": "1763635203"}}, "more": 1}"#;
        let handed = handed(&with_file(&dir, death(0, -11, 3_000), file));
        let mut expected: Value = serde_json::from_str(file).unwrap();
        expected["message"]["errorCode"] = json!(-11);
        assert_eq!(handed, expected);
    }

    #[test]
    fn keeps_a_short_message_as_torch_does() {
        let dir = tempfile::tempdir().unwrap();
        let short = json!({"message": "out of memory", "timestamp": 1_763_635_203});
        assert_eq!(handed(&with_file(&dir, death(0, 1, 3_500), short.to_string())), short);
    }

    #[test]
    fn describes_the_exit_if_the_worker_left_no_file() {
        let handed = handed(&Failure::of(death(0, -9, 3_000), "node0"));
        assert_eq!(handed["message"]["message"], "Signal 9 (SIGKILL) received by PID 100");
        assert_eq!(handed["message"]["errorCode"], -9);
        assert_eq!(handed["message"]["extraInfo"]["timestamp"], "1763635203");
    }

    #[test]
    fn records_an_error_of_the_agent_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own.json");
        propagate_agent_error(&anyhow::anyhow!("no such script"), &path).unwrap();
        assert_eq!(error_file::read(&path).unwrap().unwrap().message, "no such script");
    }
}
