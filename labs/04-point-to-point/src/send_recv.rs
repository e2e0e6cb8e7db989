//! Blocking messages: `send` and `recv`.

use anyhow::Result;
use c10d::Rank;
use tch::{Kind, Tensor};

use crate::Lab;

// ANCHOR: send_recv
pub(crate) fn run(lab: &mut Lab) -> Result<()> {
    let (group, to) = (&lab.group, lab.args.to);
    let mut tensor = Tensor::zeros([1], (Kind::Float, group.device()));
    if group.rank().is_zero() {
        tensor += 1.0;
        group.send(&tensor, to, 0)?;
    } else if group.rank() == to {
        group.recv(&mut tensor, Rank::ZERO, 0)?;
    }
    lab.report.say(format!("send-recv: has data {}", tensor.double_value(&[0])));
    lab.results.note_tensor("send-recv", &tensor)
}
// ANCHOR_END: send_recv
