//! Which error ends a training program with which exit code, and the `main` wrapper that returns the code.
//!
//! | code | meaning | as torchrun |
//! |---|---|---|
//! | 0 | everything requested was done | yes |
//! | 1 | a failure: of a rank, of training, of the machine; also an invalid configuration | yes |
//! | 2 | usage: bad arguments or bad input, nothing was started ([`Code::Usage`]; clap's own code for arguments) | yes |
//! | 75 | a snapshot is saved, and the run ended as a signal asked: start it again to go on ([`Code::Saved`]) | no |
//! | 101 | the main thread panicked: a bug (Rust's own code) | no |
//! | 128 + n | what a shell shows for a program that signal n ended | shell |
//!
//! The workers' own codes are never passed on: the error's text contains them.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

pub use lockstep_contract::exit::Code;
use lockstep_contract::fault::FaultError;

use crate::env::{ERROR_FILE, EnvError};
use crate::error_file;
use crate::snapshot::SnapshotError;
use crate::spawn::{self, SpawnError};

/// An error of the caller; the program exits with [`Code::Usage`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Runs a program: prints `run`'s error once, with its chain, and turns it into the exit code.
///
/// A panic of libtorch, or of the runtime, is printed at the line of the program that called it.
///
/// If a launcher asked for it (`TORCHELASTIC_ERROR_FILE`), an error or a panic of this thread is also recorded there, as
/// `torch.distributed.elastic.multiprocessing.errors.record` does. A process that [`crate::spawn()`] started first arranges to
/// die with its parent. A run that ended after a snapshot, as a signal asked, is not an error: it has printed so itself.
///
/// ```
/// fn main() -> std::process::ExitCode {
///     lockstep::exit::main(|| {
///         println!("training");
///         Ok(())
///     })
/// }
/// ```
pub fn main(run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    spawn::watch_parent();
    let record = std::env::var_os(ERROR_FILE).filter(|path| !path.is_empty()).map(PathBuf::from);
    error_file::report_panics(record.clone(), false);
    let Err(error) = run() else { return Code::Success.into() };
    if code_of(&error) == Code::Saved {
        return Code::Saved.into();
    }
    eprintln!("{}", error_file::printed(&error));
    if let Some(path) = record
        && let Err(failure) = error_file::record(&path, &error)
    {
        eprintln!("warning: cannot record the error in {}: {failure}", path.display());
    }
    code_of(&error).into()
}

/// The code for `error`, from any link of its chain.
pub fn code_of(error: &anyhow::Error) -> Code {
    error.chain().find_map(code_of_cause).unwrap_or(Code::Failure)
}

fn code_of_cause(error: &(dyn Error + 'static)) -> Option<Code> {
    match error.downcast_ref() {
        Some(SnapshotError::Ended { .. }) => Some(Code::Saved),
        Some(SnapshotError::Folder { .. } | SnapshotError::InTheWay { .. }) => Some(Code::Usage),
        _ => is_usage(error).then_some(Code::Usage),
    }
}

fn is_usage(error: &(dyn Error + 'static)) -> bool {
    error.is::<UsageError>()
        || error.is::<EnvError>()
        || error.is::<FaultError>()
        || error.downcast_ref::<SpawnError>().is_some_and(SpawnError::is_usage)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::loader::Position;

    #[test]
    fn ends_with_2_for_errors_of_the_caller_and_1_for_others() {
        let why = lockstep_paths::Unwritable::NotAFolder("file".into());
        let (path, what) = ("snapshots/file".into(), "it is a text".into());
        let usage: [anyhow::Error; 5] = [
            SnapshotError::InTheWay { path, host: None, what }.into(),
            SnapshotError::Folder { folder: "file/in".into(), why }.into(),
            UsageError("--epochs is 0".into()).into(),
            SpawnError::NoProcesses.into(),
            EnvError::Missing { names: vec!["RANK"], slurm: false }.into(),
        ];
        for error in usage {
            assert_eq!(code_of(&error.context("cannot start")), Code::Usage);
        }
        let ended = anyhow::Error::from(SnapshotError::Ended { position: Position::default() });
        assert_eq!(code_of(&ended.context("epoch 3")), Code::Saved);
        assert_eq!(code_of(&anyhow::anyhow!("disk full")), Code::Failure);
        assert_eq!(code_of(&SpawnError::Host(anyhow::anyhow!("no port")).into()), Code::Failure);
    }
}
