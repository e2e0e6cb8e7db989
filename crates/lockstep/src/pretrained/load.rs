//! Copies a file's tensors to a model's variables: first the matching, then the values, all or nothing. The result is a value that can
//! be printed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use tch::nn::VarStore;
use tch::{Kind, Tensor};

use super::error::{Difference, PretrainedError};
use super::weights::Weights;
use crate::snapshot::listed;

/// How many prefixes are stripped: a model has few wrappers, and each time costs a copy of all names.
const MOST_PREFIXES: usize = 4;

/// The options of loading: what to load, and how exactly it must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whether every variable of the model must be in the file and vice versa, as in PyTorch's `load_state_dict`; true by
    /// default. Other shapes are always an error.
    pub strict: bool,
    /// Names to leave out on either side: whole names, or prefixes that end in a dot or a star (`fc.`, `layer*`); empty by
    /// default.
    pub skip: Vec<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { strict: true, skip: Vec::new() }
    }
}

/// Sets the variables of `vs` to the tensors of the same names in the file at `path`.
///
/// The file is a `.safetensors` (including a snapshot of this program) or a state dict written by `torch.save`, in its current
/// format or the one before PyTorch 1.6; the content decides which. The state dict may be one entry of a training script's
/// checkpoint (`{"state_dict": …, "epoch": …}`), and all its names may begin with the `module.` of Python's
/// `DistributedDataParallel`, with `model.` or with `_orig_mod.`: [`Loaded::notes`] reports this. `num_batches_tracked` of
/// batch normalization may be missing on either side. Floating-point dtypes are converted to the model's.
///
/// Every rank may read the file, or only rank 0 if DDP broadcasts its parameters and buffers afterwards.
///
/// Errors: [`PretrainedError`] says what is wrong with the file, or what in it does not fit; `vs` is then unchanged.
pub fn load(vs: &VarStore, path: &Path, options: &LoadOptions) -> Result<Loaded, PretrainedError> {
    let weights = Weights::read(path)?;
    let model = vs.variables().into_iter().collect();
    let LoadPlan { loaded, pairs } = plan(weights, &model, path, options)?;
    // Do everything that may run out of memory first: a failure half-way would leave a mixture of two models.
    let converted = pairs.into_iter().map(|(name, saved, variable)| {
        let saved = saved.f_to_device_(variable.device(), variable.kind(), false, false);
        saved.map(|saved| (name.clone(), saved, variable)).map_err(|source| PretrainedError::Tensor { name, source })
    });
    for (name, saved, mut variable) in converted.collect::<Result<Vec<_>, _>>()? {
        tch::no_grad(|| variable.f_copy_(&saved)).map_err(|source| PretrainedError::Tensor { name, source })?;
    }
    Ok(loaded)
}

type Model = BTreeMap<String, Tensor>;

/// The planned copies, and the notes to report.
struct LoadPlan {
    loaded: Loaded,
    /// Name, the file's tensor, the model's variable.
    pairs: Vec<(String, Tensor, Tensor)>,
}

fn plan(weights: Weights, model: &Model, path: &Path, options: &LoadOptions) -> Result<LoadPlan, PretrainedError> {
    let Weights { tensors, mut notes } = weights;
    let mut file: Model = tensors.into_iter().collect();
    notes.extend(strip_prefixes(&mut file, model));
    notes.extend(idle_skips(&options.skip, &file, model));
    let skipped = |name: &&String| is_skipped(name, &options.skip);
    let mut plan =
        LoadPlan { loaded: Loaded { path: path.to_owned(), notes, ..Default::default() }, pairs: Vec::new() };
    plan.loaded.skipped = model.keys().filter(skipped).cloned().collect();
    plan.loaded.ignored = file.keys().filter(|name| !model.contains_key(*name) && skipped(name)).cloned().collect();
    let unexpected = file.keys().filter(|name| !model.contains_key(*name) && !skipped(name) && !is_counter(name));
    plan.loaded.unexpected = unexpected.cloned().collect();
    let mut different = Vec::new();
    for (name, variable) in model.iter().filter(|(name, _)| !skipped(name)) {
        match file.get(name) {
            Some(saved) if fits(saved, variable) => plan.take(name, saved, variable),
            Some(saved) => different.push(difference(name, saved, variable)),
            None if is_counter(name) => {}
            None => plan.loaded.missing.push(name.clone()),
        }
    }
    let Loaded { matched, missing, unexpected, .. } = &plan.loaded;
    let names = |side: &Model| side.keys().filter(|name| !skipped(name)).cloned().collect();
    if matched.is_empty() && different.is_empty() {
        return Err(PretrainedError::NothingMatched { path: path.to_owned(), file: names(&file), model: names(model) });
    }
    if !different.is_empty() || (options.strict && !(missing.is_empty() && unexpected.is_empty())) {
        let (missing, unexpected) = (missing.clone(), unexpected.clone());
        return Err(PretrainedError::Unfit { path: path.to_owned(), missing, unexpected, different });
    }
    Ok(plan)
}

impl LoadPlan {
    fn take(&mut self, name: &str, saved: &Tensor, variable: &Tensor) {
        self.loaded.matched.push(name.to_owned());
        if saved.kind() != variable.kind() {
            self.loaded.converted.push((name.to_owned(), saved.kind(), variable.kind()));
        }
        self.pairs.push((name.to_owned(), saved.shallow_clone(), variable.shallow_clone()));
    }
}

/// Checks for the same shape, and dtypes of the same kind of number.
fn fits(saved: &Tensor, variable: &Tensor) -> bool {
    let is_float = |kind| matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16);
    let same_sort = is_float(saved.kind()) && is_float(variable.kind()) || saved.kind() == variable.kind();
    saved.size() == variable.size() && same_sort
}

fn difference(name: &str, saved: &Tensor, variable: &Tensor) -> Difference {
    let of = |tensor: &Tensor| (tensor.kind(), tensor.size());
    Difference { name: name.to_owned(), file: of(saved), model: of(variable) }
}

/// PyTorch's batch normalization counts batches, but nothing reads the count unless its momentum is `None`.
fn is_counter(name: &str) -> bool {
    name == "num_batches_tracked" || name.ends_with(".num_batches_tracked")
}

fn is_skipped(name: &str, skip: &[String]) -> bool {
    skip.iter().any(|skip| match skip.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == skip || (skip.ends_with('.') && name.starts_with(skip)),
    })
}

/// A note for every entry of `skip` that matches no name: probably a typing mistake.
fn idle_skips(skip: &[String], file: &Model, model: &Model) -> Vec<String> {
    let names: BTreeSet<&String> = file.keys().chain(model.keys()).collect();
    let idle = skip.iter().filter(|one| !names.iter().any(|name| is_skipped(name, std::slice::from_ref(*one))));
    idle.map(|one| format!("{one:?} was to be left out, but nothing in the file or the model has that name")).collect()
}

/// Strips the prefixes of wrappers, if the model's own names do not begin with them.
fn strip_prefixes(file: &mut Model, model: &Model) -> Vec<String> {
    let mut notes = Vec::new();
    let begins = |names: &Model, prefix: &str| names.keys().any(|name| name.starts_with(prefix));
    let wraps =
        |file: &Model, prefix: &str| file.keys().all(|name| name.len() > prefix.len() && name.starts_with(prefix));
    let prefixes = ["module.", "_orig_mod.", "model."];
    for _ in 0..MOST_PREFIXES {
        let Some(prefix) = prefixes.iter().find(|prefix| wraps(file, prefix) && !begins(model, prefix)) else { break };
        *file =
            std::mem::take(file).into_iter().map(|(name, tensor)| (name[prefix.len()..].to_owned(), tensor)).collect();
        notes.push(format!("took {prefix:?} off every name in the file"));
    }
    notes
}

/// The result of [`load`](super::load), name by name; every list of names is sorted. `Display` writes one or a few sentences in
/// one line.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The file.
    pub path: PathBuf,
    /// Variables that now have the file's values.
    pub matched: Vec<String>,
    /// Variables of the model that [`LoadOptions::skip`](crate::pretrained::LoadOptions::skip) left out.
    pub skipped: Vec<String>,
    /// Tensors of the file with names that the model lacks, left out by `skip`, such as an old head.
    pub ignored: Vec<String>,
    /// Variables of the model that the file lacks; always empty if loading was strict.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks; always empty if loading was strict.
    pub unexpected: Vec<String>,
    /// Variables whose dtype differs from the file's: name, the file's dtype, the model's.
    pub converted: Vec<(String, Kind, Kind)>,
    /// Other notes: where in the file the weights were, and which prefixes were stripped.
    pub notes: Vec<String>,
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loaded { path, matched, skipped, ignored, missing, unexpected, converted, notes } = self;
        let all = matched.len() + skipped.len() + missing.len();
        write!(f, "loaded {} of {all} variables from {}", matched.len(), path.display())?;
        for (label, names) in [
            ("left as they are", skipped),
            ("not taken", ignored),
            ("not in the file", missing),
            ("only in the file", unexpected),
        ] {
            if !names.is_empty() {
                write!(f, "; {label}: {}", listed(names))?;
            }
        }
        if let [(_, from, to), ..] = converted[..] {
            let same = converted.iter().all(|(_, other_from, other_to)| (*other_from, *other_to) == (from, to));
            let (from, to) =
                if same { (format!("{from:?}"), format!("{to:?}")) } else { ("several".into(), "the model's".into()) };
            write!(f, "; {} converted from {from} to {to}", converted.len())?;
        }
        notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}
