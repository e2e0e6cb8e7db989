//! Groups of ranks: threads of one process that meet, return their values in order and fail together; groups at an address, without a
//! launcher; grids of ranks; and values of any type between ranks.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use c10d::{Endpoint, GroupOptions, ProcessGroup, ReduceOp, Store, TcpStoreOptions};
use lockstep::exit::UsageError;
use lockstep::threads::run_threads;
use lockstep::{
    DeviceMesh, LaunchEnv, MeshError, ObjectError, Rank, WorldSize, all_gather_object, broadcast_object_from, exit,
    gather_object, init_process_group, init_process_group_at, new_subgroups, scatter_object,
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

fn members(group: &ProcessGroup) -> Vec<usize> {
    group.members().iter().map(|rank| rank.get()).collect()
}

/// The sum of the members' ranks in the job, through the group.
fn sum(group: &ProcessGroup, rank: usize) -> i64 {
    let mut tensor = Tensor::from(rank as i64).to_kind(Kind::Int64);
    group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
    tensor.int64_value(&[])
}

#[test]
fn each_dimension_has_the_groups_of_its_lines() {
    let found = ranks(6, |world| {
        let mesh = DeviceMesh::new(&world, &[("data", 3), ("tensor", 2)], world.options()).unwrap();
        assert_eq!(mesh.shape(), [("data", 3), ("tensor", 2)]);
        let me = world.rank().get();
        assert_eq!(mesh.coordinate(), [me / 2, me % 2]);
        let [data, tensor] = ["data", "tensor"].map(|name| mesh.group(name).unwrap());
        (members(data), members(tensor), sum(data, me), sum(tensor, me))
    });
    for (rank, (data, tensor, data_sum, tensor_sum)) in found.into_iter().enumerate() {
        let column: Vec<_> = (0..3).map(|line| line * 2 + rank % 2).collect();
        let row = vec![rank / 2 * 2, rank / 2 * 2 + 1];
        assert_eq!((data_sum, tensor_sum), (column.iter().sum::<usize>() as i64, row.iter().sum::<usize>() as i64));
        assert_eq!((data, tensor), (column, row));
    }
}

#[test]
fn three_dimensions_count_the_last_fastest() {
    let found = ranks(8, |world| {
        let sizes = [("pipeline", 2), ("data", 2), ("tensor", 2)];
        let mesh = DeviceMesh::new(&world, &sizes, world.options()).unwrap();
        (mesh.coordinate(), ["pipeline", "data", "tensor"].map(|name| members(mesh.group(name).unwrap())))
    });
    assert_eq!(found[5], (vec![1, 0, 1], [vec![1, 5], vec![5, 7], vec![4, 5]]));
}

#[test]
fn subgroups_are_neighbours() {
    let found = ranks(4, |world| members(&new_subgroups(&world, 2, world.options()).unwrap()));
    assert_eq!(found, [[0, 1], [0, 1], [2, 3], [2, 3]]);
}

#[test]
fn refuses_meshes_that_cannot_be_before_anything_is_sent() {
    ranks(1, |world| {
        let mesh = |dimensions: &[(&str, usize)]| DeviceMesh::new(&world, dimensions, world.options());
        let error = mesh(&[("data", 2), ("tensor", 2)]).unwrap_err();
        assert_eq!(error.to_string(), "a mesh of data 2 × tensor 2 has 4 places for 1 ranks");
        assert!(matches!(mesh(&[("data", usize::MAX), ("tensor", 2)]), Err(MeshError::Size { places: 0, .. })));
        assert!(matches!(mesh(&[("data", 1), ("data", 1)]), Err(MeshError::Twice(name)) if name == "data"));
        let error = mesh(&[("data", 1)]).unwrap().group("tensor").unwrap_err();
        assert_eq!(error.to_string(), "the mesh has no dimension \"tensor\"; it has data");
        for size in [0, 2] {
            assert!(matches!(new_subgroups(&world, size, world.options()), Err(MeshError::Size { ranks: 1, .. })));
        }
    });
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
fn every_rank_can_gather_scatter_and_broadcast_values() {
    for world in 1..=4 {
        ranks(world, |group| {
            let mine = group.rank();
            let all: Vec<Sent> = (0..world).map(value_of).collect();
            assert_eq!(all_gather_object(&group, &value_of(mine.get())).unwrap(), all);
            for root in group.size().ranks() {
                let gathered = gather_object(&group, root, &value_of(mine.get())).unwrap();
                assert_eq!(gathered, (mine == root).then(|| all.clone()));
                let scattered = scatter_object(&group, root, (mine == root).then_some(all.as_slice())).unwrap();
                assert_eq!(scattered, value_of(mine.get()));
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
