//! The report as text: the verdict, torchrun's format, line by line, then additional information.
//!
//! The format is that of `ChildFailedError.format_msg` (torch/distributed/elastic/multiprocessing/errors/__init__.py).
//! Users' scripts search it for `FAILED`, `Root Cause` and `exitcode`.

use std::fmt;
use std::time::SystemTime;

use chrono::{DateTime, Local};
use lockstep_contract::foreign;

use super::failure::{Failure, describe_exit};
use super::root::Report;
use super::text::indented;

/// torch's maximum width of a rule, in characters.
const WIDEST: usize = 60;
/// The number of last lines that are shown.
const SHOWN: usize = 20;

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
    format!(
        "[{at}]:\n  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: {})\n  \
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

#[cfg(test)]
mod tests {
    use super::super::failure::Death;
    use super::super::failure::tests::{at, death, with_file};
    use super::*;
    use crate::verdict::{Class, Verdict};

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
  exitcode  : -6 (pid: 100)
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
  exitcode  : -9 (pid: 101)
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
}
