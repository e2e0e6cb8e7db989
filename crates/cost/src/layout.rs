//! A transformer's training step on a cluster for each way to divide it: copies of the data, parts of the layers, stages of a pipeline.
//!
//! The model, for d copies, t parts of each layer and s stages, V bytes of activations between two blocks for the whole batch, and m micro-batches
//! in each copy:
//!
//! - A rank holds 16 bytes for each parameter that it has (single precision, Adam), and what its blocks keep for the backward pass, for as many
//!   micro-batches as 1F1B holds on the first stage: s, or m if that is less.
//! - A block has four all-reduces of V/(d·m) bytes for each micro-batch over t ranks, which do not overlap with computation
//!   (Shoeybi and others, "Megatron-LM", 2019).
//! - A pipeline takes (m + s − 1)/m times as long, and sends V/(d·m) bytes twice for each unit of that (Narayanan and others, "Efficient
//!   Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021).
//! - Copies average their gradients, 4 bytes for each parameter of a rank, in one all-reduce at the end.
//! - Copies can divide Adam's states, 8 of the 16 bytes: then a reduce-scatter of gradients and an all-gather of parameters move as much as
//!   that all-reduce. Or they divide all 16 bytes: for each micro-batch and block, they gather parameters in each of the two passes and
//!   reduce-scatter gradients, half as much again as an all-reduce (Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training
//!   Trillion Parameter Models", 2020, stages 1 and 3).
//!
//! Ranks are laid out with the parts of a layer next to each other, then the stages, then the copies. A group whose ranks are on one node uses
//! its links, any other the links between nodes. What it leaves out: overlap, the block that fully sharded copies have gathered, and
//! ranks that wait for each other's data.

use std::path::Path;

use serde::Deserialize;

use crate::Link;

/// Bytes for each parameter: itself, its gradient, and Adam's two means, in single precision.
const HELD: f64 = 16.0;
/// Of these, Adam's two means.
const STATES: f64 = 8.0;
const GRADIENT: f64 = 4.0;

/// Nodes of equal ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    pub nodes: usize,
    /// Ranks on each.
    pub per_node: usize,
    /// Bytes of memory that a rank has.
    pub memory: f64,
    /// Between ranks of one node.
    pub inside: Link,
    /// Between nodes.
    pub between: Link,
}

/// A transformer and a training step of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerStep {
    pub blocks: usize,
    /// Attention heads of a block.
    pub heads: usize,
    pub parameters: f64,
    /// Bytes of activations between two blocks, for the whole batch.
    pub activations: f64,
    /// Bytes of activations that a block keeps for its backward pass, for the whole batch.
    pub kept: f64,
    /// Seconds that the step takes on one rank, if it fits.
    pub compute: f64,
    /// Micro-batches into which each copy divides its share of the batch.
    pub micro_batches: usize,
}

/// How many ranks divide the batch, the layers and the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Copies, which divide the batch.
    pub data: usize,
    /// Parts of each layer.
    pub tensor: usize,
    /// Stages of a pipeline.
    pub pipeline: usize,
}

/// What the copies of a [`Layout`] divide among them besides the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    None,
    /// The optimizer's states: ZeRO, stage 1.
    States,
    /// Parameters, gradients and states: ZeRO, stage 3; FSDP.
    Full,
}

impl Cluster {
    pub fn ranks(&self) -> usize {
        self.nodes * self.per_node
    }

    /// The link of a group of `span` neighbouring ranks.
    fn link(&self, span: usize) -> Link {
        // Otherwise some group lies on two nodes, and the slowest group determines the time.
        let fits = span <= self.per_node && (self.nodes == 1 || self.per_node.is_multiple_of(span));
        if fits { self.inside } else { self.between }
    }
}

impl Layout {
    /// All layouts of `ranks` ranks, ordered by copies, then by parts.
    pub fn all(ranks: usize) -> impl Iterator<Item = Layout> {
        let divisors = move |of: usize| (1..=of).filter(move |number| of.is_multiple_of(*number));
        divisors(ranks).flat_map(move |data| {
            divisors(ranks / data).map(move |tensor| Layout { data, tensor, pipeline: ranks / data / tensor })
        })
    }

    pub fn ranks(&self) -> usize {
        self.data * self.tensor * self.pipeline
    }

    /// Returns true if the heads can be divided into parts and the blocks into stages of equal size.
    pub fn divides(&self, job: &TransformerStep) -> bool {
        job.heads.is_multiple_of(self.tensor) && job.blocks.is_multiple_of(self.pipeline)
    }

    /// What its copies can divide; a single copy has nobody to divide with.
    pub fn shardings(&self) -> &'static [Sharding] {
        if self.data > 1 { &[Sharding::None, Sharding::States, Sharding::Full] } else { &[Sharding::None] }
    }

    /// Bytes that a rank of the first stage holds, if its copy is whole.
    pub fn memory(&self, job: &TransformerStep) -> f64 {
        self.memory_sharded(Sharding::None, job)
    }

    /// Bytes that a rank of the first stage holds.
    pub fn memory_sharded(&self, sharding: Sharding, job: &TransformerStep) -> f64 {
        let (parts, copies) = ((self.tensor * self.pipeline) as f64, self.data as f64);
        let each = match sharding {
            Sharding::None => HELD,
            Sharding::States => HELD - STATES + STATES / copies,
            Sharding::Full => HELD / copies,
        };
        let held = self.pipeline.min(job.micro_batches) as f64 / job.micro_batches as f64;
        each * job.parameters / parts + job.kept * job.blocks as f64 / parts / copies * held
    }

    /// Seconds of a step, if copies are whole.
    pub fn step(&self, job: &TransformerStep, cluster: &Cluster) -> f64 {
        self.step_sharded(Sharding::None, job, cluster)
    }

    /// Seconds of a step.
    pub fn step_sharded(&self, sharding: Sharding, job: &TransformerStep, cluster: &Cluster) -> f64 {
        let (blocks, micro) = (job.blocks as f64 / self.pipeline as f64, job.micro_batches as f64);
        let message = job.activations / self.data as f64 / micro;
        let exchange = cluster.link(self.tensor).all_reduce(self.tensor, message);
        let gradients = GRADIENT * job.parameters / (self.tensor * self.pipeline) as f64;
        let all_reduce = |bytes| cluster.link(self.ranks()).all_reduce(self.data, bytes);
        // Of a block for each micro-batch, and at the end.
        let (gathers, average) = match sharding {
            Sharding::None | Sharding::States => (0.0, all_reduce(gradients)),
            // Two all-gathers and a reduce-scatter, each half an all-reduce: a parameter has as many bytes as its gradient.
            Sharding::Full => (1.5 * all_reduce(gradients / blocks), 0.0),
        };
        let busy = job.compute / self.ranks() as f64 + blocks * micro * (4.0 * exchange + gathers);
        let turns = micro + self.pipeline as f64 - 1.0;
        let stages = if self.pipeline > 1 {
            let link = cluster.link(self.tensor * self.pipeline);
            2.0 * turns * (link.latency + message / link.bandwidth)
        } else {
            0.0
        };
        busy * turns / micro + stages + average
    }
}

// A file with a cluster and a transformer, from which to choose a [`Layout`](crate::Layout). An example is
// `labs/12-parallelism/cluster.toml`.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterFile {
    /// The transformer, and a step of it.
    pub job: TransformerStep,
    /// The nodes, and the links within and between them.
    pub cluster: Cluster,
}

/// Why a file describes no cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterFileError {
    #[error("cannot read {path}")]
    Read {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// It describes something else.
    #[error("{path}: {why}")]
    Contents { path: String, why: Box<ClusterFileError> },
    /// It is not TOML, or lacks something; with the parser's message.
    #[error("not a file of a cluster and a transformer: {0}")]
    Form(String),
    /// A number that the model cannot compute with.
    #[error("{name} cannot be {value}")]
    Number {
        /// Its name in the file.
        name: &'static str,
        value: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nodes: u32,
    node: Node,
    network: Network,
    transformer: Transformer,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    ranks: u32,
    memory_gb: f64,
    latency_us: f64,
    bandwidth_gb_s: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    latency_us: f64,
    bandwidth_gb_s: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transformer {
    blocks: u32,
    heads: u32,
    parameters: f64,
    activations_mb: f64,
    kept_mb: f64,
    step_s: f64,
    micro_batches: u32,
}

impl ClusterFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or describes something else.
    pub fn read(path: &Path) -> Result<Self, ClusterFileError> {
        let name = || path.display().to_string();
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|source| ClusterFileError::Read { path: name(), source })?;
        Self::parse(&text).map_err(|why| ClusterFileError::Contents { path: name(), why: Box::new(why) })
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// It describes something else.
    pub fn parse(text: &str) -> Result<Self, ClusterFileError> {
        let file: File = toml::from_str(text).map_err(|error| ClusterFileError::Form(error.to_string()))?;
        file.check()?;
        let File { nodes, node, network, transformer } = file;
        let link =
            |latency_us: f64, bandwidth_gb_s: f64| Link { latency: 1e-6 * latency_us, bandwidth: 1e9 * bandwidth_gb_s };
        let cluster = Cluster {
            nodes: nodes as usize,
            per_node: node.ranks as usize,
            memory: 1e9 * node.memory_gb,
            inside: link(node.latency_us, node.bandwidth_gb_s),
            between: link(network.latency_us, network.bandwidth_gb_s),
        };
        let job = TransformerStep {
            blocks: transformer.blocks as usize,
            heads: transformer.heads as usize,
            parameters: transformer.parameters,
            activations: 1e6 * transformer.activations_mb,
            kept: 1e6 * transformer.kept_mb,
            compute: transformer.step_s,
            micro_batches: transformer.micro_batches as usize,
        };
        Ok(ClusterFile { job, cluster })
    }
}

impl File {
    /// Every number must be finite, and above 0, or at least 0 for latencies and activations.
    fn check(&self) -> Result<(), ClusterFileError> {
        let File { nodes, node, network, transformer } = self;
        let positive = [
            ("nodes", f64::from(*nodes)),
            ("node.ranks", node.ranks.into()),
            ("node.memory_gb", node.memory_gb),
            ("node.bandwidth_gb_s", node.bandwidth_gb_s),
            ("network.bandwidth_gb_s", network.bandwidth_gb_s),
            ("transformer.blocks", transformer.blocks.into()),
            ("transformer.heads", transformer.heads.into()),
            ("transformer.parameters", transformer.parameters),
            ("transformer.step_s", transformer.step_s),
            ("transformer.micro_batches", transformer.micro_batches.into()),
        ];
        let none_below_zero = [
            ("node.latency_us", node.latency_us),
            ("network.latency_us", network.latency_us),
            ("transformer.activations_mb", transformer.activations_mb),
            ("transformer.kept_mb", transformer.kept_mb),
        ];
        let bad = positive.into_iter().find(|(_, number)| !(number.is_finite() && *number > 0.0));
        let bad =
            bad.or_else(|| none_below_zero.into_iter().find(|(_, number)| !(number.is_finite() && *number >= 0.0)));
        bad.map_or(Ok(()), |(name, value)| Err(ClusterFileError::Number { name, value }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Link = Link { latency: 0.0, bandwidth: 100e9 };
    const SLOW: Link = Link { latency: 0.0, bandwidth: 1e9 };
    const CLUSTER: Cluster = Cluster { nodes: 2, per_node: 2, memory: 40e9, inside: FAST, between: SLOW };
    const JOB: TransformerStep = TransformerStep {
        blocks: 10,
        heads: 12,
        parameters: 1e9,
        activations: 1e9,
        kept: 4e9,
        compute: 4.0,
        micro_batches: 4,
    };

    fn layout(data: usize, tensor: usize, pipeline: usize) -> Layout {
        Layout { data, tensor, pipeline }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected, "{found}, not {expected}");
    }

    /// 16 GB for the parameters, and 10 blocks that keep 4 GB for all rows.
    #[test]
    fn a_rank_holds_its_parameters_and_what_its_blocks_keep() {
        close(layout(1, 1, 1).memory(&JOB), 16e9 + 10e9); // of one micro-batch
        close(layout(4, 1, 1).memory(&JOB), 16e9 + 2.5e9);
        close(layout(1, 4, 1).memory(&JOB), 4e9 + 2.5e9);
        close(layout(1, 1, 2).memory(&JOB), 8e9 + 10e9); // half of the blocks, of two micro-batches
        close(layout(1, 1, 8).memory(&JOB), 2e9 + 5e9); // never more than all four
    }

    #[test]
    fn copies_wait_for_their_gradients_over_the_slowest_link() {
        // 2 · 3/4 · 4 GB at 1 GB/s.
        close(layout(4, 1, 1).step(&JOB, &CLUSTER), 1.0 + 6.0);
        let one_node = Cluster { nodes: 1, per_node: 4, ..CLUSTER };
        close(layout(4, 1, 1).step(&JOB, &one_node), 1.0 + 0.06);
    }

    #[test]
    fn parts_of_a_layer_exchange_activations_four_times_a_block() {
        // 10 blocks · 4 all-reduces of 1 GB: on two neighbours half of it each way.
        close(layout(1, 2, 1).step(&JOB, &CLUSTER), 2.0 + 0.4);
        // On four ranks over the network, 1.5 GB each.
        close(layout(1, 4, 1).step(&JOB, &CLUSTER), 1.0 + 60.0);
    }

    #[test]
    fn stages_wait_for_each_other_and_send_little() {
        // (4 + 3) / 4 of 1 s, and 2 · 7 messages of 0.25 GB.
        close(layout(1, 1, 4).step(&JOB, &CLUSTER), 1.75 + 3.5);
        close(layout(1, 1, 2).step(&JOB, &CLUSTER), 2.0 * 1.25 + 10.0 * 0.0025);
    }

    /// Of 16 GB for the parameters, 8 GB are Adam's states; blocks keep as much as before.
    #[test]
    fn copies_hold_less_of_what_they_divide() {
        close(layout(4, 1, 1).memory_sharded(Sharding::None, &JOB), 16e9 + 2.5e9);
        close(layout(4, 1, 1).memory_sharded(Sharding::States, &JOB), 8e9 + 2e9 + 2.5e9);
        close(layout(4, 1, 1).memory_sharded(Sharding::Full, &JOB), 4e9 + 2.5e9);
        close(layout(2, 2, 1).memory_sharded(Sharding::States, &JOB), 4e9 + 2e9 + 2.5e9);
    }

    #[test]
    fn divided_states_move_as_much_as_whole_copies() {
        for layout in Layout::all(4) {
            close(layout.step_sharded(Sharding::States, &JOB, &CLUSTER), layout.step(&JOB, &CLUSTER));
        }
    }

    #[test]
    fn fully_sharded_copies_gather_in_each_pass_of_each_micro_batch() {
        // 3 · 3/4 · 4 GB at 1 GB/s, once and for each of four micro-batches.
        let once = TransformerStep { micro_batches: 1, ..JOB };
        close(layout(4, 1, 1).step_sharded(Sharding::Full, &once, &CLUSTER), 1.0 + 9.0);
        close(layout(4, 1, 1).step_sharded(Sharding::Full, &JOB, &CLUSTER), 1.0 + 4.0 * 9.0);
        // Two stages of half the parameters, on two copies: 3 · 1/2 · 2 GB in each of five turns, and 2 · 5 messages of 0.125 GB.
        close(layout(2, 1, 2).step_sharded(Sharding::Full, &JOB, &CLUSTER), 1.25 + 5.0 * 3.0 + 0.0125);
        // Three collectives of each of 10 blocks, with three messages each.
        let late = Cluster { between: Link { latency: 1e-3, ..SLOW }, ..CLUSTER };
        close(layout(4, 1, 1).step_sharded(Sharding::Full, &once, &late), 1.0 + 9.0 + 0.09);
    }

    #[test]
    fn a_single_copy_divides_nothing() {
        assert_eq!(layout(1, 2, 2).shardings(), [Sharding::None]);
        assert_eq!(layout(2, 2, 1).shardings(), [Sharding::None, Sharding::States, Sharding::Full]);
    }

    #[test]
    fn every_layout_takes_all_ranks_once() {
        let of_4: Vec<_> = Layout::all(4).map(|layout| (layout.data, layout.tensor, layout.pipeline)).collect();
        assert_eq!(of_4, [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]);
        assert_eq!(Layout::all(12).filter(|layout| layout.ranks() == 12).count(), 18);
    }

    #[test]
    fn heads_and_blocks_are_divided_equally() {
        assert!(layout(1, 4, 5).divides(&JOB));
        assert!(!layout(1, 8, 1).divides(&JOB) && !layout(1, 1, 4).divides(&JOB));
    }

    const EXAMPLE: &str = include_str!("../../../labs/12-parallelism/cluster.toml");

    #[test]
    fn reads_the_labs_file_in_its_units() {
        let ClusterFile { job, cluster } = ClusterFile::parse(EXAMPLE).unwrap();
        assert_eq!((cluster.ranks(), cluster.memory, cluster.between.bandwidth), (32, 40e9, 10e9));
        assert!((cluster.inside.latency - 5e-6).abs() < 1e-12, "{cluster:?}");
        assert_eq!((job.blocks, job.parameters, job.kept, job.compute), (40, 13e9, 5.4e9, 60.0));
    }

    #[test]
    fn refuses_what_it_cannot_compute_with_by_its_name() {
        for (from, to, named) in [
            ("nodes = 4", "nodes = 0", "nodes cannot be 0"),
            ("memory_gb = 40", "memory_gb = nan", "node.memory_gb cannot be NaN"),
            ("latency_us = 20", "latency_us = -1", "network.latency_us cannot be -1"),
            ("ranks = 8", "gpus = 8", "unknown field `gpus`"),
            ("heads = 40", "", "missing field `heads`"),
        ] {
            assert!(EXAMPLE.contains(from), "{from}");
            let error = ClusterFile::parse(&EXAMPLE.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let error = ClusterFile::read(Path::new("/no/such/file")).unwrap_err().to_string();
        assert_eq!(error, "cannot read /no/such/file");
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = ClusterFile::read(&manifest).unwrap_err();
        let words = format!("{}: not a file of a cluster and a transformer: ", manifest.display());
        assert!(error.to_string().starts_with(&words) && std::error::Error::source(&error).is_none(), "{error}");
    }
}
