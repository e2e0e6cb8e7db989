//! The folder for temporary files, where that of `TMPDIR` cannot be used: another, as Python's `tempfile.gettempdir` does.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Python's, without the current folder, in which nobody looks for what is left over.
const OTHERS: [&str; 2] = ["/tmp", "/var/tmp"];

/// The folder that `TMPDIR` names, or `/tmp`. If nothing can be created there, another one; stderr then says so, once.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let (folder, note) = choose(&std::env::temp_dir(), |folder| tempfile::tempfile_in(folder).map(drop));
        note.into_iter().for_each(|note| eprintln!("{note}"));
        folder
    })
}

/// `wanted`, or the first other that `attempt` can use, with a note; `wanted` if there is none, for its error says what to do.
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
    use super::*;

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
