//! Passes the root cause to the process that started the agent, through the agent's own TORCHELASTIC_ERROR_FILE.

use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use lockstep_contract::error_file;
use serde_json::{Value, json};

use super::failure::{Failure, Reason};

/// Writes the root cause to `path`: a copy of the worker's error file with `message.errorCode`, as torch's
/// `dump_error_file` does (torch/distributed/elastic/multiprocessing/errors/error_handler.py). If the worker left no
/// readable file, its contents are made from what is known.
///
/// # Errors
/// When the file cannot be written.
pub fn propagate_error(root: &Failure, path: &Path) -> io::Result<()> {
    let mut content = match &root.reason {
        Reason::Recorded { content, .. } => content.clone(),
        _ => substitute(root),
    };
    // A message that is a plain string has no place for the code; torch omits it, too.
    if let Some(message) = content.get_mut("message").and_then(Value::as_object_mut) {
        message.insert("errorCode".to_owned(), json!(root.death.exitcode));
    }
    fs::write(path, content.to_string())
}

/// Records an error of the agent itself, such as a wrong configuration, at `path`.
///
/// # Errors
/// When the file cannot be written.
pub fn propagate_agent_error(error: &anyhow::Error, path: &Path) -> io::Result<()> {
    // The location in this program does not help a user with a wrong configuration.
    error_file::record_text(path, &format!("{error:#}"))
}

fn substitute(root: &Failure) -> Value {
    let second = root.time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = root.traceback();
    json!({"message": {"message": text, "extraInfo": {"py_callstack": text, "timestamp": second.to_string()}}})
}

#[cfg(test)]
mod tests {
    use super::super::failure::tests::{death, with_file};
    use super::*;

    fn handed(root: &Failure) -> Value {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own.json");
        fs::write(&path, "the contents of an earlier file, which must be longer than the new contents".repeat(50))
            .unwrap();
        propagate_error(root, &path).unwrap();
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn copies_the_workers_file_with_the_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let file = r#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "x", "timestamp": "1763635203"}}, "more": 1}"#;
        let handed = handed(&with_file(&dir, death(0, -11, 3_000), file));
        let mut expected: Value = serde_json::from_str(file).unwrap();
        expected["message"]["errorCode"] = json!(-11);
        assert_eq!(handed, expected);
    }

    #[test]
    fn keeps_a_short_message_as_torch_does() {
        let dir = tempfile::tempdir().unwrap();
        let short = json!({"message": "out of memory", "timestamp": 1_763_635_203});
        assert_eq!(handed(&with_file(&dir, death(0, 1, 3_500), short.to_string())), short);
    }

    #[test]
    fn describes_the_exit_if_the_worker_left_no_file() {
        let handed = handed(&Failure::of(death(0, -9, 3_000), "node0"));
        assert_eq!(handed["message"]["message"], "Signal 9 (SIGKILL) received by PID 100");
        assert_eq!(handed["message"]["errorCode"], -9);
        assert_eq!(handed["message"]["extraInfo"]["timestamp"], "1763635203");
    }

    #[test]
    fn records_an_error_of_the_agent_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own.json");
        propagate_agent_error(&anyhow::anyhow!("no such script"), &path).unwrap();
        assert_eq!(error_file::read(&path).unwrap().unwrap().message, "no such script");
    }
}
