//! `lockstep bench predict`: what a training step would take on a cluster that a file describes, for several ways to exchange gradients; or,
//! for a file with a transformer, what a rank would hold and a step would take in each layout. Nothing is measured:
//! [`lockstep_cost::Prediction`] and [`lockstep_cost::Layout`] have the models and what they leave out.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use lockstep_contract::foreign;
use lockstep_cost::{Bound, ClusterFile, Compute, Exchange, Link, Prediction, SHOWN, Sizes, first_unusable};
use lockstep_plot::Chart;
use serde::Deserialize;

use crate::exit::{Code, Refused};
use crate::layouts;
use crate::report::{Form, Screen, Table, Target, numbers_table, wrapped};
use crate::results::{Unit, digits};

/// A file to begin with.
const EXAMPLE: &str = include_str!("cluster.toml");
/// Nodes, unless they are given.
const NODES: [u32; 5] = [1, 2, 4, 8, 16];
/// In bytes: DDP's first bucket (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`), and a unit of the file.
const MIB: f64 = 1_048_576.0;

/// Predict a training step on a cluster from one rank's step and the links; measures nothing
#[derive(Args)]
pub(crate) struct PredictOptions {
    /// The cluster, the model and one rank's step; `--example` prints such a file. With a transformer in it, as in
    /// labs/12-parallelism/cluster.toml: what each layout holds and takes
    #[arg(value_name = "CLUSTER.toml", required_unless_present = "example")]
    cluster: Option<PathBuf>,
    /// Print an example of the file
    #[arg(long, conflicts_with = "cluster")]
    example: bool,
    /// Nodes: a list, by default 1,2,4,8,16, or those of a file with a transformer
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    nodes: Vec<u32>,
    /// Draw the efficiency of each way: a file that ends with .svg
    #[arg(long, value_name = "FILE.svg", value_parser = |name: &str| Target::parse(name, &[Form::Svg]))]
    picture: Option<Target>,
}

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cluster {
    step: Step,
    model: Model,
    powersgd: Option<PowerSgd>,
    node: Node,
    network: Network,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    forward_ms: f64,
    backward_ms: f64,
    optimizer_ms: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    parameters: f64,
    bytes_of_a_gradient: f64,
    bucket_mib: f64,
    shard_units: u32,
    accumulate: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PowerSgd {
    sent: f64,
    hook_ms: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    ranks: u32,
    latency_us: f64,
    bandwidth_gb_s: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    latency_us: f64,
    bandwidth_gb_s: f64,
}

impl PredictOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let screen = Screen::new(false);
        let Some(path) = self.cluster else {
            screen.line(EXAMPLE.trim_end());
            return Ok(Code::Success);
        };
        let refused = |why: String| Refused(format!("cannot use {}: {why}", foreign::path(&path)));
        let text = fs::read_to_string(&path).map_err(|error| refused(error.to_string()))?;
        let show = |tables: Vec<Table>| {
            tables.iter().for_each(|table| {
                screen.line(format!("{}\n{}\n", table.title, numbers_table(table, screen.style())));
            });
        };
        let say = |text: &str| screen.line(wrapped(text, screen.style().width));
        if layouts::are_asked_for(&text) {
            if self.picture.is_some() {
                let why = "--picture draws ways to exchange gradients, and the file asks for layouts";
                return Err(refused(why.into()).into());
            }
            let file = ClusterFile::parse(&text).map_err(|error| refused(error.to_string()))?;
            show(layouts::tables(&file, &self.nodes));
            say(&format!(
                "a prediction, not a measurement, of layouts that divide heads and blocks equally: 16 bytes for each parameter, and what \
                 blocks keep for the backward pass; no overlap. Ranks with the same parameters shard nothing, Adam's states, or all: the \
                 fastest that fits. Shown are the {} fastest layouts that fit, others only if fewer do, and copies alone",
                SHOWN
            ));
            return Ok(Code::Success);
        }
        let cluster = Cluster::parse(&text).map_err(refused)?;
        let nodes = if self.nodes.is_empty() { &NODES[..] } else { &self.nodes };
        show(cluster.tables(nodes));
        if let Some(picture) = &self.picture {
            let title = "Efficiency by the number of ranks; the tables have the same numbers";
            picture.save("the picture", &Chart::file(title, &[cluster.chart(nodes)]))?;
        }
        say(
            "a prediction, not a measurement: one ring over all ranks, gradients at an even rate, no rank waits for data or for another \
             job; `times one rank` counts samples, with the same batch on each rank",
        );
        Ok(Code::Success)
    }
}

impl Cluster {
    fn parse(text: &str) -> Result<Self, String> {
        let cluster: Cluster = toml::from_str(text).map_err(|error| error.to_string())?;
        cluster.check()?;
        Ok(cluster)
    }

    /// Every number must be one that a division or a logarithm survives.
    fn check(&self) -> Result<(), String> {
        let Cluster { step, model, powersgd, node, network } = self;
        let positive = [
            ("model.parameters", model.parameters),
            ("model.bytes_of_a_gradient", model.bytes_of_a_gradient),
            ("model.bucket_mib", model.bucket_mib),
            ("model.shard_units", model.shard_units.into()),
            ("model.accumulate", model.accumulate.into()),
            ("node.ranks", node.ranks.into()),
            ("node.bandwidth_gb_s", node.bandwidth_gb_s),
            ("network.bandwidth_gb_s", network.bandwidth_gb_s),
            ("step.forward_ms", step.forward_ms),
            ("step.backward_ms", step.backward_ms),
        ];
        let none_below_zero = [
            ("step.optimizer_ms", step.optimizer_ms),
            ("node.latency_us", node.latency_us),
            ("network.latency_us", network.latency_us),
            ("powersgd.sent", powersgd.as_ref().map_or(0.0, |powersgd| powersgd.sent)),
            ("powersgd.hook_ms", powersgd.as_ref().map_or(0.0, |powersgd| powersgd.hook_ms)),
        ];
        let bad = first_unusable(&positive, &none_below_zero);
        bad.map_or(Ok(()), |(name, number)| Err(format!("{name} cannot be {number}")))
    }

    fn compute(&self) -> Compute {
        let [forward, backward, optimizer] =
            [self.step.forward_ms, self.step.backward_ms, self.step.optimizer_ms].map(|time| 1e-3 * time);
        Compute { forward, backward, optimizer }
    }

    fn sizes(&self) -> Sizes {
        let gradients = self.model.parameters * self.model.bytes_of_a_gradient;
        Sizes { gradients, bucket: MIB * self.model.bucket_mib, first_bucket: MIB }
    }

    /// The slowest link of the ring.
    fn link(&self, nodes: u32) -> Link {
        let link =
            |latency_us: f64, bandwidth_gb_s: f64| Link { latency: 1e-6 * latency_us, bandwidth: 1e9 * bandwidth_gb_s };
        let (node, network) = (&self.node, &self.network);
        match nodes {
            1 => link(node.latency_us, node.bandwidth_gb_s),
            _ => link(network.latency_us.max(node.latency_us), network.bandwidth_gb_s.min(node.bandwidth_gb_s)),
        }
    }

    /// Each way to exchange gradients, with the number of micro-batches in a step.
    fn exchanges(&self) -> Vec<(String, Exchange, u32)> {
        let ddp = |sent, calls, hook, accumulate| Exchange::Ddp { sent, calls, hook, accumulate };
        let accumulate = self.model.accumulate;
        let powersgd = self
            .powersgd
            .as_ref()
            .map(|powersgd| ("PowerSGD hook".to_owned(), ddp(powersgd.sent, 2.0, 1e-3 * powersgd.hook_ms, 1), 1));
        let accumulated = (format!("{accumulate} micro-batches"), ddp(1.0, 1.0, 0.0, accumulate), accumulate);
        [("DDP".to_owned(), ddp(1.0, 1.0, 0.0, 1), 1), accumulated, ("fp16 hook".to_owned(), ddp(0.5, 1.0, 0.0, 1), 1)]
            .into_iter()
            .chain(powersgd)
            .chain([("sharded".to_owned(), Exchange::Sharded { units: self.model.shard_units }, 1)])
            .collect()
    }

    /// A table for each way.
    fn tables(&self, nodes: &[u32]) -> Vec<Table> {
        let headings =
            ["nodes", "ranks", "step", "waits", "times one rank", "efficiency", "what rules"].map(str::to_owned);
        let table = |(title, exchange, batches): (String, Exchange, u32)| Table {
            title,
            headings: headings.to_vec(),
            rows: nodes.iter().map(|nodes| self.row(*nodes, exchange, batches)).collect(),
        };
        self.exchanges().into_iter().map(table).collect()
    }

    /// A line for each way.
    fn chart(&self, nodes: &[u32]) -> Chart {
        let series = self.exchanges().into_iter().map(|(name, exchange, batches)| {
            let point = |nodes: &u32| {
                let (ranks, found) = self.predict(*nodes, exchange);
                (ranks as f64, self.efficiency(&found, batches))
            };
            (name, nodes.iter().map(point).collect())
        });
        Chart::efficiency("predicted efficiency".to_owned(), series)
    }

    /// The number of ranks, and the step.
    fn predict(&self, nodes: u32, exchange: Exchange) -> (usize, Prediction) {
        let ranks = nodes as usize * self.node.ranks as usize;
        (ranks, Prediction::of(self.compute(), self.sizes(), exchange, ranks, self.link(nodes)))
    }

    fn efficiency(&self, found: &Prediction, batches: u32) -> f64 {
        let Compute { forward, backward, optimizer } = self.compute();
        f64::from(batches) * (forward + backward + optimizer) / found.step
    }

    fn row(&self, nodes: u32, exchange: Exchange, batches: u32) -> Vec<String> {
        let (ranks, found) = self.predict(nodes, exchange);
        let efficiency = self.efficiency(&found, batches);
        let rules = match found.bound {
            Bound::Compute => "compute",
            Bound::Latency => "latency",
            Bound::Bandwidth => "bandwidth",
            Bound::Hook => "the hook",
        };
        vec![
            nodes.to_string(),
            ranks.to_string(),
            Unit::Seconds.show(found.step),
            Unit::Seconds.show(found.exposed),
            digits(ranks as f64 * efficiency),
            format!("{:.0} %", 100.0 * efficiency),
            rules.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_plot::Series;

    fn example(from: &str, to: &str) -> Result<Cluster, String> {
        assert!(EXAMPLE.contains(from), "{from}");
        Cluster::parse(&EXAMPLE.replace(from, to))
    }

    #[test]
    fn the_network_rules_as_soon_as_there_are_two_nodes() {
        let cluster = example("ranks = 8", "ranks = 8").unwrap();
        for (nodes, latency, bandwidth) in [(1, 4e-6, 100e9), (2, 20e-6, 3e9)] {
            let link = cluster.link(nodes);
            assert!((link.latency - latency).abs() < 1e-12 && (link.bandwidth - bandwidth).abs() < 1.0, "{link:?}");
        }
    }

    #[test]
    fn one_rank_alone_is_the_measure_of_all() {
        let cluster = example("ranks = 8", "ranks = 1").unwrap();
        let [table, ..] = &cluster.tables(&[1])[..] else { panic!() };
        assert_eq!(table.rows[0], ["1", "1", "185 ms", "0", "1.00", "100 %", "compute"]);
    }

    #[test]
    fn draws_what_the_tables_have() {
        let cluster = example("ranks = 8", "ranks = 8").unwrap();
        let (chart, tables) = (cluster.chart(&[1, 4]), cluster.tables(&[1, 4]));
        assert_eq!(chart.series.len(), tables.len());
        for (Series { name, line, .. }, table) in chart.series.iter().zip(&tables) {
            let parts: Vec<_> =
                line.iter().map(|(ranks, part)| (ranks.to_string(), format!("{:.0} %", 100.0 * part))).collect();
            let rows: Vec<_> = table.rows.iter().map(|row| (row[1].clone(), row[5].clone())).collect();
            assert_eq!((name, parts), (&table.title, rows));
        }
    }

    #[test]
    fn leaves_powersgd_out_where_the_file_does() {
        let titles = |cluster: &Cluster| cluster.tables(&[1]).into_iter().map(|table| table.title).collect::<Vec<_>>();
        let cluster = example("ranks = 8", "ranks = 8").unwrap();
        assert_eq!(titles(&cluster), ["DDP", "4 micro-batches", "fp16 hook", "PowerSGD hook", "sharded"]);
        let without = Cluster { powersgd: None, ..cluster };
        assert_eq!(titles(&without), ["DDP", "4 micro-batches", "fp16 hook", "sharded"]);
    }

    #[test]
    fn refuses_numbers_that_mean_nothing_by_their_names() {
        for (from, to, named) in [
            ("ranks = 8", "ranks = 0", "node.ranks cannot be 0"),
            ("backward_ms = 120", "backward_ms = -1", "step.backward_ms cannot be -1"),
            ("bandwidth_gb_s = 3", "bandwidth_gb_s = nan", "network.bandwidth_gb_s cannot be NaN"),
            ("sent = 0.02", "sent = inf", "powersgd.sent cannot be inf"),
            ("ranks = 8", "gpus = 8", "unknown field `gpus`"),
            ("forward_ms = 60", "", "missing field `forward_ms`"),
        ] {
            let error = example(from, to).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
