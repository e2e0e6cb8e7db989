//! `--record FILE`: the folder in which this node's ranks and its agent record, and the file that it becomes at the end.
//!
//! The folder is `FILE.parts`. `lockstep replay FILE` reads it while the job runs, and after the agent was killed. In a job that may have
//! several nodes, each agent has a file of its own: `FILE.<host>`, and `FILE.<host>-2` for a second agent of the same host.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context as _, bail};
use lockstep_contract::foreign;
use lockstep_contract::recording::{self, Header};
use lockstep_paths::write_atomically;

use crate::config::Config;
use crate::verdict::flight_recorder;

/// More agents of one job on one host are not recorded.
const MOST_AGENTS: usize = 64;

/// A recording that goes on.
#[derive(Debug)]
pub(super) struct Recording {
    file: PathBuf,
    parts: PathBuf,
    header: Header,
    /// Keeps other runs out of the folder.
    _lock: File,
}

impl Recording {
    /// Begins to record if the command line asks for it. An earlier recording in the same place is removed.
    pub(super) fn start(config: &Config, hostname: &str) -> anyhow::Result<Option<Self>> {
        let Some(file) = &config.record else { return Ok(None) };
        let failed = || format!("cannot record in {} (--record)", foreign::path(file));
        // A worker may change its working directory.
        let file = absolute(file).with_context(failed)?;
        let alone = config.nodes.max == 1;
        let names = (1..=if alone { 1 } else { MOST_AGENTS }).map(|number| match number {
            _ if alone => file.clone(),
            1 => with(&file, &format!(".{hostname}")),
            _ => with(&file, &format!(".{hostname}-{number}")),
        });
        for file in names {
            let parts = with(&file, ".parts");
            if let Some(lock) = take(&parts).with_context(failed)? {
                remove_old(&file, &parts).with_context(failed)?;
                let header = Header {
                    program: config.program.name.clone(),
                    flight_recorder: flight_recorder::prefix(),
                    ..Header::default()
                };
                return Ok(Some(Recording { file, parts, header, _lock: lock }));
            }
        }
        bail!("{}: another run records there now; name another file", failed())
    }

    /// Where ranks record.
    pub(super) fn folder(&self) -> &Path {
        &self.parts
    }

    /// Makes the file of its parts. Returns a line for the user.
    pub(super) fn finish(self) -> String {
        let (file, parts) = (foreign::path(&self.file).to_string(), foreign::path(&self.parts).to_string());
        let written = write_atomically(&self.file, |out| recording::write_file(&self.parts, self.header.clone(), out));
        match written.and_then(|()| remove_parts(&self.parts)) {
            Ok(()) => format!("recorded in {file}; replay: lockstep replay {file}"),
            Err(error) => {
                format!("cannot write the recording {file}: {error}; what is left of its parts is in {parts}")
            }
        }
    }
}

fn with(file: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Creates the folder and locks it; `None` if another process has.
fn take(parts: &Path) -> io::Result<Option<File>> {
    fs::create_dir_all(parts)?;
    let folder = File::open(parts)?;
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn remove_old(file: &Path, parts: &Path) -> io::Result<()> {
    recording::parts(parts)?.iter().try_for_each(fs::remove_file)?;
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the parts, and the folder unless somebody has put something else there.
fn remove_parts(parts: &Path) -> io::Result<()> {
    recording::parts(parts)?.iter().try_for_each(fs::remove_file)?;
    match fs::remove_dir(parts) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_contract::events::{AgentEvent, AgentSink};

    use super::*;
    use crate::config::testing::config;

    fn recording(flags: &[&str], file: &Path) -> Config {
        Config { record: Some(file.to_owned()), ..config(flags) }
    }

    #[test]
    fn a_file_replaces_its_parts_at_the_end_and_an_earlier_file_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/run.jsonl");
        let config = recording(&[], &file);
        for _ in 0..2 {
            let begun = Recording::start(&config, "node1").unwrap().unwrap();
            assert!(!file.exists());
            AgentSink::open(begun.folder(), "node1-7").unwrap().emit(&AgentEvent::Finished { code: 0 });
            fs::write(begun.folder().join("rank-0.jsonl"), "line\n").unwrap();
            assert!(begun.finish().ends_with("run.jsonl"));
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.starts_with("{\"recording\":1,") && text.ends_with("line\n"), "{text}");
            assert_eq!(text.lines().count(), 3);
            assert!(!with(&file, ".parts").exists());
        }
    }

    #[test]
    fn parts_of_a_killed_agent_are_removed_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run");
        let config = recording(&[], &file);
        let killed = Recording::start(&config, "node1").unwrap().unwrap();
        for name in ["rank-7.jsonl", "notes"] {
            fs::write(killed.folder().join(name), "").unwrap();
        }
        drop(killed);
        let next = Recording::start(&config, "node1").unwrap().unwrap();
        assert!(!next.folder().join("rank-7.jsonl").exists());
        let folder = next.folder().to_owned();
        next.finish();
        assert!(file.exists() && folder.join("notes").exists());
    }

    #[test]
    fn two_runs_do_not_record_in_one_file_and_agents_of_several_nodes_have_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run");
        let alone = recording(&[], &file);
        let first = Recording::start(&alone, "node1").unwrap();
        let error = Recording::start(&alone, "node1").unwrap_err().to_string();
        assert!(error.contains("another run records there now"), "{error}");
        drop(first);
        let several = recording(&["--nnodes=2"], &file);
        let agents: Vec<Recording> =
            ["a", "a", "b"].iter().map(|host| Recording::start(&several, host).unwrap().unwrap()).collect();
        let names: Vec<_> = agents.iter().map(|agent| agent.file.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["run.a", "run.a-2", "run.b"]);
    }

    #[test]
    fn says_where_the_parts_are_if_the_file_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run");
        let begun = Recording::start(&recording(&[], &file), "node1").unwrap().unwrap();
        fs::create_dir(&file).unwrap();
        let said = begun.finish();
        assert!(said.contains("cannot write the recording") && said.ends_with("run.parts"), "{said}");
    }
}
