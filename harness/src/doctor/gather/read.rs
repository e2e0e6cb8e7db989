//! Reads what programs print and files have, without waiting for ever.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lockstep_contract::foreign::quotation;
use tokio::process::Command;
use tokio::time::timeout;

/// What a function returns; nothing, if it takes too long.
pub(crate) async fn in_time<T: Send + 'static>(
    patience: Duration,
    function: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    timeout(patience, tokio::task::spawn_blocking(function)).await.ok()?.ok()
}

/// What a program printed.
///
/// # Errors
/// A message, if it is not there, fails, or does not end in time.
pub(super) async fn output(program: &str, arguments: &[&str], patience: Duration) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).env("LC_ALL", "C");
    let ended = timeout(patience, command.output()).await;
    let output = ended.map_err(|_| format!("{program} has not ended within {} s", patience.as_secs()))?;
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let words = if output.stderr.is_empty() { text(&output.stdout) } else { text(&output.stderr) };
    Err(format!(
        "{program} failed ({}): {}",
        output.status,
        quotation(words.lines().next().unwrap_or("without a word"))
    ))
}

/// The first line of a file of `/proc` or `/sys`.
pub(super) fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The entries of a folder, sorted; none, if it does not exist.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The last part of a path.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_program_that_is_absent_or_fails_is_named_with_its_words() {
        assert_eq!(output("echo", &["a"], PATIENCE).await.unwrap(), "a");
        assert!(
            output("no-such-program", &[], PATIENCE).await.unwrap_err().starts_with("cannot run no-such-program: ")
        );
        let failed = output("sh", &["-c", "echo no driver; exit 9"], PATIENCE).await.unwrap_err();
        assert_eq!(failed, "sh failed (exit status: 9): no driver");
    }

    #[tokio::test]
    async fn a_call_that_hangs_is_given_up() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        assert_eq!(in_time(Duration::from_millis(1), move || held.recv()).await, None);
        drop(release);
        assert_eq!(in_time(PATIENCE, || 7).await, Some(7));
    }
}
