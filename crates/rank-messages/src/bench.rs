//! What `lockstep bench` asks of its ranks, and what they answer: lines of text on the socket between them.
//!
//! A rank that connects sends its [`Hello`]. Then rank 0 gets one [`Order`] after another, a line of JSON each, and answers each with
//! a line of JSON. The ranks are `crates/bench-ranks` and, in Python, `harness/bench/src/python`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A rank's report of itself: three numbers in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub rank: usize,
    /// How often the job was restarted before this rank connected.
    pub restart: u32,
    pub pid: i32,
}

/// An order, as `{"step": {…}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// To time a collective: [`CollectiveAnswer`].
    Collective(CollectiveOrder),
    /// To draw photographs: [`DrawAnswer`].
    Draw(DrawOrder),
    /// To train with virtual ranks: [`ElasticAnswer`].
    Elastic(ElasticOrder),
    /// To time steps of a training that is divided over the ranks: [`ParallelAnswer`].
    Parallel(ParallelOrder),
    /// To load photographs: [`PicturesAnswer`].
    Pictures(PicturesOrder),
    /// To train with virtual ranks from the newest snapshot on: [`ResumedAnswer`].
    Resumed(ResumedOrder),
    /// To save a snapshot between two steps and load it: [`SnapshotAnswer`].
    Snapshot(SnapshotOrder),
    /// To time training steps: [`StepAnswer`].
    Step(StepOrder),
    /// To note when each part of each step begins: [`TraceAnswer`].
    Trace(StepOrder),
}

/// A collective at several sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveOrder {
    pub operation: String,
    /// Sizes that the ranks can share evenly.
    pub bytes: Vec<u64>,
}

/// What one measurement gave for each size, in the order of the sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveAnswer {
    /// Seconds of one operation: the median of several batches, each as long as its slowest rank took.
    pub seconds: Vec<f64>,
    /// The number of wrong elements, on all ranks together.
    pub wrong: Vec<u64>,
}

/// The network of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    Mlp,
    /// Convolutions and batch norms.
    Resnet,
}

/// Steps under DDP.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepOrder {
    pub model: Model,
    /// Samples in a rank's batch.
    pub batch: u32,
    /// For [`Order::Step`], the number of groups of three steps: one that is not timed, one with communication, one without.
    pub steps: u32,
}

/// Medians over the steps, in seconds. Each is the mean of all ranks unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepAnswer {
    /// The whole step.
    pub step: f64,
    /// The forward pass and the loss.
    pub forward: f64,
    /// The backward pass with communication.
    pub backward: f64,
    /// The optimizer's step, and clearing gradients.
    pub optimizer: f64,
    /// The backward pass without communication.
    pub backward_alone: f64,
    /// All buckets reduced at once, without computation: the time of the slowest rank, for which the others wait.
    pub all_reduces: f64,
    /// Seconds for one bucket, if each waits for the previous one: the mean of all buckets.
    pub one_all_reduce: f64,
    /// Bytes of the gradients.
    pub bytes: u64,
    pub buckets: u32,
    /// The loss of rank 0's batch.
    pub loss: f64,
    /// The norm of all gradients together, after a step with communication.
    pub gradient: f64,
    /// Peak bytes of tensors on a GPU, on the rank with the highest peak; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u64>,
}

/// The network of a small training with virtual ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElasticModel {
    /// Two layers with dropout between them.
    Mlp,
    /// ResNet-18 of few channels, with batch norm; pictures are mirrored at random.
    Resnet,
    /// A GPT with dropout.
    Gpt,
}

/// What updates the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Updates {
    /// SGD with momentum and weight decay.
    Sgd,
    AdamW,
    /// AdamW with its states divided among the ranks.
    Zero,
}

/// The type of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Float {
    Float32,
    /// With a scaled loss.
    Float16,
    Bfloat16,
}

/// A small training, apart from its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElasticTraining {
    pub model: ElasticModel,
    pub updates: Updates,
    /// `None` trains without virtual ranks.
    pub virtual_ranks: Option<usize>,
    /// Parts of a batch, whose gradients are added up.
    pub micro_batches: u32,
    /// The limit of the gradients' norm.
    pub clip: Option<f64>,
    pub float: Float,
}

impl ElasticTraining {
    /// The model with 4 virtual ranks, SGD, and nothing else.
    pub const fn of(model: ElasticModel) -> Self {
        ElasticTraining {
            model,
            updates: Updates::Sgd,
            virtual_ranks: Some(4),
            micro_batches: 1,
            clip: None,
            float: Float::Float32,
        }
    }
}

/// To train up to a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElasticOrder {
    pub training: ElasticTraining,
    /// The folder of its snapshots: training goes on from the newest, and ends with another.
    pub folder: PathBuf,
    /// Steps since the beginning.
    pub until: u32,
}

/// What a training ended with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElasticAnswer {
    /// A hash of all weights and of the evaluation, by their bits.
    pub bits: u64,
    /// The mean loss of each step that was taken, as the bits of an f64.
    pub losses: Vec<u64>,
    /// What carried the numbers: `shm`, `gloo`, `shm+gloo`.
    pub backend: String,
}

/// To take steps of the [MLP](Model::Mlp) with virtual ranks. The first order of a rank goes on from the newest snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResumedOrder {
    pub folder: PathBuf,
    pub virtual_ranks: usize,
    /// Samples in a virtual rank's batch.
    pub batch: u32,
    pub steps: u32,
}

/// The steps of a [`ResumedOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResumedAnswer {
    /// How many steps had been taken before.
    pub from: u64,
    /// How long they took.
    pub seconds: f64,
}

/// How a model is divided over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Each rank has the whole model and a part of the optimizer's states.
    Zero,
    /// Each rank has a part of parameters, gradients and optimizer's states. Parameters are gathered block by block.
    Sharded,
    /// Each rank has a part of each layer.
    Tensor,
    /// Each rank has a part of the sequence. Blocks are attention with one head, in place of the two layers.
    Context,
    /// Each rank has two experts of a block, which are two layers each.
    Expert,
}

/// Steps of a divided model. Every order starts from the same weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParallelOrder {
    /// How it is divided.
    pub scheme: Scheme,
    /// Inputs and outputs of a block of two layers, with four times as many between them.
    pub features: u32,
    pub blocks: u32,
    /// Rows of a rank's batch, or of its part of the sequence.
    pub rows: u32,
    /// Steps that are timed.
    pub steps: u32,
}

/// Means of all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParallelAnswer {
    /// Seconds of a step: the median.
    pub step: f64,
    /// The loss of each step, including those that were not timed.
    pub losses: Vec<f64>,
    /// Bytes that a rank wrote to sockets in a step.
    pub sent: f64,
    /// Bytes of a rank's tensors between two steps: parameters, gradients, the optimizer's states and DDP's buckets.
    pub kept: f64,
    /// Peak memory of a rank's process, in bytes.
    pub peak: f64,
}

/// Photographs for [`Order::Pictures`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawOrder {
    /// An empty folder.
    pub folder: PathBuf,
    /// The number of photographs.
    pub count: usize,
}

/// Where the photographs are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawAnswer {
    /// A folder with one folder for each class.
    pub folder: PathBuf,
}

/// A pass over photographs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PicturesOrder {
    /// A folder with one folder for each class.
    pub folder: PathBuf,
    /// Threads that load, or processes in Python.
    pub workers: usize,
    /// The folder of decoded photographs, if they are kept.
    pub cache: Option<PathBuf>,
}

/// The result of a pass over photographs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PicturesAnswer {
    /// How long it took.
    pub seconds: f64,
    /// The number of photographs that were loaded.
    pub photographs: usize,
    /// The mean of the first batch's absolute values, without augmentation. It is the same in Rust and in Python if both do
    /// the same work.
    pub mean: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotOrder {
    /// The folder of the snapshots.
    pub folder: PathBuf,
    /// Layers of the model: 4 MiB of weights each, and 4 MiB of momentum.
    pub layers: u32,
    /// Whether a thread writes while training goes on.
    pub background: bool,
}

/// In seconds, unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotAnswer {
    /// A step without a snapshot.
    pub plain: f64,
    /// What the snapshot adds to its step.
    pub stall: f64,
    /// What later steps lose to the writer in the background.
    pub lost: f64,
    /// The time from the beginning of the save until it is on disk.
    pub written: f64,
    /// The time until model and optimizer have it again.
    pub loaded: f64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The sum of the absolute weights after loading. It is the same in Rust and in Python if both saved and loaded the
    /// same.
    pub sum: f64,
}

/// The steps of each rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceAnswer {
    /// By rank.
    pub ranks: Vec<Vec<TracedStep>>,
}

/// When the parts of a step began, and its end, in microseconds since 1970 by the system's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedStep {
    pub begun: f64,
    pub forward: f64,
    pub backward: f64,
    /// The optimizer; also the end of the backward pass.
    pub optimizer: f64,
    pub ended: f64,
    /// The all-reduces.
    pub buckets: Vec<TracedBucket>,
}

/// A bucket's all-reduce, in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedBucket {
    pub bucket: usize,
    pub bytes: u64,
    pub started: f64,
    pub ended: f64,
}

impl Model {
    pub const ALL: [Model; 2] = [Model::Mlp, Model::Resnet];

    /// The name in orders.
    pub fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Resnet => "resnet",
        }
    }
}

impl Scheme {
    pub const ALL: [Scheme; 5] = [Scheme::Zero, Scheme::Sharded, Scheme::Tensor, Scheme::Context, Scheme::Expert];

    /// The name in orders.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Zero => "zero",
            Scheme::Sharded => "sharded",
            Scheme::Tensor => "tensor",
            Scheme::Context => "context",
            Scheme::Expert => "expert",
        }
    }
}

impl Hello {
    /// Parses a line without its end.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let hello = Hello {
            rank: words.next()?.parse().ok()?,
            restart: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(hello)
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.rank, self.restart, self.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_back_and_a_part_of_it_does_not() {
        let hello = Hello { rank: 12, restart: 3, pid: 4711 };
        assert_eq!((hello.to_string().as_str(), Hello::parse("12 3 4711")), ("12 3 4711", Some(hello)));
        for bad in ["", "12", "12 3", "12 3 ", "12 3 x", "12 3 4 5", "-1 3 4"] {
            assert_eq!(Hello::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_order_is_the_line_that_python_reads() {
        let order = Order::Step(StepOrder { model: Model::Resnet, batch: 8, steps: 2 });
        assert_eq!(serde_json::to_string(&order).unwrap(), r#"{"step":{"model":"resnet","batch":8,"steps":2}}"#);
        for scheme in Scheme::ALL {
            assert_eq!(serde_json::to_value(scheme).unwrap(), scheme.name());
        }
        for model in Model::ALL {
            assert_eq!(serde_json::to_value(model).unwrap(), model.name());
        }
    }
}
