//! `lockstep data prepare`: all drawn data sets once on a folder that a class shares, checked, and readable by everybody.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use lockstep_contract::foreign;
use rustix::fs::{FlockOperation, flock};

use super::check;
use super::make::Drawn;
use crate::exit::{Code, Refused};

/// Make and check the labs' data sets once on a folder that a class shares
#[derive(Args)]
pub(crate) struct Options {
    /// The folder. Data sets that are in it already, such as mnist or cifar-10-batches-bin, are checked and, without a fault, made readable, too
    #[arg(value_parser = lockstep_paths::parse_folder)]
    folder: PathBuf,
    /// Pictures to draw for training, in each set; by default as many as each lab draws for itself
    #[arg(long)]
    samples: Option<u32>,
    /// Seed of the pictures
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let folder = &self.folder;
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", foreign::path(folder)))?;
        let lock = folder.join(".preparing");
        let lock = File::create(&lock).with_context(|| format!("cannot write to {}", foreign::path(folder)))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Refused(format!("another `lockstep data prepare` is at work in {}", foreign::path(folder))))?;
        for set in Drawn::value_variants() {
            self.draw(*set)?;
        }
        let (mut out, mut code) = (std::io::stdout().lock(), Code::Success);
        for set in folders(folder)? {
            let found = check::check(&set, None);
            // What is no data set, and what a link leads to, may not be meant for everybody.
            if !found.faults.is_empty() {
                code = Code::Failure;
            } else if !set.is_symlink() {
                share(&set)?;
            }
            write!(out, "{}", found.text()).context("cannot write to stdout")?;
        }
        share_one(folder)?;
        let told = match closed_above(folder) {
            Some(closed) => {
                writeln!(out, "other accounts cannot read it: {} lets nobody else in (chmod o+x {0})", closed.display())
            }
            None => writeln!(
                out,
                "all accounts of this machine can read it: give a lab `--data {}/digits`, for example",
                folder.display()
            ),
        };
        told.context("cannot write to stdout")?;
        Ok(code)
    }

    /// Draws a set, unless it is there. It gets its name when it is complete.
    fn draw(&self, set: Drawn) -> anyhow::Result<()> {
        let to = self.folder.join(set.folder());
        if to.exists() {
            return Ok(());
        }
        eprintln!("drawing {}", to.display());
        let unfinished = tempfile::Builder::new().prefix(".drawing-").tempdir_in(&self.folder)?;
        set.draw(unfinished.path(), self.samples, self.seed)?;
        let made = unfinished.keep();
        fs::rename(&made, &to)
            .with_context(|| format!("cannot rename {} to {}", foreign::path(&made), foreign::path(&to)))
    }
}

/// A folder above this one that other accounts may not pass.
fn closed_above(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let is_closed = |path: &&Path| fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o001 == 0);
    folder.ancestors().find(is_closed).map(Path::to_path_buf)
}

/// The folders in a folder, without hidden ones, sorted.
fn folders(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", foreign::path(dir)))?;
    let shown = |path: &PathBuf| !path.file_name().unwrap_or_default().to_string_lossy().starts_with('.');
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && shown(path)).collect();
    folders.sort();
    Ok(folders)
}

/// Lets everybody read all below `path`, and nobody write more than before. Does not follow links.
fn share(path: &Path) -> anyhow::Result<()> {
    share_one(path)?;
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("cannot list {}", foreign::path(path)))? {
            let entry = entry.with_context(|| format!("cannot list {}", foreign::path(path)))?;
            if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                share(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn share_one(path: &Path) -> anyhow::Result<()> {
    let mode = fs::metadata(path).with_context(|| format!("cannot read {}", foreign::path(path)))?.permissions().mode();
    let shared = mode | if path.is_dir() { 0o555 } else { 0o444 };
    if shared == mode {
        return Ok(());
    }
    let set = fs::set_permissions(path, Permissions::from_mode(shared));
    set.with_context(|| format!("cannot let everybody read {}", foreign::path(path)))
}
