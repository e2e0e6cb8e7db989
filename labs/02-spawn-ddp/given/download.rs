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
/// A minute: the longest sleep of another rank that is waited for.
const SLEEP_LOOKS: usize = 12_000;

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

/// What the other ranks do.
pub struct Others {
    /// For each of them, a file that is there once it is done.
    pub done: Vec<PathBuf>,
    /// And one that is there while it sleeps, as a rank does that guesses how long the download takes.
    pub sleeps: Vec<PathBuf>,
}

impl Others {
    fn are_done(&self) -> bool {
        self.done.iter().all(|file| file.exists())
    }

    fn are_awake(&self) -> bool {
        !self.sleeps.iter().any(|file| file.exists())
    }
}

/// A file to download.
pub struct Download {
    text: String,
    last: Last,
    /// This file is there once the last rank may come, and this one once it has.
    marks: [PathBuf; 2],
    others: Others,
    count: Cell<usize>,
}

impl Download {
    /// A download of this text. It is slow until the other ranks are done, and while one of them sleeps. Its files begin with `name`.
    pub fn new(name: &str, text: String, last: Last, others: Others) -> Self {
        let marks = ["may-come", "has-come"].map(|what| format!("{name}-last-{what}").into());
        Download { text, last, marks, others, count: Cell::new(0) }
    }

    /// Lets the last rank come when it is to. Without a download by another rank it comes a little later.
    pub fn come_last(&self) -> io::Result<()> {
        until(LOOKS, || self.marks[0].exists());
        if self.last == Last::AtEnd {
            // The rank that has downloaded continues from there.
            until(LOOKS / 4, || self.others.are_done());
        }
        File::create(&self.marks[1]).map(drop)
    }

    /// Downloads to this path.
    pub fn to(&self, file: &Path) -> io::Result<()> {
        self.count.set(self.count.get() + 1);
        let (first, second) = self.text.split_at(self.text.len() / 2);
        if self.last == Last::Together {
            self.wait_for_others(LOOKS);
        }
        let mut file = File::create(file)?;
        file.write_all(first.as_bytes())?;
        match self.last {
            Last::Together => self.wait_for_others(LOOKS),
            Last::AtHalf => {
                File::create(&self.marks[0])?;
                until(LOOKS, || self.marks[1].exists());
                self.wait_for_others(LOOKS / 2);
            }
            Last::AtEnd => {}
        }
        file.write_all(second.as_bytes())?;
        File::create(&self.marks[0]).map(drop)
    }

    /// Waits until the others are done, for this many looks, and then for ranks that still sleep.
    fn wait_for_others(&self, looks: usize) {
        until(looks, || self.others.are_done());
        until(SLEEP_LOOKS, || self.others.are_awake());
    }

    /// How often this rank has downloaded the file.
    pub fn count(&self) -> usize {
        self.count.get()
    }
}

/// Waits until this holds, for at most this many looks.
fn until(looks: usize, holds: impl Fn() -> bool) {
    (0..looks).take_while(|_| !holds()).for_each(|_| std::thread::sleep(LOOK));
}
