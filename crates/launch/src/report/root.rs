//! Which failure came first.
//!
//! The kernel reports deaths in order, so the first worker that died on its own is the root cause. An error file can
//! prove otherwise: a worker that raised an error first may die last, because Python takes time to exit, or may hang
//! until the agent stops it. The file counts only if the whole period in which its error may have happened is before
//! the first death, and before the error of the first worker to die. (torch takes the smallest timestamp, in whole
//! seconds, where a death without a file counts as *now*: so it blames the wrong rank if two fail within a second.)

use std::path::PathBuf;

use super::failure::Failure;
use crate::verdict::Verdict;

/// The final report of a job that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The program's name.
    pub program: String,
    /// Workers that failed on their own, in the order of their deaths.
    pub failures: Vec<Failure>,
    /// The index of the root cause in `failures`.
    pub root: usize,
    /// Workers that the agent stopped because of the others.
    pub stopped: Vec<Failure>,
    /// Who is at fault, and why.
    pub verdict: Option<Verdict>,
    /// Where the workers were that were alive when one had waited in vain for another.
    pub stacks: Option<String>,
    /// Where the logs are, if they are kept.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// A report of failures in the kernel's order of deaths; `None` if no worker failed on its own. If the verdict is on the
    /// end of one of these workers, that is the root cause.
    pub fn new(program: &str, deaths: Vec<Failure>, verdict: Option<Verdict>) -> Option<Self> {
        let first = &deaths[first_failure(&deaths)?];
        let blamed = verdict
            .as_ref()
            .filter(|verdict| verdict.own)
            .and_then(|verdict| deaths.iter().find(|failure| failure.death.rank == verdict.rank));
        let root_rank = blamed.unwrap_or(first).death.rank;
        let (stopped, failures): (Vec<_>, Vec<_>) =
            deaths.into_iter().partition(|failure| failure.death.stopped && failure.death.rank != root_rank);
        let root = failures.iter().position(|failure| failure.death.rank == root_rank)?;
        Some(Report { program: program.to_owned(), failures, root, stopped, verdict, stacks: None, logs: None })
    }

    /// The failure that caused the others.
    pub fn root(&self) -> &Failure {
        // `new` found this index.
        &self.failures[self.root]
    }
}

/// The index of the failure that came first, among failures in the kernel's order of deaths; `None` if no worker failed on
/// its own.
pub(crate) fn first_failure(deaths: &[Failure]) -> Option<usize> {
    let first = deaths.iter().position(|failure| !failure.death.stopped)?;
    Some(earliest(deaths, first).0)
}

/// The first death, unless another error is proven to be older.
fn earliest(deaths: &[Failure], first: usize) -> (usize, &Failure) {
    let (begun, _) = deaths[first].span();
    let older = deaths.iter().enumerate().filter(|(_, failure)| failure.span().1 < begun);
    older.min_by_key(|(_, failure)| failure.span().1).unwrap_or((first, &deaths[first]))
}

#[cfg(test)]
mod tests {
    use super::super::failure::Death;
    use super::super::failure::tests::{death, with_file};
    use super::*;

    fn bare(death: Death) -> Failure {
        Failure::of(death, "node0")
    }

    fn said_at(second: u64) -> String {
        format!(r#"{{"message": "x", "timestamp": {}}}"#, 1_763_635_200 + second)
    }

    fn ranks(failures: &[Failure]) -> Vec<usize> {
        failures.iter().map(|failure| failure.death.rank).collect()
    }

    #[test]
    fn the_first_worker_that_dies_on_its_own_is_the_root_cause() {
        let stopped = Death { stopped: true, ..death(2, -15, 3_030) };
        let report =
            Report::new("x", vec![bare(death(1, -9, 3_000)), bare(death(0, 1, 3_020)), bare(stopped)], None).unwrap();
        assert_eq!(
            (report.root().death.rank, ranks(&report.failures), ranks(&report.stopped)),
            (1, vec![1, 0], vec![2])
        );
    }

    #[test]
    fn an_error_without_an_exact_time_does_not_override_the_kernels_order() {
        let dir = tempfile::tempdir().unwrap();
        // Both have the same second, which proves nothing.
        let deaths =
            vec![with_file(&dir, death(1, 1, 3_100), said_at(3)), with_file(&dir, death(0, 1, 3_900), said_at(3))];
        assert_eq!(Report::new("x", deaths, None).unwrap().root().death.rank, 1);
        // Rank 0's error happened in the second in which rank 1 was killed, which proves nothing either.
        let deaths = vec![bare(death(1, -9, 3_100)), with_file(&dir, death(0, 1, 3_900), said_at(3))];
        assert_eq!(Report::new("x", deaths, None).unwrap().root().death.rank, 1);
    }

    #[test]
    fn an_error_that_is_older_than_the_first_death_is_the_root_cause() {
        let dir = tempfile::tempdir().unwrap();
        let deaths = vec![bare(death(1, -6, 5_000)), with_file(&dir, death(0, 1, 6_000), said_at(3))];
        let report = Report::new("x", deaths, None).unwrap();
        assert_eq!((report.root().death.rank, ranks(&report.failures)), (0, vec![1, 0]));
        // Rank 1's own file shows that its error is even older.
        let deaths =
            vec![with_file(&dir, death(1, 1, 5_000), said_at(2)), with_file(&dir, death(0, 1, 6_000), said_at(3))];
        assert_eq!(Report::new("x", deaths, None).unwrap().root().death.rank, 1);
    }

    #[test]
    fn a_worker_that_hung_after_its_error_and_was_stopped_failed_on_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let hung = Death { stopped: true, ..death(0, -15, 6_000) };
        let report =
            Report::new("x", vec![bare(death(1, -6, 5_000)), with_file(&dir, hung, said_at(3))], None).unwrap();
        assert_eq!(
            (report.root().death.rank, ranks(&report.failures), ranks(&report.stopped)),
            (0, vec![1, 0], vec![])
        );
    }

    #[test]
    fn there_is_no_report_if_all_workers_were_stopped() {
        let stopped = Death { stopped: true, ..death(0, -15, 1_000) };
        assert_eq!(Report::new("x", vec![bare(stopped)], None), None);
        assert_eq!(Report::new("x", vec![], None), None);
    }
}
