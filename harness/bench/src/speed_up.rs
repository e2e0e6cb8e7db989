//! The tables and charts that are made from results of scaling: speed-up, efficiency, the laws and the links that fit.

use lockstep_cost::{AllReduce, Amdahl, Gustafson, Link};
use lockstep_plot::Chart;

use crate::nodes::{BUCKET, EXPOSED, Mode, NodeSpan, ONE, STEP};
use crate::report::{Table, count};
use crate::results::{Measure, Results, Unit, digits, ratio};
use crate::statistics::{Ratio, Spread};

/// A side of a mode and a model, with its times by number of ranks.
struct Curve<'a> {
    mode: Mode,
    name: String,
    side: &'a str,
    points: Vec<Point<'a>>,
}

/// The samples of one number of ranks, in the order of the rounds.
struct Point<'a> {
    ranks: usize,
    span: Option<NodeSpan>,
    step: &'a [f64],
    exposed: &'a [f64],
    /// Seconds of one all-reduce, per round; then its bytes.
    one: &'a [f64],
    bucket: &'a [f64],
}

impl Point<'_> {
    fn name(&self) -> String {
        let on = self.span.map_or_else(String::new, |span| format!(" on {}", count(span.nodes, "node")));
        format!("{}{on}", self.ranks)
    }

    /// Returns true if each rank has a core of its own, and each node its own machine; `cores` are those of this machine.
    fn has_cores(&self, cores: usize) -> bool {
        self.ranks <= self.span.map_or(cores, |span| span.cores) && !self.shares_machine()
    }

    fn shares_machine(&self) -> bool {
        self.span.is_some_and(|span| span.share())
    }

    /// Returns true if its slowest link is between nodes.
    fn is_across(&self) -> bool {
        self.span.is_some_and(|span| span.nodes > 1)
    }

    fn verdict(&self, cores: usize, busy: bool) -> &'static str {
        match (self.shares_machine(), self.has_cores(cores), busy) {
            (true, ..) => "no: nodes share a machine",
            (_, false, _) => "no: ranks share cores",
            (.., true) => "no: busy machine",
            _ => "yes",
        }
    }
}

impl Curve<'_> {
    /// How many times one rank's work is done in one rank's time, from the ratios of the rounds.
    fn speed_up(&self, point: &Point<'_>) -> Option<Ratio> {
        let alone = self.points.iter().find(|point| point.ranks == 1)?;
        let times = if self.mode == Mode::Weak { point.ranks as f64 } else { 1.0 };
        let found = Ratio::paired(alone.step, point.step)?;
        let Ratio { median, low, high, confidence } = found;
        Some(Ratio { median: times * median, low: times * low, high: times * high, confidence })
    }

    fn row(&self, point: &Point<'_>, cores: usize, busy: bool) -> Vec<String> {
        let speed_up = self.speed_up(point);
        let none = || "–".to_owned();
        let efficiency = |found: &Ratio| Unit::Share.show(found.median / point.ranks as f64);
        let communication =
            median(point.exposed).zip(median(point.step)).map(|(exposed, step)| Unit::Share.show(exposed / step));
        vec![
            point.name(),
            self.side.to_owned(),
            speed_up.as_ref().map_or_else(none, ratio),
            speed_up.as_ref().map_or_else(none, efficiency),
            communication.unwrap_or_else(|| if point.ranks > 1 { none() } else { "0".to_owned() }),
            point.verdict(cores, busy).to_owned(),
        ]
    }

    /// (ranks, median seconds) where each rank has a core.
    fn times(&self, cores: usize) -> Vec<(usize, f64)> {
        let own_core = self.points.iter().filter(|point| point.has_cores(cores));
        own_core.filter_map(|point| Some((point.ranks, median(point.step)?))).collect()
    }

    /// The serial part, and what it means for many ranks.
    fn fitted(&self, cores: usize) -> Option<[String; 2]> {
        let times = self.times(cores);
        Some(match self.mode {
            Mode::Strong => {
                let law = Amdahl::fit(&times)?;
                let limit = if law.serial > 0.0 { digits(law.limit()) } else { "none".to_owned() };
                Self::law(law.serial, format!("{}; limit {limit}", digits(law.speed_up(FAR))))
            }
            Mode::Weak => {
                let law = Gustafson::fit(&times)?;
                Self::law(law.serial, digits(law.speed_up(FAR)))
            }
        })
    }

    /// Above 1, ranks slow each other down so much that neither law has a meaning.
    fn law(serial: f64, far: String) -> [String; 2] {
        if serial > 1.0 {
            ["none: more ranks are slower".to_owned(), "–".to_owned()]
        } else {
            [Unit::Share.show(serial), far]
        }
    }
}

/// For how many ranks the fitted laws are shown.
const FAR: usize = 64;

fn median(samples: &[f64]) -> Option<f64> {
    Spread::of(samples).map(|spread| spread.median)
}

/// The curves of results, in the order of the cases.
fn curves(results: &Results) -> Vec<Curve<'_>> {
    let mut curves: Vec<Curve<'_>> = Vec::new();
    let steps = results.measures.iter().filter(|measure| measure.quantity == STEP);
    for (measure, place) in steps.filter_map(|measure| Some((measure, measure.place.as_ref()?))) {
        for (number, side) in measure.sides.iter().enumerate() {
            let of = |quantity: &str| {
                let same = |other: &&Measure| other.case == measure.case && other.quantity == quantity;
                let found = results.measures.iter().find(same).and_then(|found| found.sides.get(number));
                found.map_or(&[][..], |side| &side.samples)
            };
            let point = Point {
                ranks: place.ranks,
                span: place.span,
                step: &side.samples,
                exposed: of(EXPOSED),
                one: of(ONE),
                bucket: of(BUCKET),
            };
            let name = format!("{} scaling of {}", place.mode.name(), place.model);
            match curves.iter_mut().find(|curve| curve.name == name && curve.side == side.name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { mode: place.mode, name, side: &side.name, points: vec![point] }),
            }
        }
    }
    curves
}

/// The names of the curves, each once.
fn names(curves: &[Curve<'_>]) -> Vec<String> {
    let mut names: Vec<String> = curves.iter().map(|curve| curve.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Speed-ups, then what was fitted to them; none if the results have nothing of scaling.
pub(crate) fn tables(results: &Results) -> Vec<Table> {
    let (curves, cores) = (curves(results), results.machine.cores);
    let busy = results.before.is_busy(cores);
    if curves.is_empty() {
        return vec![];
    }
    let speed_ups = names(&curves).into_iter().map(|name| {
        let of_name = || curves.iter().filter(|curve| curve.name == name);
        let mut rows: Vec<(usize, Vec<String>)> = of_name()
            .flat_map(|curve| curve.points.iter().map(|point| (point.ranks, curve.row(point, cores, busy))))
            .collect();
        rows.sort_by_key(|(ranks, _)| *ranks);
        Table {
            title: name.clone(),
            headings: words(&["ranks", "", "times one rank", "efficiency", "exposed communication", "scaling result"]),
            rows: rows.into_iter().map(|(_, row)| row).collect(),
        }
    });
    speed_ups.chain([laws(&curves, cores), links(&curves, cores)]).collect()
}

fn laws(curves: &[Curve<'_>], cores: usize) -> Table {
    let few = |curve: &Curve<'_>| {
        let shared = curve.points.iter().any(Point::shares_machine);
        let up_to =
            if shared { "without nodes on one machine".to_owned() } else { format!("up to {}", count(cores, "core")) };
        [format!("not fitted: fewer than 2 numbers of ranks {up_to}"), "–".to_owned()]
    };
    let row = |curve: &Curve<'_>| {
        let [serial, far] = curve.fitted(cores).unwrap_or_else(|| few(curve));
        vec![curve.name.clone(), curve.side.to_owned(), serial, far]
    };
    Table {
        title: "Amdahl's law through strong scaling, Gustafson's through weak".to_owned(),
        headings: ["", "", "serial part", &format!("times one rank on {FAR}")].map(str::to_owned).into(),
        rows: curves.iter().map(row).collect(),
    }
}

/// Each side's link in a ring, fitted through the all-reduces of all its models and numbers of ranks; the link
/// between nodes by itself. Only all-reduces that waited for each other count: of several that start at once, a
/// second one's α hides in the first.
fn links(curves: &[Curve<'_>], cores: usize) -> Table {
    let mut rings: Vec<(&str, bool)> = Vec::new();
    for curve in curves {
        for point in curve.points.iter().filter(|point| point.ranks > 1) {
            let ring = (curve.side, point.is_across());
            if !rings.contains(&ring) {
                rings.push(ring);
            }
        }
    }
    let row = |(side, across): (&str, bool)| {
        let points = curves.iter().filter(|curve| curve.side == side).flat_map(|curve| &curve.points);
        let points = points.filter(|point| point.is_across() == across);
        let measured = |point: &Point<'_>| {
            Some(AllReduce { ranks: point.ranks, bytes: median(point.bucket)?, seconds: median(point.one)? })
        };
        let samples: Vec<AllReduce> = points.filter(|point| point.has_cores(cores)).filter_map(measured).collect();
        let fitted = Link::fit(&samples).map(|link| {
            let rate = if link.bandwidth.is_finite() {
                Unit::BytesPerSecond.show(link.bandwidth)
            } else {
                "no growth with size".to_owned()
            };
            let seconds = |seconds| Unit::Seconds.show(seconds);
            [seconds(link.latency), seconds(link.all_reduce(2, 0.0)), rate]
        });
        let few = || ["not fitted: too few sizes and numbers of ranks", "–", "–"].map(str::to_owned);
        let name = if across { format!("{side}, between nodes") } else { side.to_owned() };
        [vec![name], fitted.unwrap_or_else(few).to_vec()].concat()
    };
    Table {
        title: "the link of a ring, through a step's all-reduces one after the other".to_owned(),
        headings: words(&["", "α of a message", "α of an all-reduce on 2 ranks", "bandwidth"]),
        rows: rings.into_iter().map(row).collect(),
    }
}

/// A chart for each mode and model.
pub(crate) fn charts(results: &Results) -> Vec<Chart> {
    let curves = curves(results);
    let chart = |name: String| {
        let series = curves.iter().filter(|curve| curve.name == name).map(|curve| {
            let place =
                |point: &Point<'_>| Some((point.ranks as f64, curve.speed_up(point)?.median / point.ranks as f64));
            (curve.side.to_owned(), curve.points.iter().filter_map(place).collect())
        });
        Chart::efficiency(format!("{name}: efficiency"), series)
    };
    names(&curves).into_iter().map(chart).collect()
}

#[cfg(test)]
mod tests {
    use lockstep_plot::Series;

    use super::*;
    use crate::nodes::{ALONE, ScalingPoint};
    use crate::results::Side;
    use crate::results::Unit::Seconds;
    use crate::results::testing::sample;

    /// Times of 1, 2 and 4 ranks on 2 cores, with a serial part of a tenth.
    fn results() -> Results {
        let mut results = sample();
        let measure = |mode: Mode, ranks: usize, quantity: &str, value: f64| Measure {
            case: format!("{} {ranks}", mode.name()),
            quantity: quantity.into(),
            unit: Seconds,
            moved: None,
            place: Some(ScalingPoint { mode, model: "mlp".into(), ranks, span: None }),
            labels: vec![],
            sides: vec![Side { name: "lockstep".into(), samples: vec![value, 1.5 * value, 2.0 * value] }],
        };
        let of = |mode: Mode, ranks: usize| {
            let n = ranks as f64;
            let step = if mode == Mode::Strong { 0.1 + 0.9 / n } else { n / (n - 0.1 * (n - 1.0)) };
            let exchange = [(EXPOSED, 0.1 * step), (ALONE, 1e-3), (ONE, 1e-4 * (n - 1.0)), (BUCKET, 1000.0)];
            let exchange = exchange.into_iter().filter(move |_| ranks > 1);
            std::iter::once((STEP, step)).chain(exchange).map(move |(name, value)| measure(mode, ranks, name, value))
        };
        let modes = [Mode::Strong, Mode::Weak];
        results.measures =
            modes.iter().flat_map(|mode| [1, 2, 4].into_iter().flat_map(move |n| of(*mode, n))).collect();
        results
    }

    #[test]
    fn shows_speed_up_and_efficiency_and_what_is_no_scaling_result() {
        let tables = tables(&results());
        let titles: Vec<_> = tables.iter().map(|table| table.title.as_str()).collect();
        assert_eq!(titles[..2], ["strong scaling of mlp", "weak scaling of mlp"]);
        let none = words(&["1", "lockstep", "1.00 (1.00–1.00)", "100 %", "0", "yes"]);
        assert_eq!((&tables[0].rows[0], &tables[1].rows[0]), (&none, &none));
        assert_eq!(tables[0].rows[1], words(&["2", "lockstep", "1.82 (1.82–1.82)", "90.9 %", "10.0 %", "yes"]));
        assert_eq!(tables[1].rows[1], words(&["2", "lockstep", "1.90 (1.90–1.90)", "95.0 %", "10.0 %", "yes"]));
        assert_eq!(tables[0].rows[2][5], "no: ranks share cores");
        let mut busy = results();
        busy.before.load[0] = 3.1;
        assert_eq!(super::tables(&busy)[0].rows[1][5], "no: busy machine");
    }

    #[test]
    fn fits_the_laws_where_each_rank_has_a_core() {
        let mut results = results();
        let laws = |results: &Results| tables(results)[2].rows.iter().map(|row| row[2..].to_vec()).collect::<Vec<_>>();
        assert_eq!(laws(&results), [words(&["10.0 %", "8.77; limit 10.0"]), words(&["10.0 %", "57.7"])]);
        results.machine.cores = 1;
        assert_eq!(laws(&results)[0][0], "not fitted: fewer than 2 numbers of ranks up to 1 core");
        assert_eq!(tables(&sample()), []);
    }

    #[test]
    fn nodes_count_with_their_own_cores_unless_they_share_a_machine() {
        let mut results = results();
        let mut span = |machines: usize, cores: usize| {
            for place in results.measures.iter_mut().filter_map(|measure| measure.place.as_mut()) {
                let nodes = place.ranks;
                place.span =
                    Some(NodeSpan { nodes, machines: machines.min(nodes), cores: cores * machines.min(nodes) });
            }
            tables(&results)
        };
        let apart = span(4, 1);
        let row = &apart[0].rows[2];
        assert_eq!((row[0].as_str(), row[5].as_str()), ("4 on 4 nodes", "yes"));
        assert_eq!(apart[2].rows[0][2], "10.0 %");
        assert_eq!(apart[3].rows[0][..2], words(&["lockstep, between nodes", "75.0 µs"]));
        let together = span(1, 8);
        let verdicts: Vec<_> = together[0].rows.iter().map(|row| row[5].as_str()).collect();
        assert_eq!(verdicts, ["yes", "no: nodes share a machine", "no: nodes share a machine"]);
        assert_eq!(together[2].rows[0][2], "not fitted: fewer than 2 numbers of ranks without nodes on one machine");
    }

    #[test]
    fn fits_a_link_through_several_numbers_of_ranks() {
        let mut results = results();
        let link = |results: &Results| tables(results)[3].rows[0][1..].to_vec();
        assert_eq!(link(&results)[0], "not fitted: too few sizes and numbers of ranks");
        results.machine.cores = 4;
        assert_eq!(link(&results), words(&["75.0 µs", "150 µs", "no growth with size"]));
    }

    #[test]
    fn draws_a_line_for_each_side() {
        let charts = charts(&results());
        assert_eq!(charts.len(), 2);
        let Series { name, line, .. } = &charts[0].series[0];
        assert_eq!((name.as_str(), line.len(), line[0]), ("lockstep", 3, (1.0, 1.0)));
        assert!((line[2].1 - 0.25 / 0.325).abs() < 1e-9);
    }
}
