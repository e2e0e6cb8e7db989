//! Chooses the snapshot that a job resumes from, among those on all nodes: a pure function of the surveys.
//!
//! There may be one folder on a file system that all nodes share, or one on each node's own disk. A job that was requeued in
//! another order has its snapshots on the node that rank 0 had, which may not be rank 0's node now. So the newest snapshot of
//! all nodes is taken, wherever it is. Copies on several disks are each tried before anything older: one may be damaged, and
//! another good.
//!
//! All ranks exchange a survey of each node's folder before one snapshot is chosen. A survey reads names and headers, no tensors, and only
//! the first rank of a node makes one: the others have the same disk.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::system::uname;
use serde::{Deserialize, Serialize};

use super::error::SnapshotError;
use super::file::{self, Summary};
use super::folder::{self, Foreign, SnapshotFile};
use super::requests::name_of_attempt;

/// The result of the ranks' surveys.
#[derive(Debug, PartialEq)]
pub(super) enum Choice {
    /// Try these, in this order; the first good one is taken.
    Try(Vec<Candidate>),
    /// There are snapshots, but none belongs to this job, and it may not resume from others.
    NotAsked(Candidate),
    /// Nodes have snapshots of different runs, so it is ambiguous which one to use.
    Disagree(Candidate, Candidate),
}

/// A snapshot that a rank can read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate {
    /// The rank that reads it.
    pub(super) rank: usize,
    /// The file in the survey.
    pub(super) sighting: Sighting,
    /// True if it belongs to this job.
    own: bool,
}

impl Candidate {
    /// Returns true if its header cannot be read.
    fn is_torn(&self) -> bool {
        self.sighting.summary.checksum.is_none()
    }
}

/// Chooses for all ranks; `surveys` are theirs, ordered by rank. With `resume` off, only this job's own snapshots are taken. It
/// is an error if rank 0, which saves, has only other jobs' snapshots: it would overwrite them, or remove them as old ones.
pub(super) fn choose(surveys: &[Survey], resume: bool) -> Choice {
    let candidates = candidates(surveys);
    let refusal = if resume { disagreement(&candidates, surveys) } else { not_asked(&candidates) };
    let tried = |one: &Candidate| resume || one.own || one.is_torn();
    refusal.unwrap_or_else(|| Choice::Try(candidates.into_iter().filter(tried).collect()))
}

/// The folder of rank 0 decides, or all folders if that one is empty: no snapshot there belongs to this job. A file whose header cannot
/// be read is of no job; trying it says so.
fn not_asked(candidates: &[Candidate]) -> Option<Choice> {
    let candidates = || candidates.iter().filter(|one| !one.is_torn());
    let zero_has_any = candidates().any(|one| one.rank == 0);
    let mut decisive = candidates().filter(|one| !zero_has_any || one.rank == 0).peekable();
    let newest = decisive.peek().copied()?;
    decisive.all(|one| !one.own).then(|| Choice::NotAsked(newest.clone()))
}

/// No snapshot belongs to this job, the newest is not on rank 0's node, and another node has one of another run.
fn disagreement(candidates: &[Candidate], surveys: &[Survey]) -> Option<Choice> {
    let newest = candidates.first().filter(|newest| !newest.own && newest.rank != 0)?;
    Some(Choice::Disagree(newest.clone(), another_run(newest, surveys)?))
}

/// The jobs of all ranks.
pub(super) fn jobs(surveys: &[Survey]) -> BTreeSet<String> {
    surveys.iter().filter_map(|survey| survey.job.clone()).collect()
}

/// All snapshots, this job's own first, then by age. Each file is listed once, even if every node of a shared disk sees it.
fn candidates(surveys: &[Survey]) -> Vec<Candidate> {
    let jobs = jobs(surveys);
    let mut all: Vec<Candidate> = (0..).zip(surveys).flat_map(|(rank, survey)| of(rank, survey, &jobs)).collect();
    all.sort_by_key(|one| (!one.own, Reverse((one.sighting.epoch, one.sighting.step)), one.rank));
    let mut once: Vec<Candidate> = Vec::new();
    for one in all {
        if !once.iter().any(|known| known.sighting == one.sighting) {
            once.push(one);
        }
    }
    once
}

fn of(rank: usize, survey: &Survey, jobs: &BTreeSet<String>) -> Vec<Candidate> {
    let own = |sighting: &Sighting| sighting.summary.jobs.iter().any(|job| jobs.contains(job));
    let found = survey.found.iter().flatten();
    found.map(|sighting| Candidate { rank, sighting: sighting.clone(), own: own(sighting) }).collect()
}

/// The newest snapshot on another node that is known to be of another run than `newest`.
fn another_run(newest: &Candidate, surveys: &[Survey]) -> Option<Candidate> {
    let jobs = &newest.sighting.summary.jobs;
    let differs = |other: &Sighting| {
        let theirs = &other.summary.jobs;
        !jobs.is_empty() && !theirs.is_empty() && theirs.iter().all(|job| !jobs.contains(job))
    };
    let newest_of = |(rank, survey): (usize, &Survey)| {
        Some(Candidate { rank, sighting: survey.found.as_ref()?.first()?.clone(), own: false })
    };
    (0..).zip(surveys).filter_map(newest_of).find(|other| differs(&other.sighting))
}

/// How many ranks are on each node, in the order of their ranks.
pub(super) fn ranks_on_nodes(surveys: &[Survey]) -> Vec<usize> {
    surveys.iter().fold(Vec::new(), |mut nodes, survey| {
        match nodes.last_mut() {
            Some(ranks) if survey.found.is_none() && survey.unreadable.is_none() => *ranks += 1,
            _ => nodes.push(1),
        }
        nodes
    })
}

/// What is in the way of the snapshots that a run from `start` (epoch, step) will save, on any node: each may be rank 0's some day.
pub(super) fn in_the_way(surveys: &[Survey], start: (u64, usize)) -> Option<SnapshotError> {
    let later = |survey: &Survey| {
        let later = survey.foreign.iter().filter(|one| (one.epoch, one.step) > start);
        later.min_by_key(|one| (one.epoch, one.step)).cloned()
    };
    surveys.iter().enumerate().find_map(|(rank, survey)| {
        let Foreign { file, what, .. } = later(survey)?;
        let host = (rank != 0).then(|| survey.host.clone());
        Some(SnapshotError::InTheWay { path: Path::new(&survey.folder).join(file), host, what })
    })
}

/// Rank 0's message when training continues from a snapshot of another node, `taken`.
pub(super) fn note(taken: &Candidate, surveys: &[Survey]) -> Option<String> {
    let (zero, theirs) = (surveys.first()?, surveys.get(taken.rank)?);
    if taken.rank == 0 {
        return None;
    }
    let newer = |one: &Sighting| (one.epoch, one.step) >= (taken.sighting.epoch, taken.sighting.step);
    let has = match zero.found.as_ref().and_then(|found| found.first()) {
        None => "none".to_owned(),
        Some(one) if newer(one) => format!("one of {}, which is skipped,", place(one)),
        Some(one) => format!("one of {}", place(one)),
    };
    Some(format!(
        "rank {} on {} has the newest snapshot, of {}, in {}, and rank 0 on {} has {has} in {}: all ranks go on from rank {0}'s",
        taken.rank,
        theirs.host,
        place(&taken.sighting),
        theirs.folder,
        zero.host,
        zero.folder
    ))
}

/// Rank 0's message when several nodes were searched and training starts from the beginning.
pub(super) fn none_anywhere(surveys: &[Survey]) -> Option<String> {
    let looked: Vec<_> = surveys.iter().filter(|survey| survey.found.is_some()).collect();
    let places: Vec<_> = looked.iter().map(|survey| format!("{}:{}", survey.host, survey.folder)).collect();
    let nodes = places.len();
    (nodes > 1).then(|| {
        format!("No snapshot on any of {nodes} nodes ({}): training starts at epoch 0", super::error::listed(&places))
    })
}

/// Describes both sides of a disagreement.
pub(super) fn sides(one: &Candidate, other: &Candidate, surveys: &[Survey]) -> [String; 2] {
    [one, other].map(|side| {
        let Survey { host, folder, .. } = &surveys[side.rank];
        let jobs = side.sighting.summary.jobs.join(", ");
        format!("rank {} on {host} has one of {} of {jobs} in {folder}", side.rank, place(&side.sighting))
    })
}

fn place(sighting: &Sighting) -> String {
    format!("epoch {}, step {}", sighting.epoch, sighting.step)
}

/// A rank's survey of its node's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Survey {
    /// The node's name.
    pub(super) host: String,
    /// The folder, as messages show it.
    pub(super) folder: String,
    /// The job of this rank.
    pub(super) job: Option<String>,
    /// True if snapshots of other jobs may be taken. Rank 0's value counts.
    pub(super) resume: bool,
    /// The contents of the folder, newest first; `None` for ranks other than the first of a node.
    pub(super) found: Option<Vec<Sighting>>,
    /// What would keep snapshots from being saved in the folder; only of the first of a node.
    pub(super) foreign: Vec<Foreign>,
    /// Why this rank cannot read the folder.
    pub(super) unreadable: Option<String>,
    /// Why no rank may train.
    pub(super) refusal: Option<String>,
    /// A name for this attempt of the job; rank 0's counts.
    pub(super) attempt: String,
}

/// A file with the name of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sighting {
    /// The epoch in which training would continue.
    pub(super) epoch: u64,
    /// The step in the epoch.
    pub(super) step: usize,
    /// The file's identity.
    pub(super) file: FileId,
    /// The contents of its header; `None` if that cannot be read.
    pub(super) summary: Summary,
}

/// Identifies a file, also against its copies, from any node: nodes that share a disk see the same inode number and change
/// time. The device is left out, since each node numbers its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FileId {
    inode: u64,
    /// When it was last changed or renamed, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl FileId {
    /// The identity of the file at `path`; the same for all files without metadata.
    pub(super) fn of(path: &Path) -> Self {
        let id = |data: Metadata| FileId { inode: data.ino(), changed: (data.ctime(), data.ctime_nsec()) };
        path.metadata().map(id).unwrap_or_default()
    }
}

impl Survey {
    /// The survey of a rank of the job `job` whose folder is `folder`; lists the folder if this rank is the `first` of its
    /// node.
    pub(super) fn take(folder: &Path, job: Option<String>, resume: bool, first: bool) -> Self {
        let (found, unreadable) = match first.then(|| look(folder)).transpose() {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let host = uname().nodename().to_string_lossy().into_owned();
        Survey {
            host,
            folder: folder.display().to_string(),
            job,
            resume,
            found,
            foreign: if first { folder::foreign(folder, false) } else { Vec::new() },
            unreadable,
            refusal: None,
            attempt: name_of_attempt(),
        }
    }
}

fn look(folder: &Path) -> io::Result<Vec<Sighting>> {
    let sighting = |SnapshotFile { epoch, step, path }| {
        let (file, summary) = (FileId::of(&path), file::summary(&path).unwrap_or_default());
        Sighting { epoch, step, file, summary }
    };
    Ok(folder::list(folder)?.into_iter().map(sighting).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sighting(epoch: u64, step: usize, jobs: &[&str]) -> Sighting {
        let jobs: Vec<String> = jobs.iter().map(|job| (*job).to_owned()).collect();
        let checksum = Some(format!("{epoch}-{step}-{}", jobs.concat()));
        Sighting { epoch, step, file: FileId::default(), summary: Summary { bytes: 9, checksum, jobs } }
    }

    fn node(host: &str, job: &str, found: Vec<Sighting>) -> Survey {
        let (host, job) = (host.to_owned(), Some(job.to_owned()));
        Survey { host, folder: "/snapshots".into(), job, found: Some(found), ..Survey::default() }
    }

    fn tried(choice: Choice) -> Vec<(usize, u64, usize)> {
        match choice {
            Choice::Try(order) => order.iter().map(|one| (one.rank, one.sighting.epoch, one.sighting.step)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn takes_the_newest_of_all_nodes_wherever_it_is() {
        let mine = ["run a"];
        let nodes = [
            node("zero", "run a", vec![sighting(1, 0, &mine)]),
            node("one", "run a", vec![sighting(2, 3, &mine), sighting(2, 0, &mine)]),
        ];
        assert_eq!(tried(choose(&nodes, true)), [(1, 2, 3), (1, 2, 0), (0, 1, 0)]);
        assert_eq!(choose(&nodes, false), choose(&nodes, true));
        let Choice::Try(order) = choose(&nodes, true) else { panic!() };
        let text = note(&order[0], &nodes).unwrap();
        assert!(text.contains("rank 1 on one has the newest snapshot, of epoch 2, step 3, in /snapshots"), "{text}");
        assert!(text.contains("rank 0 on zero has one of epoch 1, step 0"), "{text}");
        assert_eq!(note(&order[2], &nodes), None);
    }

    #[test]
    fn reads_a_snapshot_on_a_shared_disk_once_and_by_rank_0() {
        let shared = vec![sighting(2, 0, &["run a"]), sighting(1, 0, &["run a"])];
        let nodes: Vec<_> = (0..3).map(|_| node("n", "run a", shared.clone())).collect();
        assert_eq!(tried(choose(&nodes, true)), [(0, 2, 0), (0, 1, 0)]);
    }

    #[test]
    fn tries_the_copy_on_another_disk_before_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["one", "other"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| std::fs::write(path, "the same").unwrap());
        let [one, other] = paths.map(|path| FileId::of(&path));
        let at = |epoch, file| Sighting { file, ..sighting(epoch, 0, &["run a"]) };
        let nodes = [
            node("zero", "run a", vec![at(2, one), at(1, one)]),
            node("one", "run a", vec![at(2, other)]),
            node("shares the disk of zero", "run a", vec![at(2, one), at(1, one)]),
        ];
        assert_eq!(tried(choose(&nodes, true)), [(0, 2, 0), (1, 2, 0), (0, 1, 0)]);
    }

    #[test]
    fn resumes_from_a_jobs_own_without_the_flag_and_from_no_others() {
        let other = [node("zero", "run b", vec![sighting(5, 0, &["run a"])]), node("one", "run b", vec![])];
        assert!(matches!(choose(&other, false), Choice::NotAsked(Candidate { rank: 0, .. })));
        assert_eq!(tried(choose(&other, true)), [(0, 5, 0)]);
        // Launchers without an id: one of those that saved it is still there.
        let survivor = [
            node("zero", "launcher 3", vec![]),
            node("one", "launcher 2", vec![sighting(5, 0, &["launcher 1", "launcher 2"])]),
        ];
        assert_eq!(tried(choose(&survivor, false)), [(1, 5, 0)]);
    }

    #[test]
    fn tries_a_torn_snapshot_which_is_of_no_job_and_does_not_ask_for_the_flag() {
        let torn = |epoch| Sighting { summary: Summary::default(), ..sighting(epoch, 0, &[]) };
        let alone = [node("zero", "run b", vec![torn(3)])];
        assert_eq!(tried(choose(&alone, false)), [(0, 3, 0)]);
        let with_an_own = [node("zero", "run b", vec![torn(3), sighting(2, 0, &["run b"])])];
        assert_eq!(tried(choose(&with_an_own, false)), [(0, 2, 0), (0, 3, 0)]);
        let with_anothers = [node("zero", "run b", vec![torn(3), sighting(2, 0, &["run a"])])];
        assert!(matches!(choose(&with_anothers, false), Choice::NotAsked(newest) if newest.sighting.epoch == 2));
    }

    #[test]
    fn prefers_a_jobs_own_to_a_newer_one_of_another() {
        let nodes = [
            node("zero", "run b", vec![sighting(9, 0, &["run a"])]),
            node("one", "run b", vec![sighting(2, 0, &["run b"])]),
        ];
        assert_eq!(tried(choose(&nodes, true)), [(1, 2, 0), (0, 9, 0)]);
        let [first, second] = nodes;
        assert_eq!(tried(choose(&[second, first], false)), [(0, 2, 0)]);
    }

    #[test]
    fn refuses_when_rank_0_would_save_over_the_snapshots_of_another_job() {
        let nodes = [
            node("zero", "run b", vec![sighting(9, 0, &["run a"])]),
            node("one", "run b", vec![sighting(2, 0, &["run b"])]),
        ];
        assert!(matches!(choose(&nodes, false), Choice::NotAsked(Candidate { rank: 0, .. })));
    }

    #[test]
    fn refuses_when_nodes_have_different_runs_and_names_both() {
        let nodes = [
            node("zero", "run c", vec![sighting(2, 0, &["run a"])]),
            node("one", "run c", vec![sighting(4, 1, &["run b"])]),
        ];
        let Choice::Disagree(newest, other) = choose(&nodes, true) else { panic!() };
        let [newest, other] = sides(&newest, &other, &nodes);
        assert_eq!(newest, "rank 1 on one has one of epoch 4, step 1 of run b in /snapshots");
        assert_eq!(other, "rank 0 on zero has one of epoch 2, step 0 of run a in /snapshots");
        // Another run's snapshot on another node is ignored if rank 0 has the newest.
        let leftover = [
            node("zero", "run c", vec![sighting(4, 1, &["run a"])]),
            node("one", "run c", vec![sighting(2, 0, &["run b"])]),
        ];
        assert_eq!(tried(choose(&leftover, true))[0], (0, 4, 1));
    }

    #[test]
    fn says_where_it_looked_when_several_nodes_have_nothing() {
        let empty = || node("n", "run a", vec![]);
        assert_eq!(none_anywhere(&[empty()]), None);
        let second = Survey { found: None, ..empty() };
        assert_eq!(none_anywhere(&[empty(), second.clone()]), None, "the second rank of the same node");
        assert_eq!(ranks_on_nodes(&[empty(), second.clone(), second.clone(), empty()]), [3, 1]);
        let text = none_anywhere(&[empty(), second, empty()]).unwrap();
        assert_eq!(text, "No snapshot on any of 2 nodes (n:/snapshots, n:/snapshots): training starts at epoch 0");
    }

    proptest! {
        #[test]
        fn never_starts_over_while_any_node_has_a_snapshot_of_the_job(
            places in proptest::collection::vec(proptest::collection::vec((0u64..5, 0usize..5, 0usize..3), 0..4), 1..5),
            resume: bool,
        ) {
            let names = ["run a", "run b", "run c"];
            let found = |place: &Vec<(u64, usize, usize)>| {
                let mut found: Vec<_> = place.iter().map(|(epoch, step, job)| sighting(*epoch, *step, &names[*job..=*job])).collect();
                found.sort_by_key(|one| Reverse((one.epoch, one.step)));
                found
            };
            let nodes: Vec<_> = places.iter().map(|place| node("n", "run a", found(place))).collect();
            let own = places.iter().flatten().filter(|(.., job)| *job == 0).map(|(epoch, step, _)| (*epoch, *step)).max();
            match (own, choose(&nodes, resume)) {
                (Some(newest), Choice::Try(order)) => {
                    prop_assert_eq!((order[0].sighting.epoch, order[0].sighting.step), newest);
                }
                (Some(_), Choice::NotAsked(other)) => prop_assert!(!resume && other.rank == 0 && !other.own),
                (Some(_), other) => prop_assert!(false, "{:?}", other),
                (None, Choice::Try(order)) => prop_assert!(resume || order.is_empty()),
                (None, _) => {}
            }
        }
    }
}
