//! Finds a lab's program.

use std::path::PathBuf;

use anyhow::Context;

use crate::exit::Refused;

/// The program `name` in the folder of this executable.
///
/// # Errors
/// [`Refused`] if it does not exist, with the command that builds it.
pub(crate) fn program_beside(name: &str) -> anyhow::Result<PathBuf> {
    // Linux returns the file itself here, not the link through which it was started.
    let this = std::env::current_exe().context("cannot find this program's own path")?;
    let path = this.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let folder = this.parent().unwrap_or(&this).display();
    Err(Refused(format!("cannot find the program {name} in {folder}: build it with `cargo build`")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_command_that_builds_a_missing_lab() {
        let error = program_beside("lab-99-nothing").unwrap_err();
        let message = error.downcast::<Refused>().unwrap().to_string();
        assert!(
            message.contains("lab-99-nothing in /") && message.ends_with("build it with `cargo build`"),
            "{message}"
        );
    }
}
