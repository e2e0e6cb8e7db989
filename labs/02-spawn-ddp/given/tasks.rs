//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use c10d::ProcessGroup;
use lockstep::LaunchEnv;
use lockstep::events::{self, Event};
use lockstep_exercise::{Task, mark_sleep, numbers, tensor};
use tch::Tensor;

use crate::download::{Download, Last, Others};
use crate::epochs::Sampler;
use crate::job::{Seen, Settings, TrainingRun};

/// Inputs: samples, world size, rank.
pub fn shard(answer: fn(usize, usize, usize) -> Vec<usize>) -> Task {
    Task::new("shard", move |(samples, world_size, rank)| Ok(answer(samples, world_size, rank)))
}

/// Inputs: the gradients' shapes, and the values of each rank's gradients.
pub fn average(answer: fn(&ProcessGroup, &mut [Tensor]) -> anyhow::Result<()>) -> Task {
    Task::in_group("average", move |group, (shapes, by_rank): (Vec<Vec<i64>>, Vec<Vec<Vec<f64>>>)| {
        let own = by_rank[group.rank().get()].iter().zip(&shapes);
        let mut gradients: Vec<Tensor> = own.map(|(values, shape)| tensor(values).reshape(shape)).collect();
        answer(group, &mut gradients)?;
        gradients.iter().map(numbers).collect::<anyhow::Result<Vec<_>>>()
    })
}

/// Inputs: samples, seed, the range of epochs. The ranks need no process group.
pub fn epochs(answer: fn(Sampler, Range<u64>) -> Vec<Vec<usize>>) -> Task {
    Task::new("epochs", move |(samples, seed, begin, end): (usize, u64, u64, u64)| {
        let env = LaunchEnv::from_env()?;
        let (world_size, rank) = (env.world_size.get(), env.rank.get());
        Ok(answer(Sampler { samples, world_size, rank, seed, epoch: 0 }, begin..end))
    })
}

/// Inputs: the points of each rank's share; the batch size of all ranks together; the learning rate. Results: the line, and the bytes
/// that the rank has passed to the group.
pub fn line(answer: fn(&ProcessGroup, &Tensor, &Tensor, usize, f64) -> anyhow::Result<Tensor>) -> Task {
    Task::in_group("line", move |group, (by_rank, batch_size, rate): (Vec<Vec<(f64, f64)>>, usize, f64)| {
        let (x, y): (Vec<f64>, Vec<f64>) = by_rank[group.rank().get()].iter().copied().unzip();
        let bytes = || group.traffic().map_or(0, |traffic| traffic.bytes);
        let before = bytes();
        let line = numbers(&answer(group, &tensor(&x), &tensor(&y), batch_size, rate)?)?;
        Ok((line, bytes() - before))
    })
}

/// Inputs: the text to download, and when the last rank comes. Results: how often this rank has downloaded it, and what the rank has read.
pub fn prepare(answer: fn(&ProcessGroup, &Path, &Download) -> anyhow::Result<String>) -> Task {
    Task::in_group("prepare", move |group, (text, last): (String, Last)| {
        // Each case has its own files.
        let folder = match last {
            Last::Together => "data",
            Last::AtHalf => "data-at-half",
            Last::AtEnd => "data-at-end",
        };
        let done = |rank: usize| PathBuf::from(format!("{folder}-rank-{rank}-is-done"));
        let sleeps = |rank: usize| PathBuf::from(format!("{folder}-rank-{rank}-sleeps"));
        let own = group.rank().get();
        let of_others = |file: &dyn Fn(usize) -> PathBuf| {
            (0..group.size().get()).filter(|rank| *rank != own).map(file).collect::<Vec<_>>()
        };
        let download = Download::new(folder, text, last, Others { done: of_others(&done), sleeps: of_others(&sleeps) });
        group.barrier()?;
        if last != Last::Together && own + 1 == group.size().get() {
            download.come_last()?;
        }
        let read = mark_sleep(&sleeps(own), || answer(group, Path::new(folder), &download));
        fs::write(done(own), "")?;
        Ok((download.count(), read?))
    })
}

/// Inputs: the settings. Results: the sizes of the groups that this rank has joined, and what it has done.
pub fn distributed(answer: fn(&LaunchEnv, &TrainingRun) -> anyhow::Result<()>) -> Task {
    Task::new("distributed", move |settings: Settings| {
        let (env, job) = (LaunchEnv::from_env()?, TrainingRun::new(settings));
        answer(&env, &job)?;
        let seen: Seen = job.seen().clone();
        Ok((groups(env.rank.get())?, seen))
    })
}

/// The sizes of the groups that a rank has joined, by its events.
fn groups(rank: usize) -> anyhow::Result<Vec<usize>> {
    let folder = PathBuf::from(std::env::var_os(events::FOLDER).unwrap_or_default());
    let file = folder.join(format!("rank-{rank}.jsonl"));
    let records = if file.exists() { events::read(&file)?.records } else { Vec::new() };
    let size = |event: &Event| if let Event::Group { world_size, .. } = event { Some(*world_size) } else { None };
    Ok(records.iter().filter_map(|record| size(&record.event)).collect())
}
