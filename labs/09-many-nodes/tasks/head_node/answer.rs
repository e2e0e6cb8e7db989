//! Task 1: the head node.
//!
//! The launchers of all nodes meet at one address. Each must find the same one by itself, from what the scheduler says:
//!
//! - Slurm: `SLURM_JOB_ID` is a number, `SLURM_JOB_NODELIST` lists the nodes in a short form: `gpu[03-05,9],login` is gpu03, gpu04,
//!   gpu05, gpu9 and login; `r[1-2]n[0-3]` begins with r1n0.
//! - PBS: `PBS_JOBID` begins with a number (`15422.server`, `15[3].server`), `PBS_NODEFILE` names a file with a node on each line. The
//!   batch script runs on the first.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// A scheduler's job as a process on one of its nodes sees it: variables and files, by name.
pub struct SchedulerJob {
    /// The environment.
    pub variables: BTreeMap<String, String>,
    /// The texts of files, by path.
    pub files: BTreeMap<String, String>,
}

impl SchedulerJob {
    /// The value of a variable; `None` if it is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The text of a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn read(&self, path: &str) -> Result<&str> {
        self.files.get(path).map(String::as_str).with_context(|| format!("there is no file {path}"))
    }
}

/// Returns the first node of the job, and the port 20000 + (the job's number modulo 10000).
///
/// # Errors
/// When there is no scheduler, or it does not say which nodes there are.
pub fn head_node(job: &SchedulerJob) -> Result<(String, u16)> {
    // <answer>
    //~ // `text.split_once('[')` is `Some((before, after))`; `text.split(['-', ','])` splits at either character.
    //~ todo!("find the head node and the port")
    let (id, head) = if let Some(id) = job.get("SLURM_JOB_ID") {
        (id, first(job.get("SLURM_JOB_NODELIST").context("SLURM_JOB_NODELIST is not set")?))
    } else {
        let id = job.get("PBS_JOBID").context("no scheduler: neither SLURM_JOB_ID nor PBS_JOBID is set")?;
        let path = job.get("PBS_NODEFILE").context("PBS_NODEFILE is not set")?;
        let line = job.read(path)?.lines().map(str::trim).find(|line| !line.is_empty());
        (id, line.with_context(|| format!("{path} names no node"))?.to_owned())
    };
    let digits = id.find(|c: char| !c.is_ascii_digit()).map_or(id, |end| &id[..end]);
    let number: u64 = digits.parse().with_context(|| format!("the job's id is {id:?}"))?;
    Ok((head, 20_000 + (number % 10_000) as u16))
    // </answer>
}
// <answer>
//~ // Further functions of yours.

/// The first name of a list: of each bracket, the text before its first `-`, `,` or `]`.
fn first(list: &str) -> String {
    let Some((head, rest)) = list.split_once('[').filter(|(head, _)| !head.contains(',')) else {
        return list.split(',').next().unwrap_or(list).trim().to_owned();
    };
    let (inside, tail) = rest.split_once(']').unwrap_or((rest, ""));
    let number = inside.split(['-', ',']).next().unwrap_or(inside);
    let tail = if tail.starts_with(',') { String::new() } else { first(tail) };
    format!("{head}{number}{tail}")
}
// </answer>
