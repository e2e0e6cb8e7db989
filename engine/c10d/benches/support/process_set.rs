//! Ranks as processes, for criterion: rank 0 is the bench itself and decides what runs next; the others follow.
//!
//! Criterion decides at run time how often it runs something, and its command line may skip benches. So before each
//! measurement rank 0 broadcasts an order (which task, how many iterations), and all ranks execute it. Not here: the
//! tasks, and the interpretation of their times (see `rounds`).

use std::env;
use std::process::{Child, Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use c10d::{Endpoint, GroupOptions, ProcessGroup, Rank, Store, TcpStoreOptions, WorldSize};
use lockstep_process::KillOnDrop;
use tch::Tensor;

use super::Result;

/// `rank/world/port of the store`, only in a follower's environment.
const PLACE: &str = "LOCKSTEP_BENCH_PLACE";

/// The order that ends a follower; tasks count from 0.
const END: i64 = -1;

/// The tasks that the ranks can run. Every rank creates its own, with the same tasks in the same order.
pub trait Tasks: Sized {
    /// Sets up everything that the tasks need. All ranks have joined the group.
    fn new(group: Rc<ProcessGroup>) -> Result<Self>;

    /// Runs task number `task` `iterations` times.
    fn run(&mut self, task: usize, iterations: u64) -> Result<()>;
}

/// The main function of a bench: runs `lead` in the process that the user started, and executes orders in a follower.
pub fn main<T: Tasks>(lead: impl FnOnce() -> Result<()>) -> ExitCode {
    tch::set_num_threads(1);
    let result = match env::var(PLACE) {
        Ok(place) => follow::<T>(&place),
        Err(_) => lead(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Rank 0 with the processes that follow it. They end with it.
pub struct ProcessSet<T> {
    group: Rc<ProcessGroup>,
    tasks: T,
    followers: Vec<KillOnDrop>,
    _store: Store,
}

impl<T: Tasks> ProcessSet<T> {
    /// Starts ranks 1 to `world` - 1 from this executable, with this process's arguments and one thread each.
    pub fn start(world: usize) -> Result<Self> {
        let options = TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() };
        let store = Store::tcp("127.0.0.1", 0, &options)?;
        let port = store.port().ok_or("a store that hosts has a port")?;
        let mut followers = Vec::new();
        for rank in 1..world {
            followers.push(KillOnDrop(follower(&format!("{rank}/{world}/{port}"))?));
        }
        let group = join(&store, 0, world)?;
        let tasks = T::new(Rc::clone(&group))?;
        Ok(ProcessSet { group, tasks, followers, _store: store })
    }

    /// Measures the time of `iterations` of a task on rank 0 while all other ranks run the same.
    pub fn time(&mut self, task: usize, iterations: u64) -> Result<Duration> {
        broadcast(&self.group, [i64::try_from(task)?, i64::try_from(iterations)?])?;
        self.group.barrier()?;
        let begun = Instant::now();
        self.tasks.run(task, iterations)?;
        Ok(begun.elapsed())
    }

    /// Ends the followers and waits for them.
    pub fn end(mut self) -> Result<()> {
        broadcast(&self.group, [END, 0])?;
        self.followers.drain(..).try_for_each(|mut follower| match follower.0.wait()? {
            status if status.success() => Ok(()),
            status => Err(format!("a follower ended with {status}").into()),
        })
    }
}

fn follower(place: &str) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1)).env(PLACE, place).env("OMP_NUM_THREADS", "1").stdin(Stdio::null());
    Ok(command.spawn()?)
}

/// Executes orders until the end; fails when rank 0 is gone.
fn follow<T: Tasks>(place: &str) -> Result<()> {
    let numbers: Vec<usize> = place.split('/').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let [rank, world, port] = numbers[..] else { return Err(format!("{PLACE} is {place:?}").into()) };
    let store = Store::tcp("127.0.0.1", u16::try_from(port)?, &TcpStoreOptions::default())?;
    let group = join(&store, rank, world)?;
    let mut tasks = T::new(Rc::clone(&group))?;
    loop {
        let [task, iterations] = broadcast(&group, [0; 2])?;
        let Ok(task) = usize::try_from(task) else { return Ok(()) };
        group.barrier()?;
        tasks.run(task, u64::try_from(iterations)?)?;
    }
}

fn join(store: &Store, rank: usize, world: usize) -> Result<Rc<ProcessGroup>> {
    let world = WorldSize::new(world).ok_or("a world of no ranks")?;
    let endpoint = Endpoint::Host("127.0.0.1".into());
    let options = GroupOptions { endpoint, compare_calls: Some(false), ..GroupOptions::default() };
    Ok(Rc::new(ProcessGroup::gloo(store, Rank::new(rank), world, &options)?))
}

fn broadcast(group: &ProcessGroup, order: [i64; 2]) -> Result<[i64; 2]> {
    let mut tensor = Tensor::from_slice(&order);
    group.broadcast(&mut tensor, Rank::ZERO)?;
    Ok([tensor.int64_value(&[0]), tensor.int64_value(&[1])])
}
