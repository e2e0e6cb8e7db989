//! Ranks that are threads of one process: they meet, their values come back in order, and a failure of one fails all.

use std::time::Duration;

use anyhow::Result;
use c10d::{Endpoint, GroupOptions, ProcessGroup, ReduceOp};
use lockstep::exit::UsageError;
use lockstep::threads::run_threads;
use lockstep::{LaunchEnv, exit, init_process_group};
use tch::{Device, Tensor};

fn join(env: &LaunchEnv) -> Result<ProcessGroup> {
    let timeout = Duration::from_secs(600);
    let options = GroupOptions { timeout, endpoint: Endpoint::Interface("lo".into()), ..Default::default() };
    Ok(init_process_group(env, Device::Cpu, &options)?)
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn threads_join_one_group_and_give_their_values_in_rank_order() {
    let sums = run_threads(3, |env| {
        let mut sum = Tensor::from(env.rank.get() as i64 + 1);
        join(env)?.all_reduce(&mut sum, ReduceOp::Sum)?;
        Ok((env.rank.get(), sum.int64_value(&[])))
    });
    assert_eq!(sums.unwrap(), [(0, 6), (1, 6), (2, 6)]);
}

#[test]
fn the_first_error_is_reported_with_its_rank_and_not_the_errors_that_it_causes() {
    let result: Result<Vec<()>> = run_threads(3, |env| {
        let group = join(env)?;
        anyhow::ensure!(env.rank.get() != 2, "the disk is full");
        Ok(group.barrier()?)
    });
    assert_eq!(message(result), "rank 2 failed: the disk is full");
}

#[test]
fn a_panic_is_an_error_with_its_rank() {
    let result: Result<Vec<()>> = run_threads(2, |env| {
        let group = join(env)?;
        assert!(env.rank.is_zero(), "rank {} has had enough", env.rank);
        Ok(group.barrier()?)
    });
    assert_eq!(message(result), "rank 1 failed: panicked: rank 1 has had enough");
}

#[test]
fn a_rank_that_never_joins_does_not_block_the_others() {
    let result: Result<Vec<()>> = run_threads(3, |env| match env.rank.get() {
        1 => Err(UsageError("rank 1 does not like its arguments".into()).into()),
        _ => Ok(join(env)?.barrier()?),
    });
    let error = result.unwrap_err();
    assert_eq!(exit::code_of(&error), exit::Code::Usage);
    assert_eq!(format!("{error:#}"), "rank 1 failed: rank 1 does not like its arguments");
}
