//! What can be wrong with a folder of pictures, or with one picture, said so that the reader knows what to do.

use std::io;
use std::path::PathBuf;

/// A folder that is not a folder of pictures by class. Each message reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A folder or file that cannot be looked at: not there, or without the right to.
    #[error("read {}: check the path, and that this user may read it", path.display())]
    Read {
        /// The folder or file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file, where a folder was expected.
    #[error("read {} as a folder of pictures: it is a file; give the folder that holds one folder per class", path.display())]
    NotAFolder {
        /// What was given.
        path: PathBuf,
    },
    /// A folder without any folder in it.
    #[error("find classes in {}: it holds no folder, but {found}; {hint}", dir.display())]
    NoClasses {
        /// The folder.
        dir: PathBuf,
        /// What is there instead.
        found: String,
        /// What to do.
        hint: &'static str,
    },
    /// The folders in it are splits of the data, not classes.
    #[error(
        "find classes in {}: it holds {found}, which are splits of the data, not classes; give {} for one of them",
        dir.display(), example.display()
    )]
    HoldsSplits {
        /// The folder.
        dir: PathBuf,
        /// The names of its folders.
        found: String,
        /// One of its folders.
        example: PathBuf,
    },
    /// A class folder's name is no text, so it cannot be a class's name.
    #[error("name the class of {}: the folder's name is not UTF-8; rename it", path.display())]
    ClassName {
        /// The folder.
        path: PathBuf,
    },
    /// A class folder without a picture.
    #[error(
        "find pictures of the class {class:?} in {}: none ends in .jpg, .jpeg or .png there{found}; add some or remove \
         the folder", dir.display()
    )]
    EmptyClass {
        /// The class.
        class: String,
        /// Its folder.
        dir: PathBuf,
        /// What is there instead, to be read after "there".
        found: String,
    },
    /// A symbolic link to a folder that it lies in.
    #[error("walk {}: the link leads back to a folder above it, without end; remove the link", path.display())]
    Loop {
        /// The link.
        path: PathBuf,
    },
    /// A pipe, a socket or a device with a picture's name.
    #[error("read {}: it has a picture's name, but is no file (a pipe, a socket or a device); remove it", path.display())]
    NotAFile {
        /// What was found.
        path: PathBuf,
    },
    /// A split of the data is not there.
    #[error("find the {split} pictures in {}: no folder there is called {names} (in any case); it holds {found}", dir.display())]
    NoSplit {
        /// The folder.
        dir: PathBuf,
        /// Which split.
        split: &'static str,
        /// The names that were looked for.
        names: String,
        /// What is there.
        found: String,
    },
    /// Two folders that could be the same split.
    #[error("find the {split} pictures in {}: {found} could all be meant; keep one", dir.display())]
    SplitTwice {
        /// The folder.
        dir: PathBuf,
        /// Which split.
        split: &'static str,
        /// The folders.
        found: String,
    },
    /// Splits with other classes: the numbers of the classes would not mean the same.
    #[error(
        "use {} beside {}: its classes are {other}, the training classes {train}; both need the same class folders",
        dir.display(), train_dir.display()
    )]
    OtherClasses {
        /// The training split's folder.
        train_dir: PathBuf,
        /// The other split's folder.
        dir: PathBuf,
        /// The training split's classes.
        train: String,
        /// The other split's classes.
        other: String,
    },
}

/// A picture that cannot be had, with its file. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[error("read the picture {}", path.display())]
pub struct PictureError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: BrokenPicture,
}

/// What is wrong with the bytes of a picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenPicture {
    /// The file cannot be opened or read.
    #[error("the file cannot be read; check that it is still there and that this user may read it")]
    Io(#[from] io::Error),
    /// More bytes than any picture that is read here.
    #[error("the file has {bytes} bytes, more than the {limit} that are read at most")]
    TooManyBytes {
        /// The file's length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Neither JPEG nor PNG, whatever the file's name says.
    #[error("neither JPEG nor PNG, but {found}; convert or remove it")]
    NotAPicture {
        /// What it looks like.
        found: &'static str,
    },
    /// A header that claims more pixels than any picture that is read here, or none.
    #[error(
        "the header claims {width} x {height} pixels, where 1 to {limit} are read; the file is damaged or no photograph"
    )]
    Size {
        /// Claimed pixels in a row.
        width: usize,
        /// Claimed rows.
        height: usize,
        /// The limit.
        limit: usize,
    },
    /// The file ends before its picture does.
    #[error("the file is cut off: its {bytes} bytes end before the picture does; get it again")]
    Truncated {
        /// The file's length.
        bytes: usize,
    },
    /// Bytes that cannot be right, or a kind of JPEG or PNG that is not read here.
    #[error("damaged, or a kind of {format} that is not read here: {reason}")]
    Damaged {
        /// JPEG or PNG.
        format: &'static str,
        /// What the decoder says.
        reason: String,
    },
}
