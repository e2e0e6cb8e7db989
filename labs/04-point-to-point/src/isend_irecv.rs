//! Messages in progress: `isend` and `irecv`, and what is known before `wait`.

use anyhow::Result;
use c10d::{Rank, Work};
use tch::{Kind, Tensor};

use crate::Lab;

pub(crate) fn run(lab: &mut Lab) -> Result<()> {
    let (me, to) = (lab.group.rank(), lab.args.to);
    let tensor = Tensor::zeros([1], (Kind::Float, lab.group.device()));
    // ANCHOR: isend_irecv
    let tensor = if me.is_zero() {
        let work = lab.group.isend(tensor + 1.0, to, 0)?;
        meanwhile(lab, work, "sending")?
    } else if me == to {
        let work = lab.group.irecv(tensor, Rank::ZERO, 0)?;
        meanwhile(lab, work, "receiving")?
    } else {
        tensor
    };
    // ANCHOR_END: isend_irecv
    lab.report.say(format!("isend-irecv: has data {}", tensor.double_value(&[0])));
    lab.results.note_tensor("isend-irecv", &tensor)
}

/// Does something else while the message is in progress. `work` owns the tensor, so no code can read it before `wait`.
// ANCHOR: meanwhile
fn meanwhile(lab: &Lab, work: Work<Tensor>, what: &str) -> Result<Tensor> {
    let own = Tensor::arange(1001, (Kind::Int64, lab.group.device())).sum(Kind::Int64).int64_value(&[]);
    let known = work.is_completed();
    lab.report
        .say(format!("isend-irecv: started {what}, added 1 to 1000 meanwhile ({own}); is_completed says {known}"));
    Ok(work.wait()?)
}
// ANCHOR_END: meanwhile
