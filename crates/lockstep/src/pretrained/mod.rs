//! Weights that somebody else trained: a `.safetensors` file, or a state dict that PyTorch saved (`.pth`, `.pt`), into a model.
//!
//! ```no_run
//! use lockstep::pretrained::{self, LoadOptions};
//!
//! # fn main() -> anyhow::Result<()> {
//! # let vs = tch::nn::VarStore::new(tch::Device::Cpu);
//! // A network for other classes than the file's: its head is new and stays as it is.
//! let options = LoadOptions { skip: vec!["fc.".into()], ..Default::default() };
//! let loaded = pretrained::load(&vs, "resnet34.pth".as_ref(), &options)?;
//! println!("{loaded}"); // loaded 216 of 220 variables from resnet34.pth; left out as asked: fc.bias, fc.weight …
//! # Ok(()) }
//! ```

mod error;
mod load;

pub use error::{Difference, PretrainedError};
pub use load::{LoadOptions, Loaded, load};
