//! CIFAR-10's binary files: a record for each picture.
//!
//! The format (Alex Krizhevsky's CIFAR-10 page, "binary version"): a file is a sequence of records, 10,000 in each published
//! file. A record is one byte for the label, 0 to 9, and 3,072 bytes for the red, green and blue planes, each row by row.

mod file;
mod find;

pub use file::{check, read, read_classes, write};
pub use find::{CLASSES_FILE, batches, folder, names};

/// Pixels along each side of a picture.
pub const SIDE: usize = 32;
/// Pixels of a picture.
pub const PIXELS: usize = SIDE * SIDE;
/// Bytes of a record: the label, then the red, green and blue planes, each row by row.
pub const RECORD: usize = 1 + 3 * PIXELS;
/// The ten classes in the order of their labels, as in `batches.meta.txt`.
pub const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];
