//! Groups of ranks: threads of one process that meet, return their values in order and fail together; groups at an address, without a
//! launcher; and values of any type between ranks.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use c10d::{Endpoint, GroupOptions, ProcessGroup, ReduceOp, Store, TcpStoreOptions};
use lockstep::exit::UsageError;
use lockstep::threads::run_threads;
use lockstep::{
    LaunchEnv, ObjectError, Rank, WorldSize, all_gather_object, broadcast_object_from, exit, init_process_group,
    init_process_group_at,
};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::common::ranks;

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

fn joins(address: &str) {
    let size = WorldSize::new(3).unwrap();
    thread::scope(|scope| {
        for rank in size.ranks() {
            scope.spawn(move || {
                let group = init_process_group_at(address, rank, size, Device::Cpu, &Default::default()).unwrap();
                let mut sum = Tensor::from(rank.get() as i64 + 1).to_kind(Kind::Int64);
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum.int64_value(&[]), 6);
            });
        }
    });
}

#[test]
fn ranks_meet_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    joins(&format!("file://{}", folder.path().join("store").display()));
}

#[test]
fn ranks_meet_at_a_port() {
    // Keeps the port: stores of one process share a server.
    let options = TcpStoreOptions { host_server: true, multi_tenant: true, ..TcpStoreOptions::default() };
    let server = Store::tcp("127.0.0.1", 0, &options).unwrap();
    joins(&format!("tcp://127.0.0.1:{}", server.port().unwrap()));
}

#[test]
fn other_addresses_are_refused() {
    let error = init_process_group_at("env://", Rank::ZERO, WorldSize::ONE, Device::Cpu, &Default::default());
    assert!(error.unwrap_err().to_string().contains("tcp://HOST:PORT or file:///PATH"));
}

/// Its text has another length on each rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sent {
    name: String,
    rank: usize,
    files: Vec<Option<u64>>,
}

fn value_of(rank: usize) -> Sent {
    Sent { name: "ä".repeat(7 * rank), rank, files: [None, Some(u64::MAX)].repeat(rank + 1) }
}

#[test]
fn every_rank_can_gather_and_broadcast_values() {
    for world in 1..=4 {
        ranks(world, |group| {
            let mine = group.rank();
            let all: Vec<Sent> = (0..world).map(value_of).collect();
            assert_eq!(all_gather_object(&group, &value_of(mine.get())).unwrap(), all);
            for root in group.size().ranks() {
                let sent = (mine == root).then(|| value_of(9));
                assert_eq!(broadcast_object_from(&group, root, sent.as_ref()).unwrap(), value_of(9));
            }
        });
    }
}

#[test]
fn hostile_lengths_and_bytes_are_refused() {
    // A rank that runs another program: it answers the broadcast of a length, and then of bytes, with what it likes.
    let with = |length: i64, bytes: &'static [u8]| {
        let answers = ranks(2, move |group| {
            if group.rank().is_zero() {
                group.broadcast(&mut Tensor::from(length), Rank::ZERO).unwrap();
                if !bytes.is_empty() {
                    group.broadcast(&mut Tensor::from_slice(bytes).to_kind(Kind::Uint8), Rank::ZERO).unwrap();
                }
                None
            } else {
                Some(broadcast_object_from::<Sent>(&group, Rank::ZERO, None).unwrap_err())
            }
        });
        answers.into_iter().flatten().next().unwrap()
    };
    assert!(matches!(with(i64::MAX, b""), ObjectError::Length(i64::MAX)));
    assert!(matches!(with(-1, b""), ObjectError::Length(-1)));
    assert!(matches!(with(9, b"{\"name\": "), ObjectError::Garbled(_)));
    assert!(matches!(with(4, &[0xFF, 0, 1, 2]), ObjectError::Garbled(_)));
}
