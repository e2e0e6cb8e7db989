//! A file with a cluster and a transformer, from which to choose a [`Layout`](crate::Layout). An example is
//! `labs/12-parallelism/cluster.toml`.

use std::path::Path;

use serde::Deserialize;

use crate::Link;
use crate::layout::{Cluster, Experts, TransformerStep};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterFile {
    /// The transformer and its training step.
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
    sequences: Option<u32>,
    experts: Option<u32>,
    expert_parameters: Option<f64>,
}

impl ClusterFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ClusterFileError> {
        let name = || path.display().to_string();
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|source| ClusterFileError::Read { path: name(), source })?;
        Self::parse(&text).map_err(|why| ClusterFileError::Contents { path: name(), why: Box::new(why) })
    }

    /// Reads a file's text.
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
            sequences: transformer.sequences.map(|sequences| sequences as usize),
            experts: transformer.experts()?,
        };
        Ok(ClusterFile { job, cluster })
    }
}

impl Transformer {
    fn experts(&self) -> Result<Option<Experts>, ClusterFileError> {
        match (self.experts, self.expert_parameters) {
            (None, None) => Ok(None),
            (Some(_), Some(value)) if value > self.parameters => {
                Err(ClusterFileError::Number { name: "transformer.expert_parameters", value })
            }
            (Some(number), Some(parameters)) => Ok(Some(Experts { number: number as usize, parameters })),
            _ => Err(ClusterFileError::Form("experts need expert_parameters, and the other way round".to_owned())),
        }
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
            ("transformer.sequences", transformer.sequences.map_or(1.0, f64::from)),
            ("transformer.experts", transformer.experts.map_or(1.0, f64::from)),
            ("transformer.expert_parameters", transformer.expert_parameters.unwrap_or(1.0)),
        ];
        let none_below_zero = [
            ("node.latency_us", node.latency_us),
            ("network.latency_us", network.latency_us),
            ("transformer.activations_mb", transformer.activations_mb),
            ("transformer.kept_mb", transformer.kept_mb),
        ];
        let bad = first_unusable(&positive, &none_below_zero);
        bad.map_or(Ok(()), |(name, value)| Err(ClusterFileError::Number { name, value }))
    }
}

/// The first number that nothing can be computed with: not finite, not above 0, or, of the second list, below 0.
pub fn first_unusable<'a>(positive: &[(&'a str, f64)], none_below_zero: &[(&'a str, f64)]) -> Option<(&'a str, f64)> {
    let bad = positive.iter().find(|(_, number)| !(number.is_finite() && *number > 0.0));
    bad.or_else(|| none_below_zero.iter().find(|(_, number)| !(number.is_finite() && *number >= 0.0))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../labs/12-parallelism/cluster.toml");

    #[test]
    fn reads_the_labs_file_in_its_units() {
        let ClusterFile { job, cluster } = ClusterFile::parse(EXAMPLE).unwrap();
        assert_eq!((cluster.ranks(), cluster.memory, cluster.between.bandwidth), (32, 40e9, 10e9));
        assert!((cluster.inside.latency - 5e-6).abs() < 1e-12, "{cluster:?}");
        assert_eq!((job.blocks, job.parameters, job.kept, job.compute), (40, 13e9, 5.4e9, 60.0));
        assert_eq!((job.sequences, job.experts), (None, None));
        let more = format!("{EXAMPLE}sequences = 32\nexperts = 16\nexpert_parameters = 9_000_000_000\n");
        let job = ClusterFile::parse(&more).unwrap().job;
        assert_eq!((job.sequences, job.experts), (Some(32), Some(Experts { number: 16, parameters: 9e9 })));
    }

    #[test]
    fn refuses_what_it_cannot_compute_with_by_its_name() {
        for (from, to, named) in [
            ("nodes = 4", "nodes = 0", "nodes cannot be 0"),
            ("memory_gb = 40", "memory_gb = nan", "node.memory_gb cannot be NaN"),
            ("latency_us = 20", "latency_us = -1", "network.latency_us cannot be -1"),
            ("ranks = 8", "gpus = 8", "unknown field `gpus`"),
            ("heads = 40", "", "missing field `heads`"),
            ("heads = 40", "heads = 40\nsequences = 0", "transformer.sequences cannot be 0"),
            ("heads = 40", "heads = 40\nexperts = 4", "experts need expert_parameters"),
            ("heads = 40", "heads = 40\nexpert_parameters = 1", "experts need expert_parameters"),
            (
                "heads = 40",
                "heads = 40\nexperts = 4\nexpert_parameters = 2e10",
                "transformer.expert_parameters cannot be 20000000000",
            ),
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
