//! The protocol between the benchmark programs and `scripts/bench/against_python.py`: the driver sends a number of steps, the
//! program answers with a line of JSON. Leaves out the steps themselves.
#![allow(dead_code, unreachable_pub)] // each program uses its part

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::Context;
use serde_json::json;
use tch::Tensor;

/// The seconds of each step, and the loss of the last one, which is read after the clock has stopped.
pub fn time(mut step: impl FnMut() -> anyhow::Result<Tensor>, steps: usize) -> anyhow::Result<String> {
    let (mut seconds, mut loss) = (Vec::with_capacity(steps), None);
    for _ in 0..steps {
        let begun = Instant::now();
        loss = Some(step()?);
        seconds.push(begun.elapsed().as_secs_f64());
    }
    Ok(json!({"seconds": seconds, "loss": loss.map(|loss| loss.double_value(&[]))}).to_string())
}

/// Where the number of steps comes from and the times go.
pub enum Orders {
    Driver(BufReader<TcpStream>),
    Once(usize),
}

impl Orders {
    /// A driver that listens on a loopback port, or without one the number of steps from the command line.
    pub fn open(driver: Option<u16>, steps: usize) -> anyhow::Result<Self> {
        let Some(port) = driver else { return Ok(Orders::Once(steps)) };
        let stream = TcpStream::connect(("127.0.0.1", port)).context("connect to the driver")?;
        Ok(Orders::Driver(BufReader::new(stream)))
    }

    /// How many steps to take next; 0 means stop.
    pub fn next(&mut self) -> anyhow::Result<usize> {
        match self {
            Orders::Once(steps) => Ok(std::mem::take(steps)),
            Orders::Driver(stream) => {
                let mut line = String::new();
                stream.read_line(&mut line)?;
                // The driver may have exited.
                if line.is_empty() { Ok(0) } else { line.trim().parse().context("read the driver's number of steps") }
            }
        }
    }

    pub fn answer(&mut self, line: &str) -> anyhow::Result<()> {
        match self {
            Orders::Once(_) => println!("{line}"),
            Orders::Driver(stream) => writeln!(stream.get_mut(), "{line}")?,
        }
        Ok(())
    }
}
