//! Snapshots: everything that a run needs to go on as if nothing had happened, in one file that is either whole or not there.
//!
//! A safetensors file, which Python's `safetensors` reads, `snapshot-<epoch>-<step>.safetensors`, named after the step that
//! training would go on with:
//!
//! | entry | what |
//! |---|---|
//! | `model.<name>` | every variable of the model, buffers included |
//! | `optimizer.<state>.<name>` | every tensor that the optimizer's next step reads |
//! | metadata `lockstep.snapshot` | a [`Meta`] as JSON: position, seed, world size, the optimizer's options and step counts |
//! | metadata `lockstep.state` | whatever else the run must remember, as JSON; only where it was given ([`Snapshots::save_with`]) |
//! | metadata `lockstep.schema` | [`SCHEMA`] |
//! | metadata `lockstep.crc32` | the CRC-32 of the whole file, with eight zeros in this place |
//!
//! Random numbers need no entry: they are keyed by seed, epoch, step and rank ([`crate::rng`]), as is the order of the data.
//!
//! **Writing** ([`Snapshots::save`]): rank 0 copies the tensors, and a thread writes them to a temporary file, syncs it, renames
//! it, and syncs the folder. A kill at any moment leaves the snapshots that were there, or those and the new one.
//!
//! **Reading** ([`Snapshots::resume`]): the first rank of each node looks into its folder, and all ranks learn what each has. The
//! newest good snapshot is read where it is and sent to all, so that all ranks resume from the same one, or none does, also where
//! each node has a disk of its own and the job was requeued in another order.
//!
//! **Whose** a snapshot is stands in its metadata: the run id of the job that saved it, or its launchers' ids. A job that is
//! restarted, on whichever node something failed, knows its own by that.
//!
//! Why CRC-32: it notices every flipped bit and every damaged stretch of up to 32 bits, and other damage but for one case in four
//! billion; it runs at the speed of memory, Python has it (`zlib.crc32`), and the crate, `crc32fast`, is in the tree already. It is
//! no protection against someone who means to deceive.
//!
//! Left out: weights alone ([`crate::checkpoint`]), and copies to other machines.

mod choice;
mod decision;
mod error;
mod extra;
mod file;
mod fit;
mod folder;
mod lock;
mod options;
mod owner;
mod resume;
mod snapshots;
mod source;
mod survey;
mod writer;

pub use error::{BadSnapshot, SnapshotError, Unfit};
pub use file::{Meta, Run, SCHEMA, Snapshot};
pub use folder::{Found, list};
pub use options::{OnSaveError, SaveArgs, SnapshotOptions};
pub use snapshots::Snapshots;

pub(crate) use error::listed;
pub(crate) use file::{View, tensor};
pub(crate) use owner::job_of;
pub(crate) use source::{open_regular, read_safetensors, read_whole};
