//! Snapshots: everything that a run needs to continue as if it had not been interrupted, in one file that is written
//! atomically.
//!
//! A file is named `snapshot-<epoch>-<step>.safetensors`, after the step that training would continue with. Python's
//! `safetensors` can read it:
//!
//! | entry | contents |
//! |---|---|
//! | `model.<name>` | every variable of the model, buffers included |
//! | `optimizer.<state>.<name>` | every tensor that the optimizer's next step reads |
//! | metadata `lockstep.snapshot` | a [`Meta`] as JSON: position, seed, world size, the optimizer's options and step counts |
//! | metadata `lockstep.state` | the program's own state, as JSON; only if it was given ([`Save::with`]) |
//! | metadata `lockstep.schema` | [`SCHEMA`] |
//! | metadata `lockstep.crc32` | the CRC-32 of the whole file, computed with eight zeros in this place |
//!
//! Random numbers need no entry: they are keyed by seed, epoch, step and rank ([`crate::rng`]), as is the order of the data.
//!
//! **Writing** ([`Snapshots::save`]): rank 0 copies the tensors, and a thread writes them to a temporary file, syncs it,
//! renames it, and syncs the folder. A kill at any moment leaves the old snapshots, with or without the new one. If training
//! waits, there is no copy: the bytes are summed and written from the tensors themselves.
//!
//! **Reading** ([`Snapshots::resume`]): the first rank of each node lists its folder, and all ranks learn what each has. The
//! newest good snapshot is read where it is and sent to all, so that all ranks resume from the same one, or none does. This
//! also works if each node has its own disk and the job was requeued in another order.
//!
//! **Sharded** ([`Variables`]): a fully sharded model has a file of each rank, with its parts of the tensors, and an
//! index, which has the name of a snapshot and is written last.
//!
//! **Signals** ([`Snapshots::save_if`]): SIGUSR1 asks for a snapshot after the next step, SIGUSR2 for one and the end of the run. It is
//! enough that one rank receives them; all ranks act after the same step. SIGTERM is such a request, too, if the launcher says so
//! (`requests.rs`).
//!
//! **Owner**: the metadata of a snapshot name the job that saved it, by its run id or by its launchers' ids. So a restarted job
//! recognizes its own snapshots, whichever node failed.
//!
//! **Attempts**: a job that a scheduler starts again may have a living former attempt on a node that is cut off. The
//! later attempt takes the folder over, and the former one ends at its next save.
//!
//! Why CRC-32: it detects every flipped bit and every burst error of up to 32 bits, and misses one in four billion other
//! errors. It runs at the speed of memory, Python has it (`zlib.crc32`), and the crate, `crc32fast`, is a dependency anyway. It
//! does not protect against deliberate changes.
//!
//! Leaves out weights alone ([`crate::checkpoint`]), and copies to other machines.

mod choice;
mod contents;
mod error;
mod file;
mod fit;
mod folder;
mod lock;
mod meta;
mod requests;
mod resume;
mod sharded;
mod snapshots;
mod writer;

pub use error::{BadSnapshot, SnapshotError, Unfit};
pub use folder::{SnapshotFile, list};
pub use meta::{Attempt, Meta, PartFile, Run, SCHEMA, Sharded, Snapshot};
pub use sharded::Variables;
pub use snapshots::{Save, Snapshots};
pub use writer::{OnSaveError, SaveArgs, SnapshotOptions};

pub(crate) use error::listed;
pub(crate) use file::{View, open_regular, read_safetensors, read_whole, tensor};
pub(crate) use meta::job_of;
