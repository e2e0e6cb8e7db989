//! Loads pretrained weights into a model: a `.safetensors` file, or a state dict saved by PyTorch (`.pth`, `.pt`).
//!
//! ```no_run
//! use lockstep::pretrained::{self, LoadOptions};
//!
//! # fn main() -> anyhow::Result<()> {
//! # let vs = tch::nn::VarStore::new(tch::Device::Cpu);
//! // A network for other classes than the file's: its head is new and stays as it is.
//! let options = LoadOptions { skip: vec!["fc.".into()], ..Default::default() };
//! let loaded = pretrained::load(&vs, "resnet18.pth".as_ref(), &options)?;
//! println!("{loaded}"); // loaded 100 of 102 variables from resnet18.pth; left as they are: fc.bias, fc.weight
//! # Ok(()) }
//! ```
//!
//! A `.pth` is a pickle: a program, which Python runs when it loads the file, and which may do anything. Here it is only read:
//! any name outside the few that state dicts need is an error, whatever its use ([`BadFile::Refused`]). The file's claims about
//! lengths are checked before memory is allocated.
//!
//! Leaves out saving ([`crate::checkpoint`]), continuing a training run ([`crate::snapshot`]), whole modules (TorchScript,
//! `torch.save(model)`), quantized and sparse tensors, and PyTorch's tar format from before version 0.1.10.

mod archive;
mod error;
mod load;
mod pickle;
mod tensors;
mod weights;

pub use error::{BadFile, Difference, PretrainedError};
pub use load::{LoadOptions, Loaded, load};
pub use weights::Weights;
