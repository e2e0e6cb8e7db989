//! A simulated download, which is slow and writes the file in two parts. You do not change this file.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// How often somebody looks whether another rank has gone on: for a second, and for longer on a busy machine, where the other ranks need
/// longer, too.
const LOOKS: usize = 200;
const LOOK: Duration = Duration::from_millis(5);

/// When the last rank comes. The others begin together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Last {
    /// With the others.
    Together,
    /// When half of the file is there.
    AtHalf,
    /// After the download.
    AtEnd,
}

/// A file to download.
pub struct Download {
    text: String,
    last: Last,
    /// This file is there once the last rank may come, and this one once it has.
    marks: [PathBuf; 2],
    others_are_done: Box<dyn Fn() -> bool>,
    count: Cell<usize>,
}

impl Download {
    /// A download of this text. It is slow until the other ranks are done. Its files begin with `name`.
    pub fn new(name: &str, text: String, last: Last, others_are_done: impl Fn() -> bool + 'static) -> Self {
        let marks = ["may-come", "has-come"].map(|what| format!("{name}-last-{what}").into());
        Download { text, last, marks, others_are_done: Box::new(others_are_done), count: Cell::new(0) }
    }

    /// Lets the last rank come when it is to. Without a download by another rank it comes a little later.
    pub fn come_last(&self) -> io::Result<()> {
        until(LOOKS, || self.marks[0].exists());
        if self.last == Last::AtEnd {
            // The rank that has downloaded goes on from there.
            until(LOOKS / 4, &self.others_are_done);
        }
        File::create(&self.marks[1]).map(drop)
    }

    /// Downloads to this path.
    pub fn to(&self, file: &Path) -> io::Result<()> {
        self.count.set(self.count.get() + 1);
        let (first, second) = self.text.split_at(self.text.len() / 2);
        if self.last == Last::Together {
            until(LOOKS, &self.others_are_done);
        }
        let mut file = File::create(file)?;
        file.write_all(first.as_bytes())?;
        match self.last {
            Last::Together => until(LOOKS, &self.others_are_done),
            Last::AtHalf => {
                File::create(&self.marks[0])?;
                until(LOOKS, || self.marks[1].exists());
                until(LOOKS / 2, &self.others_are_done);
            }
            Last::AtEnd => {}
        }
        file.write_all(second.as_bytes())?;
        File::create(&self.marks[0]).map(drop)
    }

    /// How often this rank has downloaded the file.
    pub fn count(&self) -> usize {
        self.count.get()
    }
}

/// Waits until this holds, for so many looks at most.
fn until(looks: usize, holds: impl Fn() -> bool) {
    (0..looks).take_while(|_| !holds()).for_each(|_| std::thread::sleep(LOOK));
}
