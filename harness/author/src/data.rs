//! A data set in files: its parts, with pictures and labels or texts, and the faults that were found. Without libtorch, by `lockstep-datasets`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use image::{Rgb, RgbImage};
use lockstep_datasets::folder::{Skipped, SplitFolders, walk};
use lockstep_datasets::idx::{Idx, IdxKind};
use lockstep_datasets::{DataError, Split, cifar, mnist};

use crate::data_text::{self, TextPart};

/// The layout of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// MNIST's four IDX files, plain or gzipped
    Mnist,
    /// CIFAR-10's binary files
    Cifar10,
    /// A folder of pictures for each class, or one of these for each split
    Folders,
    /// Text files, those to hold out with names that begin with `validation`
    Text,
}

/// What was read.
pub(crate) struct Set {
    pub(crate) layout: Layout,
    pub(crate) parts: Vec<Part>,
    /// In place of pictures.
    pub(crate) texts: Vec<TextPart>,
    pub(crate) faults: Vec<DataError>,
}

/// Pictures of one split.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) classes: Vec<String>,
    /// The class of each picture.
    pub(crate) labels: Vec<usize>,
    pub(crate) skipped: Vec<Skipped>,
    pictures: Pictures,
}

enum Pictures {
    Grey { bytes: Vec<u8>, rows: usize, columns: usize },
    Records(Vec<u8>),
    Files(Vec<PathBuf>),
}

impl Layout {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Layout::Mnist => "MNIST's files",
            Layout::Cifar10 => "CIFAR-10's binary files",
            Layout::Folders => "folders of pictures",
            Layout::Text => "text files",
        }
    }

    /// The layout of a folder, by the names in it; folders of pictures have no names of their own.
    pub(crate) fn of(dir: &Path) -> Self {
        let names: Vec<String> = std::fs::read_dir(dir)
            .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        let any = |known: &dyn Fn(&str) -> bool| names.iter().any(|name| known(name));
        let of_mnist = |name: &str| {
            name.contains("-ubyte") && [Split::Train, Split::Test].iter().any(|split| name.starts_with(split.prefix()))
        };
        let of_cifar = |name: &str| {
            name.starts_with("cifar-10") || name.starts_with("data_batch_") || name.starts_with("test_batch")
        };
        match () {
            () if any(&of_mnist) => Layout::Mnist,
            () if any(&of_cifar) => Layout::Cifar10,
            () if any(&|name| name == "train.txt") => Layout::Text,
            () if any(&|name| name.ends_with(".txt")) && !has_folders(dir) => Layout::Text,
            () => Layout::Folders,
        }
    }
}

impl Set {
    /// Reads a folder. What cannot be read is among the faults; photographs are not decoded yet.
    pub(crate) fn open(dir: &Path, layout: Option<Layout>) -> Self {
        let layout = layout.unwrap_or_else(|| Layout::of(dir));
        let parts = match layout {
            Layout::Mnist => [Split::Train, Split::Test].map(|split| mnist_part(dir, split)).into(),
            Layout::Cifar10 => match cifar::folder(dir) {
                Ok(folder) => [Split::Train, Split::Test].map(|split| cifar_part(&folder, split)).into(),
                Err(fault) => vec![Err(fault)],
            },
            Layout::Folders => folders(dir),
            Layout::Text => {
                let (texts, faults) = data_text::open(dir);
                return Set { layout, parts: Vec::new(), texts, faults };
            }
        };
        let mut set = Set { layout, parts: Vec::new(), texts: Vec::new(), faults: Vec::new() };
        for part in parts {
            match part {
                Ok(part) => set.parts.push(part),
                Err(fault) => set.faults.push(fault),
            }
        }
        set.compare_classes();
        set
    }

    /// All splits need the same classes.
    fn compare_classes(&mut self) {
        let Some((first, others)) = self.parts.split_first() else { return };
        for other in others.iter().filter(|other| other.classes != first.classes) {
            let fault = DataError::new(format!("use {}", other.name))
                .expected(format!("the classes of {}: {}", first.name, first.classes.join(", ")))
                .found(other.classes.join(", "));
            self.faults.push(fault.hint("all splits need the same class folders"));
        }
    }
}

/// Returns true if a folder has folders that are not hidden.
fn has_folders(dir: &Path) -> bool {
    let is_shown = |entry: &std::fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|entry| entry.path().is_dir() && is_shown(&entry)))
}

fn mnist_part(dir: &Path, split: Split) -> Result<Part, DataError> {
    let (dims, images) = Idx::read(&mnist::find(dir, split, "images", 3)?, IdxKind::Images)?.into_parts();
    let (_, labels) = Idx::read(&mnist::find(dir, split, "labels", 1)?, IdxKind::Labels)?.into_parts();
    mnist::check(&images, &labels, dims[1], dims[2]).map_err(|mut fault| {
        fault.operation = format!("{} in", fault.operation).into();
        fault.at(dir)
    })?;
    Ok(Part {
        name: split.prefix().into(),
        classes: (0..10).map(|digit| digit.to_string()).collect(),
        labels: labels.into_iter().map(usize::from).collect(),
        skipped: Vec::new(),
        pictures: Pictures::Grey { bytes: images, rows: dims[1], columns: dims[2] },
    })
}

fn cifar_part(folder: &Path, split: Split) -> Result<Part, DataError> {
    let mut records = Vec::new();
    for path in cifar::batches(folder, split)? {
        records.append(&mut cifar::read(&path)?);
    }
    Ok(Part {
        name: if split == Split::Train { "train".into() } else { "test".into() },
        classes: cifar::read_classes(folder)?,
        labels: records.iter().step_by(cifar::RECORD).map(|label| usize::from(*label)).collect(),
        skipped: Vec::new(),
        pictures: Pictures::Records(records),
    })
}

fn folders(dir: &Path) -> Vec<Result<Part, DataError>> {
    match SplitFolders::find(dir) {
        Ok(SplitFolders { train, validation, test }) => {
            [Some(train), Some(validation), test].iter().flatten().map(|folder| folder_part(folder)).collect()
        }
        Err(fault) if SplitFolders::are_in(dir) => vec![Err(fault)],
        Err(_) => vec![folder_part(dir)],
    }
}

fn folder_part(dir: &Path) -> Result<Part, DataError> {
    let found = walk(dir)?;
    Ok(Part {
        name: dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned(),
        classes: found.classes,
        labels: found.samples.iter().map(|sample| sample.class).collect(),
        skipped: found.skipped,
        pictures: Pictures::Files(found.samples.into_iter().map(|sample| sample.path).collect()),
    })
}

impl Part {
    /// The number of pictures of each class.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes.len()];
        self.labels.iter().for_each(|label| counts[*label] += 1);
        counts
    }

    /// The size of all pictures, where they have one.
    pub(crate) fn size(&self) -> Option<(usize, usize)> {
        match &self.pictures {
            Pictures::Grey { rows, columns, .. } => Some((*columns, *rows)),
            Pictures::Records(_) => Some((cifar::SIDE, cifar::SIDE)),
            Pictures::Files(_) => None,
        }
    }

    /// The file of a picture that has one of its own.
    pub(crate) fn file(&self, index: usize) -> Option<&Path> {
        if let Pictures::Files(files) = &self.pictures { files.get(index).map(PathBuf::as_path) } else { None }
    }

    /// Decodes a picture.
    pub(crate) fn picture(&self, index: usize) -> Result<RgbImage, DataError> {
        let from_fn = |columns: usize, rows: usize, at: &dyn Fn(usize) -> [u8; 3]| {
            RgbImage::from_fn(columns as u32, rows as u32, |x, y| Rgb(at(y as usize * columns + x as usize)))
        };
        Ok(match &self.pictures {
            Pictures::Grey { bytes, rows, columns } => {
                let picture = &bytes[index * rows * columns..];
                from_fn(*columns, *rows, &|pixel| [picture[pixel]; 3])
            }
            Pictures::Records(records) => {
                let planes = &records[index * cifar::RECORD + 1..];
                let at = |pixel: usize| [0, 1, 2].map(|plane| planes[plane * cifar::PIXELS + pixel]);
                from_fn(cifar::SIDE, cifar::SIDE, &at)
            }
            Pictures::Files(files) => lockstep_picture_decoder::read(&files[index])?,
        })
    }
}
