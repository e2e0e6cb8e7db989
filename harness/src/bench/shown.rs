//! Results as tables: a table for each case, a row for each quantity, a column for each side.

use std::collections::BTreeMap;

use super::results::{Measure, Results, Side, Unit, digits, ratio};
use super::statistics::{LEAST_ROUNDS, Ratio, Shown, Spread};
use super::{model, speed_up};
use crate::report::{Look, Table, count, numbers_table, wrapped};

/// What a reader must know before the numbers: the machine, its load, and what makes it doubtful.
pub(super) fn machine(results: &Results) -> String {
    let machine = format!("{}\n{}", results.machine.summary(), results.before.summary());
    let labels = doubts(results).into_iter().map(|label| format!("\nnote: {label}"));
    machine + &labels.collect::<String>()
}

/// What makes all numbers doubtful.
pub(super) fn doubts(results: &Results) -> Vec<String> {
    results.before.labels(results.machine.cores)
}

/// What is compared with what.
pub(super) fn compared(results: &Results) -> String {
    let mut names: Vec<&str> = Vec::new();
    for side in results.measures.iter().flat_map(|measure| &measure.sides) {
        if !names.contains(&side.name.as_str()) {
            names.push(&side.name);
        }
    }
    let bench = &results.bench;
    match names[..] {
        [] => format!("bench {bench}"),
        [subject] if results.not_measured.is_empty() => {
            format!("bench {bench}: {subject} alone, compared with nothing; --against python adds a peer")
        }
        [subject] => format!("bench {bench}: {subject} alone, compared with nothing"),
        [subject, ref peers @ ..] => format!("bench {bench}: {subject} compared with {}", peers.join(", ")),
    }
}

/// All tables, what was not measured, how to read them, and the verdict.
pub(super) fn results(results: &Results, look: Look) -> String {
    let all = tables(results).into_iter().chain(model::table(results)).chain(speed_up::tables(results));
    let all = all.map(|table| format!("\n{}\n{}", wrapped(&table.title, look.width), numbers_table(&table, look)));
    let not_measured = results.not_measured.iter().map(|what| format!("\nnot measured: {what}"));
    let parts: Vec<String> = all.chain(not_measured).collect();
    let last = [method(results)].into_iter().chain(verdicts(results)).map(|text| wrapped(&text, look.width));
    format!("{}\n{}", parts.join("\n"), last.collect::<Vec<_>>().join("\n"))
}

/// For each peer, in how many rows the subject does better, worse, or shows no difference.
pub(super) fn verdicts(results: &Results) -> Vec<String> {
    let mut found: BTreeMap<(usize, &str), Vec<&str>> = BTreeMap::new();
    for measure in &results.measures {
        let Some((subject, peers)) = measure.sides.split_first() else { continue };
        for (place, peer) in peers.iter().enumerate() {
            let verdict = Ratio::paired(&subject.samples, &peer.samples).map(|ratio| measure.unit.word(ratio.shown()));
            found.entry((place, &peer.name)).or_default().extend(verdict);
        }
    }
    let subject = results.measures.first().and_then(|measure| measure.sides.first()).map_or("", |side| &side.name);
    found.iter().map(|((_, peer), words)| format!("{subject} against {peer}: {}", tally(words))).collect()
}

/// `faster in 5 rows, no difference shown in 1 row`.
fn tally(words: &[&str]) -> String {
    let few = Unit::Seconds.word(Shown::TooFewRounds);
    if words.iter().all(|word| *word == few) {
        return format!("too few rounds for a verdict, which needs {LEAST_ROUNDS}");
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    words.iter().for_each(|word| *counts.entry(word).or_default() += 1);
    let counted = counts.iter().map(|(word, rows)| format!("{word} in {}", count(*rows, "row")));
    counted.collect::<Vec<_>>().join(", ")
}

/// The tables.
pub(super) fn tables(results: &Results) -> Vec<Table> {
    let same_case = |one: &Measure, other: &Measure| one.case == other.case;
    results.measures.chunk_by(same_case).map(table).collect()
}

/// How the numbers were made, and how many rounds they are from.
pub(super) fn method(results: &Results) -> String {
    let (complete, asked) = (results.complete(), results.rounds);
    let rounds =
        if complete == asked { count(asked, "round") } else { format!("{complete} of {asked} rounds: it was stopped") };
    let pairs = if results.measures.iter().any(|measure| measure.sides.len() > 1) {
        "; ratio: median of the rounds' ratios, with an interval of at least 95 % confidence (sign test)"
    } else {
        ""
    };
    format!("median (lower to upper quartile) of {rounds}{pairs}")
}

/// A row for each side of each quantity; with a peer, its row has the ratio to it.
fn table(measures: &[Measure]) -> Table {
    let first = &measures[0];
    let name = first.sides.first().map_or("", |side| side.name.as_str());
    let is = format!("{name} is");
    let rates = measures.iter().any(|measure| measure.moved.is_some()).then(|| "MB/s (bus)".to_owned());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let verdicts = judged(measures).then_some(is);
    let headings: Vec<String> = match first.sides.len() {
        1 => words(&["", name]).into_iter().chain(rates).collect(),
        _ => {
            words(&["", "", "median"]).into_iter().chain(rates).chain(words(&["ratio to it"])).chain(verdicts).collect()
        }
    };
    Table {
        title: std::iter::once(&first.case).chain(&first.labels).cloned().collect::<Vec<_>>().join("; "),
        rows: measures.iter().flat_map(|measure| rows(measure, headings.len())).collect(),
        headings,
    }
}

/// Returns true if the rounds are enough for a verdict on any row.
fn judged(measures: &[Measure]) -> bool {
    let enough = |measure: &Measure| {
        let (subject, peers) = measure.sides.split_first()?;
        let ratios = peers.iter().filter_map(|peer| Ratio::paired(&subject.samples, &peer.samples));
        Some(ratios.into_iter().any(|ratio| ratio.shown() != Shown::TooFewRounds))
    };
    measures.iter().any(|measure| enough(measure).unwrap_or(false))
}

/// The rows of a quantity, each with at most this many columns.
fn rows(measure: &Measure, columns: usize) -> Vec<Vec<String>> {
    let [subject, peers @ ..] = &measure.sides[..] else { return vec![] };
    let quantity = measure.quantity.clone();
    if peers.is_empty() {
        return vec![
            [quantity, spread(measure, &subject.samples)].into_iter().chain(rates(measure, subject)).collect(),
        ];
    }
    let row = |first: String, side: &Side, last: [String; 2]| {
        let side_and_median = [first, side.name.clone(), spread(measure, &side.samples)];
        side_and_median.into_iter().chain(rates(measure, side)).chain(last).take(columns).collect()
    };
    let first = row(quantity, subject, [String::new(), String::new()]);
    let against = |peer: &Side| {
        let found = Ratio::paired(&subject.samples, &peer.samples);
        let verdict = found.as_ref().map_or("", |found| measure.unit.word(found.shown())).to_owned();
        row(String::new(), peer, [found.as_ref().map_or_else(String::new, ratio), verdict])
    };
    std::iter::once(first).chain(peers.iter().map(against)).collect()
}

/// Algorithm and bus bandwidth in 10^6 bytes a second, by the median: `310 (155)`. `None` where no bytes are moved.
fn rates(measure: &Measure, side: &Side) -> Option<String> {
    let (bytes, factor) = measure.moved?;
    let Some(spread) = Spread::of(&side.samples) else { return Some("–".into()) };
    let rate = bytes as f64 / spread.median / 1e6;
    Some(format!("{} ({})", digits(rate), digits(factor * rate)))
}

/// `1.52 s (1.48–1.60)`.
fn spread(measure: &Measure, samples: &[f64]) -> String {
    let Some(Spread { lower, median, upper }) = Spread::of(samples) else { return "–".into() };
    measure.unit.show_with(median, [lower, upper])
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::sample;
    use super::*;

    #[test]
    fn shows_a_table_for_each_case_and_the_verdict_on_each_peer() {
        let tables = tables(&sample());
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].title, "8 ranks, 1 agent; 8 ranks on 2 cores: not a scaling result");
        assert_eq!(tables[0].headings, ["", "", "median", "ratio to it", "lockstep is"]);
        assert_eq!(tables[0].rows[0][..3], ["no-op job", "lockstep", "100 ms (99.5–102)"]);
        assert_eq!(tables[0].rows[1], ["", "torchrun", "1.50 s (1.49–1.52)", "0.067 (0.067–0.067)", "faster"]);
        assert_eq!(tables[0].rows[3][4], "less");
        assert_eq!(tables[1].rows, [["no-op job", "200 ms (199–203)"]]);
    }

    #[test]
    fn shows_algorithm_and_bus_bandwidth_of_collectives() {
        let mut results = sample();
        results.measures.iter_mut().for_each(|measure| measure.moved = Some((1_000_000, 0.5)));
        let tables = tables(&results);
        assert_eq!(tables[0].headings, ["", "", "median", "MB/s (bus)", "ratio to it", "lockstep is"]);
        assert_eq!(tables[0].rows[1][3], "0.67 (0.33)");
        assert_eq!((tables[1].headings[2].as_str(), tables[1].rows[0][2].as_str()), ("MB/s (bus)", "5.00 (2.50)"));
    }

    #[test]
    fn breaks_words_and_never_numbers() {
        let mut results = sample();
        results.measures[0].quantity = "a quantity with a name that is far too long for its column".into();
        let text = super::results(&results, Look { width: 60, ..Look::FILE });
        for whole in ["100 ms (99.5–102)", "1.50 s (1.49–1.52)", "0.067 (0.067–0.067)"] {
            assert!(text.contains(whole), "{whole} in\n{text}");
        }
    }

    #[test]
    fn says_what_was_not_measured_and_how_the_numbers_were_made() {
        let text = results(&sample(), Look::FILE);
        assert!(text.contains("not measured: torchrun of 16 ranks"), "{text}");
        assert!(text.contains("of 7 rounds; ratio: median of the rounds' ratios"), "{text}");
        let mut stopped = sample();
        stopped.measures.iter_mut().flat_map(|measure| &mut measure.sides).for_each(|side| side.samples.truncate(3));
        let text = results(&stopped, Look::FILE);
        assert!(text.contains("of 3 of 7 rounds: it was stopped") && text.contains("too few rounds"), "{text}");
        stopped.measures.iter_mut().flat_map(|measure| &mut measure.sides).for_each(|side| side.samples.clear());
        assert!(results(&stopped, Look::FILE).contains("–"));
    }

    #[test]
    fn shows_the_machine_and_what_makes_it_doubtful_first() {
        let mut busy = sample();
        busy.before.load[0] = 3.1;
        let text = machine(&busy);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "2 cores, no GPU, Linux 6.1 ()");
        assert_eq!(lines[2], "note: busy machine: load 3.1 on 2 cores; trust ratios, not times");
    }
}
