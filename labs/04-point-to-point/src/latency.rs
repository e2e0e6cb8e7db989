//! The cost of a message by its size: half a round trip between ranks 0 and 1, as a table, an α–β model and a plot.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank};
use lockstep::measure::{Point, Repeats, Series, bare, plot, time};
use tch::{Kind, Tensor};

use crate::Lab;

pub(crate) fn run(lab: &mut Lab) -> Result<()> {
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
