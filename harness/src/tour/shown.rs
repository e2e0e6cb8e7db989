//! What the tour shows of its two runs.

use lockstep_contract::foreign::escaped;

use super::figures::{self, Epoch};
use super::summary;
use crate::report::{Case, Screen, Table, counts, findings_table, numbers_table, picture};
use crate::runner::{ScenarioOutcome, case};

/// Both runs, for people.
pub(super) struct Shown {
    pub(super) case: Case,
    moments: Vec<summary::Moment>,
    epochs: [Vec<Epoch>; 2],
    seconds: [f64; 2],
}

impl Shown {
    pub(super) fn new(undisturbed: &ScenarioOutcome, killed: &ScenarioOutcome) -> Self {
        let epochs = |outcome: &ScenarioOutcome| {
            outcome.seen.as_ref().map_or_else(Vec::new, |seen| figures::epochs(&seen.events))
        };
        let seconds = |outcome: &ScenarioOutcome| outcome.seen.as_ref().map_or(0.0, |seen| seen.seconds);
        let seen = killed.seen.as_ref();
        let mut shown = Shown {
            case: case(killed, Some("lockstep tour".into()), Some(killed.scenario.run.seed)),
            moments: seen.map_or_else(Vec::new, |seen| summary::moments(&seen.events)),
            epochs: [epochs(undisturbed), epochs(killed)],
            seconds: [seconds(undisturbed), seconds(killed)],
        };
        shown.case.tables = vec![shown.losses()];
        shown
    }

    pub(super) fn show(&self, screen: &Screen) {
        let look = screen.look();
        screen.line("\nWhat happened in run B");
        for moment in &self.moments {
            screen.line(format!("{:>7.2} s  {}", moment.at, escaped(&moment.what)));
        }
        if let Some(timeline) = &self.case.timeline {
            screen.line(format!("\n{}", picture(timeline, look.width, look.unicode)));
        }
        let losses = self.losses();
        screen.line(format!("\n{}\n{}", losses.title, numbers_table(&losses, look)));
        screen.line("\nWhat the files prove");
        screen.line(findings_table(&self.case.findings, look));
        let [a, b] = self.seconds;
        let verdicts: Vec<_> = self.case.findings.iter().map(|finding| finding.verdict).collect();
        screen.line(format!("{}; run A took {a:.1} s, run B {b:.1} s", counts(&verdicts)));
    }

    fn losses(&self) -> Table {
        let headings = ["epoch", "loss A", "accuracy A", "loss B", "accuracy B"].map(str::to_owned).to_vec();
        let [a, b] = &self.epochs;
        let row = |epoch: usize| {
            let cells = self.epochs.iter().flat_map(|run| cells(run.get(epoch)));
            std::iter::once(epoch.to_string()).chain(cells).collect()
        };
        let title = "What was learned (of steps that were done twice, the last counts)".into();
        Table { title, headings, rows: (0..a.len().max(b.len())).map(row).collect() }
    }
}

fn cells(epoch: Option<&Epoch>) -> [String; 2] {
    let dash = || "–".to_owned();
    let accuracy = |epoch: &Epoch| epoch.accuracy.map(|accuracy| format!("{:.2} %", accuracy * 100.0));
    [epoch.map_or_else(dash, |epoch| format!("{:.4}", epoch.loss)), epoch.and_then(accuracy).unwrap_or_else(dash)]
}
