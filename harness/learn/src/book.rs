//! `lockstep book`: opens the book, where it is: in a checkout, or where a release's archive was unpacked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use lockstep_contract::foreign;

use crate::checkout::checkout_around;
use crate::exit::{Code, Refused};
use crate::report::Screen;

/// Where an archive of the book belongs, next to the folder with this program.
const SHARE: &str = "share/lockstep";
/// What opens a page, on a desktop and in WSL.
const OPENERS: [&str; 3] = ["xdg-open", "wslview", "open"];

/// Open the book, or print where it is
#[derive(Args)]
pub struct Book {
    /// A chapter, such as 05-collectives
    chapter: Option<String>,
    /// Only print the address
    #[arg(long)]
    print: bool,
}

impl Book {
    pub fn exec(self) -> anyhow::Result<Code> {
        let this = std::env::current_exe().unwrap_or_default();
        let here = std::env::current_dir().unwrap_or_default();
        let version = env!("CARGO_PKG_VERSION");
        let share = this.ancestors().nth(2).unwrap_or(Path::new("/")).join(SHARE);
        let built = [&here, &this].into_iter().find_map(|place| Some(checkout_around(place)?.join("target/book")));
        let places = [built.clone(), Some(share.join(format!("lockstep-book-{version}")))];
        let Some(book) = places.into_iter().flatten().find(|book| book.join("index.html").is_file()) else {
            return Err(Refused(match built {
                Some(_) => "the book is not built: `scripts/book.sh build` does, or read book/src page by page".into(),
                None => format!(
                    "the book is not installed: unpack lockstep-book-{version}.tar.gz of the release in {}",
                    foreign::path(&share)
                ),
            })
            .into());
        };
        let page = page(&book, self.chapter.as_deref())?;
        Screen::new(false).line(format_args!("{}", foreign::path(&page)));
        if !self.print && !open(&page) {
            Screen::new(false).line("no browser was found: open the page in yours");
        }
        Ok(Code::Success)
    }
}

/// The page of a chapter, by its name or the beginning of it.
fn page(book: &Path, chapter: Option<&str>) -> Result<PathBuf, Refused> {
    let Some(chapter) = chapter else { return Ok(book.join("index.html")) };
    let entries = std::fs::read_dir(book).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".html").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    let wanted = chapter.trim_end_matches(".md").trim_start_matches("book/src/");
    let exact = names.iter().find(|name| *name == wanted);
    let found = exact.or_else(|| names.iter().find(|name| name.starts_with(wanted)));
    let found =
        found.ok_or_else(|| Refused(format!("the book has no page {wanted:?}: there are {}", names.join(", "))))?;
    Ok(book.join(format!("{found}.html")))
}

/// Starts a browser; returns false if there is none.
fn open(page: &Path) -> bool {
    let chosen = std::env::var("BROWSER").ok().filter(|browser| !browser.is_empty());
    let openers = chosen.iter().map(String::as_str).chain(OPENERS);
    let silent = |opener: &str| {
        let mut command = Command::new(opener);
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    openers.into_iter().any(silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_chapter_by_its_number_or_by_the_name_that_a_finding_prints() {
        let book = tempfile::tempdir().unwrap();
        for name in ["index.html", "05-collectives.html", "06-snapshots-and-resume.html"] {
            std::fs::write(book.path().join(name), "").unwrap();
        }
        let found = |chapter| page(book.path(), chapter).map(|page| page.file_name().unwrap().to_owned());
        assert_eq!(found(None).unwrap(), "index.html");
        for chapter in ["05", "05-collectives", "05-collectives.md", "book/src/05-collectives.md"] {
            assert_eq!(found(Some(chapter)).unwrap(), "05-collectives.html");
        }
        let error = found(Some("14")).unwrap_err().to_string();
        assert!(error.starts_with("the book has no page \"14\": there are 05-collectives, "), "{error}");
    }
}
