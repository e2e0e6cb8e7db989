//! Handwriting-like digits drawn on the spot, so that the MNIST labs run without a download.
//!
//! They replace MNIST in shape, file format and difficulty (a convolutional network learns them well, a linear one does not).
//! Accuracies are not comparable with those on the real files. `glyphs` holds the shapes, `draw` renders them.

mod draw;
mod glyphs;
mod set;

pub use draw::SIDE;
pub use set::Digits;
