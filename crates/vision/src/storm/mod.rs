//! Photographs of houses after a storm, drawn on the spot, so that the image-folder lab runs without a download.
//!
//! They replace the photographs of a damage classifier in the difficulties for the program (files of several sizes in a folder
//! per class) and in the difficulty of learning: a convolutional network learns the three grades, a linear model on pixels does
//! not, since sky, light, colours, and the house's shape and position carry no information about them. Accuracies are not
//! comparable with those on real photographs. The grades are the classes of the DesignSafe classifier: C0 no damage, C2
//! damaged, C4 destroyed.
//!
//! `scene` composes the photograph, `house` and `damage` draw the house, `paint` renders pixels.

mod damage;
mod house;
mod houses;
mod paint;
mod photographs;
mod scene;

pub use houses::Houses;
pub use photographs::{CLASSES, Storm};
