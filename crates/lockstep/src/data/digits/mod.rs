//! Handwriting-like digits drawn on the spot, so that the MNIST labs run without a download.
//!
//! They stand in for MNIST in shape, in file format and in what it takes to learn them (a convolutional network learns
//! them well, a linear one does not), not in accuracy figures: those are for the real files. The shapes are in
//! `glyphs`, the drawing in `draw`.

mod draw;
mod glyphs;
mod set;

pub use set::{Digits, SIDE};
