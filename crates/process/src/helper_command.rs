//! Which executable runs the hidden subcommands.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::{Access, access};

/// A program that has nothing but the hidden subcommands, so that helpers start fast and the reaper is small.
pub const HELPER: &str = "lockstep-helper";

/// A command that runs a hidden subcommand: by [`HELPER`] if that is in this executable's folder, otherwise by this executable. The
/// kernel's links stay right if the files are replaced meanwhile, as by a rebuild.
pub(super) fn command() -> Command {
    static PROGRAM: OnceLock<Option<File>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| File::open(program_beside(HELPER)?).ok());
    let this = || PathBuf::from("/proc/self/exe");
    Command::new(program.as_ref().map_or_else(this, |file| format!("/proc/self/fd/{}", file.as_raw_fd()).into()))
}

/// The program of this name in the folder of this executable, if it can be executed.
pub fn program_beside(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name(name);
    is_program(&program).then_some(program)
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_file_that_can_be_executed_is_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(HELPER);
        assert!(!is_program(&file) && !is_program(folder.path()));
        std::fs::write(&file, "").unwrap();
        let allow = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        allow(0o644);
        assert!(!is_program(&file));
        allow(0o755);
        assert!(is_program(&file));
    }
}
