//! Results as tables: a table for each case, a row for each quantity, a column for each side; and for collectives the α–β model, with the
//! sizes at which it does not hold.
//!
//! A residual is the measured time divided by the model's, minus 1. Where it is large, something else dominates: the scheduling of more ranks
//! than cores, another algorithm from some size on, or a tensor that no longer fits into a cache.

use std::collections::BTreeMap;

use lockstep_cost::AlphaBeta;

use crate::report::{Table, TextStyle, count, numbers_table, wrapped};
use crate::results::{Measure, Results, Side, Unit, digits, ratio};
use crate::speed_up;
use crate::statistics::{LEAST_ROUNDS, Ratio, Shown, Spread};

/// What a reader must know before the numbers: the machine, its load, and what makes it doubtful.
pub(crate) fn machine(results: &Results) -> String {
    let machine = format!("{}\n{}", results.machine.summary(), results.before.summary());
    let labels = doubts(results).into_iter().map(|label| format!("\nnote: {label}"));
    machine + &labels.collect::<String>()
}

/// What makes all numbers doubtful.
pub(crate) fn doubts(results: &Results) -> Vec<String> {
    results.before.labels(results.machine.cores)
}

pub(crate) fn compared(results: &Results) -> String {
    let mut names: Vec<&str> = Vec::new();
    for side in results.measures.iter().flat_map(|measure| &measure.sides) {
        if !names.contains(&side.name.as_str()) {
            names.push(&side.name);
        }
    }
    let typed = results.typed();
    match names[..] {
        [] => typed.to_owned(),
        [subject] if results.not_measured.is_empty() => {
            format!("{typed}: {subject} alone, compared with nothing; --against python adds a peer")
        }
        [subject] => format!("{typed}: {subject} alone, compared with nothing"),
        [subject, ref peers @ ..] => format!("{typed}: {subject} compared with {}", peers.join(", ")),
    }
}

/// All tables, what was not measured, how to read them, and the verdict.
pub(crate) fn results(results: &Results, style: TextStyle) -> String {
    let all = tables(results).into_iter().chain(alpha_beta_table(results)).chain(speed_up::tables(results));
    let all = all.map(|table| format!("\n{}\n{}", wrapped(&table.title, style.width), numbers_table(&table, style)));
    let not_measured = results.not_measured.iter().map(|what| format!("\nnot measured: {what}"));
    let parts: Vec<String> = all.chain(not_measured).collect();
    let last = [method(results)].into_iter().chain(verdicts(results)).map(|text| wrapped(&text, style.width));
    format!("{}\n{}", parts.join("\n"), last.collect::<Vec<_>>().join("\n"))
}

/// For each peer, in how many rows the subject does better, worse, or shows no difference.
pub(crate) fn verdicts(results: &Results) -> Vec<String> {
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

pub(crate) fn tables(results: &Results) -> Vec<Table> {
    let same_case = |one: &Measure, other: &Measure| one.case == other.case;
    results.measures.chunk_by(same_case).map(table).collect()
}

/// How the numbers were made, and how many rounds they are from.
pub(crate) fn method(results: &Results) -> String {
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

/// Beyond this residual the model does not hold.
const LIMIT: f64 = 0.25;
/// The largest size must take longer than the smallest by this part, or the times tell nothing about bandwidth.
const FLAT: f64 = 0.05;

/// A row for each side of each case with at least two sizes; `None` if there is no such case.
pub(crate) fn alpha_beta_table(results: &Results) -> Option<Table> {
    let cases = results.measures.chunk_by(|one, other| one.case == other.case);
    let rows: Vec<_> = cases.flat_map(alpha_beta_rows).collect();
    let headings = ["t = α + n·β", "", "α", "1/β", "residual", "off by more than 25 % at"];
    let title = "α–β model, fitted with least relative errors; residual: the median of all sizes".to_owned();
    (!rows.is_empty()).then(|| Table { title, headings: headings.map(str::to_owned).into(), rows })
}

/// The model of one side of a case; `None` where there are fewer than two sizes.
pub(crate) fn alpha_beta(measures: &[Measure], side: usize) -> Option<AlphaBeta> {
    AlphaBeta::fit(&samples(measures, side)).ok()
}

fn alpha_beta_rows(measures: &[Measure]) -> Vec<Vec<String>> {
    let sides = measures.first().map_or(&[][..], |measure| &measure.sides).iter().enumerate();
    let row = |(place, side): (usize, &Side)| {
        let samples = samples(measures, place);
        let line = AlphaBeta::fit(&samples).ok()?;
        Some([vec![measures[0].case.clone(), side.name.clone()], alpha_beta_cells(line, &samples)].concat())
    };
    sides.filter_map(row).collect()
}

fn samples(measures: &[Measure], side: usize) -> Vec<(f64, f64)> {
    measures.iter().filter_map(|measure| sample(measure, side)).collect()
}

/// Bytes, and the median in microseconds.
fn sample(measure: &Measure, side: usize) -> Option<(f64, f64)> {
    let (bytes, _) = measure.moved?;
    let spread = Spread::of(&measure.sides.get(side)?.samples)?;
    Some((bytes as f64, 1e6 * spread.median))
}

fn alpha_beta_cells(line: AlphaBeta, samples: &[(f64, f64)]) -> Vec<String> {
    let residuals: Vec<(f64, f64)> =
        samples.iter().map(|(bytes, time)| (*bytes, time / line.time(*bytes) - 1.0)).collect();
    let sizes: Vec<f64> = residuals.iter().map(|(_, residual)| residual.abs()).collect();
    let median = Spread::of(&sizes).map_or(0.0, |spread| spread.median);
    let off = residuals.iter().filter(|(_, residual)| residual.abs() > LIMIT);
    let off: Vec<_> =
        off.map(|(bytes, residual)| format!("{} ({:+.0} %)", Unit::Bytes.show(*bytes), 100.0 * residual)).collect();
    let largest = samples.iter().map(|(bytes, _)| *bytes).fold(0.0, f64::max);
    let bandwidth = match line.bandwidth() {
        _ if line.beta * largest < FLAT * line.alpha => "no growth with size".to_owned(),
        rate => format!("{} MB/s", digits(rate)),
    };
    let off = if off.is_empty() { "nowhere".to_owned() } else { off.join(", ") };
    vec![Unit::Seconds.show(1e-6 * line.alpha), bandwidth, format!("{:.0} %", 100.0 * median), off]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::sample;

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
        let text = super::results(&results, TextStyle { width: 60, ..TextStyle::FILE });
        for whole in ["100 ms (99.5–102)", "1.50 s (1.49–1.52)", "0.067 (0.067–0.067)"] {
            assert!(text.contains(whole), "{whole} in\n{text}");
        }
    }

    #[test]
    fn says_what_was_not_measured_and_how_the_numbers_were_made() {
        let text = results(&sample(), TextStyle::FILE);
        assert!(text.contains("not measured: torchrun of 16 ranks"), "{text}");
        assert!(text.contains("of 7 rounds; ratio: median of the rounds' ratios"), "{text}");
        let mut stopped = sample();
        stopped.measures.iter_mut().flat_map(|measure| &mut measure.sides).for_each(|side| side.samples.truncate(3));
        let text = results(&stopped, TextStyle::FILE);
        assert!(text.contains("of 3 of 7 rounds: it was stopped") && text.contains("too few rounds"), "{text}");
        stopped.measures.iter_mut().flat_map(|measure| &mut measure.sides).for_each(|side| side.samples.clear());
        assert!(results(&stopped, TextStyle::FILE).contains("–"));
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

    /// Times of 100 µs + n / (500 MB/s), those of the peer twice as long.
    fn results_of(times: impl Fn(f64) -> f64) -> Results {
        let mut results = sample();
        let side = |name: &str, time: f64| Side { name: name.into(), samples: vec![time; 3] };
        let measure = |bytes: u32| Measure {
            case: "all_reduce, 2 ranks".into(),
            quantity: bytes.to_string(),
            unit: Unit::Seconds,
            moved: Some((bytes.into(), 1.0)),
            place: None,
            labels: vec![],
            sides: vec![side("lockstep", times(bytes.into())), side("python", 2.0 * times(bytes.into()))],
        };
        results.measures = (1..=10).map(|power| measure(4 << (2 * power))).collect();
        results
    }

    #[test]
    fn finds_the_model_that_made_the_times() {
        let table = alpha_beta_table(&results_of(|bytes| 100e-6 + bytes / 500e6)).unwrap();
        assert_eq!(table.rows[0], ["all_reduce, 2 ranks", "lockstep", "100 µs", "500 MB/s", "0 %", "nowhere"]);
        assert_eq!(table.rows[1], ["all_reduce, 2 ranks", "python", "200 µs", "250 MB/s", "0 %", "nowhere"]);
    }

    #[test]
    fn names_the_sizes_at_which_it_does_not_hold() {
        let table =
            alpha_beta_table(&results_of(|bytes| (100e-6 + bytes / 500e6) * if bytes == 1024.0 { 1.5 } else { 1.0 }))
                .unwrap();
        assert_eq!(table.rows[0][5], "1.00 KiB (+50 %)");
        let flat = super::alpha_beta_table(&results_of(|_| 1e-4)).unwrap();
        assert_eq!(flat.rows[0][2..4], ["100 µs", "no growth with size"]);
    }

    #[test]
    fn needs_sizes() {
        assert_eq!(alpha_beta_table(&sample()), None);
        let mut one = results_of(|_| 1.0);
        one.measures.truncate(1);
        assert_eq!(alpha_beta_table(&one), None);
    }
}
