//! Ranks as threads of the test's own process, over real Gloo connections on loopback or real shared memory.
#![allow(unreachable_pub)]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use c10d::{Backend, Endpoint, GroupOptions, ProcessGroup, Rank, Store, WorldSize};
use tch::Tensor;

/// Runs `body` once per rank, over Gloo, and returns the results in rank order.
pub fn ranks<T: Send>(world: usize, body: impl Fn(Rc<ProcessGroup>) -> T + Send + Sync) -> Vec<T> {
    ranks_on(Backend::Gloo, world, body)
}

/// With two levels, ranks with even numbers are on one host, and the others on another.
pub fn ranks_on<T: Send>(backend: Backend, world: usize, body: impl Fn(Rc<ProcessGroup>) -> T + Send + Sync) -> Vec<T> {
    let store = Arc::new(Store::hash().unwrap());
    let world = WorldSize::new(world).unwrap();
    let options = |rank: Rank| GroupOptions {
        timeout: Duration::from_secs(600),
        endpoint: Endpoint::Interface("lo".into()),
        simulated_host: (backend == Backend::TwoLevels).then(|| (rank.get() % 2).to_string()),
        ..GroupOptions::default()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = world
            .ranks()
            .map(|rank| {
                let (store, body, options) = (Arc::clone(&store), &body, &options);
                scope.spawn(move || {
                    body(Rc::new(ProcessGroup::new(backend, &store, rank, world, &options(rank)).unwrap()))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// Four ranks as a grid: this rank's groups along the first dimension (0 with 2, 1 with 3) and the second (0 with 1, 2 with 3).
pub fn grid(world: &ProcessGroup) -> [Rc<ProcessGroup>; 2] {
    [[[0, 2], [1, 3]], [[0, 1], [2, 3]]].map(|lines| {
        let own = lines.map(|line| world.new_group(&line.map(Rank::new), world.options()).unwrap());
        Rc::new(own.into_iter().flatten().next().expect("every rank is on one line"))
    })
}

/// The formula of `golden/ddp.py`: numbers in [-1, 1] in steps of 1/1000, times `scale`, rounded to f32.
pub fn formula(count: usize, salt: i64, scale: f64) -> Vec<f32> {
    (0..count as i64).map(|i| (((i * 7919 + salt * 104_729) % 2001 - 1000) as f64 / 1000.0 * scale) as f32).collect()
}

/// [`formula`] in double precision, as a tensor.
pub fn formula_double(shape: &[i64], salt: i64, scale: f64) -> Tensor {
    let number = |i| ((i * 7919 + salt * 104_729) % 2001 - 1000) as f64 / 1000.0 * scale;
    Tensor::from_slice(&(0..shape.iter().product()).map(number).collect::<Vec<_>>()).reshape(shape)
}

pub fn formula_tensor(shape: &[i64], salt: i64, scale: f64) -> Tensor {
    let count = shape.iter().product::<i64>() as usize;
    Tensor::from_slice(&formula(count, salt, scale)).reshape(shape)
}

/// The numbers of a tensor, widened to f64, which keeps different f32 values different.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    lockstep::results::numbers(tensor).unwrap()
}

/// The bits of a tensor, for comparisons that allow no tolerance.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = Vec::try_from(tensor.detach().flatten(0, -1)).unwrap();
    values.into_iter().map(f32::to_bits).collect()
}
