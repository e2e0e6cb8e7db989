#![doc = include_str!("../README.md")]
//!
//! It does not link libtorch, so labs and the `lockstep` command give the same answers.
//!
//! Outputs that a command line names are checked before anything runs, so that a wrong path does not cost hours of training. The check
//! finds broken links, files where folders are expected, folders where files are expected, and what permissions or a read-only file system
//! forbid. It cannot find what only a write shows, such as a full disk: [`write_atomically`] does not replace a file then.

#![warn(missing_docs)] // people read its documentation without the source

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lockstep_contract::foreign;
use rustix::fs::{Access, access};

/// Why nothing can be written to a path.
#[derive(Debug, thiserror::Error)]
pub enum Unwritable {
    /// A link whose target does not exist.
    #[error("{} is a link to {}, which does not exist", foreign::path(link), foreign::path(target))]
    LinkToNowhere {
        /// The link.
        link: PathBuf,
        /// What it points to.
        target: PathBuf,
    },
    /// The path is a file, but should be a folder.
    #[error("{} is a file, and a folder is meant", foreign::path(.0))]
    NotAFolder(PathBuf),
    /// The path is a folder, but should be a file.
    #[error("{} is a folder, and a file is meant", foreign::path(.0))]
    NotAFile(PathBuf),
    /// The operating system forbids it.
    #[error("nothing can be written to {}: {source}", foreign::path(path))]
    Forbidden {
        /// The folder or special file, or the part of the path that cannot be read.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Unwritable {
    /// The error and what to do, in one line.
    pub fn with_advice(&self) -> String {
        let advice = match self {
            Unwritable::LinkToNowhere { .. } => "create that, or name another place",
            Unwritable::NotAFolder(_) => "move it away, or name another folder",
            Unwritable::NotAFile(_) => "name a file in it",
            Unwritable::Forbidden { .. } => "name another place",
        };
        format!("{self}; {advice}")
    }
}

/// Checks a folder that exists, or that is to be created with all missing ones above it.
///
/// # Errors
/// What is in the way.
pub fn check_folder(folder: &Path) -> Result<(), Unwritable> {
    for above in folder.ancestors() {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let there = match fs::symlink_metadata(above) {
            // Below a file nothing exists: the file itself is found next.
            Err(error) if is_absent(&error) => continue,
            Err(source) => return Err(Unwritable::Forbidden { path: above.to_owned(), source }),
            Ok(_) => target(above)?,
        };
        if !there.is_dir() {
            return Err(Unwritable::NotAFolder(above.to_owned()));
        }
        return may(above, Access::WRITE_OK | Access::EXEC_OK);
    }
    Ok(())
}

/// Checks a file that is to be created or replaced, in a folder that exists or is to be created. A pipe or a device is accepted if
/// it may be written to.
///
/// # Errors
/// What is in the way.
pub fn check_file(file: &Path) -> Result<(), Unwritable> {
    match fs::symlink_metadata(file) {
        Ok(_) => {
            let there = target(file)?;
            if there.is_dir() {
                return Err(Unwritable::NotAFile(file.to_owned()));
            }
            if !there.is_file() {
                return may(file, Access::WRITE_OK);
            }
        }
        Err(error) if is_absent(&error) => {}
        Err(source) => return Err(Unwritable::Forbidden { path: file.to_owned(), source }),
    }
    check_folder(file.parent().unwrap_or(Path::new("/")))
}

/// A command line's output folder, for clap's `value_parser`.
///
/// # Errors
/// What is in the way, and what to do.
pub fn parse_folder(folder: &str) -> Result<PathBuf, String> {
    check_folder(Path::new(folder)).map(|()| folder.into()).map_err(|why| why.with_advice())
}

/// A command line's output file, for clap's `value_parser`.
///
/// # Errors
/// What is in the way, and what to do.
pub fn parse_file(file: &str) -> Result<PathBuf, String> {
    check_file(Path::new(file)).map(|()| file.into()).map_err(|why| why.with_advice())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What `path` is, or what it points to if it is a link.
fn target(path: &Path) -> Result<fs::Metadata, Unwritable> {
    fs::metadata(path).map_err(|source| match fs::read_link(path) {
        Ok(target) if source.kind() == io::ErrorKind::NotFound => {
            Unwritable::LinkToNowhere { link: path.to_owned(), target }
        }
        _ => Unwritable::Forbidden { path: path.to_owned(), source },
    })
}

fn may(path: &Path, what: Access) -> Result<(), Unwritable> {
    access(path, what).map_err(|error| Unwritable::Forbidden { path: path.to_owned(), source: error.into() })
}

/// Writes the output of `fill` to `path`: first to a temporary file in the same folder, which is then synced and renamed. Where a file
/// server is full or the user's quota there is used up, only the sync fails: the writes before it succeed.
///
/// # Errors
/// The errors of the disk and of `fill`. The temporary file is then removed, and an existing file stays unchanged.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    write_and_sync(path, fill, File::sync_all)
}

fn write_and_sync(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let readable = Permissions::from_mode(0o666); // less the umask, as for any new file
    let file = tempfile::Builder::new().prefix(".lockstep-").permissions(readable).tempfile_in(folder)?;
    let mut out = BufWriter::new(file.as_file());
    fill(&mut out)?;
    out.flush()?;
    drop(out);
    sync(file.as_file())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Python's list, without the current folder: files left over there would be a surprise.
const OTHERS: [&str; 2] = ["/tmp", "/var/tmp"];

/// The folder that `TMPDIR` names, or `/tmp`. If nothing can be created there, another folder, which is reported once on
/// stderr.
pub fn temporary_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let (folder, note) = choose(&std::env::temp_dir(), |folder| tempfile::tempfile_in(folder).map(drop));
        if let Some(note) = note {
            lockstep_contract::warn(&note);
        }
        folder
    })
}

/// `wanted`, or the first other that `attempt` can use, with a note; `wanted` if there is none, because its error says what to
/// do.
fn choose(wanted: &Path, attempt: impl Fn(&Path) -> io::Result<()>) -> (PathBuf, Option<String>) {
    let Err(error) = attempt(wanted) else { return (wanted.to_owned(), None) };
    let other = OTHERS.iter().map(Path::new).find(|other| *other != wanted && attempt(other).is_ok());
    let note = |other: &Path| {
        // The system's words, without the name of the file that was tried.
        let why = error
            .raw_os_error()
            .map_or_else(|| error.kind().to_string(), |code| io::Error::from_raw_os_error(code).to_string());
        let (wanted, other) = (wanted.display(), other.display());
        format!("note: no temporary files can be made in {wanted} (TMPDIR): {why}; they go to {other}")
    };
    (other.unwrap_or(wanted).to_owned(), other.map(note))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with a file, a folder, a link to each, broken links, and circular links.
    fn example() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("folder")).unwrap();
        for (link, to) in
            [("to-file", "file"), ("to-folder", "folder"), ("nowhere", "/no/such/disk"), ("round", "round")]
        {
            symlink(to, at(link)).unwrap();
        }
        dir
    }

    /// The errors without the folder's name; an empty text for a good path.
    fn found(check: impl Fn(&Path) -> Result<(), Unwritable>, names: &[&str]) -> Vec<String> {
        let dir = example();
        let shown = |name: &&str| {
            let text = check(&dir.path().join(name)).map_or_else(|error| error.to_string(), |()| String::new());
            text.replace(&format!("{}/", dir.path().display()), "")
        };
        names.iter().map(shown).collect()
    }

    #[test]
    fn names_what_is_in_the_way_of_a_folder() {
        let good = ["", "folder", "to-folder", "folder/new/newer", "to-folder/new"];
        assert_eq!(found(check_folder, &good), [""; 5]);
        let nowhere = "nowhere is a link to /no/such/disk, which does not exist";
        let file = |name: &str| format!("{name} is a file, and a folder is meant");
        let bad = found(check_folder, &["nowhere", "nowhere/new", "file", "to-file", "file/new/newer"]);
        assert_eq!(bad, [nowhere, nowhere, &file("file"), &file("to-file"), &file("file")]);
        assert!(found(check_folder, &["round"])[0].starts_with("nothing can be written to round: "));
    }

    #[test]
    fn names_what_is_in_the_way_of_a_file() {
        assert_eq!(found(check_file, &["file", "to-file", "new", "folder/new", "new/newer"]), [""; 5]);
        let bad = found(check_file, &["nowhere", "folder", "to-folder", "file/new"]);
        let starts =
            ["nowhere is a link to ", "folder is a folder, and", "to-folder is a folder, and", "file is a file, and"];
        assert!(bad.iter().zip(starts).all(|(text, start)| text.starts_with(start)), "{bad:?}");
        check_file(Path::new("/dev/null")).unwrap();
        check_file(Path::new("relative")).unwrap();
    }

    #[test]
    fn a_command_line_is_told_what_to_do() {
        let dir = example();
        let parse = |name: &str| parse_folder(dir.path().join(name).to_str().unwrap());
        assert!(parse("nowhere").unwrap_err().ends_with("does not exist; create that, or name another place"));
        assert_eq!(parse("folder").unwrap(), dir.path().join("folder"));
    }

    #[test]
    fn says_that_the_system_forbids_it() {
        // It holds for root, too.
        let error = check_folder(Path::new("/proc/sys/new")).unwrap_err();
        assert!(matches!(&error, Unwritable::Forbidden { path, .. } if path == Path::new("/proc/sys")), "{error}");
        let error = check_file(Path::new(&"long".repeat(100))).unwrap_err();
        assert!(matches!(&error, Unwritable::Forbidden { .. }), "{error}");
    }

    #[test]
    fn replaces_a_file_only_once_all_its_bytes_are_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write_atomically(&file, |out| out.write_all(b"old")).unwrap();
        let quota = || io::Error::from_raw_os_error(122);
        let fill = |out: &mut BufWriter<&File>| out.write_all(b"new");
        let written = |_: &mut BufWriter<&File>| Err(quota());
        for error in [write_and_sync(&file, fill, |_| Err(quota())), write_atomically(&file, written)] {
            assert_eq!(error.unwrap_err().to_string(), "Disk quota exceeded (os error 122)");
            let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!((fs::read_to_string(&file).unwrap().as_str(), left), ("old", vec!["file".into()]));
        }
        write_atomically(&file, fill).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    /// The choice where only these folders can be used.
    fn chosen(wanted: &str, usable: &[&str]) -> (String, Option<String>) {
        let attempt = |folder: &Path| match usable.iter().any(|usable| folder == Path::new(usable)) {
            true => Ok(()),
            false => Err(io::Error::other(io::Error::from(io::ErrorKind::NotFound))),
        };
        let (folder, note) = choose(Path::new(wanted), attempt);
        (folder.display().to_string(), note)
    }

    #[test]
    fn takes_another_folder_with_a_note_only_if_it_must() {
        assert_eq!(chosen("/mine", &["/mine", "/tmp"]), ("/mine".into(), None));
        let (folder, note) = chosen("/mine", &["/tmp", "/var/tmp"]);
        assert_eq!(folder, "/tmp");
        assert!(note.unwrap().starts_with("note: no temporary files can be made in /mine (TMPDIR): "));
        assert_eq!(chosen("/tmp", &["/var/tmp"]).0, "/var/tmp");
        assert_eq!(chosen("/mine", &[]), ("/mine".into(), None));
    }

    #[test]
    fn gives_the_systems_reason() {
        let dir = tempfile::tempdir().unwrap();
        let attempt = |folder: &Path| match folder == Path::new("/tmp") {
            true => Ok(()),
            false => tempfile::tempfile_in(folder).map(drop),
        };
        let (_, note) = choose(&dir.path().join("missing"), attempt);
        let note = note.unwrap();
        assert!(note.ends_with("missing (TMPDIR): No such file or directory (os error 2); they go to /tmp"), "{note}");
    }
}
