//! All-reduce of float32 for several sizes, compared with the same bytes over plain TCP and with an addition in memory.
//!
//! The TCP peer is a star: every rank sends its bytes to rank 0 and receives as many, without a sum. With 2 ranks, that is
//! the traffic of an all-reduce, one direction after the other. The memory peer adds the tensor to another one in place: the
//! cost of a reduction without communication.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::rc::Rc;

use c10d::{ProcessGroup, ReduceOp};
use criterion::{Criterion, Throughput};
use support::process_set::{ProcessSet, Tasks};
use support::{Result, rounds};
use tch::{Kind, Tensor, no_grad};

/// Sizes in bytes and their names.
const SIZES: [(usize, &str); 7] = [
    (4, "4 B"),
    (1 << 10, "1 KiB"),
    (16 << 10, "16 KiB"),
    (256 << 10, "256 KiB"),
    (1 << 20, "1 MiB"),
    (4 << 20, "4 MiB"),
    (16 << 20, "16 MiB"),
];
/// The number of measurements for each size. The number of a task is its size's index times 3 plus the side.
const SIDES: usize = 3;
const PEERS: [&str; SIDES - 1] = ["plain TCP", "adding in memory"];

fn main() -> ExitCode {
    support::process_set::main::<Sizes>(|| {
        let mut criterion = Criterion::default().configure_from_args();
        for world in [2, 4] {
            bench(&mut criterion, world)?;
        }
        criterion.final_summary();
        Ok(())
    })
}

fn bench(criterion: &mut Criterion, world: usize) -> Result<()> {
    rounds::print_machine(world, "rank");
    let mut processes: ProcessSet<Sizes> = ProcessSet::start(world)?;
    let mut group = criterion.benchmark_group(format!("all_reduce/{world} ranks"));
    rounds::configure(&mut group);
    for (number, (bytes, name)) in SIZES.iter().enumerate() {
        group.throughput(Throughput::Bytes(*bytes as u64));
        rounds::bench(&mut group, name, &PEERS, |side, iterations| {
            processes.time(number * SIDES + side, iterations).expect("all ranks are there")
        });
    }
    group.finish();
    processes.end()
}

/// The tensors and connections of one rank.
struct Sizes {
    group: Rc<ProcessGroup>,
    /// Zeros, so that sums do not grow; one per size.
    tensors: Vec<Tensor>,
    others: Vec<Tensor>,
    bytes: Vec<u8>,
    /// On rank 0 a connection to every other rank; on the others, one to rank 0.
    wires: Vec<TcpStream>,
}

impl Tasks for Sizes {
    fn new(group: Rc<ProcessGroup>) -> Result<Self> {
        let zeros = || SIZES.map(|(bytes, _)| Tensor::zeros([bytes as i64 / 4], (Kind::Float, tch::Device::Cpu)));
        let largest = SIZES.map(|(bytes, _)| bytes).into_iter().max().unwrap_or(0);
        let wires = connect(&group)?;
        Ok(Sizes { group, tensors: zeros().into(), others: zeros().into(), bytes: vec![0; largest], wires })
    }

    fn run(&mut self, task: usize, iterations: u64) -> Result<()> {
        let (number, side) = (task / SIDES, task % SIDES);
        for _ in 0..iterations {
            match side {
                0 => self.group.all_reduce(&mut self.tensors[number], ReduceOp::Sum)?,
                1 => self.there_and_back(SIZES[number].0)?,
                _ => drop(no_grad(|| self.tensors[number].g_add_(&self.others[number]))),
            }
        }
        Ok(())
    }
}

impl Sizes {
    fn there_and_back(&mut self, bytes: usize) -> Result<()> {
        let buffer = &mut self.bytes[..bytes];
        if self.group.rank().is_zero() {
            self.wires.iter_mut().try_for_each(|wire| wire.read_exact(buffer))?;
            self.wires.iter_mut().try_for_each(|wire| wire.write_all(buffer))?;
        } else {
            self.wires.iter_mut().try_for_each(|wire| wire.write_all(buffer))?;
            self.wires.iter_mut().try_for_each(|wire| wire.read_exact(buffer))?;
        }
        Ok(())
    }
}

/// Connects the star: rank 0 listens on a free port and publishes it through the store.
fn connect(group: &ProcessGroup) -> Result<Vec<TcpStream>> {
    const KEY: &str = "bench/port";
    let wires = if group.rank().is_zero() {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        group.store().set(KEY, listener.local_addr()?.port().to_string())?;
        (1..group.size().get()).map(|_| Ok(listener.accept()?.0)).collect::<Result<Vec<_>>>()?
    } else {
        let port: u16 = String::from_utf8(group.store().get(KEY)?)?.parse()?;
        vec![TcpStream::connect(("127.0.0.1", port))?]
    };
    wires.iter().try_for_each(|wire| wire.set_nodelay(true))?;
    Ok(wires)
}
