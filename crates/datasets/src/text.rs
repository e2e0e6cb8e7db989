//! Texts for language models: which files of a folder belong to a text, and what they must satisfy.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{DataError, kind_of};

/// The beginning of the names of files that are held out.
const HELD_OUT: &str = "validation";

/// A text to train on, and one that is held out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    pub train: String,
    pub validation: String,
}

/// The files of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextFiles {
    pub train: Vec<PathBuf>,
    /// Empty if no file is held out.
    pub validation: Vec<PathBuf>,
}

impl TextFiles {
    /// A file, or all files of a folder that end in `.txt`, in the order of their names. Those whose names begin with `validation` are
    /// held out.
    pub fn find(path: &Path) -> Result<Self, DataError> {
        let about = fs::metadata(path).map_err(|error| DataError::unreadable(path, error))?;
        if about.is_file() {
            return Ok(TextFiles { train: vec![path.to_owned()], validation: Vec::new() });
        }
        let entries = fs::read_dir(path).map_err(|error| DataError::unreadable(path, error))?;
        let mut files = Vec::new();
        for entry in entries {
            files.push(entry.map_err(|error| DataError::unreadable(path, error))?.path());
        }
        files.retain(|file| file.extension().is_some_and(|end| end == "txt") && file.is_file());
        files.sort();
        let is_held_out =
            |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(HELD_OUT));
        let (validation, train): (Vec<_>, Vec<_>) = files.into_iter().partition(is_held_out);
        if train.is_empty() {
            let hint = "give a text file, or a folder with train.txt and validation.txt; `lockstep data make text FOLDER` writes one";
            return Err(DataError::new("find a text to train on in")
                .at(path)
                .found("no file that ends in .txt")
                .hint(hint));
        }
        Ok(TextFiles { train, validation })
    }
}

impl Texts {
    /// Reads the files of [`TextFiles::find`], one after another. If no file is held out, the last tenth of the text is.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let files = TextFiles::find(path)?;
        let joined = |files: &[PathBuf]| files.iter().map(|file| read(file)).collect::<Result<String, _>>();
        let (mut train, mut validation) = (joined(&files.train)?, joined(&files.validation)?);
        if files.validation.is_empty() {
            validation = train.split_off(train.ceil_char_boundary(train.len() / 10 * 9));
        }
        Ok(Texts { train, validation })
    }
}

/// The text of a file.
///
/// Errors: it cannot be read, is empty or is not UTF-8; the error says where.
pub fn read(path: &Path) -> Result<String, DataError> {
    let about = fs::metadata(path).map_err(|error| DataError::unreadable(path, error))?;
    if !about.is_file() {
        return Err(DataError::new("read").at(path).expected("a text file").found(kind_of(&about)).hint("give a file"));
    }
    let bytes = fs::read(path).map_err(|error| DataError::unreadable(path, error))?;
    let wrong = |found: String, hint: &str| {
        Err(DataError::new("read").at(path).expected("a text in UTF-8").found(found).hint(hint))
    };
    if bytes.is_empty() {
        return wrong("an empty file".into(), "get the file again, or leave it out");
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let (bytes, line) =
                (error.as_bytes(), 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count());
            let hint = "convert it first: iconv -f latin1 -t utf-8 FILE, with the encoding that it has";
            wrong(format!("the byte 0x{:02x} at position {at}, in line {line}", bytes[at]), hint)
        }
    }
}

/// The prose of a page in Markdown: without code blocks, tables, and lines of HTML.
pub fn prose(page: &str) -> String {
    let mut text = String::new();
    let (mut is_code, mut is_comment) = (false, false);
    for line in page.lines() {
        // A quotation is prose, too.
        let line = line.strip_prefix("> ").unwrap_or(line);
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        is_comment |= trimmed.starts_with("<!--");
        let is_again_empty = trimmed.is_empty() && text.ends_with("\n\n");
        if !(is_code || is_comment || is_again_empty || trimmed.starts_with(['<', '|'])) {
            text.push_str(line);
            text.push('\n');
        }
        is_comment &= !line.contains("-->");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).unwrap());
        dir
    }

    #[test]
    fn reads_files_in_the_order_of_their_names_and_holds_some_out() {
        let dir = folder(&[("b.txt", b"two"), ("a.txt", b"one "), ("validation.txt", b"other"), ("notes.md", b"no")]);
        let texts = Texts::read(dir.path()).unwrap();
        assert_eq!((texts.train.as_str(), texts.validation.as_str()), ("one two", "other"));
    }

    #[test]
    fn holds_out_the_last_tenth_if_no_file_is_held_out() {
        let dir = folder(&[("all.txt", "0123456789abcdefghé".as_bytes())]);
        for path in [dir.path().to_owned(), dir.path().join("all.txt")] {
            let Texts { train, validation } = Texts::read(&path).unwrap();
            assert_eq!((train.as_str(), validation.as_str()), ("0123456789abcdefgh", "é"));
        }
    }

    #[test]
    fn says_where_a_file_is_no_text_and_what_to_do() {
        let dir = folder(&[("latin.txt", b"a\nb\xe9"), ("empty.txt", b"")]);
        let message = |name: &str| read(&dir.path().join(name)).unwrap_err().to_string();
        assert!(
            message("latin.txt").contains("found the byte 0xe9 at position 3, in line 2; convert it"),
            "{}",
            message("latin.txt")
        );
        assert!(message("empty.txt").contains("found an empty file"));
        assert!(message("none.txt").starts_with("read ") && read(dir.path()).unwrap_err().found == "a folder");
        let none = folder(&[("validation.txt", b"x")]);
        assert!(TextFiles::find(none.path()).unwrap_err().to_string().contains("data make text"));
    }

    #[test]
    fn keeps_the_prose_of_a_page() {
        let page = "# Title\n\nOne line.\n\n> ```sh\n> ls\n> ```\n```rust\nlet a = 1;\n```\n\n<!-- include: x\n more -->\n| a | b |\n<div>\nThe *end*.\n";
        assert_eq!(prose(page), "# Title\n\nOne line.\n\nThe *end*.\n");
    }
}
