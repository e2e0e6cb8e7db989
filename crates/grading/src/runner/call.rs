//! One call of an answer: its private folder, its store, and its ranks.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_contract::desync_report::DIFFERENT_CALLS;
use lockstep_contract::events::{AgentEvent, AgentSink};
use lockstep_contract::foreign::{self, quotation};
use lockstep_contract::{BACKEND, CLEARED_VARIABLES, recording};
use lockstep_process::{Exit, Orphan, Sink, Spec, Stdin, Template};
use lockstep_rank_messages::exercise::{ANSWERS, Answer, Answers, CALL, Call};
use tempfile::TempDir;

use super::limits::words;
use super::outcome::{RankOutcome, is_done};
use crate::{Finding, Program, Verdict};

/// The ranks' own working directory, in the folder of a call.
pub(super) const WORK: &str = "work";

#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// The number of ranks; 0 means 1.
    pub ranks: usize,
    /// Environment variables of all ranks, in addition to those that a launcher sets.
    pub env: Vec<(String, String)>,
    /// The working directory of the ranks. `None` means a private one.
    pub folder: Option<PathBuf>,
}

/// A call with its files and its store.
pub(super) struct RunningCall<'a> {
    program: &'a Program,
    pub(super) folder: &'a Path,
    options: &'a CallOptions,
    confined: bool,
    records: bool,
    pub(super) ranks: usize,
    pub(super) answers: Answers,
    pub(super) store: tcpstore::Server,
}

fn one_thread() -> (OsString, Option<OsString>) {
    ("OMP_NUM_THREADS".into(), Some("1".into()))
}

/// The program as a template of ranks, if it waits for requests. With a folder, it is confined: it and its copies write nowhere else.
pub(super) fn template(program: &Program, confined_to: Option<&Path>) -> io::Result<Template> {
    let mut env: Vec<(OsString, Option<OsString>)> = CLEARED_VARIABLES.map(|name| (name.into(), None)).into();
    env.push(one_thread()); // libgomp reads it when it is loaded
    let folders = confined_to.map(|folder| [folder, program.given.as_deref().unwrap_or(folder)]);
    let (path, args) = command(program, folders)?;
    Template::start(&path, &args, &env)
}

/// The program, or this executable, which confines the program to two folders.
fn command(program: &Program, confined_to: Option<[&Path; 2]>) -> io::Result<(OsString, Vec<OsString>)> {
    let Some(folders) = confined_to else { return Ok((program.path.clone().into(), program.args.clone())) };
    let mut args = words(folders, &program.readable);
    args.push(program.path.clone().into());
    args.extend(program.args.iter().cloned());
    Ok((std::env::current_exe()?.into(), args))
}

/// The store in which the ranks meet.
fn store() -> anyhow::Result<tcpstore::Server> {
    let own = TcpListener::bind("127.0.0.1:0")?;
    // Connecting a UDP socket asks for the route and sends nothing. A listener would open even if the interface is down.
    UdpSocket::bind("127.0.0.1:0")?
        .connect(own.local_addr()?)
        .context("the loopback interface is down: as root `ip link set lo up`")?;
    Ok(tcpstore::Server::start(own, tcpstore::ServerOptions::default())?)
}

#[derive(Default)]
pub(super) struct CallResult {
    pub(super) outcomes: Vec<RankOutcome>,
    /// A finding about all ranks: a hang or an exceeded limit.
    pub(super) finding: Option<Finding>,
    /// The input that each rank began with last.
    pub(super) begun: Vec<Option<usize>>,
    /// Processes that the ranks left running. They have been killed.
    pub(super) orphans: Vec<Orphan>,
    pub(super) printed: Vec<String>,
    /// What the source of the answer shows.
    pub(super) notes: Vec<String>,
    /// Whether the ranks left files in their working directory.
    pub(super) left_files: bool,
    /// Where the recording of the call is kept, if it is.
    pub(super) recording: Option<PathBuf>,
}

impl CallResult {
    /// The first rank whose process ended before the answer was called.
    pub(super) fn died_before_the_answer(&self) -> Option<(usize, &Exit)> {
        let ended = self.outcomes.iter().zip(&self.begun).enumerate();
        ended.filter(|(_, (_, begun))| begun.is_none()).find_map(|(rank, (outcome, _))| match outcome {
            RankOutcome::Died(exit) => Some((rank, exit)),
            _ => None,
        })
    }

    /// The number of the input in which an answer crashed or hung.
    pub(super) fn input(&self, finding: &Finding) -> Option<usize> {
        match finding.verdict {
            Verdict::Crash | Verdict::OutOfBounds => self.begun.get(finding.rank?).copied().flatten(),
            // A rank that waits may be in an earlier one than the others.
            Verdict::Hang => {
                let busy = self.outcomes.iter().zip(&self.begun).filter(|(outcome, _)| !is_done(outcome));
                busy.filter_map(|(_, begun)| *begun).min()
            }
            _ => None,
        }
    }
}

impl<'a> RunningCall<'a> {
    /// Creates the files and starts the store.
    pub(super) fn new(
        program: &'a Program,
        (confined, records): (bool, bool),
        folder: &'a TempDir,
        options: &'a CallOptions,
        request: &Call,
    ) -> anyhow::Result<Self> {
        let folder = folder.path();
        let answers = Answers(folder.join("answers"));
        let made = std::fs::create_dir(&answers.0).and_then(|()| std::fs::create_dir(folder.join(WORK)));
        let made = made.and_then(|()| request.write(&folder.join("call")));
        made.with_context(|| {
            format!("cannot write to {}: export TMPDIR=DIR, a folder in which you may write", foreign::path(folder))
        })?;
        let store = store().context("cannot open a store for the ranks on 127.0.0.1")?;
        Ok(RunningCall { program, folder, options, confined, records, ranks: options.ranks.max(1), answers, store })
    }

    /// How to start a rank.
    pub(super) fn spec(&self, rank: usize) -> io::Result<Spec> {
        let printed = File::create(output_file(self.folder, rank))?;
        let own = |name: &str, value: &dyn ToString| (name.into(), Some(value.to_string().into()));
        let mut env: Vec<(OsString, Option<OsString>)> = CLEARED_VARIABLES.map(|name| (name.into(), None)).into();
        env.extend([
            own("RANK", &rank),
            own("LOCAL_RANK", &rank),
            own("WORLD_SIZE", &self.ranks),
            own("LOCAL_WORLD_SIZE", &self.ranks),
            own("MASTER_ADDR", &"127.0.0.1"),
            own("MASTER_PORT", &self.store.local_addr().port()),
            own("TORCHELASTIC_USE_AGENT_STORE", &"True"),
            own("GLOO_SOCKET_IFNAME", &"lo"),
            // A send over Gloo waits for its receiver, which exposes some wrong answers; a send through shared memory need
            // not wait.
            own(BACKEND, &"gloo"),
            one_thread(),
            (CALL.into(), Some(self.folder.join("call").into())),
            (ANSWERS.into(), Some(self.answers.0.clone().into())),
        ]);
        if self.records {
            env.push((recording::FOLDER.into(), Some(self.folder.join(RECORDED).into())));
        }
        env.extend(self.options.env.iter().map(|(name, value)| (name.into(), Some(value.into()))));
        let folder = self.options.folder.clone().unwrap_or_else(|| self.folder.join(WORK));
        let folders = [self.folder, self.options.folder.as_deref().unwrap_or(self.folder)];
        let (program, args) = command(self.program, self.confined.then_some(folders))?;
        Ok(Spec {
            program,
            args,
            env,
            folder: Some(folder),
            stdin: Stdin::Null,
            stdout: Sink::Fd(printed.try_clone()?.into()),
            stderr: Sink::Fd(printed.into()),
        })
    }
}

/// Where the ranks record their calls.
const RECORDED: &str = "recorded";

/// Where the last recording is kept: a file for each user.
pub(super) fn kept_recording() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    lockstep_paths::temporary_folder().join(format!("lockstep-grade-{user}.recording"))
}

impl RunningCall<'_> {
    /// Keeps what the ranks have recorded in `file`, in place of what was there, if they hung or made different calls. `None` if nothing was
    /// recorded, as by ranks in Python, or it cannot be kept: the finding matters more.
    pub(super) fn keep(&self, result: &CallResult, pids: &[u32], file: PathBuf) -> Option<PathBuf> {
        let folder = self.folder.join(RECORDED);
        let recorded = recording::parts(&folder).is_ok_and(|parts| !parts.is_empty());
        if !recorded || !is_about_calls(result) {
            return None;
        }
        // Without the ends of processes, it would not show that calls never ended.
        let ends = AgentSink::open(&folder, "grader").ok()?;
        for (rank, (pid, outcome)) in pids.iter().zip(&result.outcomes).enumerate() {
            let (code, stopped) = match outcome {
                RankOutcome::Answered(_) => (0, false),
                RankOutcome::Died(exit) => (exit.torch_code(), false),
                RankOutcome::Stopped => (-9, true),
            };
            ends.emit(&AgentEvent::Ended { attempt: 0, rank, local_rank: rank, pid: *pid, code, stopped });
        }
        let program = self.program.path.display().to_string();
        let header = recording::Header { program, ..recording::Header::default() };
        lockstep_paths::write_atomically(&file, |out| recording::write_file(&folder, header, out)).ok()?;
        Some(file)
    }
}

/// Returns true if ranks hung, or made different calls.
fn is_about_calls(result: &CallResult) -> bool {
    let differ = |outcome: &RankOutcome| match outcome {
        RankOutcome::Answered(Answer::Failed { error: text } | Answer::Panicked { message: text, .. }) => {
            text.contains(DIFFERENT_CALLS)
        }
        _ => false,
    };
    let hang = result.finding.as_ref().is_some_and(|finding| finding.verdict == Verdict::Hang);
    hang || result.outcomes.iter().any(differ)
}

/// The number of lines to show, over all ranks.
const LINES: usize = 20;

/// The file for a rank's stdout and stderr.
fn output_file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("printed-{rank}"))
}

/// The last lines of all ranks, each after the name of its rank.
pub(super) fn last_lines(folder: &Path, ranks: usize) -> Vec<String> {
    let each = LINES.div_ceil(ranks).max(2);
    let of_rank = |rank| {
        let lines = lockstep_process::last_lines(&output_file(folder, rank), each);
        lines.into_iter().map(move |line| format!("[rank {rank}] {}", quotation(&line)))
    };
    (0..ranks).flat_map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_ranks_recorded_of_a_hang_and_of_calls_that_differ_and_of_nothing_else() {
        let program = Program::from(Path::new("answers"));
        let (options, request) = (CallOptions::default(), Call { task: "ring".into(), inputs: vec![] });
        let folder = tempfile::tempdir().unwrap();
        let call = RunningCall::new(&program, (false, true), &folder, &options, &request).unwrap();
        let result = |outcomes: Vec<RankOutcome>, finding| CallResult { outcomes, finding, ..CallResult::default() };
        let hang = result(vec![RankOutcome::Stopped], Some(Finding::new(Verdict::Hang, "no rank moves")));
        let kept = || folder.path().join("kept");
        assert_eq!(call.keep(&hang, &[], kept()), None, "nothing is recorded");
        let recorded = folder.path().join(RECORDED);
        std::fs::create_dir(&recorded).unwrap();
        std::fs::write(recorded.join("rank-0.jsonl"), "a line\n").unwrap();
        let failed = |error: &str| RankOutcome::Answered(Answer::Failed { error: error.into() });
        let differ = result(vec![failed(&format!("barrier on rank 0 {DIFFERENT_CALLS} after 0.01 s"))], None);
        for about_calls in [&hang, &differ] {
            let file = call.keep(about_calls, &[1], kept()).unwrap();
            assert!(std::fs::read_to_string(&file).unwrap().ends_with("\na line\n"));
        }
        let other = result(vec![failed("no sum")], Some(Finding::new(Verdict::OutOfBounds, "too many threads")));
        assert_eq!(call.keep(&other, &[], kept()), None);
        // The ranks are told where to record.
        let is_folder = |(name, value): &(OsString, Option<OsString>)| {
            name == recording::FOLDER && value.as_deref() == Some(recorded.as_os_str())
        };
        assert!(call.spec(0).unwrap().env.iter().any(is_folder));
    }

    #[test]
    fn shows_the_last_lines_of_each_rank_without_escapes() {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = (0..100).map(|line| format!("line {line}\n")).collect();
        std::fs::write(output_file(folder.path(), 0), lines).unwrap();
        std::fs::write(output_file(folder.path(), 1), "\u{1b}[31mred\n\n").unwrap();
        let shown = last_lines(folder.path(), 2);
        assert_eq!(
            (shown.len(), shown[9].as_str(), shown[10].as_str()),
            (11, "[rank 0] line 99", "[rank 1] \\u{1b}[31mred")
        );
    }
}
