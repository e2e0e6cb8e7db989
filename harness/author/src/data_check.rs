//! `lockstep data check` reads all files of a data set, and prints each fault with its fix. `lockstep data look` shows pictures of each class
//! on an HTML page that needs no other file.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{Cursor, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use image::imageops::thumbnail;
use image::{ImageFormat, RgbImage};
use lockstep_contract::foreign;
use lockstep_datasets::idx::{Idx, IdxKind};
use lockstep_datasets::{DataError, cifar};
use maud::{Markup, PreEscaped, html};

use crate::data::{Layout, Part, Set};
use crate::exit::{Code, Refused};
use crate::report::html::page;
use crate::report::{Screen, Stdout, count};

/// How many faults are printed before there is only a count.
const SHOWN: usize = 20;
/// How many pictures are decoded between two reports of progress.
const PROGRESS_EVERY: usize = 500;

/// Check the files of a data set; for each fault, print what to do
#[derive(Args)]
pub(crate) struct CheckData {
    /// A folder with MNIST's files, CIFAR-10's binary files, folders of pictures or text files; or one of their files
    path: PathBuf,
    /// The layout, where the names do not tell it
    #[arg(long, value_enum)]
    layout: Option<Layout>,
}

impl CheckData {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let about = std::fs::metadata(&self.path);
        let about = about.map_err(|error| Refused(format!("cannot read {}: {error}", foreign::path(&self.path))))?;
        let found = if about.is_file() { check_file(&self.path)? } else { check_data(&self.path, self.layout) };
        Stdout.write_all(found.text().as_bytes()).context("cannot write to stdout")?;
        Ok(if found.faults.is_empty() { Code::Success } else { Code::Failure })
    }
}

/// What a check has found.
pub(crate) struct CheckedData {
    summary: String,
    pub(crate) faults: Vec<DataError>,
}

/// Reads all of a data set, and decodes all pictures.
pub(crate) fn check_data(dir: &Path, layout: Option<Layout>) -> CheckedData {
    let mut set = Set::open(dir, layout);
    let mut summary = format!("{} in {}\n", set.layout.words(), dir.display());
    for part in &set.texts {
        let _ = writeln!(summary, "  {}: {}", part.name, part.describe());
    }
    for part in &set.parts {
        let _ = writeln!(summary, "  {}: {}", part.name, describe(part));
        skipped(part).into_iter().for_each(|line| summary += &format!("    not read: {line}\n"));
        if part.size().is_none() {
            set.faults.extend(undecodable(part));
        }
    }
    CheckedData { summary, faults: set.faults }
}

/// `512 pictures of 28 x 28; 10 classes of 51 to 52`.
fn describe(part: &Part) -> String {
    let counts = part.counts();
    let (least, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    let size = part.size().map_or(String::new(), |(width, height)| format!(" of {width} x {height}"));
    let each = if least == most { format!("{least} each") } else { format!("{least} to {most}") };
    format!("{}{size}; {} of {each}", count(part.labels.len(), "picture"), count(counts.len(), "class"))
}

/// How many files are not samples, by reason, with the first of each.
fn skipped(part: &Part) -> Vec<String> {
    let mut reasons: BTreeMap<_, Vec<&Path>> = BTreeMap::new();
    part.skipped.iter().for_each(|skipped| reasons.entry(skipped.why).or_default().push(&skipped.path));
    let line = |(why, files): (_, Vec<&Path>)| format!("{} {why}, such as {}", files.len(), files[0].display());
    reasons.into_iter().map(line).collect()
}

fn undecodable(part: &Part) -> Vec<DataError> {
    let (all, progress) = (part.labels.len(), std::io::stderr().is_terminal());
    let decode = |index: usize| {
        if progress && index.is_multiple_of(PROGRESS_EVERY) && index > 0 {
            Screen::new(true).line(format_args!("{}: {index} of {all} pictures decoded", part.name));
        }
        part.picture(index).err()
    };
    (0..all).filter_map(decode).collect()
}

fn check_file(path: &Path) -> anyhow::Result<CheckedData> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let read = match () {
        () if ends(&[".jpg", ".jpeg", ".png"]) => lockstep_picture_decoder::read(path)
            .map(|picture| format!("a picture of {} x {} pixels", picture.width(), picture.height())),
        () if ends(&[".bin"]) => {
            cifar::read(path).map(|records| format!("{} of CIFAR-10", count(records.len() / cifar::RECORD, "record")))
        }
        () if ends(&[".txt"]) => lockstep_datasets::text::read(path)
            .map(|text| format!("a text of {}", count(text.chars().count(), "character"))),
        () if name.contains("idx") || ends(&["ubyte", "ubyte.gz"]) => {
            Idx::read(path, IdxKind::Any).map(|idx| format!("an IDX file of bytes {:?}", idx.dims()))
        }
        () => {
            return Err(Refused(format!(
                "cannot tell by its name what {} is: give the folder that holds it, or a file that ends in -ubyte, -ubyte.gz, .bin, .jpg, \
                 .jpeg, .png or .txt",
                foreign::path(path)
            ))
            .into());
        }
    };
    Ok(match read {
        Ok(what) => CheckedData { summary: format!("{}: {what}\n", path.display()), faults: Vec::new() },
        Err(fault) => CheckedData { summary: String::new(), faults: vec![fault] },
    })
}

impl CheckedData {
    /// The summary, and each fault with its fix.
    pub(crate) fn text(&self) -> String {
        let mut text = self.summary.clone();
        for fault in self.faults.iter().take(SHOWN) {
            let cause = fault.source().map_or(String::new(), |cause| format!(" ({cause})"));
            let _ = writeln!(text, "fault: {}{cause}", what(fault));
            if !fault.hint.is_empty() {
                let _ = writeln!(text, "  fix: {}", fault.hint);
            }
        }
        if self.faults.len() > SHOWN {
            let _ = writeln!(text, "and {}", count(self.faults.len() - SHOWN, "more fault"));
        }
        match self.faults.len() {
            0 => text + "no fault found\n",
            number => text + &format!("{} found\n", count(number, "fault")),
        }
    }
}

/// The fault without its hint.
fn what(fault: &DataError) -> String {
    let whole = fault.to_string();
    let bare = whole.strip_suffix(fault.hint.as_str()).unwrap_or(&whole);
    format!("cannot {}", bare.trim_end_matches([' ', ';', ':']))
}

/// The longest side of a picture on the page, in pixels. Larger ones are made smaller, smaller ones are shown larger.
const SIDE: u32 = 96;

const STYLE: &str = ".sheet { display: flex; flex-wrap: wrap; gap: 4px; } .sheet img { width: 96px; height: 96px; object-fit: contain; } \
                     .tiny img { image-rendering: pixelated; }";

/// Show pictures of each class of a data set, and their numbers, or how a text begins, on an HTML page
#[derive(Args)]
pub(crate) struct LookAtData {
    /// A folder with MNIST's files, CIFAR-10's binary files, folders of pictures or text files
    folder: PathBuf,
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "data.html", value_parser = lockstep_paths::parse_file)]
    out: PathBuf,
    /// Pictures to show of each class: those that come first
    #[arg(long, default_value_t = 12)]
    each: usize,
    /// The layout, where the names do not tell it
    #[arg(long, value_enum)]
    layout: Option<Layout>,
}

impl LookAtData {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let set = Set::open(&self.folder, self.layout);
        if set.parts.is_empty() && set.texts.is_empty() {
            let faults: Vec<String> = set.faults.iter().map(ToString::to_string).collect();
            return Err(Refused(format!("cannot {}", faults.join("; "))).into());
        }
        std::fs::write(&self.out, self.render(&set))
            .with_context(|| format!("cannot write {}", foreign::path(&self.out)))?;
        let mut out = Stdout;
        for part in &set.parts {
            let counts: Vec<String> =
                part.classes.iter().zip(part.counts()).map(|(class, count)| format!("{class} {count}")).collect();
            writeln!(out, "{}: {}", part.name, counts.join(", ")).context("cannot write to stdout")?;
        }
        for part in &set.texts {
            writeln!(out, "{}: {}", part.name, part.describe()).context("cannot write to stdout")?;
        }
        let what = if set.texts.is_empty() { "the pictures are" } else { "the beginning is" };
        writeln!(out, "{what} in {}", self.out.display()).context("cannot write to stdout")?;
        if !set.faults.is_empty() {
            writeln!(out, "some files could not be read: `lockstep data check {}` says why", self.folder.display())
                .context("cannot write to stdout")?;
        }
        Ok(Code::Success)
    }

    fn render(&self, set: &Set) -> String {
        let title = format!("Lockstep data: {}", self.folder.display());
        page(
            &title,
            html! {
                style { (PreEscaped(STYLE)) }
                main {
                    header { h1 { (title) } p { "These are " (set.layout.words()) "." } }
                    @for fault in &set.faults { p.verdict { (fault) } }
                    @for part in &set.texts { (part.show()) }
                    @for part in &set.parts { (self.part(part)) }
                }
            },
        )
    }

    fn part(&self, part: &Part) -> Markup {
        let most = part.counts().into_iter().max().unwrap_or(0).max(1);
        html! {
            section {
                h2 { (part.name) ": " (part.labels.len()) " pictures" }
                @for (class, (name, count)) in part.classes.iter().zip(part.counts()).enumerate() {
                    h3 { (name) ": " (count) }
                    meter max=(most) value=(count) {}
                    div.sheet.tiny[part.size().is_some()] {
                        @for index in (0..part.labels.len()).filter(|index| part.labels[*index] == class).take(self.each) {
                            (picture(part, index))
                        }
                    }
                }
            }
        }
    }
}

fn picture(part: &Part, index: usize) -> Markup {
    let name = part.file(index).map_or_else(|| format!("picture {index}"), |file| file.display().to_string());
    match part.picture(index).map_err(|fault| fault.to_string()).and_then(|picture| encode(&picture)) {
        Ok(source) => html! { img src=(source) alt=(name) title=(name); },
        Err(why) => html! { span.verdict title=(why) { (name) ": damaged" } },
    }
}

/// A picture as the address of an `img`: a PNG file in base64.
fn encode(picture: &RgbImage) -> Result<String, String> {
    let (width, height) = picture.dimensions();
    let longest = width.max(height).max(1);
    let small =
        (longest > SIDE).then(|| thumbnail(picture, (width * SIDE / longest).max(1), (height * SIDE / longest).max(1)));
    let mut bytes = Cursor::new(Vec::new());
    let written = small.as_ref().unwrap_or(picture).write_to(&mut bytes, ImageFormat::Png);
    written.map_err(|error| error.to_string())?;
    Ok(format!("data:image/png;base64,{}", base64(bytes.get_ref())))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let value = (0..3).fold(0, |value, at| value << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
        for place in 0..4 {
            let digit = ALPHABET[(value >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_as_the_examples_of_the_rfc() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")];
        for (bytes, text) in pairs {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xFB, 0xFF]), "+/8=");
    }

    #[test]
    fn makes_large_pictures_smaller_in_proportion() {
        let source = encode(&RgbImage::new(960, 480)).unwrap();
        assert!(source.starts_with("data:image/png;base64,iVBORw0KGgo"), "{source}");
        // The header of a PNG file has width and height in bytes 16 to 23; bytes 15 to 23 are 12 digits of their own.
        let head = base64(&[b'R', 0, 0, 0, 96, 0, 0, 0, 48]);
        assert_eq!(source.split_once(',').unwrap().1[20..32], head);
    }
}
