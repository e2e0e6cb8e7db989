//! `lockstep cluster down`.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use lockstep_contract::foreign;

use super::folder::Folder;
use super::process::{PROC, Process};
use super::running::HOLDER;
use super::spec::Name;
use crate::exit::{Code, Refused};
use crate::report::Screen;

/// How long the kernel may take to end all processes of a cluster.
const END: Duration = Duration::from_secs(60);

/// End a cluster; nothing is left of it
#[derive(Args)]
pub(super) struct Options {}

impl Options {
    pub(super) fn exec(self, name: &Name) -> anyhow::Result<Code> {
        let folder = Folder::of(name);
        if !folder.exists() {
            let message = format!("there is no cluster `{name}`: {} does not exist", folder.path().display());
            return Err(Refused(message).into());
        }
        let _lock = folder.lock()?;
        take_down(&folder)?;
        Screen::new(false).line(format!("the cluster `{name}` is gone"));
        Ok(Code::Success)
    }
}

/// Ends everything that the cluster's holder holds, then removes the folder.
///
/// # Errors
/// When it does not end: then the files stay. The system's own.
pub(super) fn take_down(folder: &Folder) -> anyhow::Result<()> {
    if let Ok(holder) = folder.load::<Process>(HOLDER) {
        // `unshare`, which waits for it.
        let parent = holder.state(Path::new(PROC)).and_then(|_| Process::find(Path::new(PROC), holder.parent));
        let deadline = Instant::now() + END;
        for (ended, process) in [(holder.kill(deadline)?, Some(holder)), (wait(parent, deadline)?, parent)] {
            anyhow::ensure!(
                ended,
                "process {} of the cluster has not ended within {} s; its files stay in {}",
                process.map_or(0, |process| process.pid),
                END.as_secs(),
                foreign::path(folder.path())
            );
        }
    }
    folder.remove()
}

fn wait(process: Option<Process>, deadline: Instant) -> std::io::Result<bool> {
    process.map_or(Ok(true), |process| process.wait(deadline))
}
