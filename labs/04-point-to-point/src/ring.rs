//! A ring: a token starts at rank 0 and visits all ranks. Each rank adds its number.

use anyhow::Result;
use c10d::{Rank, WorldSize};
use tch::{Kind, Tensor};

use crate::Lab;

pub(crate) fn run(lab: &mut Lab) -> Result<()> {
    let group = &lab.group;
    let (me, next, last) = (group.rank(), next(group.rank(), group.size()), last(group.rank(), group.size()));
    // ANCHOR: ring
    // The sum of the ranks that the token has visited, and their count.
    let mut token = Tensor::zeros([2], (Kind::Float, group.device()));
    if !me.is_zero() {
        group.recv(&mut token, last, 0)?;
    }
    token += Tensor::from_slice(&[me.get() as f32, 1.0]).to_device(group.device());
    lab.report.say(format!("ring: {} after {} visits, on to rank {next}", number(&token, 0), number(&token, 1)));
    group.send(&token, next, 0)?;
    if me.is_zero() {
        group.recv(&mut token, last, 0)?;
        lab.report.say(format!(
            "ring: the token is back with {} after {} visits",
            number(&token, 0),
            number(&token, 1)
        ));
    }
    // ANCHOR_END: ring
    lab.results.note_tensor("ring", &token)
}

/// The rank after `rank`.
pub(crate) fn next(rank: Rank, size: WorldSize) -> Rank {
    Rank::new((rank.get() + 1) % size.get())
}

/// The rank before `rank`.
pub(crate) fn last(rank: Rank, size: WorldSize) -> Rank {
    Rank::new((rank.get() + size.get() - 1) % size.get())
}

fn number(tensor: &Tensor, place: i64) -> f64 {
    tensor.double_value(&[place])
}
