//! What the tour found, as tables for people and as JSON for programs.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment};
use serde::Serialize;

use super::screen::Screen;
use crate::exit::Code;
use crate::proofs::{Finding, Verdict};
use crate::run::{Evidence, Trace};

/// A run that has ended.
pub(super) struct Run {
    /// `A` or `B`.
    pub(super) name: &'static str,
    pub(super) evidence: Evidence,
    /// How long it took.
    pub(super) seconds: f64,
}

/// Both runs and what they prove.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Of all findings together.
    verdict: Verdict,
    findings: Vec<Finding>,
    runs: [RunReport; 2],
    /// The folder with the runs' files, where they were kept.
    kept: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct RunReport {
    name: &'static str,
    ranks: usize,
    batch_size: usize,
    seed: u64,
    train_samples: u64,
    test_samples: u64,
    seconds: f64,
    /// Empty if the event files do not tell.
    epochs: Vec<EpochReport>,
}

#[derive(Debug, Serialize)]
struct EpochReport {
    epoch: usize,
    /// Over all samples of all ranks.
    loss: f64,
    /// As rank 0 reports it, of all held-out samples.
    accuracy: Option<f64>,
}

impl Report {
    pub(super) fn new(findings: Vec<Finding>, runs: [Run; 2], kept: Option<PathBuf>) -> Self {
        Report { verdict: overall(&findings), findings, runs: runs.map(|run| RunReport::new(&run)), kept }
    }

    /// 1 if any finding failed. What could not be verified is no failure, and is named.
    pub(super) fn code(&self) -> Code {
        if self.verdict == Verdict::Failed { Code::Failure } else { Code::Success }
    }

    /// Tables where the screen is, and JSON on stdout if that is a program's.
    pub(super) fn show(&self, screen: &Screen) -> anyhow::Result<()> {
        screen.line("\nWhat the event files tell");
        screen.line(self.losses(screen));
        screen.line("\nWhat the files prove");
        screen.line(self.proofs(screen));
        screen.line(self.summary());
        if screen.stdout_is_taken() {
            let mut stdout = std::io::stdout().lock();
            let json = serde_json::to_string_pretty(self).context("cannot write the report as JSON")?;
            writeln!(stdout, "{json}").context("cannot write the report to stdout")?;
        }
        Ok(())
    }

    fn losses(&self, screen: &Screen) -> comfy_table::Table {
        let [a, b] = &self.runs;
        let of = |what: &str, run: &RunReport| format!("{what} {}", run.name);
        let headings =
            ["epoch", &of("loss", a), &of("accuracy", a), &of("loss", b), &of("accuracy", b)].map(str::to_owned);
        let mut table = screen.table(&headings.each_ref().map(String::as_str));
        for epoch in 0..a.epochs.len().max(b.epochs.len()) {
            let cells =
                self.runs.iter().flat_map(|run| run.epochs.get(epoch).map_or([dash(), dash()], EpochReport::cells));
            table.add_row(std::iter::once(epoch.to_string()).chain(cells));
        }
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        table
    }

    fn proofs(&self, screen: &Screen) -> comfy_table::Table {
        let mut table = screen.table(&["verdict", "claim", "evidence"]);
        for finding in &self.findings {
            table.add_row([screen.verdict(finding.verdict), Cell::new(&finding.claim), Cell::new(&finding.evidence)]);
        }
        table
    }

    /// `4 passed in 7.9 s`; other verdicts only where there are any.
    fn summary(&self) -> String {
        let count = |verdict| self.findings.iter().filter(|finding| finding.verdict == verdict).count();
        let counts = [Verdict::Passed, Verdict::Failed, Verdict::NotVerified].map(|verdict| (count(verdict), verdict));
        let told = counts.iter().filter(|(count, _)| *count > 0).map(|(count, verdict)| format!("{count} {verdict}"));
        let [a, b] = &self.runs;
        let kept = self.kept.as_ref().map_or(String::new(), |folder| format!("; files in {}", folder.display()));
        let times = format!("run {} took {:.1} s, run {} {:.1} s", a.name, a.seconds, b.name, b.seconds);
        format!("{}; {times}{kept}", told.collect::<Vec<_>>().join(", "))
    }
}

impl RunReport {
    fn new(run: &Run) -> Self {
        let plan = &run.evidence.plan;
        let trace = Trace::of(&run.evidence).unwrap_or(Trace { epochs: vec![] });
        let epochs = trace.epochs.iter().enumerate().map(|(epoch, of)| {
            let accuracy = of.evals.first().copied().flatten().map(|eval| eval.accuracy);
            EpochReport { epoch, loss: of.loss(), accuracy }
        });
        RunReport {
            name: run.name,
            ranks: plan.ranks,
            batch_size: plan.batch,
            seed: plan.seed,
            train_samples: plan.sizes.train,
            test_samples: plan.sizes.test,
            seconds: run.seconds,
            epochs: epochs.collect(),
        }
    }
}

impl EpochReport {
    fn cells(&self) -> [String; 2] {
        [format!("{:.4}", self.loss), self.accuracy.map_or_else(dash, |accuracy| format!("{:.2} %", accuracy * 100.0))]
    }
}

fn dash() -> String {
    "–".to_owned()
}

/// Failed if any failed, else not verified if any was not.
fn overall(findings: &[Finding]) -> Verdict {
    let any = |verdict| findings.iter().any(|finding| finding.verdict == verdict);
    [Verdict::Failed, Verdict::NotVerified].into_iter().find(|verdict| any(*verdict)).unwrap_or(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(verdict: Verdict) -> Finding {
        Finding { claim: "It holds".into(), verdict, evidence: "7 numbers".into() }
    }

    fn run(name: &'static str) -> RunReport {
        let epochs = vec![EpochReport { epoch: 0, loss: 0.25, accuracy: Some(0.9625) }];
        let (ranks, batch_size, seed, train_samples, test_samples, seconds) = (2, 4, 0, 8, 2, 1.25);
        RunReport { name, ranks, batch_size, seed, train_samples, test_samples, seconds, epochs }
    }

    fn report(verdicts: &[Verdict]) -> Report {
        let findings: Vec<_> = verdicts.iter().copied().map(finding).collect();
        Report { verdict: overall(&findings), findings, runs: [run("A"), run("B")], kept: None }
    }

    #[test]
    fn fails_if_anything_failed_and_names_what_was_not_verified() {
        use Verdict::{Failed, NotVerified, Passed};
        let told = |verdicts: &[Verdict]| (report(verdicts).code(), report(verdicts).summary());
        let times = "run A took 1.2 s, run B 1.2 s";
        assert_eq!(told(&[Passed, Passed]), (Code::Success, format!("2 passed; {times}")));
        let all = [Passed, NotVerified, Failed];
        assert_eq!(told(&all), (Code::Failure, format!("1 passed, 1 FAILED, 1 not verified here; {times}")));
        assert_eq!(told(&[NotVerified]), (Code::Success, format!("1 not verified here; {times}")));
        assert_eq!(overall(&[finding(Passed), finding(NotVerified)]), NotVerified);
    }

    #[test]
    fn keeps_every_line_within_the_width() {
        let mut report = report(&[Verdict::NotVerified]);
        report.findings[0].evidence = "a long tale of ".repeat(30);
        let screen = Screen::new(true);
        let text = format!("{}\n{}", report.losses(&screen), report.proofs(&screen));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("0.2500") && text.contains("96.25 %") && text.contains("not verified here"), "{text}");
    }

    #[test]
    fn shows_a_dash_for_what_the_event_files_do_not_tell() {
        let mut report = report(&[]);
        report.runs[1].epochs.clear();
        report.runs[0].epochs[0].accuracy = None;
        assert_eq!(report.losses(&Screen::new(true)).to_string().matches('–').count(), 3);
    }
}
