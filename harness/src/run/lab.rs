//! The lab program: where it is, how a run of it is started and watched, and where it leaves its files.
//!
//! It prints for people; nothing of that is read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use lockstep_events::{Event, EventLog, Record};

use super::Plan;
use crate::exit::{Interrupted, Refused};
use crate::process::{Group, Outcome, Signals, tied};

/// A lab's program.
pub(crate) struct Lab {
    path: PathBuf,
}

/// Where one run leaves its files.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

impl Lab {
    /// The program `name` beside this executable.
    ///
    /// # Errors
    /// [`Refused`] when there is none, with the command that builds it.
    pub(crate) fn beside_this_program(name: &str) -> anyhow::Result<Self> {
        // Linux gives the file itself here, not the link through which it was started.
        let this = std::env::current_exe().context("cannot tell where this program lies")?;
        let path = this.with_file_name(name);
        if path.is_file() {
            return Ok(Lab { path });
        }
        let folder = this.parent().unwrap_or(&this).display();
        Err(Refused(format!("cannot find the program {name} in {folder}: build it with `cargo build`")).into())
    }

    /// Runs it as `plan` says, on the digits in `data` or on drawn ones, with its lines going to `output`; returns how
    /// long it took. Nothing of it runs any more when this returns.
    ///
    /// # Errors
    /// When it cannot be started, fails, or has not ended after `timeout`; [`Interrupted`] when a signal came first.
    pub(crate) fn run(
        &self,
        plan: &Plan,
        data: Option<&Path>,
        folder: &Folder,
        output: Stdio,
        timeout: Duration,
        signals: &Signals,
    ) -> anyhow::Result<Duration> {
        let mut command = tied(self.path.as_os_str());
        command.args(arguments(plan)).arg("--weights").arg(folder.weights());
        if let Some(data) = data {
            command.arg("--data").arg(data);
        }
        command.env(lockstep_events::FOLDER, folder.events()).stdin(Stdio::null()).stdout(output);
        let begin = Instant::now();
        // A time too long for the clock is as good as a year.
        let deadline = begin.checked_add(timeout).unwrap_or(begin + Duration::from_secs(365 * 24 * 3600));
        let group = Group::start(&mut command).with_context(|| format!("cannot start {}", self.path.display()))?;
        match group.finish(deadline, signals).context("cannot watch over the lab")? {
            Outcome::Ended(status) if status.success() => Ok(begin.elapsed()),
            Outcome::Ended(status) => {
                anyhow::bail!("the lab ended with {}; its own message stands above", told(status))
            }
            Outcome::Signalled(signal) => Err(Interrupted { signal }.into()),
            Outcome::TimedOut => anyhow::bail!(
                "the lab did not end within {} s (--timeout), and all its processes were killed: {}",
                timeout.as_secs(),
                last_words(plan, folder)
            ),
        }
    }
}

impl Folder {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Folder(path.into())
    }

    /// Where the ranks write their events.
    pub(crate) fn events(&self) -> PathBuf {
        self.0.join("events")
    }

    /// Where the ranks save their weights.
    pub(crate) fn weights(&self) -> PathBuf {
        self.0.join("weights")
    }

    /// The weights of one rank.
    pub(crate) fn weights_of(&self, rank: usize) -> PathBuf {
        self.weights().join(format!("rank-{rank}.safetensors"))
    }
}

fn arguments(plan: &Plan) -> Vec<String> {
    let pairs = [
        ("--nprocs", plan.ranks.to_string()),
        ("--batch-size", plan.batch.to_string()),
        ("--epochs", plan.epochs.to_string()),
        ("--seed", plan.seed.to_string()),
        ("--samples", plan.sizes.train.to_string()),
    ];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn told(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"))
}

fn last_words(plan: &Plan, folder: &Folder) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    match lockstep_events::read_folder(&folder.events()) {
        Ok(logs) => last_events(plan.ranks, &logs, now),
        Err(_) => "no rank wrote an event".to_owned(),
    }
}

/// Who wrote the last event when: `rank 0's last event was step 4 of epoch 0, 12.3 s before; rank 1 wrote none`.
fn last_events(ranks: usize, logs: &BTreeMap<usize, EventLog>, now: f64) -> String {
    let mut text = String::new();
    for rank in 0..ranks {
        let end = if rank == 0 { "" } else { "; " };
        // Writing to a String cannot fail.
        let _ = match logs.get(&rank).and_then(|log| log.records.last()) {
            Some(Record { t, event, .. }) => {
                write!(text, "{end}rank {rank}'s last event was {}, {:.1} s before", name(event), (now - t).max(0.0))
            }
            None => write!(text, "{end}rank {rank} wrote none"),
        };
    }
    text
}

fn name(event: &Event) -> String {
    match event {
        Event::Step { epoch, step, .. } => format!("step {step} of epoch {epoch}"),
        Event::Epoch { epoch, .. } | Event::Samples { epoch, .. } => format!("the begin of epoch {epoch}"),
        Event::Eval { epoch, .. } => format!("the evaluation of epoch {epoch}"),
        other => format!("\"{}\"", other.kind()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_which_rank_wrote_its_last_event_when() {
        let record = |t, event| Record { t, rank: 0, restart: 0, event };
        let step = Event::Step { epoch: 1, step: 4, loss: 0.5, samples: 32 };
        let log = |records| EventLog { records, torn: vec![] };
        let start = Event::Start { world_size: 3, device: "cpu".into(), pid: 1 };
        let logs = BTreeMap::from([
            (0, log(vec![record(1.0, start.clone()), record(88.0, step)])),
            (2, log(vec![record(1.0, start)])),
        ]);
        assert_eq!(
            last_events(3, &logs, 100.25),
            "rank 0's last event was step 4 of epoch 1, 12.2 s before; rank 1 wrote none; \
             rank 2's last event was \"start\", 99.2 s before"
        );
    }

    #[test]
    fn names_the_command_that_builds_a_missing_lab() {
        let Err(error) = Lab::beside_this_program("lab-99-nothing") else { panic!("found") };
        let told = error.downcast::<Refused>().unwrap().to_string();
        assert!(told.contains("lab-99-nothing in /") && told.ends_with("build it with `cargo build`"), "{told}");
    }
}
