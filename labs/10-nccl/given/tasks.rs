//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::time::Duration;

use anyhow::Result;
use c10d::Store;
use lockstep_exercise::Task;
use lockstep_gpu::{Buffer, Comm, Event, Reduction, Stream, UniqueId};
use serde::Serialize;

use crate::bandwidth::{Bandwidth, Measured};
use crate::job::Job;
use crate::machine::Machine;
use crate::pass::{Pass, Side};

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Ended {
    Done,
    Aborted,
}

/// Adds up the ranks' numbers, and waits for the result.
fn sum(job: &Job, comm: &Comm, number: f32) -> Result<f32> {
    let stream = job.gpu.stream()?;
    let buffer = stream.upload(&[number])?;
    comm.all_reduce(&buffer, Reduction::Sum, &stream)?;
    Ok(stream.download(&buffer)?[0])
}

/// Inputs: the numbers of the ranks for each communicator. Results: the sums that its ranks get.
pub fn share_id(answer: fn(&Store, usize, usize) -> Result<UniqueId>) -> Task {
    Task::new("share_id", move |numbers: Vec<Vec<f32>>| {
        let job = Job::from_env()?;
        let sums = numbers.iter().enumerate().map(|(number, of_rank)| {
            let id = answer(&job.store, job.rank, number)?;
            let comm = Comm::join(&job.gpu, &id, job.rank, job.size)?;
            let found = sum(&job, &comm, of_rank[job.rank])?;
            Ok((found, comm))
        });
        // No communicator ends before the last is there.
        let sums: Vec<(f32, Comm)> = sums.collect::<Result<_>>()?;
        Ok(sums.into_iter().map(|(sum, _)| sum).collect::<Vec<_>>())
    })
}

/// Inputs: each rank's elements. Results: the elements that it has received.
pub fn ring(answer: fn(&Comm, &Buffer, &Buffer, &Stream) -> Result<()>) -> Task {
    Task::new("ring", move |elements: Vec<Vec<f32>>| {
        let job = Job::from_env()?;
        let stream = job.gpu.stream()?;
        let own = stream.upload(&elements[job.rank])?;
        let incoming = stream.upload(&vec![0.0; elements[job.rank].len()])?;
        let comm = job.comm("ring")?;
        answer(&comm, &own, &incoming, &stream)?;
        Ok(stream.download(&incoming)?)
    })
}

/// A gradient before the backward pass, and what that adds.
type Layer = (f32, f32);

/// Inputs: each rank's layers, and which stream is ahead. Results: what the pass has seen.
pub fn overlap(answer: fn(&Pass) -> Result<()>) -> Task {
    Task::new("overlap", move |(layers, communication_first): (Vec<Vec<Layer>>, bool)| {
        let job = Job::from_env()?;
        let first = if communication_first { Side::Communication } else { Side::Compute };
        let pass = Pass::new(&job, &format!("overlap {first:?}"), &layers[job.rank])?;
        answer(&pass)?;
        pass.end(first)
    })
}

/// Inputs: what rank 1 does, and the patience in milliseconds. Results: how it ended, and a sum over a communicator that is made afterwards.
pub fn finish(answer: fn(&Comm, &Event, Duration) -> Result<Ended>) -> Task {
    Task::new("finish", move |(does, patience): (String, u64)| {
        let job = Job::from_env()?;
        let stream = job.gpu.stream()?;
        let buffer = stream.upload(&[1.0])?;
        let comm = job.comm(&does)?;
        sum(&job, &comm, 1.0)?;
        if job.rank == 1 && does == "late" {
            std::thread::sleep(Duration::from_millis(500));
        }
        if job.rank == 1 && does == "another" {
            comm.broadcast(&buffer, 0, &stream)?;
        } else {
            comm.all_reduce(&buffer, Reduction::Sum, &stream)?;
        }
        let ended = answer(&comm, &stream.record()?, Duration::from_millis(patience))?;
        // Hangs if nothing has ended the operation.
        stream.synchronize()?;
        let again = job.comm(&format!("after {does}"))?;
        Ok((ended, stream.download(&buffer)?[0], sum(&job, &again, 1.0)?))
    })
}

/// Inputs: a measured collective. Results: its bandwidths.
pub fn bus_bandwidth(answer: fn(&Measured) -> Bandwidth) -> Task {
    Task::new("bus_bandwidth", move |measured: Measured| Ok(answer(&measured)))
}

/// Inputs: a machine. Results: the GPU of each rank.
pub fn place(answer: fn(&Machine) -> Vec<usize>) -> Task {
    Task::new("place", move |machine: Machine| Ok(answer(&machine)))
}
