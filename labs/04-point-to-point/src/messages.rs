//! Messages between ranks: blocking, in progress, around a ring, and what one costs.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, Work, WorldSize};
use lockstep::measure::{Point, Repeats, Series, bare, plot, time};
use tch::{Kind, Tensor};

use crate::Lab;

// ANCHOR: send_recv
/// Blocking messages: `send` and `recv`.
pub(crate) fn send_recv(lab: &mut Lab) -> Result<()> {
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

/// Messages in progress: `isend` and `irecv`, and what is known before `wait`.
pub(crate) fn isend_irecv(lab: &mut Lab) -> Result<()> {
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

/// A token starts at rank 0 and visits all ranks. Each rank adds its number.
pub(crate) fn ring(lab: &mut Lab) -> Result<()> {
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

/// Half a round trip between ranks 0 and 1 by the size of the message, as a table, an α–β model and a plot.
pub(crate) fn latency(lab: &mut Lab) -> Result<()> {
    // ANCHOR: sweep
    let group = bare(&lab.group)?;
    let mut series = Series::new("send and recv");
    for bytes in lab.sizes.iter() {
        let mut message = Tensor::f_zeros([bytes as i64 / 4], (Kind::Float, group.device()))
            .with_context(|| format!("cannot make a message of {bytes} bytes"))?;
        let round_trip = time(&group, &Repeats::for_bytes(bytes), || ping_pong(&group, &mut message))?;
        series.push(bytes, round_trip.scaled(0.5));
    }
    // ANCHOR_END: sweep
    lab.results.note("latency", series.points.iter().map(row).collect::<Vec<_>>())?;
    if lab.group.rank().is_zero() {
        lab.report.println(format!("{}\n{}", series.table(), series.fit_line()));
        let title = "a message between ranks 0 and 1: half a round trip";
        lab.args.plot.as_ref().map_or(Ok(()), |path| plot::save(path, title, &[series]))?;
    }
    Ok(())
}

// ANCHOR: ping_pong
fn ping_pong(group: &ProcessGroup, message: &mut Tensor) -> Result<()> {
    match group.rank().get() {
        0 => {
            group.send(message, Rank::new(1), 0)?;
            group.recv(message, Rank::new(1), 0)?;
        }
        1 => {
            group.recv(message, Rank::ZERO, 0)?;
            group.send(message, Rank::ZERO, 0)?;
        }
        _ => {}
    }
    Ok(())
}
// ANCHOR_END: ping_pong

fn row(point: &Point) -> [f64; 4] {
    [point.bytes as f64, point.time.median, point.time.p10, point.time.p90]
}
