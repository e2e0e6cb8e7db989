//! Checkpoints: a model's weights in a safetensors file that Python's `safetensors` can read, replaced atomically.
//!
//! Leaves out what else a resumed run needs (optimizer, step, sampler), and which model is kept ([`crate::best`]).

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;
use c10d::ProcessGroup;
use lockstep_paths as output;
use safetensors::tensor::TensorView;
use safetensors::{SafeTensorError, SafeTensors, View as _};
use tch::Tensor;
use tch::nn::VarStore;

use crate::snapshot::{self, OnSaveError, View};
use crate::{Rank, Reporter, object_collectives};

/// Writes all variables of `vs` to `path`, which must end in `.safetensors`. Creates the folder if it is missing.
///
/// The file is written under a temporary name, synced, and renamed over the old one, so that a kill at any moment leaves either
/// the old file or the new one. A kill may leave the temporary file, `….partial.safetensors`; the next save replaces it. Only
/// one process at a time may write `path`.
///
/// Fails when the folder cannot be created or written; the old file is then unchanged.
pub fn save(vs: &VarStore, path: &Path) -> anyhow::Result<()> {
    replace(path, None, |partial| {
        safetensors::serialize_to_file(views(vs)?, None, partial).map_err(|error| match error {
            SafeTensorError::IoError(error) => error.into(),
            error => error.into(),
        })
    })
}

/// Parses the name of a model's file on a command line: it must end in `.safetensors`.
///
/// ```
/// #[derive(clap::Parser)]
/// struct Args {
///     #[arg(long, value_parser = lockstep::checkpoint::parse_name)]
///     best: Option<std::path::PathBuf>,
/// }
/// let parse = |name| <Args as clap::Parser>::try_parse_from(["lab", "--best", name]);
/// assert!(parse("kept/best.safetensors").is_ok() && parse("best.pt").is_err());
/// ```
pub fn parse_name(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    if is_named_well(&path) {
        return Ok(path);
    }
    Err("the model is saved as safetensors: give a file's name that ends in .safetensors".into())
}

/// As [`parse_name`], and checks the place with [`check_path`].
pub fn parse_path(path: &str) -> Result<PathBuf, String> {
    let path = parse_name(path)?;
    check_path(&path)?;
    Ok(path)
}

/// Checks that a model can be saved as `path`, as far as that can be known before training.
pub fn check_path(path: &Path) -> Result<(), String> {
    output::check_file(path).map_err(|why| why.with_advice())?;
    check_name(path).map_err(|why| why.to_string())
}

/// A run's model in a file that is replaced after each epoch. Every rank has one and makes the same calls; only rank 0 writes.
///
/// Save it *before* the snapshot that marks the epoch as done: a run that is killed between the two repeats the epoch, and a
/// run with that snapshot always has the file.
pub struct ModelFile {
    path: PathBuf,
    on_error: OnSaveError,
    report: Reporter,
}

impl ModelFile {
    /// A model in the file `path`, which must end in `.safetensors`. Removes the partial file of a killed writer.
    pub fn new(path: impl AsRef<Path>, on_error: OnSaveError, report: &Reporter) -> Self {
        let path = path.as_ref().to_owned();
        if report.rank().is_zero() {
            sweep(&path);
        }
        ModelFile { path, on_error, report: report.clone() }
    }

    /// Calls [`save`] on rank 0. Returns true if the file now holds `vs`. A collective.
    ///
    /// With [`OnSaveError::Stop`], fails on every rank when the file cannot be saved. Otherwise rank 0 prints a warning, and the
    /// old file stays.
    pub fn save(&self, vs: &VarStore, group: &ProcessGroup) -> anyhow::Result<bool> {
        save_for_all(group, &self.report, self.on_error, || save(vs, &self.path))
    }
}

/// Calls `save` on rank 0 and shares the result with all ranks. Returns true if it succeeded. A collective.
///
/// With [`OnSaveError::Stop`] returns the failure on every rank; otherwise rank 0 prints it as a warning.
pub(crate) fn save_for_all(
    group: &ProcessGroup,
    report: &Reporter,
    on_error: OnSaveError,
    save: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let rank0 = report.rank().is_zero();
    let saved = rank0.then(|| save().map_err(|error| format!("{error:#}")));
    match object_collectives::broadcast_object::<Result<(), String>>(group, saved.as_ref())? {
        Ok(()) => return Ok(true),
        Err(why) if on_error == OnSaveError::Stop => anyhow::bail!(why),
        Err(why) if rank0 => report.warn(format!("{why}; training goes on")),
        Err(_) => {}
    }
    Ok(false)
}

fn views(vs: &VarStore) -> anyhow::Result<Vec<(String, View)>> {
    // The format has no strides, and channels may be last in memory.
    let view = |(name, variable): (String, Tensor)| Ok((name.clone(), View::new(&name, &variable.f_contiguous()?)?));
    vs.variables().into_iter().map(view).collect()
}

/// Like [`save`], with a text in the file's metadata under `key`. The previous file is kept under the name `before`, if one is
/// given. The same weights and text give the same bytes.
pub(crate) fn save_with_note(
    vs: &VarStore,
    path: &Path,
    (key, text): (&str, &str),
    before: Option<&Path>,
) -> anyhow::Result<()> {
    replace(path, before, |partial| {
        let views = views(vs)?;
        // With several entries, their order would differ from time to time.
        let note = HashMap::from([(key.to_owned(), text.to_owned())]);
        Ok(fs::write(partial, safetensors::serialize(views, Some(note))?)?)
    })
}

/// Writes the bytes of a file that another rank sent, the same way as [`save`].
pub(crate) fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    replace(path, None, |partial| Ok(fs::write(partial, bytes)?))
}

/// Returns the text that [`save_with_note`] wrote under `key`, or `None`.
pub(crate) fn note(path: &Path, key: &str) -> anyhow::Result<Option<String>> {
    let bytes = snapshot::read_whole(path)?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    Ok(metadata.metadata().as_ref().and_then(|texts| texts.get(key).cloned()))
}

/// The tensors of a safetensors file with these bytes.
pub(crate) fn tensors(bytes: &[u8]) -> anyhow::Result<BTreeMap<String, Tensor>> {
    let read = |(name, view): (String, TensorView<'_>)| {
        let tensor = snapshot::tensor(view.dtype(), view.shape(), view.data());
        let tensor = tensor.with_context(|| format!("{name} has the dtype {:?}", view.dtype()))?;
        Ok((name, tensor))
    };
    SafeTensors::deserialize(bytes)?.tensors().into_iter().map(read).collect()
}

/// Removes the partial file of a process that was killed while saving.
pub(crate) fn sweep(path: &Path) {
    drop(Partial::of(path));
}

/// Lets `write` create a file, then renames it to `path`. The previous file is renamed to `before`, if that is given.
fn replace(path: &Path, before: Option<&Path>, write: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let partial = Partial::of(path);
    let attempt = || -> anyhow::Result<()> {
        check_name(path)?;
        let folder = folder_of(path);
        fs::create_dir_all(&folder)?;
        sweep(path); // never writes to a pipe or through a link of that name
        write(&partial.0)?;
        File::open(&partial.0)?.sync_all()?;
        let moved = before.filter(|_| path.exists());
        if let Some(before) = moved {
            fs::rename(path, before)?;
        }
        if let Err(error) = fs::rename(&partial.0, path) {
            moved.map(|before| fs::rename(before, path)).transpose()?;
            return Err(error.into());
        }
        File::open(&folder)?.sync_all()?;
        Ok(())
    };
    attempt().with_context(|| format!("failed to save a checkpoint to {}", path.display()))
}

/// Writes a rank's weights to `rank-R.safetensors` in `folder`, where the harness compares them.
pub fn save_of_rank(vs: &VarStore, folder: &Path, rank: Rank) -> anyhow::Result<()> {
    save(vs, &folder.join(format!("rank-{rank}.safetensors")))
}

/// A checksum of all variables' names and bits: 8 hex digits, equal for equal weights.
///
/// Errors: a variable cannot be copied.
pub fn digest(vs: &VarStore) -> anyhow::Result<String> {
    let variables: BTreeMap<_, _> = vs.variables().into_iter().collect();
    let mut hasher = crc32fast::Hasher::new();
    for (name, variable) in variables {
        hasher.update(name.as_bytes());
        hasher.update(&View::new(&name, &variable)?.data());
    }
    Ok(format!("{:08x}", hasher.finalize()))
}

/// Reads variables that [`save`] wrote into `vs`, which must have the same names and shapes.
pub fn load(vs: &mut VarStore, path: &Path) -> anyhow::Result<()> {
    vs.load(path).with_context(|| format!("failed to load a checkpoint from {}", path.display()))
}

/// Loading picks the format by the extension, and a rename would silently replace a device or a link.
///
/// Errors: a model can never be saved as `path`, independent of free space.
pub(crate) fn check_name(path: &Path) -> anyhow::Result<()> {
    let is_taken = |path: &Path| fs::symlink_metadata(path).is_ok_and(|there| !there.is_file());
    anyhow::ensure!(!is_taken(path), "it exists and is not a regular file; name another path");
    anyhow::ensure!(
        is_named_well(path),
        "the name does not end in .safetensors, by which loading recognizes the format"
    );
    Ok(())
}

fn is_named_well(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// A file that is removed when this is dropped, unless it was renamed.
struct Partial(PathBuf);

impl Partial {
    /// The temporary file for `path`. All processes use the same name, so that the next one finds the file of a killed one.
    fn of(path: &Path) -> Self {
        Partial(path.with_extension("partial.safetensors"))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After a successful rename the file does not exist.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, nn};

    fn store(value: f64) -> (VarStore, Tensor) {
        let vs = VarStore::new(Device::Cpu);
        let tensor = vs.root().var("w", &[3], nn::Init::Const(value));
        (vs, tensor)
    }

    #[test]
    fn a_checkpoint_comes_back_and_replaces_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/model.safetensors");
        save(&store(1.0).0, &path).unwrap();
        save(&store(2.0).0, &path).unwrap();
        let (mut vs, tensor) = store(0.0);
        load(&mut vs, &path).unwrap();
        assert_eq!(tensor, Tensor::full_like(&tensor, 2.0));
        let files: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(files.len(), 1, "no partial file is left: {files:?}");
    }

    #[test]
    fn the_file_is_the_same_with_the_channels_last_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let files = [false, true].map(|last| {
            let vs = VarStore::new(Device::Cpu);
            let mut weight = vs.root().zeros("weight", &[2, 3, 2, 2]);
            tch::no_grad(|| weight.copy_(&Tensor::arange(24, tch::kind::FLOAT_CPU).reshape([2, 3, 2, 2])));
            if last {
                assert_eq!(crate::models::channels_last(&vs).unwrap(), 1);
            }
            let path = folder.path().join(format!("{last}.safetensors"));
            save(&vs, &path).unwrap();
            (fs::read(path).unwrap(), digest(&vs).unwrap())
        });
        assert!(files[0] == files[1]);
    }

    #[test]
    fn digests_are_equal_for_equal_weights_only() {
        let digest = |value| digest(&store(value).0).unwrap();
        assert_eq!(digest(1.0), digest(1.0));
        assert_ne!(digest(1.0), digest(1.0 + f64::from(f32::EPSILON)));
        assert_eq!(digest(1.0).len(), 8);
    }

    #[test]
    fn the_partial_file_of_a_killed_writer_is_replaced_by_the_next_save_and_removed_at_the_start_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let left = folder.path().join("model.partial.safetensors");
        fs::write(&left, "half a mod").unwrap();
        save(&store(1.0).0, &path).unwrap();
        assert!(path.exists() && !left.exists());
        fs::write(&left, "half a mod").unwrap();
        ModelFile::new(&path, OnSaveError::Stop, &Reporter::alone(Device::Cpu).unwrap());
        assert!(path.exists() && !left.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let path = folder.path().join("file/model.safetensors");
        let error = save(&store(1.0).0, &path).unwrap_err();
        assert!(format!("{error:#}").contains("file/model.safetensors"), "{error:#}");
    }

    #[test]
    fn folders_and_links_are_not_replaced_and_other_names_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link.safetensors");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [folder.path(), &link, Path::new(".."), &folder.path().join("model.pt")] {
            let error = save(&store(1.0).0, path).unwrap_err();
            let text = format!("{error:#}");
            assert!(text.contains("not a regular file") || text.contains(".safetensors"), "{text}");
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let (path, kept) = (folder.path().join("model.safetensors"), folder.path().join("kept"));
        fs::write(&kept, "of somebody else").unwrap();
        std::os::unix::fs::symlink(&kept, folder.path().join("model.partial.safetensors")).unwrap();
        save(&store(1.0).0, &path).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(&kept).unwrap(), "of somebody else");
    }

    #[test]
    fn a_file_that_is_not_a_checkpoint_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, "not tensors").unwrap();
        let error = load(&mut store(0.0).0, &path).unwrap_err();
        assert!(format!("{error:#}").contains("model.safetensors"), "{error:#}");
    }
}
