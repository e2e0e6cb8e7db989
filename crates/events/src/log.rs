//! Reads event files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use crate::{EventsError, Record};

/// The contents of a rank's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventLog {
    /// In the order of writing.
    pub records: Vec<Record>,
    /// Numbers (from 1) of lines that a killed writer or a full disk left incomplete.
    pub torn: Vec<usize>,
}

/// Reads one rank's file.
///
/// # Errors
/// [`EventsError::BadLine`] for a complete line that is not an event. Torn lines are listed in the result.
pub fn read(path: &Path) -> Result<EventLog, EventsError> {
    let mut log = EventLog::default();
    log.torn = read_lines(path, |value| Record::parse(value).map(|record| log.records.push(record)))?;
    Ok(log)
}

/// Calls `take` with every complete line of the file at `path` and returns the numbers (from 1) of torn lines.
pub(crate) fn read_lines(
    path: &Path,
    mut take: impl FnMut(Value) -> serde_json::Result<()>,
) -> Result<Vec<usize>, EventsError> {
    let fail = |source| EventsError::Read { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(fail)?);
    let (mut torn, mut bytes) = (Vec::new(), Vec::new());
    for line in 1.. {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(fail)? == 0 {
            break;
        }
        let taken = match serde_json::from_slice(bytes.strip_suffix(b"\n").unwrap_or(&bytes)) {
            Ok(value) => take(value),
            Err(error) if error.is_eof() => {
                torn.push(line);
                continue;
            }
            Err(error) => Err(error),
        };
        taken.map_err(|error| EventsError::BadLine { path: path.to_owned(), line, reason: error.to_string() })?;
    }
    Ok(torn)
}

/// Reads the files of all ranks in `folder` and ignores other files.
///
/// # Errors
/// As [`read`], at the first file that fails.
pub fn read_folder(folder: &Path) -> Result<BTreeMap<usize, EventLog>, EventsError> {
    let fail = |source| EventsError::Read { path: folder.to_owned(), source };
    let mut logs = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if let Some(rank) = rank_of(&path) {
            logs.insert(rank, read(&path)?);
        }
    }
    Ok(logs)
}

fn rank_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()
}
