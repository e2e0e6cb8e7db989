//! Groups of some of the job's ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ProcessGroup;
use super::create::list;
use crate::error::{Error, Result};
use crate::options::GroupOptions;
use crate::{BackendConfig, Rank};

impl ProcessGroup {
    /// Creates a group of some of the job's ranks on this group's backend. The ranks are sorted first, as in Python's
    /// `new_group`. **Every** rank of the job must call it, in the same order; ranks outside the new group get `None`.
    ///
    /// # Errors
    /// As [`ProcessGroup::gloo`]; `BadArgument` for a rank outside the job, or one that is named twice.
    pub fn new_group(&self, ranks: &[Rank], options: &GroupOptions) -> Result<Option<ProcessGroup>> {
        self.new_group_on(self.inner.asked, ranks, options)
    }

    /// As [`new_group`](Self::new_group), on a backend of its own, or two.
    ///
    /// # Errors
    /// As [`new_group`](Self::new_group).
    pub fn new_group_on(
        &self,
        backends: impl Into<BackendConfig>,
        ranks: &[Rank],
        options: &GroupOptions,
    ) -> Result<Option<ProcessGroup>> {
        let job = Arc::clone(&self.inner.job);
        let mut members = ranks.to_vec();
        members.sort_unstable();
        members.dedup();
        let bad = |detail: String| Err(Error::bad_argument("new_group", detail).at_rank(job.rank));
        if members.is_empty() {
            return bad("a group needs at least one rank".into());
        }
        if members.len() != ranks.len() {
            return bad(format!("a rank occurs twice in {}", list(ranks)));
        }
        if let Some(&outsider) = members.iter().find(|&&rank| !job.size.contains(rank)) {
            return bad(format!("rank {outsider} is outside a world of {}", job.size));
        }
        // The default group is number 0. Every rank counts every group, so that all agree on names.
        let name = job.groups_made.fetch_add(1, Ordering::Relaxed).to_string();
        let Some(position) = members.iter().position(|&rank| rank == job.rank) else { return Ok(None) };
        let parent = &self.inner.options;
        let options = GroupOptions {
            debug: options.debug.or(Some(self.inner.debug)),
            compare_calls: options.compare_calls.or(parent.compare_calls),
            simulated_host: options.simulated_host.clone().or_else(|| parent.simulated_host.clone()),
            ..options.clone()
        };
        let backends = backends.into();
        backends.prepare().map_err(|error| error.at_rank(job.rank))?;
        Self::make(backends, name, members, Rank::new(position), job, &options).map(Some)
    }

    /// Divides the group's ranks among new groups, and returns this rank's; PyTorch's `split_group`. `parts` has each group's ranks of
    /// the job, none in two of them. **Every** rank of the job must call it with the same parts; one in none of them gets `None`.
    ///
    /// # Errors
    /// As [`new_group`](Self::new_group); `BadArgument` for a rank in two parts.
    pub fn split_group(&self, parts: &[Vec<Rank>], options: &GroupOptions) -> Result<Option<ProcessGroup>> {
        let mut all = parts.concat();
        all.sort_unstable();
        if let Some(twice) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            let detail = format!("rank {} occurs twice in the parts", twice[0]);
            return Err(Error::bad_argument("split_group", detail).at_rank(self.rank()));
        }
        let mut own = None;
        for part in parts {
            own = self.new_group(part, options)?.or(own);
        }
        Ok(own)
    }
}
