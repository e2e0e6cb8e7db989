//! Snapshots of a fully sharded model: each rank writes its part, and then rank 0 an index.
//!
//! All ranks must see one folder. Training waits for the writing. Resuming reads the whole state on one rank, which sends it to the others;
//! each keeps its part. So a run may go on with another number of ranks, or with another way to divide the model:
//! [`Snapshots::resume`] also reads these snapshots, and [`Snapshots::resume_sharded`] those of [`Snapshots::save`]. Leaves out the
//! program's own state.

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
use super::resume::{Target, copy, with_causes};
use super::snapshots::Snapshots;
use super::writer::{OnSaveError, taken_over};
use crate::loader::Position;
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

impl Snapshots {
    /// As [`save`](Self::save), for a fully sharded model, whose other variables are in `vs`, and the optimizer of its parts. A
    /// collective.
    ///
    /// # Errors
    /// As [`save`](Self::save), on all ranks if one of them failed; the snapshots that were there still are.
    pub fn save_sharded(
        &mut self,
        position: Position,
        vs: &VarStore,
        model: &FullyShard,
        optimizer: &impl Optimizer,
    ) -> Result<(), SnapshotError> {
        let group = model.group();
        let mut own = None;
        let part = self.write_part(position, vs, model, optimizer).map_err(|error| self.note(error, &mut own));
        let parts: Vec<Result<PartFile, Failure>> = all_gather_object(group, &part)?;
        let rank0 = self.report.rank().is_zero();
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
            let index =
                rank0.then(|| self.write_index(position, files, optimizer).map_err(|error| self.note(error, &mut own)));
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

    /// As [`save_if`](Self::save_if), for a fully sharded model. A collective.
    ///
    /// # Errors
    /// As both.
    pub fn save_sharded_if(
        &mut self,
        due: bool,
        position: Position,
        vs: &VarStore,
        model: &FullyShard,
        optimizer: &impl Optimizer,
    ) -> Result<(), SnapshotError> {
        self.save_if_requested(due, position, model.group(), |this| this.save_sharded(position, vs, model, optimizer))
    }

    /// As [`resume`](Self::resume), for a fully sharded model and the optimizer of its parts. A collective.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn resume_sharded(
        &mut self,
        vs: &VarStore,
        model: &FullyShard,
        optimizer: &mut impl Optimizer,
    ) -> Result<Position, SnapshotError> {
        let target = &mut Divided { vs, model, optimizer };
        self.resume_reading(target, model.group(), &|_| Ok(())).map(|(position, _)| position)
    }

    /// What the other ranks must know of this error.
    fn note(&self, error: SnapshotError, own: &mut Option<SnapshotError>) -> Failure {
        let is_disk = matches!(error, SnapshotError::Save { .. });
        let failure =
            Failure { why: with_causes(&error), ends: !is_disk || self.options.on_error == OnSaveError::Stop };
        *own = Some(error);
        failure
    }

    fn write_part(
        &mut self,
        position: Position,
        vs: &VarStore,
        model: &FullyShard,
        optimizer: &impl Optimizer,
    ) -> Result<PartFile, SnapshotError> {
        let (rank, ranks) = (model.group().rank(), model.group().size().get());
        if rank.is_zero() {
            self.claim()?;
            self.wait_for_writer()?;
        }
        let pieces: Vec<Piece> = model.pieces().into_iter().filter(|piece| !piece.elements.is_empty()).collect();
        let state = optimizer.shared_state()?;
        let parts = model.named_parameters().into_iter().map(|(name, part)| (format!("model.{name}"), part));
        let states = state.tensors().into_iter().map(|(name, tensor)| (format!("optimizer.{name}"), tensor));
        let mut tensors: Vec<_> = parts.chain(states).filter(|(_, tensor)| tensor.numel() > 0).collect();
        if rank.is_zero() {
            tensors.extend(undivided(vs, model).map(|(name, tensor)| (format!("model.{name}"), tensor)));
        }
        contents::sort(&mut tensors);
        let mut meta = self.meta(position, &state);
        meta.sharded = Some(Sharded::Part { rank: rank.get(), pieces });
        let job = self.job_of(position, Contents::new(&meta, None, &tensors, Memory::Shared)?);
        let path = job.path();
        job.run_as_part(rank.get(), ranks).map_err(|source| SnapshotError::Save { path, source })
    }

    fn write_index(
        &self,
        position: Position,
        files: Vec<PartFile>,
        optimizer: &impl Optimizer,
    ) -> Result<(), SnapshotError> {
        let mut meta = self.meta(position, &optimizer.shared_state()?);
        let parts = files.iter().map(|part| part.bytes).sum();
        let listed = files.clone();
        meta.sharded = Some(Sharded::Index(files));
        let mut job = self.job_of(position, Contents::new(&meta, None, &[], Memory::Shared)?);
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

/// The variables that are whole on each rank: buffers and frozen parameters.
fn undivided(vs: &VarStore, model: &FullyShard) -> impl Iterator<Item = (String, Tensor)> {
    let divided: HashMap<String, Piece> = pieces(model);
    vs.variables().into_iter().filter(move |(name, _)| !divided.contains_key(name))
}

fn pieces(model: &FullyShard) -> HashMap<String, Piece> {
    model.pieces().into_iter().map(|piece| (piece.name.clone(), piece)).collect()
}

/// A fully sharded model and the optimizer of its parts.
struct Divided<'a, O> {
    vs: &'a VarStore,
    model: &'a FullyShard,
    optimizer: &'a mut O,
}

impl<O: Optimizer> Target for Divided<'_, O> {
    fn rates(&self) -> Vec<f64> {
        self.optimizer.group_lrs()
    }

    fn load(&mut self, path: &Path, model: BTreeMap<String, Tensor>, state: State) -> Result<(), SnapshotError> {
        let unfit = |why| SnapshotError::Unfit { path: path.to_owned(), why };
        let torch = |name: &str| {
            let name = name.to_owned();
            |source| SnapshotError::Tensor { name, source }
        };
        let pieces = pieces(self.model);
        let parts: HashMap<String, Tensor> = self.model.named_parameters().into_iter().collect();
        let mut here: BTreeMap<String, Tensor> = undivided(self.vs, self.model).collect();
        for (name, part) in &parts {
            // The whole parameter's shape and the part's dtype, without its memory.
            let scalar = part.f_new_zeros([0_i64; 0], (part.kind(), part.device()));
            let whole = scalar.and_then(|zero| zero.f_expand(&*pieces[name].shape, false));
            here.insert(name.clone(), whole.map_err(torch(name))?);
        }
        fit::check_model(&model, &here).map_err(unfit)?;
        let mut own = Vec::new();
        for (name, tensor) in state.tensors() {
            own.push(match pieces.get(param_of(&format!("optimizer.{name}"))) {
                Some(piece) if tensor.size() != piece.shape => {
                    let (saved, here) = (tensor.size(), piece.shape.clone());
                    return Err(unfit(OptimError::Shape { name, saved, here }.into()));
                }
                Some(piece) => (name.clone(), part_of(&tensor, piece).map_err(torch(&name))?),
                None => (name, tensor),
            });
        }
        let state = State::new(state.meta().clone(), own);
        self.optimizer.load_state_dict(state).map_err(|error| unfit(error.into()))?;
        for (name, saved) in model {
            match pieces.get(&name) {
                Some(piece) => {
                    let part = part_of(&saved, piece).map_err(torch(&name))?;
                    copy(name.clone(), parts[&name].shallow_clone(), &part)?;
                }
                // Every name exists: this was checked before.
                None => copy(name.clone(), here[&name].shallow_clone(), &saved)?,
            }
        }
        Ok(())
    }
}

/// The elements of a whole tensor that a rank has, one-dimensional.
fn part_of(whole: &Tensor, piece: &Piece) -> Result<Tensor, tch::TchError> {
    let (from, length) = (piece.elements.start as i64, piece.elements.len() as i64);
    no_grad(|| whole.f_flatten(0, -1)?.f_narrow(0, from, length))
}
