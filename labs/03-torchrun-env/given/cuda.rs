//! SIMULATED: so much of CUDA as task 4 needs, for machines without a GPU. There is nothing to change here.
//!
//! True of the real one, too: CUDA reads `CUDA_VISIBLE_DEVICES` once, at the first call that needs to know the devices, and
//! does not look again. The process then sees the listed GPUs alone, in the order of the list, and numbers them from 0.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// The variable with the numbers of the GPUs that a process may see, such as `2,3`.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A process of a machine with GPUs.
pub struct Process {
    gpus: usize,
    variables: BTreeMap<String, String>,
    visible: OnceCell<Vec<usize>>,
}

/// A GPU, by its number in the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu(pub usize);

impl Process {
    /// On a machine with so many GPUs, with this environment.
    pub fn new(gpus: usize, variables: BTreeMap<String, String>) -> Self {
        Process { gpus, variables, visible: OnceCell::new() }
    }

    /// A variable of its environment.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Changes its environment.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.insert(name.into(), value.into());
    }

    /// How many GPUs it sees.
    pub fn device_count(&self) -> usize {
        self.visible().len()
    }

    /// Opens the GPU of this number among those that it sees.
    ///
    /// # Errors
    /// When it does not see that many.
    pub fn open(&self, device: usize) -> Result<Gpu> {
        let gpu = self.visible().get(device).copied().map(Gpu);
        gpu.with_context(|| format!("CUDA error: invalid device ordinal ({device} of {} devices)", self.device_count()))
    }

    fn visible(&self) -> &[usize] {
        self.visible.get_or_init(|| match self.variable(VISIBLE) {
            // What stands behind a number that is no GPU's is not seen either.
            Some(list) => {
                list.split(',').map_while(|gpu| gpu.trim().parse().ok().filter(|gpu| *gpu < self.gpus)).collect()
            }
            None => (0..self.gpus).collect(),
        })
    }
}
