//! `lockstep bench compare`: two results of the same bench, and which of their differences are more than noise.
//!
//! The two were measured at different times. So the samples are not in pairs, and the test is Mann and Whitney's. If both files have
//! the same peer, the ratios to it are compared, since the peer met the same machine in the same rounds.

use std::path::PathBuf;

use clap::Args;

use crate::exit::{Code, Refused};
use crate::report::{Screen, Table, count, numbers_table, wrapped};
use crate::results::{self, Measure, Results, Side, digits};
use crate::shown;
use crate::statistics::{Ratio, Spread};

/// Compare two results of the same bench: what is faster, slower, or not shown to differ
#[derive(Args)]
pub(crate) struct CompareOptions {
    /// The results before: a file of `--report FILE.json`
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// The results after
    #[arg(value_name = "B.json")]
    after: PathBuf,
}

impl CompareOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (before, after) = (Results::read(&self.before)?, Results::read(&self.after)?);
        let screen = Screen::new(false);
        let (table, mut notes) = compare(&before, &after)?;
        let (a, b) = (self.before.display(), self.after.display());
        screen.line(format!("{}: A is {a}, B is {b}", table.title));
        screen.line(numbers_table(&table, screen.style()));
        notes.push(format!(
            "an interval has at least 95 % confidence (Mann and Whitney's test), so of 20 rows without a difference one may still \
             show one: measure again what matters (here {})",
            count(table.rows.len(), "row")
        ));
        notes.iter().for_each(|note| screen.line(wrapped(&format!("note: {note}"), screen.style().width)));
        Ok(Code::Success)
    }
}

/// The table, and what its reader must know.
fn compare(before: &Results, after: &Results) -> Result<(Table, Vec<String>), Refused> {
    if before.bench != after.bench {
        let (one, other) = (&before.bench, &after.bench);
        return Err(Refused(format!(
            "these are results of two benches, {one} and {other}: compare one bench with itself"
        )));
    }
    let same = |one: &Measure, other: &Measure| one.case == other.case && one.quantity == other.quantity;
    let pairs: Vec<_> = after
        .measures
        .iter()
        .filter_map(|measure| Some((before.measures.iter().find(|other| same(measure, other))?, measure)))
        .collect();
    if pairs.is_empty() {
        return Err(Refused("the two results have no case in common: run both with the same options".into()));
    }
    let headings = ["case", "what", "A", "B", "B / A", "B is"].map(str::to_owned).into();
    let rows = pairs.iter().map(|(before, after)| row(before, after)).collect();
    Ok((Table { title: before.typed().to_owned(), headings, rows }, notes(before, after, pairs.len())))
}

fn notes(before: &Results, after: &Results, common: usize) -> Vec<String> {
    let machine = |results: &Results| (results.machine.host.clone(), results.machine.summary());
    let other_machine = (machine(before) != machine(after)).then(|| "A and B are of different machines".to_owned());
    let left_out = before.measures.len() + after.measures.len() - 2 * common;
    let left_out = (left_out > 0).then(|| format!("{} only in A or only in B", count(left_out, "row")));
    let doubts = [("A", before), ("B", after)]
        .into_iter()
        .flat_map(|(name, results)| shown::doubts(results).into_iter().map(move |doubt| format!("{name}: {doubt}")));
    other_machine.into_iter().chain(left_out).chain(doubts).collect()
}

fn row(before: &Measure, after: &Measure) -> Vec<String> {
    let (what, unit, before_samples, after_samples) = match common_peer(before, after) {
        Some(peer) => (format!("{} / {peer}", after.quantity), None, relative(before, peer), relative(after, peer)),
        None => (after.quantity.clone(), Some(after.unit), subject(before), subject(after)),
    };
    let median = |samples: &[f64]| match (Spread::of(samples), unit) {
        (None, _) => "–".to_owned(),
        (Some(spread), Some(unit)) => unit.show(spread.median),
        (Some(spread), None) => digits(spread.median),
    };
    let ratio = Ratio::unpaired(&after_samples, &before_samples);
    let verdict = ratio.as_ref().map_or("–", |ratio| after.unit.word(ratio.shown()));
    let ratio = ratio.as_ref().map_or_else(|| "–".to_owned(), results::ratio);
    vec![after.case.clone(), what, median(&before_samples), median(&after_samples), ratio, verdict.to_owned()]
}

/// A peer that both have.
fn common_peer<'a>(before: &Measure, after: &'a Measure) -> Option<&'a str> {
    let names = |measure: &Measure, name: &str| measure.sides.iter().skip(1).any(|side| side.name == name);
    after.sides.iter().skip(1).map(|side| side.name.as_str()).find(|name| names(before, name))
}

fn subject(measure: &Measure) -> Vec<f64> {
    measure.sides.first().map(|side| side.samples.clone()).unwrap_or_default()
}

/// The subject's samples divided by those of the peer in the same round.
fn relative(measure: &Measure, peer: &str) -> Vec<f64> {
    let of_peer = |side: &&Side| side.name == peer;
    let peer = measure.sides.iter().find(of_peer).map(|side| side.samples.clone()).unwrap_or_default();
    subject(measure).iter().zip(peer).map(|(subject, peer)| subject / peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::sample;

    #[test]
    fn shows_no_difference_between_a_result_and_itself() {
        let (table, notes) = compare(&sample(), &sample()).unwrap();
        assert!(table.rows.iter().all(|row| row[5] == "no difference shown"), "{table:?}");
        assert!(notes.is_empty());
        assert_eq!(table.rows[2][..5], ["16 ranks, 1 agent", "no-op job", "200 ms", "200 ms", "1.00 (0.98–1.02)"]);
    }

    #[test]
    fn shows_what_became_slower_on_a_machine_that_became_slower_too() {
        let (before, mut after) = (sample(), sample());
        // The whole machine is three times as slow; ours is a quarter slower than that in the first case.
        for side in after.measures.iter_mut().flat_map(|measure| &mut measure.sides) {
            side.samples.iter_mut().for_each(|time| *time *= 3.0);
        }
        after.measures[0].sides[0].samples.iter_mut().for_each(|time| *time *= 1.25);
        after.before.load[0] = 3.1;
        let (table, notes) = compare(&before, &after).unwrap();
        let verdicts: Vec<_> = table.rows.iter().map(|row| (&*row[1], &*row[5])).collect();
        let expected = [
            ("no-op job / torchrun", "slower"),
            ("agent memory / torchrun", "no difference shown"),
            ("no-op job", "slower"),
        ];
        assert_eq!(verdicts, expected);
        assert_eq!(table.rows[0][4], "1.25 (1.25–1.25)");
        assert_eq!(notes, ["B: busy machine: load 3.1 on 2 cores; trust ratios, not times"]);
    }

    #[test]
    fn compares_what_both_have_and_says_what_is_left_out() {
        let (before, mut after) = (sample(), sample());
        after.measures.remove(0);
        after.machine.host = "another".into();
        let (table, notes) = compare(&before, &after).unwrap();
        assert_eq!(table.rows.len(), 2);
        assert_eq!(notes, ["A and B are of different machines", "1 row only in A or only in B"]);
    }

    #[test]
    fn refuses_what_cannot_be_compared() {
        let mut other = sample();
        other.measures.iter_mut().for_each(|measure| measure.case = "another".into());
        assert!(compare(&sample(), &other).unwrap_err().to_string().contains("no case in common"));
        other.bench = "store".into();
        assert!(compare(&sample(), &other).unwrap_err().to_string().contains("two benches, launch and store"));
    }
}
