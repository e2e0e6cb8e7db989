//! `lockstep data look`: some pictures of each class and the number of all, as one HTML page that needs no other file.

use std::io::{Cursor, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use image::imageops::thumbnail;
use image::{ImageFormat, RgbImage};
use lockstep_contract::foreign;
use maud::{Markup, PreEscaped, html};

use super::set::{Layout, Part, Set};
use crate::exit::{Code, Refused};
use crate::report::html::page;

/// The longest side of a picture on the page, in pixels. Larger ones are made smaller, smaller ones are shown larger.
const SIDE: u32 = 96;

const STYLE: &str = ".sheet { display: flex; flex-wrap: wrap; gap: 4px; } .sheet img { width: 96px; height: 96px; object-fit: contain; } \
                     .tiny img { image-rendering: pixelated; }";

/// Show pictures of each class of a data set, and their numbers, on an HTML page
#[derive(Args)]
pub(crate) struct Options {
    /// A folder with MNIST's files, CIFAR-10's binary files or folders of pictures
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

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let set = Set::open(&self.folder, self.layout);
        if set.parts.is_empty() {
            let faults: Vec<String> = set.faults.iter().map(ToString::to_string).collect();
            return Err(Refused(format!("cannot {}", faults.join("; "))).into());
        }
        std::fs::write(&self.out, self.render(&set))
            .with_context(|| format!("cannot write {}", foreign::path(&self.out)))?;
        let mut out = std::io::stdout().lock();
        for part in &set.parts {
            let counts: Vec<String> =
                part.classes.iter().zip(part.counts()).map(|(class, count)| format!("{class} {count}")).collect();
            writeln!(out, "{}: {}", part.name, counts.join(", ")).context("cannot write to stdout")?;
        }
        writeln!(out, "the pictures are in {}", self.out.display()).context("cannot write to stdout")?;
        if !set.faults.is_empty() {
            writeln!(out, "not all could be read: `lockstep data check {}` says why", self.folder.display())
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
