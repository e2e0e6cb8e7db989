//! `lockstep data make`: draws the labs' data sets as files, by the labs' own programs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use super::check;
use crate::exit::Code;
use crate::lab_run::program_beside;

/// A data set that the labs draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Drawn {
    /// Digits, as MNIST's four files: labs 02, 03, 06, 09 and 11
    Digits,
    /// Ten kinds of things, as CIFAR-10's binary files: lab 07
    Objects,
    /// Houses after a storm, as folders of JPEG files: lab 08
    Houses,
}

/// Draw a data set of the labs into a folder, as files for other programs to read
#[derive(Args)]
pub(crate) struct Options {
    /// What to draw
    #[arg(value_enum)]
    set: Drawn,
    /// The folder, which is created if it is missing
    #[arg(value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
    /// Pictures to draw for training; a quarter as many are drawn for the test. By default as many as the lab draws for itself
    #[arg(long)]
    samples: Option<u32>,
    /// Seed of the pictures
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        self.set.draw(&self.folder, self.samples, self.seed)?;
        let found = check::check(&self.folder, None);
        io::stdout().lock().write_all(found.text().as_bytes()).context("cannot write to stdout")?;
        Ok(if found.faults.is_empty() { Code::Success } else { Code::Failure })
    }
}

impl Drawn {
    /// The name of its folder on a shared disk.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Drawn::Digits => "digits",
            Drawn::Objects => "objects",
            Drawn::Houses => "houses",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Drawn::Digits => "lab-02-draw-digits",
            Drawn::Objects => "lab-07-draw-objects",
            Drawn::Houses => "lab-08-draw-houses",
        }
    }

    /// Draws it into a folder.
    ///
    /// # Errors
    /// The lab's program is not built, or fails.
    pub(super) fn draw(self, folder: &Path, samples: Option<u32>, seed: u64) -> anyhow::Result<()> {
        let mut command = Command::new(program_beside(self.program())?);
        command.arg(folder).args(["--seed", &seed.to_string()]);
        samples.map(|samples| command.args(["--samples", &samples.to_string()]));
        let status = command.status().with_context(|| format!("cannot start {}", self.program()))?;
        if !status.success() {
            bail!("{} failed with {status}: see above", self.program());
        }
        Ok(())
    }
}
