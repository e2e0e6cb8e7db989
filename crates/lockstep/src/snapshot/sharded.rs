//! Snapshots of a fully sharded model: each rank writes its part, and then rank 0 an index, with the program's own state.
//!
//! All ranks must see one folder. Training waits for the writing. Resuming reads the whole state on one rank, which sends it to the others;
//! each keeps its part. So a run may go on with another number of ranks, or with another way to divide the model: all read the
//! snapshots of all.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use c10d::Rank;
use serde::{Deserialize, Serialize};
use tch::nn::VarStore;
use tch::{Tensor, no_grad};

use super::contents::{self, Contents, Memory};
use super::error::SnapshotError;
use super::fit;
use super::folder::param_of;
use super::meta::{PartFile, Sharded};
use super::resume::with_causes;
use super::snapshots::{Save, Snapshots};
use super::writer::{OnSaveError, taken_over};
use crate::object_collectives::{all_gather_object, broadcast_object};
use crate::optim::{OptimError, Optimizer, State};
use crate::parallel::{FullyShard, Piece};

/// Why a rank could not do its part of a save.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failure {
    why: String,
    /// True if no rank may train on.
    ends: bool,
}

/// A rank's variables: all of them, `&vs`; or with full sharding its parts, and the variables that are not divided, `(&vs, &model)`.
#[derive(Clone, Copy)]
pub struct Variables<'a> {
    pub(crate) vs: &'a VarStore,
    pub(crate) sharded: Option<&'a FullyShard>,
}

impl<'a> From<&'a VarStore> for Variables<'a> {
    fn from(vs: &'a VarStore) -> Self {
        Variables { vs, sharded: None }
    }
}

impl<'a> From<(&'a VarStore, &'a FullyShard)> for Variables<'a> {
    fn from((vs, model): (&'a VarStore, &'a FullyShard)) -> Self {
        Variables { vs, sharded: Some(model) }
    }
}

impl Snapshots {
    /// As `save`, with full sharding. A collective.
    pub(super) fn save_sharded(&mut self, save: &Save<'_>, model: &FullyShard) -> Result<(), SnapshotError> {
        let group = model.group();
        let mut own = None;
        let rank0 = self.report.rank().is_zero();
        let extra = if rank0 { save.extra() } else { Ok(None) };
        let written = extra.and_then(|extra| Ok((self.write_part(save, model)?, extra)));
        let (part, extra) = match written {
            Ok((part, extra)) => (Ok(part), extra),
            Err(error) => (Err(self.note(error, &mut own)), None),
        };
        let parts: Vec<Result<PartFile, Failure>> = all_gather_object(group, &part)?;
        let mut failed = None;
        let mut files = Vec::new();
        for (rank, part) in parts.into_iter().enumerate() {
            match part {
                Ok(file) => files.push(file),
                // The first, unless a later one ends the training.
                Err(failure) if failed.as_ref().is_none_or(|(_, first): &(_, Failure)| failure.ends && !first.ends) => {
                    failed = Some((Rank::new(rank), failure));
                }
                Err(_) => {}
            }
        }
        if failed.is_none() {
            let index = rank0.then(|| {
                let written = self.write_index(save, files, extra.as_deref());
                written.map_err(|error| self.note(error, &mut own))
            });
            let index: Result<(), Failure> = broadcast_object(group, index.as_ref())?;
            failed = index.err().map(|failure| (Rank::ZERO, failure));
        }
        match failed {
            None => Ok(()),
            Some((rank, Failure { why, ends: true })) => Err(own.unwrap_or(SnapshotError::Part { rank, why })),
            Some((rank, Failure { why, .. })) => {
                self.report.warn_once(format!("{}; training goes on", SnapshotError::Part { rank, why }));
                Ok(())
            }
        }
    }

    /// What the other ranks must know of this error.
    fn note(&self, error: SnapshotError, own: &mut Option<SnapshotError>) -> Failure {
        let is_disk = matches!(error, SnapshotError::Save { .. });
        let failure =
            Failure { why: with_causes(&error), ends: !is_disk || self.options.on_error == OnSaveError::Stop };
        *own = Some(error);
        failure
    }

    fn write_part(&mut self, save: &Save<'_>, model: &FullyShard) -> Result<PartFile, SnapshotError> {
        let (rank, ranks) = (model.group().rank(), model.group().size().get());
        if rank.is_zero() {
            self.claim()?;
            self.wait_for_writer()?;
        }
        let pieces: Vec<Piece> = model.pieces().into_iter().filter(|piece| !piece.elements.is_empty()).collect();
        let state = save.optimizer.shared_state()?;
        let parts = model.named_parameters().into_iter().map(|(name, part)| (format!("model.{name}"), part));
        let states = state.tensors().into_iter().map(|(name, tensor)| (format!("optimizer.{name}"), tensor));
        let mut tensors: Vec<_> = parts.chain(states).filter(|(_, tensor)| tensor.numel() > 0).collect();
        if rank.is_zero() {
            tensors.extend(undivided(save.variables.vs, model).map(|(name, tensor)| (format!("model.{name}"), tensor)));
        }
        contents::sort(&mut tensors);
        let mut meta = self.meta(save.position, &state);
        meta.sharded = Some(Sharded::Part { rank: rank.get(), pieces });
        let job = self.job_of(save.position, Contents::new(&meta, None, &tensors, Memory::Shared)?);
        let path = job.path();
        job.run_as_part(rank.get(), ranks).map_err(|source| SnapshotError::Save { path, source })
    }

    fn write_index(&self, save: &Save<'_>, files: Vec<PartFile>, extra: Option<&str>) -> Result<(), SnapshotError> {
        let mut meta = self.meta(save.position, &save.optimizer.shared_state()?);
        let parts = files.iter().map(|part| part.bytes).sum();
        let listed = files.clone();
        meta.sharded = Some(Sharded::Index(files));
        let mut job = self.job_of(save.position, Contents::new(&meta, extra, &[], Memory::Shared)?);
        job.parts = parts;
        let path = job.path();
        let folder = path.parent().unwrap_or(Path::new("."));
        let is_there =
            |part: &PartFile| std::fs::metadata(folder.join(&part.file)).is_ok_and(|found| found.len() == part.bytes);
        if let Some(rank) = listed.iter().position(|part| !is_there(part)) {
            let why = format!("rank 0 does not see its file in {}: all ranks must share this folder", folder.display());
            return Err(SnapshotError::Part { rank: Rank::new(rank), why });
        }
        job.run().map_err(|source| taken_over(&path, &source).unwrap_or(SnapshotError::Save { path, source }))
    }
}

/// The variables that are whole on each rank: with full sharding, buffers and frozen parameters.
fn undivided(vs: &VarStore, model: &FullyShard) -> impl Iterator<Item = (String, Tensor)> {
    let divided: HashMap<String, Piece> = pieces(model);
    vs.variables().into_iter().filter(move |(name, _)| !divided.contains_key(name))
}

fn pieces(model: &FullyShard) -> HashMap<String, Piece> {
    model.pieces().into_iter().map(|piece| (piece.name.clone(), piece)).collect()
}

impl Variables<'_> {
    /// Runs `body` while all variables are whole, as for saving them. What it changes may be lost. `body` must not communicate; a
    /// collective if they are divided.
    pub(crate) fn whole<T>(&self, body: impl FnOnce(&VarStore) -> T) -> c10d::Result<T> {
        match self.sharded {
            Some(model) => model.summon_full_params(|| body(self.vs)),
            None => Ok(body(self.vs)),
        }
    }

    fn pieces(&self) -> HashMap<String, Piece> {
        self.sharded.map(pieces).unwrap_or_default()
    }

    fn parts(&self) -> HashMap<String, Tensor> {
        self.sharded.map(|model| model.named_parameters().into_iter().collect()).unwrap_or_default()
    }

    /// The variables with the shapes that they have when whole; those that are divided without memory.
    fn shapes(&self) -> Result<BTreeMap<String, Tensor>, SnapshotError> {
        let (pieces, parts) = (self.pieces(), self.parts());
        let mut here: BTreeMap<String, Tensor> = self.vs.variables().into_iter().collect();
        for (name, part) in parts {
            // The whole parameter's shape and the part's dtype.
            let scalar = part.f_new_zeros([0_i64; 0], (part.kind(), part.device()));
            let whole = scalar.and_then(|zero| zero.f_expand(&*pieces[&name].shape, false));
            let whole = whole.map_err(|source| SnapshotError::Tensor { name: name.clone(), source })?;
            here.insert(name, whole);
        }
        Ok(here)
    }

    /// Copies whole variables of the same names and shapes; each rank takes its part of those that are divided.
    fn copy(&self, model: BTreeMap<String, Tensor>) -> Result<(), SnapshotError> {
        let (pieces, parts, variables) = (self.pieces(), self.parts(), self.vs.variables());
        for (name, saved) in model {
            let torch = |source| SnapshotError::Tensor { name: name.clone(), source };
            let (mut here, saved) = match pieces.get(&name) {
                Some(piece) => (parts[&name].shallow_clone(), part_of(&saved, piece).map_err(torch)?),
                None => (variables[&name].shallow_clone(), saved),
            };
            no_grad(|| here.f_copy_(&saved)).map_err(torch)?;
        }
        Ok(())
    }

    /// As [`copy`](Self::copy), of variables from the file `path`, whose names and shapes are checked first.
    ///
    /// Errors: other names or shapes; nothing is changed then.
    pub(crate) fn load(&self, path: &Path, model: BTreeMap<String, Tensor>) -> Result<(), SnapshotError> {
        let unfit = |why| SnapshotError::Unfit { path: path.to_owned(), why };
        fit::check_model(&model, &self.shapes()?).map_err(unfit)?;
        self.copy(model)
    }
}

/// Variables and an optimizer into which a snapshot is loaded.
pub(super) struct Target<'a> {
    pub(super) variables: Variables<'a>,
    pub(super) optimizer: &'a mut dyn Optimizer,
}

impl Target<'_> {
    /// The optimizer's learning rates.
    pub(super) fn rates(&self) -> Vec<f64> {
        self.optimizer.group_lrs()
    }

    /// Loads the variables and the state from the file at `path`, or leaves both unchanged.
    pub(super) fn load(
        &mut self,
        path: &Path,
        model: BTreeMap<String, Tensor>,
        state: State,
    ) -> Result<(), SnapshotError> {
        let unfit = |why| SnapshotError::Unfit { path: path.to_owned(), why };
        fit::check_model(&model, &self.variables.shapes()?).map_err(unfit)?;
        let pieces = self.variables.pieces();
        let mut own = Vec::new();
        for (name, tensor) in state.tensors() {
            own.push(match pieces.get(param_of(&format!("optimizer.{name}"))) {
                Some(piece) if tensor.size() != piece.shape => {
                    let (saved, here) = (tensor.size(), piece.shape.clone());
                    return Err(unfit(OptimError::Shape { name, saved, here }.into()));
                }
                Some(piece) => {
                    let part = part_of(&tensor, piece);
                    (name.clone(), part.map_err(|source| SnapshotError::Tensor { name, source })?)
                }
                None => (name, tensor),
            });
        }
        let state = State::new(state.meta().clone(), own);
        self.optimizer.load_state_dict(state).map_err(|error| unfit(error.into()))?;
        self.variables.copy(model)
    }
}

/// The elements of a whole tensor that a rank has, one-dimensional.
fn part_of(whole: &Tensor, piece: &Piece) -> Result<Tensor, tch::TchError> {
    let (from, length) = (piece.elements.start as i64, piece.elements.len() as i64);
    no_grad(|| whole.f_flatten(0, -1)?.f_narrow(0, from, length))
}
