//! One call: its private folder and its store, its ranks, and the watch over them.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use lockstep_contract::CLEARED_VARIABLES;
use lockstep_contract::exercise::{ANSWERS, Answers, CALL, Call};
use lockstep_process::{Died, Orphan, Sink, Spec, Stdin, Workers};
use tempfile::TempDir;

use super::judge::is_done;
use super::patience::{Moment, Patience};
use super::{End, Setting, confine, desync_report, printed};
use crate::{Fault, Options, Verdict};

/// How often the ranks' answers are looked for.
const LOOK: Duration = Duration::from_millis(5);
/// How often the ranks' bounds are looked at.
const MEASURE: Duration = Duration::from_millis(100);
/// After one rank has failed, how long another may take to tell that it had not even been started.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How long ranks may take to end that were let go or killed.
const FAREWELL: Duration = Duration::from_secs(5);

/// One call: its files and its store.
pub(super) struct Scene<'a> {
    program: &'a Path,
    folder: &'a Path,
    setting: &'a Setting,
    confined: bool,
    ranks: usize,
    answers: Answers,
    store: tcpstore::Server,
}

/// How a call ended.
pub(super) struct Played {
    pub(super) ends: Vec<End>,
    /// A fault of the whole: too late, too much.
    pub(super) fault: Option<Fault>,
    /// What the ranks left running; it was ended.
    pub(super) orphans: Vec<Orphan>,
    pub(super) printed: Vec<String>,
}

impl<'a> Scene<'a> {
    /// Makes its files and starts its store.
    pub(super) fn set(
        program: &'a Path,
        confined: bool,
        folder: &'a TempDir,
        setting: &'a Setting,
        call: &Call,
    ) -> io::Result<Self> {
        let folder = folder.path();
        let answers = Answers(folder.join("answers"));
        std::fs::create_dir(&answers.0)?;
        std::fs::create_dir(folder.join("work"))?;
        call.write(&folder.join("call"))?;
        let store = tcpstore::Server::start(TcpListener::bind("127.0.0.1:0")?, tcpstore::Options::default())?;
        Ok(Scene { program, folder, setting, confined, ranks: setting.ranks.max(1), answers, store })
    }

    /// How a rank is started.
    pub(super) fn spec(&self, rank: usize) -> io::Result<Spec> {
        let printed = File::create(printed::file(self.folder, rank))?;
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
            own("OMP_NUM_THREADS", &1),
            (CALL.into(), Some(self.folder.join("call").into())),
            (ANSWERS.into(), Some(self.answers.0.clone().into())),
        ]);
        env.extend(self.setting.env.iter().map(|(name, value)| (name.into(), Some(value.into()))));
        let folder = self.setting.folder.clone().unwrap_or_else(|| self.folder.join("work"));
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

    /// The program itself, or this executable that confines it.
    fn command(&self) -> io::Result<(OsString, Vec<OsString>)> {
        if !self.confined {
            return Ok((self.program.into(), Vec::new()));
        }
        let mut args: Vec<OsString> =
            confine::words([self.folder, self.setting.folder.as_deref().unwrap_or(self.folder)]).into();
        args.push(self.program.into());
        Ok((std::env::current_exe()?.into(), args))
    }

    /// Watches the ranks to their end, and ends those that do not.
    pub(super) fn watch(&self, workers: &mut Workers, pids: &[u32], options: &Options) -> anyhow::Result<Played> {
        let (begin, mut measured) = (Instant::now(), Instant::now());
        let mut ends: Vec<Option<End>> = vec![None; self.ranks];
        let mut failed: Option<Moment> = None;
        let (mut fault, mut patience) = (None, Patience::new(begin));
        while ends.iter().any(Option::is_none) && fault.is_none() {
            self.look(&mut ends, workers)?;
            let now = Instant::now();
            // A rank that is done only waits for the others.
            let busy: Vec<u32> = pids.iter().zip(&ends).filter(|(_, end)| end.is_none()).map(|(pid, _)| *pid).collect();
            if ends.iter().flatten().any(|end| !is_done(end)) {
                let now = patience.moment(&busy, now);
                if now.is_later(AFTERMATH, *failed.get_or_insert(now)) {
                    break;
                }
            }
            if now - measured >= MEASURE {
                (measured, fault) = (now, options.bounds.broken(self.folder));
                let why = patience.ends(options.deadline, &busy, now).filter(|_| fault.is_none());
                fault = why.map(|why| self.hang(&ends, &why)).or(fault);
            }
        }
        if ends.iter().any(Option::is_none) {
            // Nobody waits for them any more, and they would not go by themselves.
            workers.kill();
        }
        let orphans = self.end(workers)?;
        let ends = ends.into_iter().map(|end| end.unwrap_or(End::Stopped)).collect();
        Ok(Played { ends, fault, orphans, printed: printed::last_lines(self.folder, self.ranks) })
    }

    /// Takes note of answers, and of deaths before one.
    fn look(&self, ends: &mut [Option<End>], workers: &mut Workers) -> anyhow::Result<()> {
        // Looked for before the deaths: an answer was left before its process died.
        let died = workers.next(Some(Instant::now() + LOOK))?;
        for (rank, end) in ends.iter_mut().enumerate().filter(|(_, end)| end.is_none()) {
            *end = self.answers.read(rank)?.map(End::Answered);
        }
        if let Some(Died { index, exit, .. }) = died {
            ends[index].get_or_insert(End::Died(exit));
        }
        Ok(())
    }

    /// Lets all ranks go and ends those that do not; what they left behind.
    fn end(&self, workers: &mut Workers) -> anyhow::Result<Vec<Orphan>> {
        self.answers.dismiss()?;
        let all_done = |workers: &Workers| workers.alive().is_empty();
        let mut until = Instant::now() + FAREWELL;
        let mut killed = false;
        while !all_done(workers) {
            match workers.next(Some(until))? {
                Some(_) => {}
                None if killed => bail!("a rank did not die within {} s of a kill", FAREWELL.as_secs()),
                None => {
                    workers.kill();
                    (killed, until) = (true, Instant::now() + FAREWELL);
                }
            }
        }
        Ok(workers.sweep(FAREWELL).killed)
    }

    fn hang(&self, ends: &[Option<End>], what: &str) -> Fault {
        let told = desync_report::collect(&self.store, self.ranks);
        let line = |(rank, end): (usize, &Option<End>)| match end {
            Some(End::Answered(_)) => format!("rank {rank}: has finished"),
            Some(_) => format!("rank {rank}: has died"),
            None => format!("rank {rank}: {}", told.get(&rank).map_or("does not answer", String::as_str)),
        };
        let diagnosis = format!("{what}; where each rank was stands below");
        Fault { table: ends.iter().enumerate().map(line).collect(), ..Fault::new(Verdict::Hang, diagnosis) }
    }
}
