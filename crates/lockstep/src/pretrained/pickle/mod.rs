//! The part of Python's pickle format that a state dict needs.
//!
//! A pickle is a program: it names functions and calls them, which is how a file of weights can run `os.system`. Here nothing
//! is ever called. The virtual machine ([`vm`]) knows containers, numbers, texts, and the few names of [`globals`], whose
//! "calls" only record which part of which storage a tensor is. Any other name is an error.
//!
//! Values are in one list and refer to each other by index: nesting costs no stack, and a value that contains itself is
//! harmless. Memory is bounded by [`MOST_VALUES`](vm::MOST_VALUES) and by the pickle's own length.
//!
//! Source: Python's `pickletools.py`, PyTorch's `torch/_weights_only_unpickler.py`.

mod atoms;
mod globals;
mod reader;
mod value;
mod vm;

pub(super) use reader::Reader;
pub(super) use value::{Id, Pickle, Storage, Strided, Value};
pub(super) use vm::parse;
