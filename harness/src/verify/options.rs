//! The command: its options, and what it does.

use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use super::labs::VerifiedLab;
use super::series::Series;
use crate::exit::{Code, Refused};
use crate::lab_run::program_beside;
use crate::report::{Case, Screen, counts};
use crate::runner::{SeriesOptions, SuiteRunner, finish, job_runner, report};

/// Run the labs and check what each promises
#[derive(Args)]
pub(crate) struct Options {
    /// Labs by number or name [default: all that are built]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Ranks of the runs with several
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    nprocs: u16,
    /// Time limit of one run in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    #[command(flatten)]
    series: SeriesOptions,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let labs = VerifiedLab::find_all(&self.labs)?;
        // A lab that was requested by name must be built; of the others, those that are.
        let program = |lab: VerifiedLab| (program_beside(&lab.program()), lab);
        let programs: Vec<_> = labs.into_iter().map(program).collect();
        if !self.labs.is_empty() || programs.iter().all(|(program, _)| program.is_err()) {
            programs.iter().try_for_each(|(program, _)| match program {
                Ok(_) => Ok(()),
                Err(error) => Err(anyhow::Error::from(Refused(error.to_string()))),
            })?;
        }
        let (begin, started) = (Instant::now(), SystemTime::now());
        let runner = job_runner(self.series.launcher.clone(), Some(Duration::from_secs(self.timeout)), false)?;
        let launcher = runner.launcher.clone();
        let suite = SuiteRunner::open(runner, self.series.keep.as_deref())?;
        let mut series = Series {
            suite,
            launcher,
            ranks: usize::from(self.nprocs),
            screen: Screen::new(self.series.takes_stdout()),
        };
        let cases = programs.into_iter().map(|(program, lab)| series.verify(&lab, program));
        let cases = cases.collect::<anyhow::Result<Vec<_>>>()?;
        let Series { suite, screen, .. } = series;
        let report = report("Lockstep verify", started, begin.elapsed(), cases);
        let verdicts: Vec<_> = report.cases.iter().map(Case::verdict).collect();
        screen.line(format!("labs: {} in {:.1} s", counts(&verdicts), report.took.as_secs_f64()));
        finish(&screen, suite, &report, &self.series.reports)
    }
}
