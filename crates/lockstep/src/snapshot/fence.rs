//! The fence: an attempt of a job that the scheduler has given up on saves nothing more once a later one has saved.
//!
//! A lock ends with its process. When the network is cut, a scheduler starts the job again elsewhere, while the processes on the cut
//! node train on: now two attempts of one job write to one folder. Where the lock is still held, the later attempt takes the folder
//! over; where a file server has dropped the lock, both think that they hold it. So each snapshot has the number of its attempt, and
//! a writer looks for later ones before it gives a file its name.

use std::path::Path;

use lockstep_contract::scheduler::{Read, restarts};
use serde::{Deserialize, Serialize};

use super::{folder, source};

/// A start of a scheduler's job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The job, which keeps its id when it is started again: `SLURM_JOB_ID=17`.
    pub job: String,
    /// How often it was started before.
    pub number: u32,
}

impl Attempt {
    /// The attempt that this process belongs to; `None` without a scheduler that counts them. Slurm does (sbatch(1)).
    pub(super) fn here() -> Option<Self> {
        Self::of(&Read::here())
    }

    fn of(read: &Read<'_>) -> Option<Self> {
        let number = restarts(read)?;
        Some(Attempt { job: format!("SLURM_JOB_ID={}", (read.variable)("SLURM_JOB_ID")?), number })
    }

    /// The number of the latest attempt of this job that has saved in `folder`; `None` if none has.
    fn latest(&self, folder: &Path) -> Option<u32> {
        let found = folder::list(folder).unwrap_or_default();
        let attempts = found.iter().filter_map(|one| source::attempt(&one.path));
        attempts.filter(|one| one.job == self.job).map(|one| one.number).max()
    }

    /// Checks that no later attempt has saved in `folder`; returns the latest that has.
    pub(super) fn check(&self, folder: &Path) -> Result<Option<u32>, TakenOver> {
        match self.latest(folder) {
            Some(later) if later > self.number => Err(TakenOver { own: self.number, later }),
            latest => Ok(latest),
        }
    }
}

/// A later attempt of the job has saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attempt {later} of this job has saved there, and this is attempt {own}")]
pub(super) struct TakenOver {
    pub(super) own: u32,
    pub(super) later: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Attempt> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Attempt::of(&Read { variable: &variable, file: &|_: &str| Err(std::io::ErrorKind::NotFound.into()) })
    }

    #[test]
    fn counts_the_starts_of_a_slurm_job() {
        let job = "SLURM_JOB_ID=17".to_owned();
        assert_eq!(of(&[("SLURM_JOB_ID", "17")]), Some(Attempt { job: job.clone(), number: 0 }));
        let again = [("SLURM_JOB_ID", "17"), ("SLURM_RESTART_COUNT", "2")];
        assert_eq!(of(&again), Some(Attempt { job, number: 2 }));
        assert_eq!(of(&[("SLURM_RESTART_COUNT", "2")]), None);
    }

    #[test]
    fn finds_no_attempt_in_a_folder_without_snapshots_or_with_files_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = of(&[("SLURM_JOB_ID", "17")]).unwrap();
        assert_eq!(attempt.latest(&folder.path().join("absent")), None);
        std::fs::write(folder.path().join("snapshot-000001-00000000.safetensors"), "no header").unwrap();
        assert_eq!(attempt.check(folder.path()), Ok(None));
    }
}
