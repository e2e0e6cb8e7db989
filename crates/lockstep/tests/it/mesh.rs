//! Grids of ranks: who is in which group, and meshes that cannot be.

use crate::common::ranks;
use c10d::{ProcessGroup, ReduceOp};
use lockstep::{DeviceMesh, MeshError, new_subgroups};
use tch::{Kind, Tensor};

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
