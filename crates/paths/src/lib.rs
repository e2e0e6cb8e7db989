//! Folders and files that a command line or `TMPDIR` names: whether they can be written, and what is in the way if not.
//!
//! Nothing here creates or removes anything. Does not link libtorch, so labs and the command give the same answers.

pub mod output;
mod temporary;

pub use temporary::folder as temporary_folder;
