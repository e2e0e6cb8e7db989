//! Texts for language models, for `lockstep data`: one made of the book's pages, and what `check` and `look` say of any.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_datasets::DataError;
use lockstep_datasets::text::{self, TextFiles};
use maud::{Markup, html};

use crate::checkout;
use crate::report::count;

/// One page in this many is held out.
const HELD_OUT: usize = 10;
/// How many characters of a text, and how many different ones, the page shows.
const SHOWN: usize = 1200;
const MOST_FREQUENT: usize = 24;

/// A text of one split.
pub(crate) struct TextPart {
    pub(crate) name: &'static str,
    files: usize,
    text: String,
}

/// The texts of a folder or of a file; what cannot be read is among the faults.
pub(crate) fn open(path: &Path) -> (Vec<TextPart>, Vec<DataError>) {
    let found = match TextFiles::find(path) {
        Ok(found) => found,
        Err(fault) => return (Vec::new(), vec![fault]),
    };
    let (mut parts, mut faults) = (Vec::new(), Vec::new());
    for (name, files) in [("train", found.train), ("validation", found.validation)] {
        let mut part = TextPart { name, files: files.len(), text: String::new() };
        for file in files {
            match text::read(&file) {
                Ok(text) => part.text += &text,
                Err(fault) => faults.push(fault),
            }
        }
        if !part.text.is_empty() {
            parts.push(part);
        }
    }
    (parts, faults)
}

impl TextPart {
    /// Each character with its number, the most frequent first.
    fn characters(&self) -> Vec<(char, usize)> {
        let mut counts: BTreeMap<char, usize> = BTreeMap::new();
        self.text.chars().for_each(|character| *counts.entry(character).or_default() += 1);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    /// `1 file; 1234 characters, 62 of them different; 210 words`.
    pub(crate) fn describe(&self) -> String {
        let (all, words) = (self.text.chars().count(), self.text.split_whitespace().count());
        format!(
            "{}; {all} characters, {} of them different; {words} words",
            count(self.files, "file"),
            self.characters().len()
        )
    }

    /// How the text begins, and which characters are frequent.
    pub(crate) fn show(&self) -> Markup {
        let characters = self.characters();
        let most = characters.first().map_or(1, |(_, count)| *count);
        let beginning: String = self.text.chars().take(SHOWN).collect();
        html! {
            section {
                h2 { (self.name) ": " (self.describe()) }
                pre { (beginning) }
                h3 { "The most frequent characters" }
                @for (character, count) in characters.iter().take(MOST_FREQUENT) {
                    p { code { (character.escape_debug()) } " " (count) " " meter max=(most) value=(count) {} }
                }
            }
        }
    }
}

/// Writes the prose of the book's pages to `train.txt`, in the book's order, and that of every tenth page to `validation.txt`.
pub(crate) fn make(folder: &Path) -> anyhow::Result<()> {
    let book = checkout::checkout()?.join("book/src");
    let read = |name: &str| {
        let path = book.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", foreign::path(&path)))
    };
    let (mut train, mut validation) = (String::new(), String::new());
    for (number, page) in pages(&read("SUMMARY.md")?).enumerate() {
        let to = if number % HELD_OUT == HELD_OUT - 1 { &mut validation } else { &mut train };
        let _ = writeln!(to, "{}", text::prose(&read(page)?));
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", foreign::path(folder)))?;
    for (name, text) in [("train.txt", train), ("validation.txt", validation)] {
        let path = folder.join(name);
        let written = lockstep_paths::write_atomically(&path, |out| std::io::Write::write_all(out, text.as_bytes()));
        written.with_context(|| format!("cannot write {}", foreign::path(&path)))?;
    }
    Ok(())
}

/// The files that the book's table of contents links, in its order.
fn pages(summary: &str) -> impl Iterator<Item = &str> {
    summary
        .lines()
        .filter_map(|line| Some(line.split_once("](")?.1.split_once(')')?.0))
        .filter(|page| page.ends_with(".md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_pages_in_their_order() {
        let summary = "# Summary\n\n[Introduction](introduction.md)\n\n- [A](a.md)\n  - [B](b.md)\n- [Draft]()\n";
        assert_eq!(pages(summary).collect::<Vec<_>>(), ["introduction.md", "a.md", "b.md"]);
    }

    #[test]
    fn counts_characters_and_words() {
        let part = TextPart { name: "train", files: 1, text: "bab a é\n".into() };
        assert_eq!(part.describe(), "1 file; 8 characters, 5 of them different; 3 words");
        assert!(part.show().into_string().contains("<code>\\n</code> 1 "));
    }
}
