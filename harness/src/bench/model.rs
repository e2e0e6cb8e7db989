//! The α–β model through the times of collectives: a table of α, bandwidth and residuals, and of the sizes at which it does not hold.
//!
//! A residual is the measured time divided by the model's, minus 1. Where it is large, something else rules: the scheduling of more
//! ranks than cores, another algorithm from some size on, or a tensor that no longer fits into a cache.

use lockstep_cost::AlphaBeta;

use super::results::{Measure, Results, Side, Unit, digits};
use super::statistics::Spread;
use crate::report::Table;

/// Beyond this residual the model does not hold.
const LIMIT: f64 = 0.25;
/// The largest size must take longer than the smallest by this part, or the times tell nothing about bandwidth.
const FLAT: f64 = 0.05;

/// A row for each side of each case with at least two sizes; `None` if there is no such case.
pub(super) fn table(results: &Results) -> Option<Table> {
    let cases = results.measures.chunk_by(|one, other| one.case == other.case);
    let rows: Vec<_> = cases.flat_map(rows).collect();
    let headings = ["t = α + n·β", "", "α", "1/β", "residual", "off by more than 25 % at"];
    let title = "α–β model, fitted with least relative errors; residual: the median of all sizes".to_owned();
    (!rows.is_empty()).then(|| Table { title, headings: headings.map(str::to_owned).into(), rows })
}

/// The model of one side of a case; `None` where there are fewer than two sizes.
pub(super) fn line(measures: &[Measure], side: usize) -> Option<AlphaBeta> {
    AlphaBeta::fit(&samples(measures, side)).ok()
}

fn rows(measures: &[Measure]) -> Vec<Vec<String>> {
    let sides = measures.first().map_or(&[][..], |measure| &measure.sides).iter().enumerate();
    let row = |(place, side): (usize, &Side)| {
        let samples = samples(measures, place);
        let line = AlphaBeta::fit(&samples).ok()?;
        Some([vec![measures[0].case.clone(), side.name.clone()], model(line, &samples)].concat())
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

fn model(line: AlphaBeta, samples: &[(f64, f64)]) -> Vec<String> {
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
    use super::super::results::testing::sample;
    use super::*;

    /// Times of 100 µs + n / (500 MB/s), those of the peer twice as long.
    fn results(times: impl Fn(f64) -> f64) -> Results {
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
        let table = table(&results(|bytes| 100e-6 + bytes / 500e6)).unwrap();
        assert_eq!(table.rows[0], ["all_reduce, 2 ranks", "lockstep", "100 µs", "500 MB/s", "0 %", "nowhere"]);
        assert_eq!(table.rows[1], ["all_reduce, 2 ranks", "python", "200 µs", "250 MB/s", "0 %", "nowhere"]);
    }

    #[test]
    fn names_the_sizes_at_which_it_does_not_hold() {
        let table =
            table(&results(|bytes| (100e-6 + bytes / 500e6) * if bytes == 1024.0 { 1.5 } else { 1.0 })).unwrap();
        assert_eq!(table.rows[0][5], "1.00 KiB (+50 %)");
        let flat = super::table(&results(|_| 1e-4)).unwrap();
        assert_eq!(flat.rows[0][2..4], ["100 µs", "no growth with size"]);
    }

    #[test]
    fn needs_sizes() {
        assert_eq!(table(&sample()), None);
        let mut one = results(|_| 1.0);
        one.measures.truncate(1);
        assert_eq!(table(&one), None);
    }
}
