//! The names of MNIST's four files, and what their contents must be.

use std::path::{Path, PathBuf};

use crate::DataError;

/// Training or test samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// The samples to train on: the files whose names begin with `train`.
    Train,
    /// The held-out samples: the files whose names begin with `t10k`.
    Test,
}

impl Split {
    /// The first part of its files' names.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "t10k",
        }
    }
}

/// Finds a split's file in `dir`, the first of its usual names that exists: the `images`, with 3 dimensions, or the `labels`, with 1.
/// Some archives have each file in a folder of its own with such a name (Kaggle's, and what some programs extract from a `.gz` file).
pub fn find(dir: &Path, split: Split, what: &str, dimensions: u8) -> Result<PathBuf, DataError> {
    let prefix = split.prefix();
    let names: Vec<String> = ["", ".gz"]
        .into_iter()
        .flat_map(|end| ["-", "."].map(|dot| format!("{prefix}-{what}{dot}idx{dimensions}-ubyte{end}")))
        .collect();
    if let Some(file) = file_in(dir, &names) {
        return Ok(file);
    }
    let inner = ["mnist", "MNIST/raw", "raw"].map(|inner| dir.join(inner));
    let hint: String = match inner.iter().find(|inner| file_in(inner, &names).is_some()) {
        _ if !dir.is_dir() => "that folder does not exist, check the path".into(),
        Some(inner) => format!("it lies in {}, give that folder", inner.display()),
        None => "give the folder that holds the four files of MNIST".into(),
    };
    let found = format!("none of {}", names.join(", "));
    Err(DataError::new(format!("find the {prefix} {what} in")).at(dir).found(found).hint(hint))
}

/// The first of these names that is a file in `dir`, or in a folder there with one of these names.
fn file_in(dir: &Path, names: &[String]) -> Option<PathBuf> {
    let folders = std::iter::once(dir.to_owned()).chain(names.iter().map(|name| dir.join(name)));
    folders.flat_map(|folder| names.iter().map(move |name| folder.join(name))).find(|file| file.is_file())
}

/// Checks concatenated images of `rows` x `columns` bytes, and one label for each.
pub fn check(images: &[u8], labels: &[u8], rows: usize, columns: usize) -> Result<(), DataError> {
    let pixels = rows.checked_mul(columns).filter(|&pixels| pixels > 0 && images.len().is_multiple_of(pixels));
    let Some(pixels) = pixels else {
        let operation = format!("read images of {rows} x {columns} pixels from {} bytes", images.len());
        return Err(DataError::new(operation).hint("the bytes must be whole images of 1 pixel or more"));
    };
    if images.len() / pixels != labels.len() {
        let operation = format!("pair {} images with {} labels", images.len() / pixels, labels.len());
        return Err(DataError::new(operation).hint("the files are of different sets, get both again"));
    }
    if labels.is_empty() {
        return Err(DataError::new("read images").found("files without a single one").hint("get both again"));
    }
    match labels.iter().position(|&label| label > 9) {
        Some(index) => Err(DataError::new(format!("read label {index}"))
            .expected("a digit from 0 to 9")
            .found(labels[index].to_string())
            .hint("the file is not MNIST's labels")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What is found among these files, relative to their folder.
    fn found(files: &[&str], split: Split, what: &str, dimensions: u8) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let path = find(dir.path(), split, what, dimensions).map_err(|error| error.hint)?;
        Ok(path.strip_prefix(dir.path()).unwrap().display().to_string())
    }

    #[test]
    fn finds_files_in_folders_of_their_names_as_kaggle_has_them() {
        let nested =
            ["train-images-idx3-ubyte/train-images-idx3-ubyte", "train-labels-idx1-ubyte/train-labels-idx1-ubyte"];
        let dotted = ["train-images.idx3-ubyte", "train-labels.idx1-ubyte"];
        let images = |files: &[&str]| found(files, Split::Train, "images", 3).unwrap();
        assert_eq!(images(&nested), nested[0]);
        assert_eq!(images(&[nested, dotted].concat()), dotted[0]);
        assert_eq!(found(&nested, Split::Train, "labels", 1).unwrap(), nested[1]);
        // 7-Zip's folder for train-images-idx3-ubyte.gz, in which the name has a dot.
        assert_eq!(
            images(&["train-images-idx3-ubyte/train-images.idx3-ubyte"]),
            "train-images-idx3-ubyte/train-images.idx3-ubyte"
        );
    }

    #[test]
    fn points_to_a_folder_further_in() {
        let inner = "mnist/t10k-labels-idx1-ubyte/t10k-labels-idx1-ubyte";
        assert!(found(&[inner], Split::Test, "labels", 1).unwrap_err().ends_with("/mnist, give that folder"));
        assert!(
            found(&["t10k-labels-idx1-ubyte/other"], Split::Test, "labels", 1)
                .unwrap_err()
                .starts_with("give the folder")
        );
    }
}
