//! Photographs in a folder per class, as torchvision's `ImageFolder` reads them, with additional checks.
//!
//! `lockstep-datafiles` finds the samples, `lockstep-decode` decodes a file to pixels, [`DecodedCache`] keeps these, [`Splits`] finds `Train` and `Validation`. Other modules
//! transform pictures and turn them into tensors.
//!
//! As in torchvision (`torchvision/datasets/folder.py`), the folders of the root are the classes, sorted by name. All files
//! below a class's folder whose names end in a picture's extension are its samples, sorted by path, symbolic links included.
//! The deliberate differences:
//! - names that begin with a dot are neither samples (`._photo.jpg`) nor classes (`.ipynb_checkpoints`);
//! - only `.jpg`, `.jpeg` and `.png` are read, not the six rarer formats;
//! - an unreadable file, a loop of links and a pipe are found when the folder is opened, not an hour into the training.
//!
//! [`ImageFolder::skipped`] lists what was skipped, and [`ImageFolder::skip_summary`] summarises it in a sentence.

mod cache;
mod image_folder;
mod splits;

pub use cache::DecodedCache;
pub use image_folder::ImageFolder;
pub use lockstep_datafiles::folder::{Skipped, Why};
pub use lockstep_decode::{MAX_BYTES, MAX_PIXELS, decode};
pub use splits::Splits;
