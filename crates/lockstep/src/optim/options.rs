//! The options of each optimizer, as values that are saved with its state.

use serde::{Deserialize, Serialize};

/// PyTorch's names of the optimizers.
pub(super) const SGD: &str = "SGD";
pub(super) const ADAM: &str = "Adam";
pub(super) const ADAM_W: &str = "AdamW";

/// The options of `torch.optim.SGD`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdOptions {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Momentum factor; 0, off.
    pub momentum: f64,
    /// Dampening of new gradients in the momentum buffer; 0.
    pub dampening: f64,
    /// Added to the gradient as `weight_decay * parameter` (an L2 penalty); 0.
    pub weight_decay: f64,
    /// Use Nesterov's momentum; off.
    pub nesterov: bool,
    /// Maximize instead of minimize; off.
    pub maximize: bool,
}

impl Default for SgdOptions {
    fn default() -> Self {
        SgdOptions { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false }
    }
}

/// The options of `torch.optim.Adam`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamOptions {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Decay rates of the two running averages; 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the denominator; 1e-8.
    pub eps: f64,
    /// Added to the gradient as `weight_decay * parameter` (an L2 penalty); 0.
    pub weight_decay: f64,
    /// Divide by the largest second average so far (Reddi et al., 2018); off.
    pub amsgrad: bool,
    /// Maximize instead of minimize; off.
    pub maximize: bool,
}

/// The options of `torch.optim.AdamW`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWOptions {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Decay rates of the two running averages; 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the denominator; 1e-8.
    pub eps: f64,
    /// The fraction `lr * weight_decay` by which each step shrinks the parameter; 1e-2.
    pub weight_decay: f64,
    /// Divide by the largest second average so far (Reddi et al., 2018); off.
    pub amsgrad: bool,
    /// Maximize instead of minimize; off.
    pub maximize: bool,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, amsgrad: false, maximize: false }
    }
}

impl Default for AdamWOptions {
    fn default() -> Self {
        let AdamOptions { lr, betas, eps, amsgrad, maximize, .. } = AdamOptions::default();
        AdamWOptions { lr, betas, eps, weight_decay: 1e-2, amsgrad, maximize }
    }
}

/// The options of a group, tagged with their optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "optimizer", content = "options")]
pub enum GroupOptions {
    /// Options of `torch.optim.SGD`.
    #[serde(rename = "SGD")]
    Sgd(SgdOptions),
    /// Options of `torch.optim.Adam`.
    Adam(AdamOptions),
    /// Options of `torch.optim.AdamW`.
    AdamW(AdamWOptions),
}

impl GroupOptions {
    /// PyTorch's name of the optimizer.
    pub fn optimizer(&self) -> &'static str {
        match self {
            GroupOptions::Sgd(_) => SGD,
            GroupOptions::Adam(_) => ADAM,
            GroupOptions::AdamW(_) => ADAM_W,
        }
    }
}
