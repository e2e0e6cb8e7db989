//! Lab 06's Python program in the place of the lab, for a tour where the lab is not compiled and cannot be: outside a checkout, as after
//! `pip install`. The texts of both programs are part of this one. The digits are those that the lab draws.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use lockstep_datasets::idx::{Idx, IdxKind};
use lockstep_datasets::{Split, digits, mnist};
use lockstep_grading::Python;
use lockstep_paths::temporary_folder;

use crate::checkout::{checkout_around, program_beside};
use crate::evidence::Sizes;
use crate::exit::Refused;
use crate::launch;
use crate::tour::StandIn;

/// The program, which imports [`SCRIPT`] and has the lab's arguments.
const PROGRAM: &str = include_str!("python_lab.py");
const SCRIPT: &str = include_str!("../../../labs/06-snapshot-resume/snapshot_resume.py");
/// The program's command, which knows the interpreter. Not `#!python`: its path may be too long for the kernel or contain a space.
const COMMAND: &str = "#!/bin/sh\nexec PYTHON \"${0%/*}/python_lab.py\" \"$@\"\n";

/// The program, with digits of `given` or as many drawn ones as `sizes` says; `None` if the lab is compiled, or this program is part of a
/// checkout.
pub(crate) fn where_none_is_built(seed: u64, sizes: Sizes, given: Option<&Path>) -> anyhow::Result<Option<StandIn>> {
    if can_have_the_lab()? {
        return Ok(None);
    }
    let no_python = |why| Refused(format!("the tour outside a checkout of the course needs PyTorch: {why}"));
    let python = Python::find().map_err(no_python)?;
    let folder = tempfile::Builder::new().prefix("lockstep-tour-").tempdir_in(temporary_folder());
    let folder = folder.context("cannot make a temporary folder (TMPDIR names another place)")?;
    let (program, data) = (folder.path().join(launch::LAB), folder.path().join("digits"));
    write(&program, &python.program, &data, (seed, sizes, given))
        .with_context(|| format!("cannot write the tour's program and digits to {}", folder.path().display()))?;
    Ok(Some(StandIn { program, data, pytorch: python.version, _folder: folder }))
}

/// Returns true if the lab is compiled, or can be, since this program is part of a checkout.
///
/// # Errors
/// The system does not say where this program is.
pub(crate) fn can_have_the_lab() -> anyhow::Result<bool> {
    let this = std::env::current_exe().context("cannot find this program's own path")?;
    Ok(program_beside(launch::LAB).is_ok() || checkout_around(&this).is_some())
}

fn write(program: &Path, python: &Path, data: &Path, digits: (u64, Sizes, Option<&Path>)) -> anyhow::Result<()> {
    fs::write(program.with_file_name("snapshot_resume.py"), SCRIPT)?;
    fs::write(program.with_file_name("python_lab.py"), PROGRAM)?;
    let python = python.to_string_lossy().replace('\'', "'\\''");
    fs::write(program, COMMAND.replace("PYTHON", &format!("'{python}'")))?;
    fs::set_permissions(program, fs::Permissions::from_mode(0o755))?;
    fs::create_dir(data)?;
    let (seed, sizes, given) = digits;
    for (split, count) in [(Split::Train, sizes.train), (Split::Test, sizes.test)] {
        let (images, labels) = match given {
            Some(folder) => (
                Idx::read(&mnist::find(folder, split, "images", 3)?, IdxKind::Images)?,
                Idx::read(&mnist::find(folder, split, "labels", 1)?, IdxKind::Labels)?,
            ),
            None => drawn(seed, split, usize::try_from(count)?)?,
        };
        let file = |what: &str| data.join(format!("{}-{what}-ubyte.gz", split.prefix()));
        images.write(&file("images-idx3"))?;
        labels.write(&file("labels-idx1"))?;
    }
    Ok(())
}

fn drawn(seed: u64, split: Split, count: usize) -> anyhow::Result<(Idx, Idx)> {
    let labels = (0..count).map(|index| digits::label(seed, split, index)).collect();
    let images = Idx::new(vec![count, digits::SIDE, digits::SIDE], digits::images(seed, split, count))?;
    Ok((images, Idx::new(vec![count], labels)?))
}
