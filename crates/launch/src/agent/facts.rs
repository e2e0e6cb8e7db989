//! The facts for the verdict on a failure, collected when they can be seen: before the workers start, at the first failure, and when
//! all workers have ended.

use crate::rendezvous::Closing;
use crate::verdict::{AtStart, Elsewhere, Evidence, LaunchFailure, Standing, Verdict};

/// What was seen in the current attempt.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) at_start: AtStart,
    /// Workers that stood still at the first failure. Those in the kernel may only have waited for a disk, unless they
    /// still do when they are killed.
    pub(super) standing: Option<Vec<Standing>>,
    /// Set then.
    pub(super) confirmed: bool,
    /// Another node's verdict, which ended the job.
    pub(super) elsewhere: Option<Elsewhere>,
    /// This node's own, once all workers have ended; `None` if none of them failed.
    pub(super) evidence: Option<Evidence>,
    /// The verdict, once all workers have ended.
    pub(super) verdict: Option<Verdict>,
    /// The stacks of the workers that were alive when one had waited in vain, for the report.
    pub(super) stacks: Option<String>,
    /// Why the job failed though no worker did: the nodes did not meet, or this launcher itself failed. `None` if it only noticed
    /// a failure of others.
    pub(super) launch_failure: Option<LaunchFailure>,
}

impl Facts {
    /// Before the workers are started.
    pub(super) fn begin(&mut self) {
        self.at_start = AtStart::now();
    }

    /// The job has failed though no worker did; returns why.
    pub(super) fn failed(&mut self, failure: LaunchFailure) -> String {
        self.launch_failure.insert(failure).to_string()
    }

    /// This launcher itself has failed, for this reason, which is returned.
    pub(super) fn own_failure(&mut self, why: String) -> String {
        self.failed(LaunchFailure::new(why))
    }

    /// Another node has ended the job.
    pub(super) fn note_closing(&mut self, closing: &Closing) {
        self.elsewhere = closing.root_cause.as_ref().map(|root| Elsewhere {
            rank: root.rank,
            host: root.host.clone(),
            message: root.message.clone(),
        });
    }
}
