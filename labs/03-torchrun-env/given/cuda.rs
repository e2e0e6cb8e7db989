//! SIMULATED: the part of CUDA that task 4 needs, for machines without a GPU. You do not change this file.
//!
//! The real CUDA behaves in the same way: it reads `CUDA_VISIBLE_DEVICES` once, at the first call that needs the devices, and
//! never again. The process then sees only the listed GPUs, in the order of the list, and numbers them from 0.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// The variable that lists the numbers of the GPUs that a process may see, such as `2,3`.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A process on a machine with GPUs.
pub struct Process {
    gpus: usize,
    variables: BTreeMap<String, String>,
    visible: OnceCell<Vec<usize>>,
}

/// A GPU, identified by its number on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu(pub usize);

impl Process {
    /// A process with this environment on a machine with `gpus` GPUs.
    pub fn new(gpus: usize, variables: BTreeMap<String, String>) -> Self {
        Process { gpus, variables, visible: OnceCell::new() }
    }

    /// Reads a variable of its environment.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Sets a variable of its environment.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.insert(name.into(), value.into());
    }

    /// The number of GPUs that it sees. Initializes CUDA.
    pub fn device_count(&self) -> usize {
        self.visible().len()
    }

    /// Opens the GPU with this number among those that it sees. Initializes CUDA.
    ///
    /// # Errors
    /// When it sees no GPU with this number.
    pub fn open(&self, device: usize) -> Result<Gpu> {
        let gpu = self.visible().get(device).copied().map(Gpu);
        gpu.with_context(|| format!("CUDA error: invalid device ordinal ({device} of {} devices)", self.device_count()))
    }

    fn visible(&self) -> &[usize] {
        self.visible.get_or_init(|| match self.variable(VISIBLE) {
            // An invalid number hides all entries after it, too.
            Some(list) => {
                list.split(',').map_while(|gpu| gpu.trim().parse().ok().filter(|gpu| *gpu < self.gpus)).collect()
            }
            None => (0..self.gpus).collect(),
        })
    }
}
