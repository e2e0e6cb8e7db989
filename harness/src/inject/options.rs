//! The command: its options, and the scenarios that they select.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::series::{Entry, Series};
use super::soak;
use crate::exit::{Code, Refused};
use crate::report::Screen;
use crate::runner::scenario::{Scenario, parse};
use crate::runner::{SeriesOptions, SuiteRunner, job_runner, library};

/// Break training runs on purpose, and check that they end with the same bits as an undisturbed run
#[derive(Args)]
pub(crate) struct Options {
    /// Scenarios of the library by name, or files that end in .toml
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Every scenario of the library
    #[arg(long, conflicts_with_all = ["scenarios", "soak"])]
    all: bool,
    /// List the library
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print a scenario's file, as a starting point for your own
    #[arg(long, value_name = "NAME", exclusive = true)]
    show: Option<String>,
    /// Run this many random scenarios, drawn from the seed
    #[arg(long, value_name = "COUNT", conflicts_with = "scenarios")]
    soak: Option<u64>,
    /// Seed of the random scenarios
    #[arg(long, default_value_t = 0, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    seed: u64,
    /// Random scenarios to skip first
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    skip: u64,
    /// Ranks of the random scenarios
    #[arg(long, default_value_t = 2, requires = "soak", conflicts_with_all = ["scenarios", "all"], value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    /// Nodes that share them, each with its own agent; with several, agents, nodes, disks and networks fail, too
    #[arg(long, default_value_t = 1, requires = "soak", conflicts_with_all = ["scenarios", "all"], value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Stop the job by signals at random moments, in place of faults, and start it again until it succeeds
    #[arg(long, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    stops: bool,
    /// Continue after a random scenario that failed
    #[arg(long, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    keep_going: bool,
    /// Time limit of one run in seconds, instead of the scenarios' own
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    #[command(flatten)]
    series: SeriesOptions,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        if self.list {
            return list();
        }
        if let Some(name) = &self.show {
            return print(library::text(name)?);
        }
        let entries = self.entries()?;
        let needs_lab =
            entries.iter().any(|entry| entry.scenario.run.program.is_none() && entry.scenario.run.lab.is_none());
        let runner = job_runner(self.series.launcher.clone(), self.timeout.map(Duration::from_secs), needs_lab)?;
        let suite = SuiteRunner::open(runner, self.series.keep.as_deref())?;
        let series = Series::new(self.series.takes_stdout(), suite);
        series.run(entries, self.soak.map(|_| self.keep_going), &self.series.reports)
    }

    fn entries(&self) -> anyhow::Result<Vec<Entry>> {
        if let Some(count) = self.soak {
            if self.stops && self.nodes > 1 {
                return Err(Refused("--stops is for one node: leave --nodes out".into()).into());
            }
            if !self.ranks.is_multiple_of(self.nodes) {
                let message =
                    format!("--ranks is {} and --nodes {}: each node has equally many ranks", self.ranks, self.nodes);
                return Err(Refused(message).into());
            }
            let places = self.skip..self.skip.saturating_add(count);
            return Ok(places.map(|index| self.drawn(index)).collect());
        }
        let named: Vec<String> =
            if self.all { library::names().map(str::to_owned).collect() } else { self.scenarios.clone() };
        if named.is_empty() {
            return Err(Refused(
                "name a scenario, or --all, or --soak COUNT; `lockstep inject --list` lists them".into(),
            )
            .into());
        }
        let entry = |name: &String| {
            find(name).map(|scenario| Entry { scenario, replay: format!("lockstep inject {name}"), seed: None })
        };
        Ok(named.iter().map(entry).collect::<Result<_, _>>()?)
    }

    fn drawn(&self, index: u64) -> Entry {
        let (ranks, nodes) = (usize::from(self.ranks), usize::from(self.nodes));
        let series = soak::Series { seed: self.seed, ranks, nodes, stops: self.stops };
        let replay = format!("lockstep inject {}", soak::replay(series, index));
        Entry { scenario: soak::draw(series, index), replay, seed: Some(self.seed) }
    }
}

/// A file, or a scenario of the library.
fn find(name: &str) -> Result<Scenario, Refused> {
    if !name.ends_with(".toml") {
        return library::scenario(name);
    }
    let text = std::fs::read_to_string(Path::new(name));
    parse(name, &text.map_err(|error| Refused(format!("cannot read the scenario {name}: {error}")))?)
}

fn list() -> anyhow::Result<Code> {
    let scenarios = library::names().map(|name| Ok((name, library::scenario(name)?.title)));
    let scenarios = scenarios.collect::<Result<Vec<_>, Refused>>()?;
    let entries: Vec<_> = scenarios.iter().map(|(name, title)| (*name, title.as_str())).collect();
    Screen::new(false).listing(&entries);
    Ok(Code::Success)
}

fn print(text: &str) -> anyhow::Result<Code> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")?;
    Ok(Code::Success)
}
