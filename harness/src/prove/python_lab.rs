//! Lab 06's Python program in the place of the lab, for a tour where the lab is not compiled and cannot be: outside a checkout, as after
//! `pip install`. The texts of both programs are part of this one. The digits are those that the lab draws.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_datasets::idx::{Idx, IdxKind};
use lockstep_datasets::{Split, digits, mnist};
use lockstep_paths::temporary_folder;
use tempfile::TempDir;

use crate::checkout::checkout_around;
use crate::exit::Refused;
use crate::prove::evidence::Sizes;
use crate::python::Python;

/// The program, which imports [`LAB`] and has the lab's arguments.
const PROGRAM: &str = include_str!("python_lab.py");
const LAB: &str = include_str!("../../../labs/06-snapshot-resume/snapshot_resume.py");
/// The program's command, which knows the interpreter. Not `#!python`: its path may be too long for the kernel or contain a space.
const COMMAND: &str = "#!/bin/sh\nexec PYTHON \"${0%/*}/python_lab.py\" \"$@\"\n";

/// The program and its data, in a folder that is removed with this value.
pub(crate) struct PythonLab {
    folder: TempDir,
    python: Python,
}

impl PythonLab {
    /// The program, with digits of `folder` or as many drawn ones as `sizes` says; `None` if this program is part of a checkout.
    ///
    /// # Errors
    /// [`Refused`] if no Python has PyTorch; a file cannot be read or written.
    pub(crate) fn where_none_is_built(seed: u64, sizes: Sizes, folder: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let this = std::env::current_exe().context("cannot find this program's own path")?;
        if checkout_around(&this).is_some() {
            return Ok(None);
        }
        let no_python = |why| Refused(format!("the tour outside a checkout of the course needs PyTorch: {why}"));
        let python = Python::find().map_err(no_python)?;
        let made = tempfile::Builder::new().prefix("lockstep-tour-").tempdir_in(temporary_folder());
        let lab =
            PythonLab { folder: made.context("cannot make a temporary folder (TMPDIR names another place)")?, python };
        lab.write(seed, sizes, folder).with_context(|| format!("cannot write to {}", lab.folder.path().display()))?;
        Ok(Some(lab))
    }

    fn write(&self, seed: u64, sizes: Sizes, given: Option<&Path>) -> anyhow::Result<()> {
        let here = self.folder.path();
        fs::write(here.join("snapshot_resume.py"), LAB)?;
        fs::write(here.join("python_lab.py"), PROGRAM)?;
        let python = self.python.program.to_string_lossy().replace('\'', "'\\''");
        fs::write(self.program(), COMMAND.replace("PYTHON", &format!("'{python}'")))?;
        fs::set_permissions(self.program(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir(self.data())?;
        for (split, count) in [(Split::Train, sizes.train), (Split::Test, sizes.test)] {
            let (images, labels) = match given {
                Some(folder) => (
                    Idx::read(&mnist::find(folder, split, "images", 3)?, IdxKind::Images)?,
                    Idx::read(&mnist::find(folder, split, "labels", 1)?, IdxKind::Labels)?,
                ),
                None => drawn(seed, split, usize::try_from(count)?)?,
            };
            let file = |what: &str| self.data().join(format!("{}-{what}-ubyte.gz", split.prefix()));
            images.write(&file("images-idx3"))?;
            labels.write(&file("labels-idx1"))?;
        }
        Ok(())
    }

    /// What a launcher starts.
    pub(crate) fn program(&self) -> PathBuf {
        self.folder.path().join("lab-06-snapshot-resume")
    }

    /// The folder with MNIST's four files.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("digits")
    }

    /// The version of PyTorch.
    pub(crate) fn version(&self) -> &str {
        &self.python.version
    }
}

fn drawn(seed: u64, split: Split, count: usize) -> anyhow::Result<(Idx, Idx)> {
    let labels = (0..count).map(|index| digits::label(seed, split, index)).collect();
    let images = Idx::new(vec![count, digits::SIDE, digits::SIDE], digits::images(seed, split, count))?;
    Ok((images, Idx::new(vec![count], labels)?))
}
