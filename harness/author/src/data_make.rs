//! `lockstep data make` draws the labs' data sets as files, with the labs' own programs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::checkout::program_beside;
use crate::exit::{Code, Refused};
use crate::report::Stdout;
use crate::{data_check, data_text};

/// A data set that the labs draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drawn {
    /// Digits, as MNIST's four files: labs 02, 03, 06, 09 and 11
    Digits,
    /// Ten kinds of things, as CIFAR-10's binary files: lab 07
    Objects,
    /// Houses, some of them damaged, as folders of JPEG files: lab 08
    Houses,
    /// The prose of this book, as train.txt and validation.txt: for a language model of your own
    Text,
}

/// Draw a data set of the labs into a folder, as files for other programs to read
#[derive(Args)]
pub(crate) struct MakeData {
    /// What to draw
    #[arg(value_enum)]
    set: Drawn,
    /// The folder, which is created if it is missing
    #[arg(value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
    /// Pictures to draw for training; a quarter as many are drawn for the test. By default as many as the lab draws for itself. The text is
    /// always whole
    #[arg(long)]
    samples: Option<u32>,
    /// Seed of the pictures
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl MakeData {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        self.set.draw(&self.folder, self.samples, self.seed)?;
        let found = data_check::check_data(&self.folder, None);
        Stdout.write_all(found.text().as_bytes()).context("cannot write to stdout")?;
        Ok(if found.faults.is_empty() { Code::Success } else { Code::Failure })
    }
}

impl Drawn {
    /// The lab's program that draws it.
    fn program(self) -> Option<&'static str> {
        match self {
            Drawn::Digits => Some("lab-02-draw-digits"),
            Drawn::Objects => Some("lab-07-draw-objects"),
            Drawn::Houses => Some("lab-08-draw-houses"),
            Drawn::Text => None,
        }
    }

    /// Makes it in a folder.
    pub(crate) fn draw(self, folder: &Path, samples: Option<u32>, seed: u64) -> anyhow::Result<()> {
        let Some(program) = self.program() else {
            if samples.is_some() || seed != 0 {
                return Err(
                    Refused("the text is always the whole book's: leave out --samples and --seed".into()).into()
                );
            }
            return data_text::make(folder);
        };
        let mut command = Command::new(program_beside(program)?);
        command.arg(folder).args(["--seed", &seed.to_string()]);
        samples.map(|samples| command.args(["--samples", &samples.to_string()]));
        let status = command.status().with_context(|| format!("cannot start {program}"))?;
        if !status.success() {
            bail!("{program} failed with {status}: see above");
        }
        Ok(())
    }
}
