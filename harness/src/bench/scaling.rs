//! `lockstep bench scaling`: how a training step under DDP scales with the number of ranks, for the same work and for work that grows.
//!
//! Strong scaling: all ranks together have the samples that one rank had. Weak: each has as many as one rank had. The tables of speed-up
//! and of what was fitted are made from the results ([`tables`]), so that a file of results has them too.

use std::rc::Rc;

use clap::{Args, ValueEnum};
use lockstep_contract::scheduler::Allocation;
use lockstep_cost::{AllReduce, Amdahl, Gustafson, Link};
use serde::{Deserialize, Serialize};

use super::chart::Chart;
use super::ddp::{Model, Order, Step, case, programs, sides_of};
use super::frame::Frame;
use super::machine::rank_labels;
use super::ranks::{Backends, Ranks};
use super::results::Unit::{self, Bytes, Seconds};
use super::results::{Measure, Results, digits};
use super::rounds::{Case, Contestant, Plan, Quantity};
use super::shown::ratio;
use super::statistics::{Ratio, Spread};
use crate::exit::{Code, Refused};
use crate::report::{HostInfo, Table, count};

const STEP: &str = "step";
const EXPOSED: &str = "exposed communication";
const ALONE: &str = "all-reduces alone";
const ONE: &str = "one all-reduce";
const BUCKET: &str = "its bytes";

/// What grows with the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// Nothing: the same samples are shared by more ranks
    Strong,
    /// The samples: each rank has as many
    Weak,
}

/// Where a measure belongs in the tables of scaling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Place {
    mode: Mode,
    model: String,
    ranks: usize,
}

/// Measures how a step scales, strongly and weakly: speed-up, efficiency, and the serial part and the link that fit them
#[derive(Args)]
pub(crate) struct Options {
    /// Models: a list
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values = ["mlp", "resnet"])]
    models: Vec<Model>,
    /// Ranks: a list with 1; each is a process of one thread on this machine. By default 1, 2, 4, … up to its cores, and 2 at least
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: Vec<u16>,
    /// What grows with the ranks: a list
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_values = ["strong", "weak"])]
    modes: Vec<Mode>,
    /// Samples of a rank: of each in weak scaling, of each of the most ranks in strong scaling
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Steps with communication, and as many without, in a turn
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    #[command(flatten)]
    backends: Backends,
    #[command(flatten)]
    frame: Frame,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (cores, patience) = (HostInfo::here().cores, self.frame.patience());
        let ranks = ranks(&self.ranks, cores)?;
        let samples = shares(&ranks, self.batch)?;
        self.frame.exec("scaling", |signals| {
            let (programs, mut not_measured) = programs(&self.backends, &self.frame)?;
            not_measured.extend(Allocation::batch_job().as_ref().and_then(other_nodes));
            let mut plan = Plan { cases: vec![], not_measured };
            for (&ranks, &share) in ranks.iter().zip(&samples) {
                let jobs = Ranks::of_each(&programs, ranks, patience, signals);
                let both = self.models.iter().flat_map(|model| self.modes.iter().map(move |mode| (*model, *mode)));
                for (model, mode) in both {
                    let batch = if mode == Mode::Strong { share } else { self.batch };
                    let order = Order { model, batch, steps: self.steps };
                    let place = Place { mode, model: model.name().to_owned(), ranks };
                    plan.cases.push(Case {
                        name: format!("{} scaling of {}", mode.name(), case(model, ranks, batch)),
                        quantities: quantities(&place),
                        labels: rank_labels(ranks, cores),
                        sides: sides(&jobs, order, ranks),
                    });
                }
            }
            Ok(plan)
        })
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Strong => "strong",
            Mode::Weak => "weak",
        }
    }
}

/// In ascending order, each once.
fn ranks(asked: &[u16], cores: usize) -> Result<Vec<usize>, Refused> {
    let doubled = std::iter::successors(Some(1), |ranks| Some(2 * ranks)).take_while(|ranks| *ranks <= cores.max(2));
    let mut ranks: Vec<usize> = asked.iter().copied().map(usize::from).collect();
    if ranks.is_empty() {
        ranks = doubled.collect();
    }
    ranks.sort_unstable();
    ranks.dedup();
    let alone = ranks.first() == Some(&1) && ranks.len() > 1;
    alone
        .then_some(ranks)
        .ok_or_else(|| Refused("scaling compares with one rank: --ranks needs 1 and others".to_owned()))
}

/// The samples of each rank in strong scaling, where the most ranks have `batch` each.
fn shares(ranks: &[usize], batch: u32) -> Result<Vec<u32>, Refused> {
    let most = ranks.iter().copied().max().unwrap_or(1) as u32;
    let share = |ranks: &usize| match (batch * most) % *ranks as u32 {
        0 => Ok(batch * most / *ranks as u32),
        _ => {
            Err(Refused(format!("{ranks} ranks cannot share {} samples evenly: choose another --batch", batch * most)))
        }
    };
    ranks.iter().map(share).collect()
}

/// What to do in a job of many nodes.
fn other_nodes(job: &Allocation) -> Option<String> {
    let nodes = job.nodes.0;
    (nodes > 1).then(|| {
        format!(
            "{}: it has {nodes} nodes, and the ranks of this bench are on one; measure the links between nodes with lab 05 (`{}`), and \
             compute the step with `lockstep bench predict`",
            job.title(),
            job.one_agent_per_node()
        )
    })
}

fn quantities(place: &Place) -> Vec<Quantity> {
    let quantity = |name: &str, unit| Quantity { place: Some(place.clone()), ..Quantity::new(name, unit) };
    let exchange =
        [quantity(EXPOSED, Seconds), quantity(ALONE, Seconds), quantity(ONE, Seconds), quantity(BUCKET, Bytes)];
    let step = std::iter::once(quantity(STEP, Seconds));
    if place.ranks > 1 { step.chain(exchange).collect() } else { step.collect() }
}

fn sides<'a>(jobs: &[Rc<Ranks<'a>>], order: Order, ranks: usize) -> Vec<Contestant<'a>> {
    sides_of(jobs, order, move |step: &Step, _| {
        let exchange = [step.exposed(), step.all_reduces, step.one_all_reduce, step.bucket()];
        if ranks > 1 { [&[step.step][..], &exchange].concat() } else { vec![step.step] }
    })
}

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
    step: &'a [f64],
    exposed: &'a [f64],
    /// One all-reduce, and its bytes.
    one: &'a [f64],
    bucket: &'a [f64],
}

impl Curve<'_> {
    /// How many times one rank's work is done in its time, of the rounds' own ratios.
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
            point.ranks.to_string(),
            self.side.to_owned(),
            speed_up.as_ref().map_or_else(none, ratio),
            speed_up.as_ref().map_or_else(none, efficiency),
            communication.unwrap_or_else(|| if point.ranks > 1 { none() } else { "0".to_owned() }),
            match (point.ranks > cores, busy) {
                (true, _) => "no: ranks share cores",
                (_, true) => "no: busy machine",
                _ => "yes",
            }
            .to_owned(),
        ]
    }

    /// (ranks, median seconds) where each rank has a core.
    fn times(&self, cores: usize) -> Vec<(usize, f64)> {
        let own_core = self.points.iter().filter(|point| point.ranks <= cores);
        own_core.filter_map(|point| Some((point.ranks, median(point.step)?))).collect()
    }

    /// The serial part, and what it means for many ranks.
    fn fitted(&self, cores: usize) -> Option<[String; 2]> {
        let times = self.times(cores);
        Some(match self.mode {
            Mode::Strong => {
                let law = Amdahl::fit(&times)?;
                let limit = if law.serial > 0.0 { digits(law.limit()) } else { "none".to_owned() };
                [Unit::Share.show(law.serial), format!("{}; limit {limit}", digits(law.speed_up(FAR)))]
            }
            Mode::Weak => {
                let law = Gustafson::fit(&times)?;
                // Above 1, ranks slow each other down so much that the law has no meaning for more of them.
                let far = if law.serial > 1.0 { "–".to_owned() } else { digits(law.speed_up(FAR)) };
                [Unit::Share.show(law.serial), far]
            }
        })
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
pub(super) fn tables(results: &Results) -> Vec<Table> {
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
    let few = || [format!("not fitted: fewer than 2 numbers of ranks up to {}", count(cores, "core")), "–".to_owned()];
    let row = |curve: &Curve<'_>| {
        let [serial, far] = curve.fitted(cores).unwrap_or_else(few);
        vec![curve.name.clone(), curve.side.to_owned(), serial, far]
    };
    Table {
        title: "Amdahl's law through strong scaling, Gustafson's through weak".to_owned(),
        headings: ["", "", "serial part", &format!("times one rank on {FAR}")].map(str::to_owned).into(),
        rows: curves.iter().map(row).collect(),
    }
}

/// The ring's link of each side, through the all-reduces of all its models and numbers of ranks. They waited for each other, because α
/// is that of one: of those that start at once, a second hides in the first.
fn links(curves: &[Curve<'_>], cores: usize) -> Table {
    let mut sides: Vec<&str> = Vec::new();
    curves.iter().for_each(|curve| {
        if !sides.contains(&curve.side) {
            sides.push(curve.side)
        }
    });
    let row = |side: &str| {
        let points = curves.iter().filter(|curve| curve.side == side).flat_map(|curve| &curve.points);
        let measured = |point: &Point<'_>| {
            Some(AllReduce { ranks: point.ranks, bytes: median(point.bucket)?, seconds: median(point.one)? })
        };
        let samples: Vec<AllReduce> = points.filter(|point| point.ranks <= cores).filter_map(measured).collect();
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
        [vec![side.to_owned()], fitted.unwrap_or_else(few).to_vec()].concat()
    };
    Table {
        title: "the link of a ring, through a step's all-reduces one after the other".to_owned(),
        headings: words(&["", "α of a message", "α of an all-reduce on 2 ranks", "bandwidth"]),
        rows: sides.into_iter().map(row).collect(),
    }
}

/// A chart for each mode and model.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let curves = curves(results);
    let chart = |name: String| {
        let series = curves.iter().filter(|curve| curve.name == name).map(|curve| {
            let place =
                |point: &Point<'_>| Some((point.ranks as f64, curve.speed_up(point)?.median / point.ranks as f64));
            (curve.side.to_owned(), curve.points.iter().filter_map(place).collect())
        });
        Chart { series: series.collect(), title: format!("{name}: efficiency") }
    };
    names(&curves).into_iter().map(chart).collect()
}

#[cfg(test)]
mod tests {
    use super::super::results::Side;
    use super::super::results::testing::sample;
    use super::*;

    /// Times of 1, 2 and 4 ranks on 2 cores, with a serial part of a tenth.
    fn results() -> Results {
        let mut results = sample();
        let measure = |mode: Mode, ranks: usize, quantity: &str, value: f64| Measure {
            case: format!("{} {ranks}", mode.name()),
            quantity: quantity.into(),
            unit: Seconds,
            moved: None,
            place: Some(Place { mode, model: "mlp".into(), ranks }),
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
        let (name, points) = &charts[0].series[0];
        assert_eq!((name.as_str(), points.len(), points[0]), ("lockstep", 3, (1.0, 1.0)));
        assert!((points[2].1 - 0.25 / 0.325).abs() < 1e-9);
    }

    #[test]
    fn a_job_of_many_nodes_hears_that_the_ranks_are_on_one() {
        use lockstep_contract::scheduler::Read;
        let job = |nodes: &str| {
            let variable = |name: &str| match name {
                "SLURM_JOB_ID" => Some("17".to_owned()),
                "SLURM_JOB_NUM_NODES" | "SLURM_NNODES" => Some(nodes.to_owned()),
                _ => None,
            };
            let file = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            Allocation::find(&Read { variable: &variable, file: &file }, None).unwrap().unwrap()
        };
        assert_eq!(other_nodes(&job("1")), None);
        let text = other_nodes(&job("4")).unwrap();
        assert!(text.contains("has 4 nodes") && text.contains("`srun --nodes=4 --ntasks-per-node=1 "), "{text}");
    }

    #[test]
    fn needs_one_rank_and_batches_that_divide() {
        assert_eq!(ranks(&[], 1).unwrap(), [1, 2]);
        assert_eq!(ranks(&[], 6).unwrap(), [1, 2, 4]);
        assert_eq!(ranks(&[4, 1, 2, 4], 2).unwrap(), [1, 2, 4]);
        for bad in [&[2, 4][..], &[1]] {
            assert!(ranks(bad, 8).unwrap_err().to_string().starts_with("scaling compares with one rank"));
        }
        assert_eq!(shares(&[1, 2, 4], 64).unwrap(), [256, 128, 64]);
        let error = shares(&[1, 3, 4], 1).unwrap_err().to_string();
        assert_eq!(error, "3 ranks cannot share 4 samples evenly: choose another --batch");
    }
}
