//! A simulated download, which is slow and writes the file in two parts. You do not change this file.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// How often each half of the download looks whether another rank has continued without it: for a second, and for longer on a busy
/// machine, where the other ranks need longer, too.
const LOOKS: usize = 200;
const LOOK: Duration = Duration::from_millis(5);

/// A file to download.
pub struct Download {
    text: String,
    others_are_done: Box<dyn Fn() -> bool>,
    count: Cell<usize>,
}

impl Download {
    /// A download of this text. It is slow until the other ranks are done.
    pub fn new(text: String, others_are_done: impl Fn() -> bool + 'static) -> Self {
        Download { text, others_are_done: Box::new(others_are_done), count: Cell::new(0) }
    }

    /// Downloads to this path.
    pub fn to(&self, file: &Path) -> io::Result<()> {
        self.count.set(self.count.get() + 1);
        let (first, second) = self.text.split_at(self.text.len() / 2);
        self.wait();
        let mut file = File::create(file)?;
        file.write_all(first.as_bytes())?;
        self.wait();
        file.write_all(second.as_bytes())
    }

    fn wait(&self) {
        for _ in 0..LOOKS {
            if (self.others_are_done)() {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// How often this rank has downloaded the file.
    pub fn count(&self) -> usize {
        self.count.get()
    }
}
