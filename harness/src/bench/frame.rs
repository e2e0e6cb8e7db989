//! The frame of all benches: their common options, and the way from a plan to results. The machine is shown first, then the rounds
//! run, files are written after each, and the tables come last.

use std::io::{Write, stderr};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use lockstep_process::Signals;

use super::export::{self, Form};
use super::peer::{NotAtHand, Peer, Python};
use super::results::Results;
use super::rounds::Plan;
use super::shown;
use crate::exit::{Code, Interrupted};
use crate::report::{Screen, Target, command_line, rfc3339};

/// The options of every bench
#[derive(Args)]
pub(super) struct Frame {
    /// Rounds: in each, every side has a turn; 6 at least for a verdict
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Rounds before them that do not count
    #[arg(long, value_name = "ROUNDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=100))]
    warm_up: u16,
    /// A peer to compare with, which takes turns with Lockstep; left out if it is not installed
    #[arg(long, value_name = "PEER")]
    against: Option<Peer>,
    /// Write the results after each round: .json (for `bench compare`), .csv, .svg, .html or .txt, or JSON on stdout (-); may be
    /// repeated
    #[arg(long = "report", value_name = "FILE")]
    reports: Vec<Target<Form>>,
    /// Time limit of each wait in a turn, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl Frame {
    /// The limit of a wait.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Rounds, with those that do not count.
    pub(super) fn all_rounds(&self) -> usize {
        usize::from(self.warm_up) + usize::from(self.rounds)
    }

    /// The Python to compare with, or why there is none; `None` if nobody asked.
    fn python(&self) -> Option<Result<Python, NotAtHand>> {
        let python = self.against.map(|Peer::Python| Python::find());
        if let Some(Ok(python)) = &python {
            let (program, version) = (python.program.display(), &python.version);
            let _ = writeln!(stderr(), "the peer is PyTorch {version} of {program}");
        }
        python
    }

    /// What is measured: `own`, then the peer's if it was asked for; and which peer is not at hand, with the reason.
    ///
    /// # Errors
    /// That of making the peer's, unless it is [`NotAtHand`].
    pub(super) fn sides<T>(
        &self,
        peer: &str,
        mut own: Vec<T>,
        theirs: impl FnOnce(Python) -> anyhow::Result<Vec<T>>,
    ) -> anyhow::Result<(Vec<T>, Vec<String>)> {
        match self.python().map_or_else(|| Ok(vec![]), |python| theirs(python?)) {
            Ok(theirs) => {
                own.extend(theirs);
                Ok((own, vec![]))
            }
            Err(error) if error.is::<NotAtHand>() => Ok((own, vec![format!("{peer}: {error}")])),
            Err(error) => Err(error),
        }
    }

    /// Runs the bench `name`.
    ///
    /// # Errors
    /// That of making the plan or of a turn, after the complete rounds were shown; [`Interrupted`].
    pub(super) fn exec<'a>(
        &self,
        name: &str,
        plan: impl FnOnce(&'a Signals) -> anyhow::Result<Plan<'a>>,
    ) -> anyhow::Result<Code> {
        // It lives as long as the command.
        let signals: &Signals = Box::leak(Box::new(Signals::listen().context("cannot listen for signals")?));
        let screen = Screen::new(self.reports.iter().any(Target::is_stdout));
        let started = rfc3339(SystemTime::now());
        let mut results = Results::new(name, command_line(), started, usize::from(self.rounds));
        let mut plan = plan(signals)?;
        results.measures = plan.measures();
        screen.line(shown::compared(&results));
        screen.line(shown::machine(&results));
        results.not_measured = std::mem::take(&mut plan.not_measured);
        // Stdout, once at the end.
        let (last, each): (Vec<_>, Vec<_>) = self.reports.iter().partition(|target| target.is_stdout());
        let write = |results: &Results| each.iter().try_for_each(|target| export::write(target, results));
        let done = plan.run(usize::from(self.warm_up), &mut results, |results| match signals.arrived() {
            Some(signal) => Err(Interrupted { signal }.into()),
            None => write(results),
        });
        screen.line(shown::results(&results, screen.look()));
        done?;
        last.iter().try_for_each(|target| export::write(target, &results))?;
        Ok(Code::Success)
    }
}
