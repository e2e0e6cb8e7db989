//! What task `distributed` trains: its data, its network, and its checkpoint. They record for the grader what the ranks do. You do not
//! change this file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Result, ensure};
use lockstep::checkpoint;
use lockstep::data::{Batch, Dataset, check_indices};
use serde::{Deserialize, Serialize};
use tch::nn::{self, Init, ModuleT, VarStore};
use tch::{Kind, Tensor};

/// The checkpoint, on a disk that all ranks share.
const CHECKPOINT: &str = "checkpoint.safetensors";
/// How often a save looks whether another rank has asked for the file too early: for a second, and for longer on a busy machine, where
/// the other ranks need longer, too.
const LOOKS: usize = 200;
const LOOK: Duration = Duration::from_millis(5);
/// The first input of sample `i` is `i / NAMES`, so that a batch shows which samples it has.
const NAMES: f64 = 64.0;

/// The settings of a training run.
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    /// Passes over the data.
    pub epochs: u64,
    /// The samples in a step of all ranks together.
    pub batch_size: usize,
    /// The learning rate for this batch size.
    pub lr: f64,
    /// The seed of the order and of the initial weights.
    pub seed: u64,
    inputs: Vec<Vec<f64>>,
    targets: Vec<f64>,
}

pub struct TrainingRun {
    pub settings: Settings,
    seen: Arc<Mutex<Seen>>,
}

/// What a rank has done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    passes: Vec<Pass>,
    reports: Vec<(u64, f64)>,
    saves: usize,
    loaded: Vec<Vec<f64>>,
}

/// A forward pass: the weights before it, and its samples.
#[derive(Clone, Debug, Serialize)]
struct Pass {
    weights: Vec<f64>,
    samples: Vec<usize>,
}

impl TrainingRun {
    pub fn new(settings: Settings) -> Self {
        TrainingRun { settings, seen: Arc::default() }
    }

    pub fn data(&self) -> Arc<dyn Dataset> {
        Arc::new(Data(self.settings.clone()))
    }

    /// One linear layer, whose initial weights libtorch's generator draws.
    pub fn net(&self, root: nn::Path<'_>) -> Net {
        let init = Init::Uniform { lo: -0.5, up: 0.5 };
        let inputs = self.settings.inputs.first().map_or(0, Vec::len) as i64;
        Net {
            weight: root.var("weight", &[inputs], init),
            bias: root.var("bias", &[1], init),
            seen: Arc::clone(&self.seen),
        }
    }

    /// Prints the mean loss of an epoch.
    pub fn report(&self, epoch: u64, loss: f64) {
        println!("Epoch {epoch} | Loss: {loss:.4}");
        self.seen().reports.push((epoch, loss));
    }

    /// Writes the weights to the checkpoint. Only one process at a time may do this.
    pub fn save(&self, vs: &VarStore) -> Result<()> {
        self.seen().saves += 1;
        for _ in 0..LOOKS {
            if Path::new("asked").exists() {
                break;
            }
            thread::sleep(LOOK);
        }
        // Each process has its own name for the file: a collision is counted, and does not end the run.
        let own = PathBuf::from(format!("saved-by-{}.safetensors", std::process::id()));
        checkpoint::save(vs, &own)?;
        Ok(fs::rename(own, CHECKPOINT)?)
    }

    /// Reads the weights back from the checkpoint.
    pub fn load(&self, vs: &mut VarStore) -> Result<()> {
        let file = PathBuf::from(CHECKPOINT);
        if !file.exists() {
            fs::write("asked", "")?;
        }
        ensure!(file.exists(), "there is no checkpoint yet");
        checkpoint::load(vs, &file)?;
        let mut named: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
        named.sort_by(|(one, _), (other, _)| other.cmp(one));
        self.seen().loaded.push(named.iter().flat_map(|(_, tensor)| numbers(tensor)).collect());
        Ok(())
    }

    /// What this rank has done so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Data(Settings);

impl Dataset for Data {
    fn len(&self) -> usize {
        self.0.targets.len()
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> Result<Batch> {
        check_indices(self.len(), indices)?;
        let rows: Vec<f64> = indices.iter().flat_map(|&index| self.0.inputs[index].clone()).collect();
        let targets: Vec<f64> = indices.iter().map(|&index| self.0.targets[index]).collect();
        let inputs = Tensor::from_slice(&rows).view([indices.len() as i64, -1]).to_kind(Kind::Float);
        Ok(Batch { inputs, targets: Tensor::from_slice(&targets).to_kind(Kind::Float) })
    }
}

/// Inputs `Float [n, 3]` to predictions `Float [n]`.
#[derive(Debug)]
pub struct Net {
    weight: Tensor,
    bias: Tensor,
    seen: Arc<Mutex<Seen>>,
}

impl Net {
    pub fn forward(&self, inputs: &Tensor) -> Tensor {
        if c10d::grad_enabled() {
            let samples = numbers(&inputs.select(1, 0)).iter().map(|name| (name * NAMES).round() as usize).collect();
            let weights = [numbers(&self.weight), numbers(&self.bias)].concat();
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).passes.push(Pass { weights, samples });
        }
        inputs.matmul(&self.weight) + &self.bias
    }
}

impl ModuleT for Net {
    fn forward_t(&self, inputs: &Tensor, _train: bool) -> Tensor {
        self.forward(inputs)
    }
}

/// The values of a tensor.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    lockstep_exercise::numbers(tensor).unwrap_or_default()
}
