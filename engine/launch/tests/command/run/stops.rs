//! Signals that ask the workers to save a snapshot or to end; with Python programs that use PyTorch and loader processes, too: the snapshot is
//! on disk, and the next start goes on with the same bits.

use std::process::Command;
use std::time::Duration;

use rand_mt::Mt64;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::nodes::AgentGroup;
use crate::run::site::Site;
use crate::run::torch::with_torch;
use crate::running::{Ended, Running};

/// Trains with DDP and two loader processes for each rank. At the steps in `hold-<step>`, which it removes, rank 0 waits until a signal
/// has arrived.
const TRAINS: &str = r#"
import os, signal, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from save_on_signal import SaveOnSignal, spare_loader
STEPS, BATCH, paced = int(os.environ.get("STEPS", 16)), 4, "STEPS" in os.environ

class Numbers(Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, at): return torch.randn(4, generator=torch.Generator().manual_seed(at))

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
saver = SaveOnSignal(sys.argv[1])
saved, first = saver.load(), 0
if saved:
    model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); first = saved["step"]
    print("goes on at", first, flush=True)
if rank == 0: print("begins at", first, flush=True)
order = [at for step in range(first, STEPS) for at in range((step * world + rank) * BATCH, (step * world + rank + 1) * BATCH)]
loader = DataLoader(Numbers(), BATCH, sampler=order, num_workers=2, worker_init_fn=spare_loader)
for step, batch in enumerate(loader, first):
    optimizer.zero_grad(); model(batch).pow(2).mean().backward(); optimizer.step()
    hold = f"hold-{step}"
    if rank == 0 and os.path.exists(hold):
        os.remove(hold)
        print("holds at", step, flush=True)
        while not saver.requests: time.sleep(0.01)
    saver.after_step(lambda: {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if paced and rank == 0: print(f"step {step}.", flush=True)
    if paced: time.sleep(0.01)
weights = [value.tolist() for value in model.state_dict().values()]
print("final", weights, flush=True)
os._exit(0)
"#;

struct Training<'a> {
    site: &'a Site,
    python: String,
}

impl Training<'_> {
    fn start(&self, flags: &[&str], checkpoint: &str) -> Running {
        Running::start(self.command(flags, checkpoint))
    }

    fn command(&self, flags: &[&str], checkpoint: &str) -> Command {
        let script = self.site.file("trains.py", TRAINS);
        let words = [&["--standalone", "--nproc-per-node=2"], flags, &[&script, checkpoint]].concat();
        let mut command = self.site.lockstep(&words);
        let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/python");
        command.env("PYTHON_EXEC", &self.python).env("PYTHONPATH", module);
        command
    }

    /// Runs until a step at which rank 0 waits for what `stop` does.
    fn stopped(&self, flags: &[&str], at: u32, stop: impl FnOnce(&Running)) -> Ended {
        self.site.file(&format!("hold-{at}"), "");
        let running = self.start(flags, "checkpoint");
        running.await_out(&format!("holds at {at}"), 1);
        stop(&running);
        running.ended()
    }
}

/// The weights that the ranks have printed.
#[track_caller]
fn weights(ended: &Ended) -> &str {
    let mut found = ended.out.lines().filter_map(|line| line.split_once("final ")).map(|(_, weights)| weights);
    let weights = found.next().unwrap_or_else(|| panic!("{ended}"));
    assert_eq!(found.collect::<Vec<_>>(), [weights], "{ended}");
    weights
}

#[test]
fn a_python_program_saves_at_every_stop_and_ends_with_the_same_bits() {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let training = Training { site: &site, python };
    let whole = training.start(&[], "none").ended().code(0);

    // As a scheduler does at the time limit, also to the loader processes.
    let all = |_: &Running| {
        for (pid, _) in site.processes() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM);
        }
    };
    let ended = training.stopped(&["--snapshot-on=SIGTERM"], 5, all).code(75);
    assert!(!ended.out.contains("goes on"), "{ended}");

    // SIGUSR1 saves, and the job goes on.
    let ended = training.stopped(&[], 8, |running| running.signal(Signal::USR1)).code(0);
    assert!(ended.out.contains("goes on at 6"), "{ended}");
    assert_eq!(weights(&ended), weights(&whole));
    site.assert_no_process();
    assert!(!site.path("checkpoint.partial").exists());
}

/// Steps of a job that is stopped at random moments.
const STEPS: u64 = 60;

/// A job of steps of some milliseconds that is stopped at random moments, and started again until it succeeds.
struct Stopped<'a> {
    training: &'a Training<'a>,
    checkpoint: String,
    dice: Mt64,
    /// Where the last start began.
    begun: u64,
    signals: usize,
    starts: usize,
    saved: usize,
}

impl Stopped<'_> {
    /// From 0 to `end` - 1.
    fn below(&mut self, end: u64) -> u64 {
        self.dice.next_u64() % end
    }

    /// Starts the job and sends it up to five signals; returns how it ended. Once it trains, a request is fulfilled.
    fn start(&mut self, calm: bool) -> Ended {
        let mut command = self.training.command(&["--snapshot-on=SIGTERM"], &self.checkpoint);
        command.env("STEPS", STEPS.to_string()).env("OMP_NUM_THREADS", "1");
        let running = Running::start(command);
        self.starts += 1;
        let (mut ends, mut trains) = (vec![], false);
        for _ in 0..if calm { 0 } else { 1 + self.below(5) } {
            if self.below(4) == 0 {
                std::thread::sleep(Duration::from_millis(self.below(300)));
            } else {
                let ahead = 2 + self.below(9);
                let seen = running.prints(|out| step(out).is_some_and(|at| at >= begin(out).unwrap_or(0) + ahead));
                trains |= seen && ends.is_empty();
            }
            let requests = [Signal::USR1, Signal::USR1, Signal::USR1, Signal::USR2, Signal::TERM, Signal::INT];
            let signal = requests[self.below(6) as usize];
            if signal != Signal::USR1 {
                ends.push(signal);
            }
            self.signals += 1;
            self.send(&running, signal);
        }
        let ended = running.ended();
        // A second signal that ends the job need not wait for a snapshot.
        let requested = trains && matches!(ends[..], [Signal::USR2 | Signal::TERM]);
        self.judge(&ended, requested);
        ended
    }

    /// To the launcher, or to all processes, as Slurm does.
    fn send(&mut self, running: &Running, signal: Signal) {
        if self.below(2) == 0 {
            return running.signal(signal);
        }
        for (pid, _) in self.training.site.processes() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
        }
    }

    fn judge(&mut self, ended: &Ended, requested: bool) {
        self.training.site.assert_no_process();
        let code = ended.status.code();
        assert!([Some(0), Some(1), Some(75)].contains(&code), "{ended}");
        assert!(!requested || code != Some(1), "a request while it trained was not fulfilled: {ended}");
        self.saved += usize::from(code == Some(75));
        if let Some(begun) = begin(&ended.out) {
            assert!(begun >= self.begun, "a snapshot is lost: it had begun at {} before\n{ended}", self.begun);
            self.begun = begun;
        }
        // What was asked for in the meantime is on disk.
        if let (Some(75), Some(done)) = (code, step(&ended.out)) {
            self.begun = self.begun.max(done);
        }
    }
}

/// The step at which the job began.
fn begin(out: &str) -> Option<u64> {
    number_after(out, "begins at ")
}

/// The last step that is done.
fn step(out: &str) -> Option<u64> {
    number_after(out, "step ")
}

fn number_after(out: &str, words: &str) -> Option<u64> {
    let (_, rest) = out.rsplit_once(words)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Stops jobs at random moments until at least this many signals were sent.
fn stop_python(seed: u64, signals: usize) {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let training = Training { site: &site, python };
    let job = |number: u64, checkpoint: &str| {
        let (training, dice) = (&training, Mt64::new(seed + number));
        Stopped { training, checkpoint: checkpoint.into(), dice, begun: 0, signals: 0, starts: 0, saved: 0 }
    };
    let whole = job(0, "none").start(true).code(0);
    let (mut jobs, [mut sent, mut starts, mut saved]) = (0, [0; 3]);
    while sent < signals {
        let mut job = job(jobs, &format!("checkpoint-{jobs}"));
        let mut ended = job.start(false);
        // A job that is stopped before it trains again and again would not end.
        while ended.status.code() != Some(0) {
            ended = job.start(job.starts >= 8);
            assert!(job.starts < 12, "seed {seed}, job {jobs}: {ended}");
        }
        assert_eq!(weights(&ended), weights(&whole), "seed {seed}, job {jobs}");
        (sent, starts, saved) = (sent + job.signals, starts + job.starts, saved + job.saved);
        jobs += 1;
        println!("seed {seed}: {sent} signals, {jobs} jobs, {starts} starts, {saved} of them ended after a snapshot");
    }
}

#[test]
#[ignore = "an hour; run with --run-ignored all (nextest) or --ignored; STOP_SEED and STOP_SIGNALS choose others"]
fn python_jobs_that_get_500_signals_at_random_moments_end_with_the_same_bits() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    stop_python(number("STOP_SEED", 2), number("STOP_SIGNALS", 500) as usize);
}

/// An emergency checkpoint that needs more batches, by a program that does not handle requests. It ends on SIGTERM and SIGINT.
const EMERGENCY: &str = r#"
import os, signal, time, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, at): return torch.tensor(at)

asked = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: asked.append(number))
batches = iter(DataLoader(Numbers(), 1, num_workers=2))
next(batches)
print("up", flush=True)
while True:
    while not asked: time.sleep(0.02)
    number = asked.pop()
    for _ in range(8): next(batches)
    torch.save(number, f"emergency-{number}")
    print("saved on", signal.Signals(number).name, flush=True)
    if number in (signal.SIGTERM, signal.SIGINT): os._exit(3)
"#;

#[test]
fn signals_spare_the_loader_processes_that_an_emergency_checkpoint_needs() {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let script = site.file("emergency.py", EMERGENCY);
    for [first, last] in [[Signal::USR1, Signal::TERM], [Signal::USR2, Signal::INT]] {
        let mut command: Command = site.lockstep(&["--standalone", "--stop-timeout=1000", &script]);
        command.env("PYTHON_EXEC", &python);
        let running = Running::start(command);
        running.await_out("up", 1);
        running.signal(first);
        running.await_out("saved on", 1);
        running.signal(last);
        running.ended().code(1);
        assert!(
            [first, last].iter().all(|one| site.path(&format!("emergency-{}", one.as_raw())).exists()),
            "{first:?}"
        );
        site.assert_no_process();
    }
}

/// A worker that handles SIGUSR1 and SIGUSR2, as our runtime does. The signals must spare its child.
const SAVES: &str = r#"
sleep 1000 & child=$!
trap 'kill -0 $child && echo saved by $RANK' USR1
trap 'kill -0 $child && echo saved by $RANK and ends; exit 75' USR2
echo up
while :; do wait $child; done
"#;

#[test]
fn sigusr1_reaches_workers_that_handle_it_and_spares_their_children_and_other_workers() {
    let site = Site::new();
    let worker = format!("if [ $RANK = 1 ]; then echo up; exec sleep 1000; fi; {SAVES}");
    let running = site.start(&["--standalone", "--nproc-per-node=2", "--prefix=never", "sh", "-c", &worker]);
    running.await_out("up", 2);
    running.signal(Signal::USR1);
    running.await_out("saved by 0", 1);
    running.signal(Signal::USR1);
    running.await_out("saved by 0", 2);
    running.signal(Signal::TERM);
    let words = "received SIGUSR1: passed it on to local rank 0; local rank 1 would be ended by it, having no handler";
    running.ended().code(1).says(&[words]);
    site.assert_no_process();
}

#[test]
fn workers_that_save_end_the_job_with_code_75_and_no_restart() {
    for (signal, flags) in [(Signal::USR2, vec![]), (Signal::TERM, vec!["--snapshot-on=SIGTERM"])] {
        let site = Site::new();
        let words = [&["--standalone", "--nproc-per-node=2", "--max-restarts=3"], &flags[..], &["sh", "-c", SAVES]];
        let running = site.start(&words.concat());
        running.await_out("up", 2);
        running.signal(signal);
        let texts = ["asking the workers to save a snapshot and to end", "start the job again to go on (exit code 75)"];
        let ended = running.ended().code(75).says(&texts);
        assert_eq!(ended.out.matches("and ends").count(), 2, "{}", ended.out);
        site.assert_no_process();
    }
}

#[test]
fn workers_that_cannot_save_are_stopped_by_sigterm() {
    for (signal, flags) in [(Signal::USR2, vec![]), (Signal::TERM, vec!["--snapshot-on=SIGTERM"])] {
        let site = Site::new();
        let cannot = "trap 'echo stopped by SIGTERM; exit 1' TERM; echo up; while :; do sleep 0.1; done";
        let running = site.start(&[&["--standalone"], &flags[..], &["sh", "-c", cannot]].concat());
        running.await_out("up", 1);
        running.signal(signal);
        let ended = running.ended().code(1).says(&["stopping the workers, since not all can save a snapshot"]);
        assert!(ended.out.contains("stopped by SIGTERM"), "{}", ended.out);
        site.assert_no_process();
    }
}

#[test]
fn a_second_signal_does_not_wait_for_a_snapshot() {
    let site = Site::new();
    let never = "trap : USR2; echo up; while :; do sleep 0.1; done";
    let running = site.start(&["--standalone", "--snapshot-on=SIGTERM", "sh", "-c", never]);
    running.await_out("up", 1);
    running.signal(Signal::TERM);
    running.await_err("asking the workers");
    // What comes within two seconds is the first signal, sent again by a scheduler.
    site.until("the second signal is handled", || {
        running.signal(Signal::TERM);
        running.err.now().contains("received SIGTERM: stopping the workers")
    });
    running.ended().code(1).says(&["ended by SIGTERM"]);
    site.assert_no_process();
}

#[test]
fn the_end_of_the_jobs_time_is_seen_coming() {
    let site = Site::new();
    let words = ["--standalone", "--nproc-per-node=2", "--time-limit=100000", "--save-before-limit=99999.9"];
    let mut command = site.lockstep(&[&words[..], &["sh", "-c", SAVES]].concat());
    command.env("LOCKSTEP_EVENTS", site.path("events"));
    let ended = Running::start(command).ended().code(75);
    ended.says(&[" s (--time-limit): asking the workers to save a snapshot and to end"]);
    assert!(events(&site).contains(r#""event":"time_limit""#), "{}", events(&site));
    site.assert_no_process();
}

/// The lines of all agents.
fn events(site: &Site) -> String {
    let files = std::fs::read_dir(site.path("events")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn a_job_that_the_scheduler_starts_again_says_why() {
    let site = Site::new();
    let [port, address] = site.master();
    let start = |restarts: &str, words: &[&str]| {
        let mut command = site.lockstep(&[&[&*port, &*address], words].concat());
        command.env("LOCKSTEP_EVENTS", site.path("events")).env("SLURM_JOB_ID", "17");
        command.env("SLURM_RESTART_COUNT", restarts);
        Running::start(command)
    };
    let first = start("0", &["sh", "-c", SAVES]);
    first.await_out("up", 1);
    first.signal(Signal::USR2);
    first.ended().code(75).never_says(&["start 1"]);
    start("1", &["true"])
        .ended()
        .code(0)
        .says(&["start 2 of Slurm job 17: the former start saved a snapshot and ended on SIGUSR2"]);
    assert!(events(&site).contains(r#""event":"requeued","count":1,"#), "{}", events(&site));
}

#[test]
fn a_node_whose_workers_save_because_of_a_signal_to_another_ends_with_code_75_too() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let worker = "if [ $GROUP_RANK = 0 ]; then trap 'touch asked; exit 75' USR2; fi; echo up; until [ -e asked ]; do sleep 0.1; done; exit 75";
    let words = ["--nnodes=2", "--max-restarts=3", "sh", "-c", worker];
    let nodes = [0, 1].map(|n| Running::start(job.fixed(n, &words)));
    nodes.iter().for_each(|node| node.await_out("up", 1));
    nodes[0].signal(Signal::USR2);
    let [_, second] = nodes.map(|node| node.ended().code(75).says(&["the workers saved a snapshot and ended"]));
    assert!(!second.err.contains("received") && !second.err.contains("restart"), "{}", second.err);
    site.assert_no_process();
}
