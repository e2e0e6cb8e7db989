//! One call of an answer: its private folder, its store, and its ranks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use lockstep_contract::exercise::{ANSWERS, Answers, CALL, Call};
use lockstep_contract::foreign::quotation;
use lockstep_contract::{BACKEND, CLEARED_VARIABLES};
use lockstep_process::{Died, Orphan, Sink, Spec, Stdin, Template, Workers, end_of_file};
use rustix::process::{Resource, Rlimit, setrlimit};
use tempfile::TempDir;

use super::Options;
use super::outcome::collect;
use super::outcome::{HangDetector, Moment};
use super::outcome::{RankOutcome, is_done};
use crate::{Finding, Verdict};

/// The interval between two looks for the ranks' answers.
const POLL: Duration = Duration::from_millis(5);
/// The interval between two checks of what the ranks use.
const MEASURE: Duration = Duration::from_millis(100);
/// How long to wait for further outcomes once a rank has failed: another rank may report the cause, such as a `todo!()`.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// After this time a line says which ranks have not finished, if stderr is a terminal.
const SILENT: Duration = Duration::from_secs(3);
/// How long ranks may take to end after they were dismissed.
const END: Duration = Duration::from_secs(5);
/// How long the kernel may take to free what was killed, while other processes write to the same disk.
const KILLED: Duration = Duration::from_secs(120);

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
    program: &'a Path,
    folder: &'a Path,
    options: &'a CallOptions,
    confined: bool,
    ranks: usize,
    answers: Answers,
    store: tcpstore::Server,
}

fn one_thread() -> (OsString, Option<OsString>) {
    ("OMP_NUM_THREADS".into(), Some("1".into()))
}

/// The program as a template of ranks, if it waits for requests.
pub(super) fn template(program: &Path) -> Option<Template> {
    let mut env: Vec<(OsString, Option<OsString>)> = CLEARED_VARIABLES.map(|name| (name.into(), None)).into();
    env.push(one_thread()); // libgomp reads it when it is loaded
    Template::start(program.as_os_str(), &[], &env).ok()
}

pub(super) struct CallResult {
    pub(super) outcomes: Vec<RankOutcome>,
    /// A finding about all ranks: a hang or an exceeded limit.
    pub(super) finding: Option<Finding>,
    /// The input that each rank began with last.
    pub(super) begun: Vec<Option<usize>>,
    /// Processes that the ranks left running. They have been killed.
    pub(super) orphans: Vec<Orphan>,
    pub(super) printed: Vec<String>,
}

impl CallResult {
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
        program: &'a Path,
        confined: bool,
        folder: &'a TempDir,
        options: &'a CallOptions,
        request: &Call,
    ) -> io::Result<Self> {
        let folder = folder.path();
        let answers = Answers(folder.join("answers"));
        std::fs::create_dir(&answers.0)?;
        std::fs::create_dir(folder.join("work"))?;
        request.write(&folder.join("call"))?;
        let store = tcpstore::Server::start(TcpListener::bind("127.0.0.1:0")?, tcpstore::ServerOptions::default())?;
        Ok(RunningCall { program, folder, options, confined, ranks: options.ranks.max(1), answers, store })
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
            // A send over Gloo waits for its receiver, which some wrong answers show; one through shared memory need not.
            own(BACKEND, &"gloo"),
            one_thread(),
            (CALL.into(), Some(self.folder.join("call").into())),
            (ANSWERS.into(), Some(self.answers.0.clone().into())),
        ]);
        env.extend(self.options.env.iter().map(|(name, value)| (name.into(), Some(value.into()))));
        let folder = self.options.folder.clone().unwrap_or_else(|| self.folder.join("work"));
        let (program, args) = self.command()?;
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

    /// The program, or this executable, which confines the program.
    fn command(&self) -> io::Result<(OsString, Vec<OsString>)> {
        if !self.confined {
            return Ok((self.program.into(), Vec::new()));
        }
        let mut args: Vec<OsString> =
            words([self.folder, self.options.folder.as_deref().unwrap_or(self.folder)]).into();
        args.push(self.program.into());
        Ok((std::env::current_exe()?.into(), args))
    }

    /// Watches the ranks until all have ended, and kills those that hang.
    pub(super) fn watch(&self, workers: &mut Workers, pids: &[u32], limits: &Options) -> anyhow::Result<CallResult> {
        let (begin, mut measured) = (Instant::now(), Instant::now());
        let mut outcomes: Vec<Option<RankOutcome>> = vec![None; self.ranks];
        let mut failed: Option<Moment> = None;
        let (mut finding, mut detector) = (None, HangDetector::new(begin));
        let mut silent = std::io::stderr().is_terminal();
        while outcomes.iter().any(Option::is_none) && finding.is_none() {
            self.collect(&mut outcomes, workers)?;
            let now = Instant::now();
            detector.turn(now);
            // A rank that is done only waits for the others, so it cannot hang.
            let busy: Vec<u32> =
                pids.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none()).map(|(pid, _)| *pid).collect();
            if outcomes.iter().flatten().any(|outcome| !is_done(outcome)) {
                let now = detector.moment(&busy, now);
                if now.is_later(AFTER_FAILURE, *failed.get_or_insert(now)) {
                    break;
                }
            }
            if silent && now - begin >= SILENT {
                silent = false;
                eprintln!("waiting for ranks: {} of {} have not finished", busy.len(), self.ranks);
            }
            if now - measured >= MEASURE {
                (measured, finding) = (now, limits.bounds.broken(self.folder));
                let why = detector.hang(limits.deadline, &busy, now).filter(|_| finding.is_none());
                finding = why.map(|why| self.hang(&outcomes, &why)).or(finding);
            }
        }
        if outcomes.iter().any(Option::is_none) {
            // The remaining ranks may wait forever for a failed one.
            workers.kill();
        }
        let begun = (0..self.ranks).map(|rank| self.answers.begun(rank)).collect();
        let orphans = self.end(workers)?;
        let outcomes = outcomes.into_iter().map(|outcome| outcome.unwrap_or(RankOutcome::Stopped)).collect();
        Ok(CallResult { outcomes, finding, begun, orphans, printed: last_lines(self.folder, self.ranks) })
    }

    /// Collects answers, and deaths of ranks that left none.
    fn collect(&self, outcomes: &mut [Option<RankOutcome>], workers: &mut Workers) -> anyhow::Result<()> {
        // An answer counts even if its process has died since, so it is read before the death is recorded.
        let died = workers.next(Some(Instant::now() + POLL))?;
        for (rank, outcome) in outcomes.iter_mut().enumerate().filter(|(_, outcome)| outcome.is_none()) {
            *outcome = self.answers.read(rank)?.map(RankOutcome::Answered);
        }
        if let Some(Died { index, exit, .. }) = died {
            outcomes[index].get_or_insert(RankOutcome::Died(exit));
        }
        Ok(())
    }

    /// Dismisses all ranks, kills those that do not end, and returns the processes that they left behind.
    fn end(&self, workers: &mut Workers) -> anyhow::Result<Vec<Orphan>> {
        self.answers.dismiss()?;
        let all_done = |workers: &Workers| workers.alive().is_empty();
        let mut until = Instant::now() + END;
        let mut killed = false;
        while !all_done(workers) {
            match workers.next(Some(until))? {
                Some(_) => {}
                None if killed => bail!("a rank did not die within {} s of a kill", KILLED.as_secs()),
                None => {
                    workers.kill();
                    (killed, until) = (true, Instant::now() + KILLED);
                }
            }
        }
        Ok(workers.sweep(KILLED).killed)
    }

    fn hang(&self, outcomes: &[Option<RankOutcome>], what: &str) -> Finding {
        let positions = collect(&self.store, self.ranks);
        let line = |(rank, outcome): (usize, &Option<RankOutcome>)| match outcome {
            Some(RankOutcome::Answered(_)) => format!("rank {rank}: has finished"),
            Some(_) => format!("rank {rank}: has died"),
            None => format!("rank {rank}: {}", positions.get(&rank).map_or("does not answer", String::as_str)),
        };
        let diagnosis = format!("{what}; see below where each rank was");
        Finding { table: outcomes.iter().enumerate().map(line).collect(), ..Finding::new(Verdict::Hang, diagnosis) }
    }
}

/// The hidden subcommand that executes a program which can write only to its own folders, under resource limits.
///
/// Landlock (landlock(7), Linux 5.13) confines writing. [`writes_are_confined`] returns false where the kernel lacks it. The
/// limits are those of setrlimit(2). Its limit on processes does not bind root, so the runner counts processes as well.
pub const CONFINED: &str = "confined-exec";

/// The rules of Linux 5.19, which all newer kernels support.
const RULES: ABI = ABI::V2;
/// Devices that any program may write to.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/zero"];
/// The limits, in bytes (`Fsize`, `Core`), seconds (`Cpu`) or as a count.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::Fsize, 256 << 20),
    (Resource::Cpu, 120),
    (Resource::Core, 0),
    (Resource::Nproc, 4096),
    (Resource::Nofile, 1024),
];

/// The arguments that precede the program.
pub(super) fn words(folders: [&Path; 2]) -> [OsString; 3] {
    let [one, other] = folders;
    [CONFINED.into(), one.into(), other.into()]
}

/// Executes the program, confined to two folders. Returns only on failure.
///
/// # Errors
/// When the confinement or the start fails.
pub(crate) fn exec(args: &[OsString]) -> anyhow::Result<()> {
    let [one, other, program, args @ ..] = args else {
        bail!("{CONFINED} is an internal command: use `lockstep grade`")
    };
    for (resource, most) in LIMITS {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // This fails only where a lower limit is already in place.
        let _ = setrlimit(resource, limit);
    }
    confine([one, other]).context("cannot confine the program")?;
    Err(Command::new(program).args(args).exec())
        .with_context(|| format!("cannot start {}", Path::new(program).display()))
}

/// Returns true if this kernel can confine where programs write.
pub fn writes_are_confined() -> bool {
    // Creates a ruleset without applying it.
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

fn confine(folders: [&OsString; 2]) -> anyhow::Result<RulesetStatus> {
    let reading = path_beneath_rules(["/"], AccessFs::from_read(RULES));
    let writing = path_beneath_rules(folders, AccessFs::from_all(RULES));
    let devices = path_beneath_rules(DEVICES, AccessFs::from_file(RULES));
    let rules = Ruleset::default().handle_access(AccessFs::from_all(RULES))?.create()?;
    let rules = rules.add_rules(reading)?.add_rules(writing)?.add_rules(devices)?;
    Ok(rules.restrict_self()?.ruleset)
}

/// The number of lines to show, over all ranks.
const LINES: usize = 20;
/// How much to read from the end of a rank's file, in bytes.
const TAIL: u64 = 8 << 10;

/// The file for a rank's stdout and stderr.
fn output_file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("printed-{rank}"))
}

/// The last lines of all ranks, each after the name of its rank.
pub(super) fn last_lines(folder: &Path, ranks: usize) -> Vec<String> {
    let each = LINES.div_ceil(ranks).max(2);
    (0..ranks).flat_map(|rank| of_rank(&output_file(folder, rank), rank, each)).collect()
}

fn of_rank(file: &Path, rank: usize, most: usize) -> Vec<String> {
    let end = end_of_file(file, TAIL).unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = lines.iter().skip(lines.len().saturating_sub(most));
    shown.map(|line| format!("[rank {rank}] {}", quotation(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
