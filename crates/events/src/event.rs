//! Events, and the lines in which they are written.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Something that a rank did. Counts start at 0, times are in seconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)] // the names of the fields explain them; for units see above
pub enum Event {
    /// The process has joined its group. `device` has PyTorch's form: `cpu`, `cuda:0`.
    Start { world_size: usize, device: String, pid: u32 },
    /// The process has joined a group of `world_size` ranks over `backend` (`gloo`, `shm`, `shm+gloo`, `nccl`, or two:
    /// `cpu:shm,cuda:nccl`). If the ranks chose it, `reason` says why.
    Group {
        world_size: usize,
        backend: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An epoch begins on this rank, with this number of steps and this batch size.
    Epoch { epoch: u64, steps: u64, batch_size: usize },
    /// An optimizer step is complete; `loss` is this rank's mean over `samples` samples.
    Step {
        epoch: u64,
        step: u64,
        #[serde(with = "number")]
        loss: f64,
        samples: u64,
    },
    /// The model was evaluated on `samples` samples of all ranks; `accuracy` is between 0 and 1.
    Eval {
        epoch: u64,
        #[serde(with = "number")]
        accuracy: f64,
        #[serde(with = "number")]
        loss: f64,
        samples: u64,
    },
    /// The samples that this rank processed in an epoch, in order. They show whether each sample was used once.
    Samples { epoch: u64, indices: Vec<u64> },
    /// A snapshot is safely on disk; training would resume from it at `step`.
    Snapshot { epoch: u64, step: u64, path: String, bytes: u64, seconds: f64 },
    /// Training resumes from a snapshot, at `step`.
    Resume { epoch: u64, step: u64, path: String },
    /// A collective with `bytes` bytes per rank took `seconds`. `op` is PyTorch's name: `all_reduce`.
    Collective { op: String, bytes: u64, seconds: f64 },
    /// Something went wrong.
    Fault { message: String },
    /// The others wait for these ranks in their collectives, for this part of their time, because of `cause`: `loader`, `computing`,
    /// `processor`, `other`. Without ranks: all wait for their loaders. Written by rank 0. Where ranks share memory, `waited` says
    /// how many seconds each rank waited for these.
    Late {
        ranks: Vec<usize>,
        cause: String,
        share: f64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waited: Vec<f64>,
        message: String,
    },
    /// The memory of this rank by kind, counted, and what it has passed to its group's operations so far.
    Memory { parameters: u64, gradients: u64, optimizer: u64, activations: u64, buckets: u64, sent: u64 },
    /// The process is about to exit.
    Exit { code: i32 },
    /// An event of a newer version, whose kind this version does not know. Only read, never written.
    #[serde(skip)]
    Other { kind: String, fields: Map<String, Value> },
}

/// An event with its time and its writer.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Seconds since the Unix epoch, by the writing host's clock.
    pub t: f64,
    /// The rank that wrote it.
    pub rank: usize,
    /// The number of restarts before it.
    pub restart: u32,
    /// The event.
    pub event: Event,
}

impl Event {
    /// The value of the field `event`.
    pub fn kind(&self) -> &str {
        match self {
            Event::Start { .. } => "start",
            Event::Group { .. } => "group",
            Event::Epoch { .. } => "epoch",
            Event::Step { .. } => "step",
            Event::Eval { .. } => "eval",
            Event::Samples { .. } => "samples",
            Event::Snapshot { .. } => "snapshot",
            Event::Resume { .. } => "resume",
            Event::Collective { .. } => "collective",
            Event::Fault { .. } => "fault",
            Event::Late { .. } => "late",
            Event::Memory { .. } => "memory",
            Event::Exit { .. } => "exit",
            Event::Other { kind, .. } => kind,
        }
    }
}

pub(crate) const KINDS: [&str; 13] = [
    "start",
    "group",
    "epoch",
    "step",
    "eval",
    "samples",
    "snapshot",
    "resume",
    "collective",
    "fault",
    "late",
    "memory",
    "exit",
];

#[derive(Deserialize)]
struct Head {
    t: f64,
    rank: usize,
    restart: u32,
    event: String,
}

impl Record {
    /// Reads a line.
    pub(crate) fn parse(value: Value) -> serde_json::Result<Self> {
        let Head { t, rank, restart, event: kind } = Head::deserialize(&value)?;
        let event = if KINDS.contains(&kind.as_str()) {
            Event::deserialize(value)?
        } else {
            let mut fields = Map::deserialize(value)?;
            fields.retain(|name, _| !["t", "rank", "restart", "event"].contains(&name.as_str()));
            Event::Other { kind, fields }
        };
        Ok(Record { t, rank, restart, event })
    }
}

/// Non-finite floats, which JSON has no numbers for, become strings: readers of these files look for a loss that became
/// NaN.
mod number {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            value if value.is_finite() => serializer.serialize_f64(*value),
            value => serializer.serialize_str(if value.is_nan() {
                "NaN"
            } else if *value > 0.0 {
                "inf"
            } else {
                "-inf"
            }),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Number {
            Finite(f64),
            Named(Named),
        }
        #[derive(Deserialize)]
        enum Named {
            NaN,
            #[serde(rename = "inf")]
            Inf,
            #[serde(rename = "-inf")]
            MinusInf,
        }
        Ok(match Number::deserialize(deserializer)? {
            Number::Finite(value) => value,
            Number::Named(Named::NaN) => f64::NAN,
            Number::Named(Named::Inf) => f64::INFINITY,
            Number::Named(Named::MinusInf) => f64::NEG_INFINITY,
        })
    }
}
