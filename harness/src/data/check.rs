//! `lockstep data check`: reads all files of a data set, and prints each fault with its fix.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_datafiles::idx::{Idx, Kind};
use lockstep_datafiles::{DataError, cifar};

use super::set::{Layout, Part, Set};
use crate::exit::{Code, Refused};

/// How many faults are printed before there is only a count.
const SHOWN: usize = 20;
/// How many pictures are decoded between two reports of progress.
const PACE: usize = 500;

/// Check the files of a data set; for each fault, print what to do
#[derive(Args)]
pub(crate) struct Options {
    /// A folder with MNIST's files, CIFAR-10's binary files or folders of pictures; or one of their files
    path: PathBuf,
    /// The layout, where the names do not tell it
    #[arg(long, value_enum)]
    layout: Option<Layout>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let about = std::fs::metadata(&self.path);
        let about = about.map_err(|error| Refused(format!("cannot read {}: {error}", foreign::path(&self.path))))?;
        let found = if about.is_file() { check_file(&self.path)? } else { check(&self.path, self.layout) };
        std::io::stdout().lock().write_all(found.text().as_bytes()).context("cannot write to stdout")?;
        Ok(if found.faults.is_empty() { Code::Success } else { Code::Failure })
    }
}

/// What a check has found.
pub(super) struct Found {
    summary: String,
    pub(super) faults: Vec<DataError>,
}

/// Reads all of a data set, and decodes all pictures.
pub(super) fn check(dir: &Path, layout: Option<Layout>) -> Found {
    let mut set = Set::open(dir, layout);
    let mut summary = format!("{} in {}\n", set.layout.words(), dir.display());
    for part in &set.parts {
        let _ = writeln!(summary, "  {}: {}", part.name, describe(part));
        skipped(part).into_iter().for_each(|line| summary += &format!("    not read: {line}\n"));
        if part.size().is_none() {
            set.faults.extend(undecodable(part));
        }
    }
    Found { summary, faults: set.faults }
}

/// `512 pictures of 28 x 28; 10 classes of 51 to 52`.
fn describe(part: &Part) -> String {
    let counts = part.counts();
    let (least, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    let size = part.size().map_or(String::new(), |(width, height)| format!(" of {width} x {height}"));
    let each = if least == most { format!("{least} each") } else { format!("{least} to {most}") };
    format!("{} pictures{size}; {} classes of {each}", part.labels.len(), counts.len())
}

/// How many files are no samples, by reason, with the first of each.
fn skipped(part: &Part) -> Vec<String> {
    let mut reasons: BTreeMap<_, Vec<&Path>> = BTreeMap::new();
    part.skipped.iter().for_each(|skipped| reasons.entry(skipped.why).or_default().push(&skipped.path));
    let line = |(why, files): (_, Vec<&Path>)| format!("{} {why}, such as {}", files.len(), files[0].display());
    reasons.into_iter().map(line).collect()
}

fn undecodable(part: &Part) -> Vec<DataError> {
    let (all, progress) = (part.labels.len(), std::io::stderr().is_terminal());
    let decode = |index: usize| {
        if progress && index.is_multiple_of(PACE) && index > 0 {
            eprintln!("{}: {index} of {all} pictures decoded", part.name);
        }
        part.picture(index).err()
    };
    (0..all).filter_map(decode).collect()
}

fn check_file(path: &Path) -> anyhow::Result<Found> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let read = match () {
        () if ends(&[".jpg", ".jpeg", ".png"]) => lockstep_decode::read(path)
            .map(|picture| format!("a picture of {} x {} pixels", picture.width(), picture.height())),
        () if ends(&[".bin"]) => {
            cifar::read(path).map(|records| format!("{} records of CIFAR-10", records.len() / cifar::RECORD))
        }
        () if name.contains("idx") || ends(&["ubyte", "ubyte.gz"]) => {
            Idx::read(path, Kind::Any).map(|idx| format!("an IDX file of bytes {:?}", idx.dims()))
        }
        () => {
            return Err(Refused(format!(
                "cannot tell by its name what {} is: give the folder that holds it, or a file that ends in -ubyte, -ubyte.gz, .bin, .jpg, \
                 .jpeg or .png",
                foreign::path(path)
            ))
            .into());
        }
    };
    Ok(match read {
        Ok(what) => Found { summary: format!("{}: {what}\n", path.display()), faults: Vec::new() },
        Err(fault) => Found { summary: String::new(), faults: vec![fault] },
    })
}

impl Found {
    /// The summary, and each fault with its fix.
    pub(super) fn text(&self) -> String {
        let mut text = self.summary.clone();
        for fault in self.faults.iter().take(SHOWN) {
            let cause = fault.source().map_or(String::new(), |cause| format!(" ({cause})"));
            let _ = writeln!(text, "fault: {}{cause}", what(fault));
            if !fault.hint.is_empty() {
                let _ = writeln!(text, "  fix: {}", fault.hint);
            }
        }
        if self.faults.len() > SHOWN {
            let _ = writeln!(text, "and {} more faults", self.faults.len() - SHOWN);
        }
        match self.faults.len() {
            0 => text + "no fault found\n",
            count => text + &format!("{count} fault{} found\n", if count == 1 { "" } else { "s" }),
        }
    }
}

/// The fault without its hint.
fn what(fault: &DataError) -> String {
    let whole = fault.to_string();
    let bare = whole.strip_suffix(fault.hint.as_str()).unwrap_or(&whole);
    format!("cannot {}", bare.trim_end_matches([' ', ';', ':']))
}
