//! `lockstep watch`: grades after every change of a file.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_grading::Options as Grading;
use notify::{Config, EventKind, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};

use super::grade::grade;
use crate::course::{checkout, find};
use crate::exit::Code;

/// An editor's save is several events: it is over when no event has come for this long.
const QUIET: Duration = Duration::from_millis(150);

/// Grade a lab's exercise whenever one of its files is saved, until Ctrl-C
#[derive(Args)]
pub(crate) struct Options {
    /// The lab, by number or name
    lab: String,
    /// Look for changes at this interval in seconds, for network file systems without change events
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    poll: Option<u64>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (root, lab) = (checkout()?, find(&self.lab)?);
        let sources = lab.exercise(&root).join("src");
        let (_watcher, changes) = self.watch(&sources)?;
        loop {
            if let Err(error) = grade(&root, &lab, &[], &Grading::seeded(None), &mut std::io::stdout()) {
                eprintln!("error: {error:#}");
            }
            println!("watching labs/{}/exercise/src; Ctrl-C ends", lab.name);
            changes.recv().context("the watcher for changes has ended")?;
            while changes.recv_timeout(QUIET) != Err(RecvTimeoutError::Timeout) {}
        }
    }

    /// Reports changes in a folder for as long as the watcher lives.
    fn watch(&self, folder: &Path) -> anyhow::Result<(Box<dyn Watcher>, Receiver<()>)> {
        let (sender, changes) = channel();
        let tell = move |event: notify::Result<notify::Event>| {
            let changed = event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_)));
            if changed {
                // At the end the receiver is gone.
                let _ = sender.send(());
            }
        };
        let mut watcher: Box<dyn Watcher> = match self.poll {
            Some(seconds) => {
                // Compares contents: modification times are unreliable where polling is needed.
                let config =
                    Config::default().with_poll_interval(Duration::from_secs(seconds)).with_compare_contents(true);
                Box::new(PollWatcher::new(tell, config)?)
            }
            None => Box::new(RecommendedWatcher::new(tell, Config::default())?),
        };
        watcher.watch(folder, RecursiveMode::NonRecursive).with_context(|| {
            format!("cannot watch {} (on a network file system, try --poll 2)", foreign::path(folder))
        })?;
        Ok((watcher, changes))
    }
}
