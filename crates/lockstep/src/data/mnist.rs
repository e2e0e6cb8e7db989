//! MNIST and other sets in its four-file layout: read from a folder, checked, and returned as normalised batches.
//!
//! [`Digits`](super::Digits) draws digits when there are no files; [`idx`](super::idx) implements the file format.

use std::path::Path;

use lockstep_datasets::mnist::{check, find};
use lockstep_datasets::rows::look_up;
use tch::Tensor;

pub use lockstep_datasets::Split;

use super::idx::{Idx, IdxKind};
use super::{Batch, DataError, Dataset, check_indices};

/// The mean of MNIST's training pixels, as fractions of white. PyTorch's examples and the tutorials use this value.
pub const MEAN: f32 = 0.1307;
/// The standard deviation of MNIST's training pixels, as a fraction of white; from the same sources.
pub const STD: f32 = 0.3081;

/// Grey pictures of digits with their labels, in memory, one byte a pixel.
///
/// A batch of `n` has inputs `Float [n, 1, rows, columns]`, `(pixel / 255 - MEAN) / STD`, and targets `Int64 [n]`,
/// 0 to 9. The epoch does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mnist {
    images: Vec<u8>,
    labels: Vec<u8>,
    rows: usize,
    columns: usize,
}

impl Mnist {
    /// A set from its parts: concatenated images of `rows` x `columns` bytes, and one label for each.
    pub fn new(images: Vec<u8>, labels: Vec<u8>, rows: usize, columns: usize) -> Result<Self, DataError> {
        check(&images, &labels, rows, columns)?;
        Ok(Self { images, labels, rows, columns })
    }

    /// Reads the images and labels of `split` from `dir`: `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or `t10k-…`.
    /// A dot before `idx` and the extension `.gz` are accepted too; the uncompressed file is preferred.
    pub fn from_dir(dir: &Path, split: Split) -> Result<Self, DataError> {
        let images = Idx::read(&find(dir, split, "images", 3)?, IdxKind::Images)?;
        let labels = Idx::read(&find(dir, split, "labels", 1)?, IdxKind::Labels)?;
        let (dims, images) = images.into_parts();
        let (_, labels) = labels.into_parts();
        Self::new(images, labels, dims[1], dims[2])
    }

    /// Writes the set as two gzipped files with MNIST's names to `dir`, which must exist. Each file is written atomically.
    pub fn write_idx(&self, dir: &Path, split: Split) -> Result<(), DataError> {
        let images = Idx::new(vec![self.labels.len(), self.rows, self.columns], self.images.clone())?;
        images.write(&dir.join(format!("{}-images-idx3-ubyte.gz", split.prefix())))?;
        let labels = Idx::new(vec![self.labels.len()], self.labels.clone())?;
        labels.write(&dir.join(format!("{}-labels-idx1-ubyte.gz", split.prefix())))
    }

    /// Rows of an image.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of an image.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All labels, each 0 to 9.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The pixels of image `index`, row by row, 0 black to 255 white.
    ///
    /// # Panics
    /// Panics when `index` is not below the length.
    pub fn image(&self, index: usize) -> &[u8] {
        let pixels = self.rows * self.columns;
        &self.images[index * pixels..(index + 1) * pixels]
    }
}

impl Dataset for Mnist {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        check_indices(self.len(), indices)?;
        let pixels = look_up(&self.images, self.rows * self.columns, indices, &NORMALISED);
        let labels: Vec<i64> = indices.iter().map(|&index| i64::from(self.labels[index])).collect();
        let shape = [indices.len() as i64, 1, self.rows as i64, self.columns as i64];
        Ok(Batch { inputs: Tensor::from_slice(&pixels).view(shape), targets: Tensor::from_slice(&labels) })
    }

    /// Covers all pixels and labels: MNIST's 47 MB take some milliseconds.
    fn fingerprint(&self) -> anyhow::Result<u32> {
        let mut hasher = crc32fast::Hasher::new();
        [self.len(), self.rows, self.columns].iter().for_each(|number| hasher.update(&(*number as u64).to_le_bytes()));
        hasher.update(&self.labels);
        hasher.update(&self.images);
        Ok(hasher.finalize())
    }
}

/// The normalised value of each grey value, computed in the order of torchvision's `ToTensor` and `Normalize`.
static NORMALISED: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut grey = 0;
    while grey < 256 {
        table[grey] = (grey as f32 / 255.0 - MEAN) / STD;
        grey += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use tch::{IndexOp, Kind as TensorKind};

    use super::*;

    fn small() -> Mnist {
        Mnist::new((0..=255).chain(0..=43).collect(), vec![3, 1, 4], 10, 10).unwrap()
    }

    fn folder_with(names: [&str; 2]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        Idx::new(vec![3, 10, 10], small().images).unwrap().write(&folder.path().join(names[0])).unwrap();
        Idx::new(vec![3], small().labels).unwrap().write(&folder.path().join(names[1])).unwrap();
        folder
    }

    #[test]
    fn normalises_as_torchvision_does() {
        let set = Mnist::new((0..=255).collect(), vec![0], 16, 16).unwrap();
        let batch = set.batch(0, &[0]).unwrap();
        let bytes = Tensor::from_slice(set.image(0)).view([1, 1, 16, 16]).to_kind(TensorKind::Float);
        let expected = bytes.divide_scalar(255.0) - f64::from(MEAN);
        assert_eq!(batch.inputs, expected.divide_scalar(f64::from(STD)));
        // From Python with PyTorch 2.11: (torch.tensor([0, 1, 128, 255.]) / 255 - 0.1307) / 0.3081
        let four =
            Vec::<f32>::try_from(batch.inputs.view([-1]).index_select(0, &Tensor::from_slice(&[0i64, 1, 128, 255])));
        assert_eq!(four.unwrap(), [-0.424_212_96, -0.411_484_72, 1.205_001_1, 2.821_486_7]);
    }

    #[test]
    fn stacks_images_and_labels_in_the_order_asked() {
        let batch = small().batch(5, &[2, 0]).unwrap();
        assert_eq!((batch.inputs.size(), batch.inputs.kind()), (vec![2, 1, 10, 10], TensorKind::Float));
        assert_eq!((batch.targets.size(), batch.targets.kind()), (vec![2], TensorKind::Int64));
        assert_eq!(Vec::<i64>::try_from(&batch.targets).unwrap(), [4, 3]);
        assert_eq!(batch.inputs.i(0), small().batch(0, &[2]).unwrap().inputs.i(0));
        assert_eq!(small().batch(0, &[]).unwrap().inputs.size(), [0, 1, 10, 10]);
    }

    #[test]
    fn rejects_an_index_past_the_end() {
        let error = small().batch(0, &[0, 3]).unwrap_err().to_string();
        assert!(error.starts_with("take sample 3 of a data set of 3"), "{error}");
    }

    #[test]
    fn accepts_the_names_seen_in_the_wild() {
        for (split, names) in [
            (Split::Train, ["train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"]),
            (Split::Train, ["train-images.idx3-ubyte", "train-labels.idx1-ubyte"]),
            (Split::Test, ["t10k-images.idx3-ubyte.gz", "t10k-labels-idx1-ubyte"]),
        ] {
            assert_eq!(Mnist::from_dir(folder_with(names).path(), split).unwrap(), small());
        }
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let folder = tempfile::tempdir().unwrap();
        small().write_idx(folder.path(), Split::Test).unwrap();
        assert_eq!(Mnist::from_dir(folder.path(), Split::Test).unwrap(), small());
        let error = Mnist::from_dir(folder.path(), Split::Train).unwrap_err().to_string();
        assert!(
            error.starts_with("find the train images in ") && error.contains("train-images-idx3-ubyte,"),
            "{error}"
        );
    }

    #[test]
    fn says_where_the_files_are_when_they_are_deeper() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("MNIST/raw");
        std::fs::create_dir_all(&inner).unwrap();
        small().write_idx(&inner, Split::Train).unwrap();
        let error = Mnist::from_dir(folder.path(), Split::Train).unwrap_err().to_string();
        assert!(error.contains("it lies in ") && error.contains("MNIST/raw, give that folder"), "{error}");
        let error = Mnist::from_dir(&folder.path().join("absent"), Split::Train).unwrap_err().to_string();
        assert!(error.contains("that folder does not exist"), "{error}");
    }

    #[test]
    fn rejects_images_and_labels_of_different_counts() {
        let error = Mnist::new(vec![0; 300], vec![1, 2], 10, 10).unwrap_err().to_string();
        assert!(error.starts_with("pair 3 images with 2 labels: "), "{error}");
    }

    #[test]
    fn rejects_a_label_that_is_not_a_digit() {
        let error = Mnist::new(vec![0; 3], vec![9, 10, 11], 1, 1).unwrap_err().to_string();
        assert!(error.starts_with("read label 1: expected a digit from 0 to 9, found 10; "), "{error}");
    }

    #[test]
    fn rejects_images_without_pixels_and_parts_of_images() {
        for (bytes, rows, columns) in [(0, 0, 28), (5, 2, 2), (4, usize::MAX, 2)] {
            let error = Mnist::new(vec![0; bytes], vec![0], rows, columns).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("read images of {rows} x {columns} pixels from {bytes} bytes")),
                "{error}"
            );
        }
    }

    #[test]
    fn rejects_label_files_under_the_names_of_images() {
        let folder = tempfile::tempdir().unwrap();
        Idx::new(vec![3], vec![1; 3]).unwrap().write(&folder.path().join("train-images-idx3-ubyte")).unwrap();
        let error = Mnist::from_dir(folder.path(), Split::Train).unwrap_err().to_string();
        assert!(error.contains("found a label file"), "{error}");
    }
}
