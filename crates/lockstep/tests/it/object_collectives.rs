//! Values of any type between ranks.

use c10d::Rank;
use lockstep::{ObjectError, all_gather_object, broadcast_object_from, gather_object, scatter_object};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::common::ranks;

/// Its text has another length on each rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Found {
    name: String,
    rank: usize,
    files: Vec<Option<u64>>,
}

fn found(rank: usize) -> Found {
    Found { name: "ä".repeat(7 * rank), rank, files: [None, Some(u64::MAX)].repeat(rank + 1) }
}

#[test]
fn every_rank_can_gather_scatter_and_broadcast_values() {
    for world in 1..=4 {
        ranks(world, |group| {
            let mine = group.rank();
            let all: Vec<Found> = (0..world).map(found).collect();
            assert_eq!(all_gather_object(&group, &found(mine.get())).unwrap(), all);
            for root in group.size().ranks() {
                let gathered = gather_object(&group, root, &found(mine.get())).unwrap();
                assert_eq!(gathered, (mine == root).then(|| all.clone()));
                let scattered = scatter_object(&group, root, (mine == root).then_some(all.as_slice())).unwrap();
                assert_eq!(scattered, found(mine.get()));
                let sent = (mine == root).then(|| found(9));
                assert_eq!(broadcast_object_from(&group, root, sent.as_ref()).unwrap(), found(9));
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
                Some(broadcast_object_from::<Found>(&group, Rank::ZERO, None).unwrap_err())
            }
        });
        answers.into_iter().flatten().next().unwrap()
    };
    assert!(matches!(with(i64::MAX, b""), ObjectError::Length(i64::MAX)));
    assert!(matches!(with(-1, b""), ObjectError::Length(-1)));
    assert!(matches!(with(9, b"{\"name\": "), ObjectError::Garbled(_)));
    assert!(matches!(with(4, &[0xFF, 0, 1, 2]), ObjectError::Garbled(_)));
}
