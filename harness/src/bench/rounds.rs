//! Rounds: in each, every side of every case has one turn. Sides go forwards in one round and backwards in the next
//! (A B, B A, A B, …), so that neither always follows the other, and drift of the machine meets all of them.

use std::io::{Write, stderr};

use anyhow::Context;

use super::machine::State;
use super::place::Place;
use super::results::{Measure, Results, Side, Unit};

/// What is measured: cases, and what this machine cannot measure.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) cases: Vec<Case<'a>>,
    /// Each with its reason.
    pub(super) not_measured: Vec<String>,
}

/// One case: sides that do the same, in turns.
pub(super) struct Case<'a> {
    /// Unique in the bench: `8 ranks, 1 agent`.
    pub(super) name: String,
    /// What each turn measures.
    pub(super) quantities: Vec<Quantity>,
    /// What the reader must know about this case.
    pub(super) labels: Vec<String>,
    /// The subject first.
    pub(super) sides: Vec<Contestant<'a>>,
}

/// What a turn measures.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quantity {
    pub(super) name: String,
    pub(super) unit: Unit,
    /// Bytes of a collective, and its bus factor ([`lockstep_cost::Collective::bus_factor`]).
    pub(super) moved: Option<(u64, f64)>,
    /// In the tables of scaling.
    pub(super) place: Option<Place>,
}

impl Quantity {
    pub(super) fn new(name: &str, unit: Unit) -> Self {
        Quantity { name: name.to_owned(), unit, moved: None, place: None }
    }
}

/// One side of a case.
pub(super) struct Contestant<'a> {
    pub(super) name: &'static str,
    /// A turn: one value for each quantity, in their order.
    pub(super) turn: Turn<'a>,
}

/// Does the work once and returns one value for each quantity.
pub(super) type Turn<'a> = Box<dyn FnMut() -> anyhow::Result<Vec<f64>> + 'a>;

impl Plan<'_> {
    /// Its measures, still without samples.
    pub(super) fn measures(&self) -> Vec<Measure> {
        let measure = |case: &Case<'_>, quantity: &Quantity| Measure {
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
    /// # Errors
    /// That of a turn, with its place; that of `after`. The samples of complete rounds are in `results`, no others.
    pub(super) fn run(
        &mut self,
        warm_up: usize,
        results: &mut Results,
        mut after: impl FnMut(&Results) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for round in 0..warm_up {
            self.round(round, &format!("warm-up {} of {warm_up}", round + 1))?;
        }
        results.before = State::now();
        for round in 0..results.rounds {
            let samples = self.round(round, &format!("round {} of {}", round + 1, results.rounds))?;
            let sides = results.measures.iter_mut().flat_map(|measure| &mut measure.sides);
            sides.zip(samples).for_each(|(side, sample)| side.samples.push(sample));
            results.after = State::now();
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

impl Case<'_> {
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
        let shown = |(side, values): (&Contestant<'_>, &Vec<f64>)| format!("{} {}", side.name, unit.show(values[0]));
        self.sides.iter().zip(turns).map(shown).collect::<Vec<_>>().join(", ")
    }
}

/// The order of the sides in a round: forwards, then backwards.
fn order(sides: usize, round: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..sides).collect() } else { (0..sides).rev().collect() }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn results(plan: &Plan<'_>, rounds: usize) -> Results {
        let mut results = Results::new("test", String::new(), String::new(), rounds);
        results.measures = plan.measures();
        results
    }

    /// Two cases of two sides that note their turns.
    fn plan<'a>(turns: &'a RefCell<Vec<String>>, fail_at: usize) -> Plan<'a> {
        let side = |case: &'static str, name: &'static str| Contestant {
            name,
            turn: Box::new(move || {
                let mut turns = turns.borrow_mut();
                turns.push(format!("{case}{name}"));
                anyhow::ensure!(turns.len() != fail_at, "no more");
                Ok(vec![turns.len() as f64, 100.0 * turns.len() as f64])
            }),
        };
        let case = |case: &'static str| Case {
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
}
