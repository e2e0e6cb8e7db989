//! Python's pickles, as far as a state dict needs them, and no further.
//!
//! A pickle is a program: it names functions and has them called, which is how a file of weights comes to run `os.system`. Here
//! nothing is ever called. The machine ([`machine`]) knows containers, numbers, texts, and the few names of [`globals`], whose
//! "calls" only note which part of which storage a tensor is. Any other name ends the reading with that name.
//!
//! Values lie in one list and refer to each other by position: nesting costs no stack, and a value that contains itself does no
//! harm. What a pickle can make this allocate is bounded by [`MOST_VALUES`](machine::MOST_VALUES) and by its own length.
//!
//! Source: Python's `pickletools.py`, PyTorch's `torch/_weights_only_unpickler.py`.

mod globals;
mod machine;
mod reader;
mod value;

pub(super) use machine::parse;
pub(super) use reader::Reader;
pub(super) use value::{Id, Pickle, Storage, Strided, Value};
