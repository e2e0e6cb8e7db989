//! Which failure came first.
//!
//! The kernel tells deaths in their order, so the first worker that died by itself is the root cause. An error file can prove
//! otherwise: a worker that raised an error first may die last, since ending Python takes its time, or may hang until the
//! agent stops it. It is believed only if the whole span in which its error may have happened lies before the first death,
//! and before what the first to die says of its own error. (torch takes the smallest timestamp, in whole seconds, where a
//! death without a file counts as *now*: so it blames the wrong rank when two fail within a second.)

use std::path::PathBuf;

use super::failure::Failure;

/// The final report of a job that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The program's name.
    pub program: String,
    /// Workers that failed by themselves, in the order of their deaths.
    pub failures: Vec<Failure>,
    /// The place of the root cause among them.
    pub root: usize,
    /// Workers that the agent stopped because of the others.
    pub stopped: Vec<Failure>,
    /// What to try, if anything can be said.
    pub hint: Option<String>,
    /// Where the logs are, if they stay.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Of the failures in the kernel's order of deaths; `None` if no worker failed by itself.
    pub fn new(program: &str, deaths: Vec<Failure>) -> Option<Self> {
        let first = deaths.iter().position(|failure| !failure.death.stopped)?;
        let (root, _) = earliest(&deaths, first);
        let root_rank = deaths[root].death.rank;
        let (stopped, failures): (Vec<_>, Vec<_>) =
            deaths.into_iter().partition(|failure| failure.death.stopped && failure.death.rank != root_rank);
        let root = failures.iter().position(|failure| failure.death.rank == root_rank)?;
        Some(Report { program: program.to_owned(), failures, root, stopped, hint: None, logs: None })
    }

    /// The failure that the others follow from.
    pub fn root(&self) -> &Failure {
        // `new` found it there.
        &self.failures[self.root]
    }
}

/// The first death, unless another error is proved to be older.
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
    fn the_first_to_die_by_itself_is_the_root_cause() {
        let stopped = Death { stopped: true, ..death(2, -15, 3_030) };
        let report =
            Report::new("x", vec![bare(death(1, -9, 3_000)), bare(death(0, 1, 3_020)), bare(stopped)]).unwrap();
        assert_eq!(
            (report.root().death.rank, ranks(&report.failures), ranks(&report.stopped)),
            (1, vec![1, 0], vec![2])
        );
    }

    #[test]
    fn who_says_nothing_of_the_time_is_not_believed_against_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        // Both say the same second: no proof.
        let deaths =
            vec![with_file(&dir, death(1, 1, 3_100), said_at(3)), with_file(&dir, death(0, 1, 3_900), said_at(3))];
        assert_eq!(Report::new("x", deaths).unwrap().root().death.rank, 1);
        // The second in which rank 0's error happened is the one in which rank 1 was killed: no proof either.
        let deaths = vec![bare(death(1, -9, 3_100)), with_file(&dir, death(0, 1, 3_900), said_at(3))];
        assert_eq!(Report::new("x", deaths).unwrap().root().death.rank, 1);
    }

    #[test]
    fn an_error_that_is_older_than_the_first_death_is_the_root_cause() {
        let dir = tempfile::tempdir().unwrap();
        let deaths = vec![bare(death(1, -6, 5_000)), with_file(&dir, death(0, 1, 6_000), said_at(3))];
        let report = Report::new("x", deaths).unwrap();
        assert_eq!((report.root().death.rank, ranks(&report.failures)), (0, vec![1, 0]));
        // Rank 1's own file says that its error is older still.
        let deaths =
            vec![with_file(&dir, death(1, 1, 5_000), said_at(2)), with_file(&dir, death(0, 1, 6_000), said_at(3))];
        assert_eq!(Report::new("x", deaths).unwrap().root().death.rank, 1);
    }

    #[test]
    fn one_that_hung_after_its_error_and_was_stopped_had_failed_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let hung = Death { stopped: true, ..death(0, -15, 6_000) };
        let report = Report::new("x", vec![bare(death(1, -6, 5_000)), with_file(&dir, hung, said_at(3))]).unwrap();
        assert_eq!(
            (report.root().death.rank, ranks(&report.failures), ranks(&report.stopped)),
            (0, vec![1, 0], vec![])
        );
    }

    #[test]
    fn there_is_no_report_where_all_were_stopped() {
        let stopped = Death { stopped: true, ..death(0, -15, 1_000) };
        assert_eq!(Report::new("x", vec![bare(stopped)]), None);
        assert_eq!(Report::new("x", vec![]), None);
    }
}
