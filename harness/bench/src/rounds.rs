//! Runs a bench: shows the machine, runs rounds, writes files after each, and prints the tables.
//!
//! In a round, every side of every case has one turn. Sides go forwards in one round and backwards in the next (A B, B A, A B, …), so that
//! neither always follows the other, and drift of the machine affects all of them.

use std::io::{Write, stderr};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use lockstep_grading::{Python, PythonMissing};
use lockstep_process::Signals;

use crate::exit::{Code, Interrupted};
use crate::launcher::Peer;
use crate::machine::MachineState;
use crate::nodes::ScalingPoint;
use crate::report::{Form, Screen, Target, TextStyle, command_line, rfc3339};
use crate::results::{Measure, Results, Side, Unit};
use crate::{page, shown};

/// What is measured: cases, and what this machine cannot measure.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    pub(crate) cases: Vec<BenchCase<'a>>,
    /// Each with its reason.
    pub(crate) not_measured: Vec<String>,
}

/// One case: sides that do the same, in turns.
pub(crate) struct BenchCase<'a> {
    /// Unique in the bench: `8 ranks, 1 agent`.
    pub(crate) name: String,
    /// What each turn measures.
    pub(crate) quantities: Vec<Quantity>,
    /// What the reader must know about this case.
    pub(crate) labels: Vec<String>,
    /// The subject first.
    pub(crate) sides: Vec<CaseSide<'a>>,
}

/// What a turn measures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quantity {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// Bytes of a collective, and its bus factor ([`lockstep_cost::Collective::bus_factor`]).
    pub(crate) moved: Option<(u64, f64)>,
    /// In the tables of scaling.
    pub(crate) place: Option<ScalingPoint>,
}

impl Quantity {
    pub(crate) fn new(name: &str, unit: Unit) -> Self {
        Quantity { name: name.to_owned(), unit, moved: None, place: None }
    }
}

pub(crate) struct CaseSide<'a> {
    pub(crate) name: &'static str,
    /// A turn: one value for each quantity, in their order.
    pub(crate) turn: Turn<'a>,
}

/// Does the work once and returns one value for each quantity.
pub(crate) type Turn<'a> = Box<dyn FnMut() -> anyhow::Result<Vec<f64>> + 'a>;

impl Plan<'_> {
    /// Its measures, still without samples.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        let measure = |case: &BenchCase<'_>, quantity: &Quantity| Measure {
            case: case.name.clone(),
            quantity: quantity.name.clone(),
            unit: quantity.unit,
            moved: quantity.moved,
            place: quantity.place.clone(),
            labels: case.labels.clone(),
            sides: case.sides.iter().map(|side| Side { name: side.name.into(), samples: Vec::new() }).collect(),
        };
        self.cases.iter().flat_map(|case| case.quantities.iter().map(move |quantity| measure(case, quantity))).collect()
    }

    /// Runs `warm_up` rounds that do not count, then those of `results`, and calls `after` when each is complete.
    ///
    /// Errors: that of a turn, with its place; that of `after`. The samples of complete rounds are in `results`, no others.
    pub(crate) fn run(
        &mut self,
        warm_up: usize,
        results: &mut Results,
        mut after: impl FnMut(&Results) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for round in 0..warm_up {
            self.round(round, &format!("warm-up {} of {warm_up}", round + 1))?;
        }
        results.before = MachineState::now();
        for round in 0..results.rounds {
            let samples = self.round(round, &format!("round {} of {}", round + 1, results.rounds))?;
            let sides = results.measures.iter_mut().flat_map(|measure| &mut measure.sides);
            sides.zip(samples).for_each(|(side, sample)| side.samples.push(sample));
            results.after = MachineState::now();
            after(results)?;
        }
        Ok(())
    }

    /// One round; its samples in the order of the measures and their sides.
    fn round(&mut self, number: usize, name: &str) -> anyhow::Result<Vec<f64>> {
        let mut samples = Vec::new();
        for case in &mut self.cases {
            let turns = case.turns(number).with_context(|| format!("{name} of {} failed", case.name))?;
            let _ = writeln!(stderr(), "{name}: {}: {}", case.name, case.progress(&turns));
            samples.extend((0..case.quantities.len()).flat_map(|place| turns.iter().map(move |turn| turn[place])));
        }
        Ok(samples)
    }
}

impl BenchCase<'_> {
    /// A turn of each side; the values in the order of the sides.
    fn turns(&mut self, round: usize) -> anyhow::Result<Vec<Vec<f64>>> {
        let mut values = vec![Vec::new(); self.sides.len()];
        for place in order(self.sides.len(), round) {
            let side = &mut self.sides[place];
            values[place] = (side.turn)().with_context(|| format!("the turn of {} failed", side.name))?;
            debug_assert_eq!(values[place].len(), self.quantities.len());
        }
        Ok(values)
    }

    /// The first quantity of each side.
    fn progress(&self, turns: &[Vec<f64>]) -> String {
        let unit = self.quantities[0].unit;
        let shown = |(side, values): (&CaseSide<'_>, &Vec<f64>)| format!("{} {}", side.name, unit.show(values[0]));
        self.sides.iter().zip(turns).map(shown).collect::<Vec<_>>().join(", ")
    }
}

/// The order of the sides in a round: forwards, then backwards.
fn order(sides: usize, round: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..sides).collect() } else { (0..sides).rev().collect() }
}

/// The options of every bench
#[derive(Args)]
pub(crate) struct CommonOptions {
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
    #[arg(long = "report", value_name = "FILE", value_parser = |name: &str| Target::parse(name, FORMS))]
    reports: Vec<Target>,
    /// Time limit of each wait in a turn, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl CommonOptions {
    /// The limit of a wait.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Rounds, with those that do not count.
    pub(crate) fn all_rounds(&self) -> usize {
        usize::from(self.warm_up) + usize::from(self.rounds)
    }

    /// The Python to compare with, or why there is none; `None` if nobody asked.
    fn python(&self) -> Option<Result<Python, PythonMissing>> {
        let python = self.against.map(|Peer::Python| Python::find());
        if let Some(Ok(python)) = &python {
            let (program, version) = (python.program.display(), &python.version);
            let _ = writeln!(stderr(), "the peer is PyTorch {version} of {program}");
        }
        python
    }

    /// What is measured: `own`, then the peer's if it was asked for; and which peer is missing, with the reason.
    pub(crate) fn sides<T>(
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
            Err(error) if error.is::<PythonMissing>() => Ok((own, vec![format!("{peer}: {error}")])),
            Err(error) => Err(error),
        }
    }

    /// Runs the bench `name`.
    ///
    /// Errors: that of making the plan or of a turn, after the complete rounds were shown; [`Interrupted`].
    pub(crate) fn exec<'a>(
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
        let write = |results: &Results| each.iter().try_for_each(|target| write_results(target, results));
        let done = plan.run(usize::from(self.warm_up), &mut results, |results| match signals.arrived() {
            Some(signal) => Err(Interrupted { signal }.into()),
            None => write(results),
        });
        screen.line(shown::results(&results, screen.style()));
        done?;
        last.iter().try_for_each(|target| write_results(target, &results))?;
        Ok(Code::Success)
    }
}

/// The forms of results.
const FORMS: &[Form] = &[Form::Json, Form::Csv, Form::Svg, Form::Html, Form::Text];

pub(crate) fn write_results(target: &Target, results: &Results) -> anyhow::Result<()> {
    target.save("the results", &render(results, target.form)?)
}

fn render(results: &Results, form: Form) -> anyhow::Result<String> {
    Ok(match form {
        Form::Csv => results.csv()?,
        Form::Html => page::render(results),
        Form::Json => results.json()?,
        Form::Svg => page::file(results),
        Form::Junit => anyhow::bail!("results of a bench are no tests"),
        Form::Text => {
            let (compared, machine) = (shown::compared(results), shown::machine(results));
            format!("{compared}\n{machine}\n{}\n", shown::results(results, TextStyle::FILE))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::results::testing::sample;

    fn results(plan: &Plan<'_>, rounds: usize) -> Results {
        let mut results = Results::new("test", String::new(), String::new(), rounds);
        results.measures = plan.measures();
        results
    }

    /// Two cases of two sides that note their turns.
    fn plan<'a>(turns: &'a RefCell<Vec<String>>, fail_at: usize) -> Plan<'a> {
        let side = |case: &'static str, name: &'static str| CaseSide {
            name,
            turn: Box::new(move || {
                let mut turns = turns.borrow_mut();
                turns.push(format!("{case}{name}"));
                anyhow::ensure!(turns.len() != fail_at, "no more");
                Ok(vec![turns.len() as f64, 100.0 * turns.len() as f64])
            }),
        };
        let case = |case: &'static str| BenchCase {
            name: case.into(),
            quantities: vec![Quantity::new("time", Unit::Seconds), Quantity::new("memory", Unit::Bytes)],
            labels: vec![],
            sides: vec![side(case, "A"), side(case, "B")],
        };
        Plan { cases: vec![case("x"), case("y")], not_measured: vec![] }
    }

    #[test]
    fn sides_take_turns_forwards_and_backwards() {
        let turns = RefCell::new(vec![]);
        let mut plan = plan(&turns, usize::MAX);
        let (mut results, mut complete) = (results(&plan, 2), vec![]);
        let note = |results: &Results| {
            complete.push(results.complete());
            Ok(())
        };
        plan.run(1, &mut results, note).unwrap();
        let expected = ["xA", "xB", "yA", "yB"].into_iter().cycle().take(4);
        let round = |first: &[&str]| first.iter().map(|turn| (*turn).to_owned()).collect::<Vec<_>>();
        let even: Vec<String> = expected.map(str::to_owned).collect();
        assert_eq!(*turns.borrow(), [even.clone(), even, round(&["xB", "xA", "yB", "yA"])].concat());
        assert_eq!(complete, [1, 2]);
    }

    #[test]
    fn keeps_each_value_with_its_quantity_and_side() {
        let turns = RefCell::new(vec![]);
        let mut plan = plan(&turns, usize::MAX);
        let mut results = results(&plan, 2);
        plan.run(0, &mut results, |_| Ok(())).unwrap();
        let found: Vec<_> =
            results.measures.iter().map(|m| (&*m.case, &*m.quantity, m.sides[1].samples.clone())).collect();
        let expected = [
            ("x", "time", vec![2.0, 5.0]),
            ("x", "memory", vec![200.0, 500.0]),
            ("y", "time", vec![4.0, 7.0]),
            ("y", "memory", vec![400.0, 700.0]),
        ];
        assert_eq!(found, expected);
        assert_eq!(results.measures[0].sides[0].samples, [1.0, 6.0]);
    }

    #[test]
    fn keeps_complete_rounds_when_a_turn_fails() {
        let turns = RefCell::new(vec![]);
        let mut plan = plan(&turns, 6);
        let mut results = results(&plan, 3);
        let error = plan.run(0, &mut results, |_| Ok(())).unwrap_err();
        assert_eq!(format!("{error:#}"), "round 2 of 3 of x failed: the turn of A failed: no more");
        assert_eq!(results.complete(), 1);
        assert!(results.measures.iter().flat_map(|measure| &measure.sides).all(|side| side.samples.len() == 1));
    }

    #[test]
    fn takes_the_form_from_the_ending() {
        let dir = tempfile::tempdir().unwrap();
        for (name, begins) in [
            ("a.html", "<!DOCTYPE html>"),
            ("b.JSON", "{\n"),
            ("c.csv", "bench,case,quantity"),
            ("new/d.svg", "<svg "),
            ("e.txt", "lockstep measure launch: lockstep compared with torchrun\n2 cores"),
        ] {
            let path = dir.path().join(name);
            write_results(&Target::parse(path.to_str().unwrap(), FORMS).unwrap(), &sample()).unwrap();
            assert!(std::fs::read_to_string(&path).unwrap().starts_with(begins), "{name}");
        }
        assert!(Target::parse("-", FORMS).unwrap().is_stdout());
        for name in ["results", "results.xml", "", "folder/"] {
            assert!(Target::parse(name, FORMS).unwrap_err().contains(".json"), "{name}");
        }
    }
}
