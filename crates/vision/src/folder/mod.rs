//! Photographs in a folder per class, as torchvision's `ImageFolder` reads them, with checks that it lacks.
//!
//! `walk` finds the samples, `decode` makes pixels of a file, [`Splits`] finds `Train` and `Validation`. Transforming
//! pictures and making tensors of them is the crate's other modules' duty.
//!
//! As in torchvision (`torchvision/datasets/folder.py`), the folders of the root are the classes, sorted by name; all files below
//! a class's folder whose names end in a picture's extension are its samples, sorted by path, through symbolic links too. On purpose
//! other than there:
//! - names that begin with a dot are no samples (`._photo.jpg`) and no classes (`.ipynb_checkpoints`);
//! - `.jpg`, `.jpeg` and `.png` alone are read, not the six rarer formats;
//! - a file that may not be read, a link without end and a pipe are found when the folder is opened, not an hour into the training.
//!
//! What is passed over is listed by [`ImageFolder::skipped`], and counted in a sentence by [`ImageFolder::passed_over`].

mod decode;
mod image_folder;
mod splits;
mod walk;

pub use decode::{MAX_BYTES, MAX_PIXELS, decode};
pub use image_folder::{ImageFolder, Skipped, Why};
pub use splits::Splits;
