//! Labs 02 and 06 without libtorch: they write the same files as the real ones, correct or with the one lie that `FAKE_LAB` names. The second is
//! one rank that a launcher started: it trains a number, saves it, resumes from it, and injects the faults that are requested.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use lockstep_contract::events::{Event, EventSink, FOLDER};
use lockstep_contract::fault::{Act, Armed, Point, SavePhase};
use rustix::process::{Signal, getpid, kill_process};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use signal_hook::consts::SIGCONT;
use signal_hook::iterator::Signals;

/// The variable that names the lie.
pub(crate) const LIE: &str = "FAKE_LAB";

struct Run {
    lie: String,
    ranks: u64,
    batch: usize,
    epochs: u64,
    samples: u64,
    weights: PathBuf,
}

/// The command line of a lab: each option has a value.
pub(crate) fn options() -> HashMap<String, String> {
    let args: Vec<String> = env::args().skip(1).collect();
    let options: HashMap<_, _> = args.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    if let Some(data) = options.get("--data") {
        assert!(Path::new(data).is_absolute() && Path::new(data).is_dir(), "got --data {data}");
    }
    options
}

pub(crate) fn be_spawn() -> ExitCode {
    let options = options();
    let number = |name: &str| options[name].parse::<u64>().unwrap();
    let run = Run {
        lie: env::var(LIE).unwrap_or_default(),
        ranks: number("--nprocs"),
        batch: number("--batch-size") as usize,
        epochs: number("--epochs"),
        samples: number("--samples"),
        weights: (&options["--weights"]).into(),
    };
    run.start()
}

impl Run {
    fn start(&self) -> ExitCode {
        match &*self.lie {
            "fails" => {
                eprintln!("error: rank 1 panicked");
                return ExitCode::from(3);
            }
            _ => (0..self.ranks).for_each(|rank| self.rank(rank)),
        }
        ExitCode::SUCCESS
    }

    fn is(&self, lie: &str, rank: u64) -> bool {
        self.lie == lie && rank + 1 == self.ranks && self.ranks > 1
    }

    fn rank(&self, rank: u64) {
        println!("[rank {rank}] trains");
        if !self.is("no events", rank) {
            self.events(rank);
        }
        if !self.is("no weights", rank) {
            self.save(rank);
        }
    }

    fn events(&self, rank: u64) {
        let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
        let sink = EventSink::open(&folder, rank as usize, 0).unwrap();
        sink.emit(&Event::Start { world_size: self.ranks as usize, device: "cpu".into(), pid: 1 });
        (0..self.epochs).for_each(|epoch| self.epoch(rank, epoch, &sink));
        if self.is("torn", rank) {
            let path = folder.join(format!("rank-{rank}.jsonl"));
            OpenOptions::new().append(true).open(path).unwrap().write_all(br#"{"t":1.0,"ra"#).unwrap();
        }
    }

    fn epoch(&self, rank: u64, epoch: u64, sink: &EventSink) {
        let mut indices = self.share(rank);
        if self.is("twice", rank) {
            indices[0] = indices[1];
        }
        let steps = indices.len().div_ceil(self.batch) as u64;
        sink.emit(&Event::Epoch { epoch, steps, batch_size: self.batch });
        sink.emit(&Event::Samples { epoch, indices: indices.clone() });
        for (step, batch) in (0..).zip(indices.chunks(self.batch)) {
            let loss = if self.is("nan", rank) && step == 0 { f64::NAN } else { self.loss(epoch) };
            sink.emit(&Event::Step { epoch, step, loss, samples: batch.len() as u64, lr: None });
        }
        sink.emit(&Event::Eval { epoch, accuracy: 0.75, loss: 0.5, samples: self.samples.div_ceil(4) });
    }

    fn loss(&self, epoch: u64) -> f64 {
        let apart = if self.lie == "apart" && self.ranks == 1 { 1.01 } else { 1.0 };
        apart / (epoch + 1) as f64
    }

    /// The indices of PyTorch's sampler for this rank without shuffling.
    fn share(&self, rank: u64) -> Vec<u64> {
        (0..self.samples.div_ceil(self.ranks)).map(|place| (place * self.ranks + rank) % self.samples).collect()
    }

    fn save(&self, rank: u64) {
        let mut bytes = [0.5_f32, -0.25].map(f32::to_le_bytes).concat();
        bytes[0] ^= u8::from(self.is("bit", rank));
        let tensor = TensorView::new(Dtype::F32, vec![2], &bytes).unwrap();
        let file = safetensors::serialize([("weight", tensor)], None).unwrap();
        fs::create_dir_all(&self.weights).unwrap();
        fs::write(self.weights.join(format!("rank-{rank}.safetensors")), file).unwrap();
    }
}

/// Longer than any test waits; it only keeps processes of failed tests from running forever.
const HANG: Duration = Duration::from_secs(600);

struct Rank {
    lie: String,
    rank: usize,
    restart: u32,
    world_size: usize,
    epochs: u64,
    steps: u64,
    save_every: u64,
    samples: u64,
    batch: usize,
    snapshots: PathBuf,
    weights: PathBuf,
    faults: Armed,
    events: EventSink,
}

pub(crate) fn be_resume() -> ExitCode {
    let options = options();
    let number = |name: &str| options[name].parse::<u64>().unwrap();
    let variable = |name: &str| env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, restart, world_size) =
        (variable("RANK"), variable("TORCHELASTIC_RESTART_COUNT") as u32, variable("WORLD_SIZE"));
    let (samples, batch) = (number("--samples"), number("--batch-size"));
    Rank {
        lie: env::var(LIE).unwrap_or_default(),
        rank,
        restart,
        world_size,
        epochs: number("--epochs"),
        steps: samples.div_ceil(world_size as u64).div_ceil(batch),
        save_every: options.get("--save-every-steps").map_or(u64::MAX, |every| every.parse().unwrap()),
        samples,
        batch: batch as usize,
        snapshots: (&options["--snapshots"]).into(),
        weights: (&options["--weights"]).into(),
        faults: Armed::from_env(rank).unwrap(),
        events: EventSink::from_env(rank, restart),
    }
    .run()
}

impl Rank {
    fn run(&self) -> ExitCode {
        println!("[rank {}] up", self.rank);
        match &*self.lie {
            "fails" => {
                eprintln!("error: no digits");
                return ExitCode::from(3);
            }
            "hangs" => thread::sleep(HANG),
            _ => {}
        }
        self.events.emit(&Event::Start { world_size: self.world_size, device: "cpu".into(), pid: std::process::id() });
        let is_struck = self.rank == 1 && self.restart == 0 && self.is_struck_at_a_line();
        // Before any rank can print the line.
        let mut continued = is_struck.then(|| Signals::new([SIGCONT]).unwrap());
        let (mut at, mut state) = self.resume();
        while at < self.epochs * self.steps {
            let (epoch, step) = (at / self.steps, at % self.steps);
            if step == 0 || self.restart > 0 && state == 0 {
                self.begin(epoch);
                if let Some(continued) = continued.as_mut().filter(|_| epoch == 1) {
                    // Until it is killed, or stopped and continued: on a busy machine the run would end before.
                    continued.forever().next();
                }
            }
            state = train(state, at);
            self.events.emit(&Event::Step {
                epoch,
                step,
                loss: 1.0 / (epoch + 1) as f64,
                samples: self.batch as u64,
                lr: None,
            });
            self.strike(&Point::Step { epoch, step });
            thread::sleep(Duration::from_millis(10));
            at += 1;
            self.meet(at);
            if at.is_multiple_of(self.steps) {
                self.events.emit(&Event::Eval { epoch, accuracy: 0.75, loss: 0.5, samples: self.samples.div_ceil(4) });
            }
            if at.is_multiple_of(self.steps) || (at % self.steps).is_multiple_of(self.save_every) {
                self.save(at, state);
            }
        }
        self.end(state)
    }

    /// Waits until all ranks of this attempt have done this many steps, like a collective.
    fn meet(&self, at: u64) {
        let path = |rank: usize| self.snapshots.join(format!("done-{}-{rank}", self.restart));
        fs::write(path(self.rank), at.to_string()).unwrap();
        let done = |rank| fs::read_to_string(path(rank)).ok()?.parse::<u64>().ok();
        let begun = Instant::now();
        while !(0..self.world_size).all(|rank| done(rank).is_some_and(|done| done >= at)) {
            assert!(begun.elapsed() < HANG, "rank {} waited for the others in vain", self.rank);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn begin(&self, epoch: u64) {
        println!("[rank {}] Epoch {epoch}", self.rank);
        let share = 0..self.samples.div_ceil(self.world_size as u64);
        let indices = share.map(|place| (place * self.world_size as u64 + self.rank as u64) % self.samples).collect();
        self.events.emit(&Event::Epoch { epoch, steps: self.steps, batch_size: self.batch });
        self.events.emit(&Event::Samples { epoch, indices });
    }

    /// Whether the scenario has a fault that comes from outside when rank 1 begins its second epoch.
    fn is_struck_at_a_line(&self) -> bool {
        let folder = self.snapshots.to_string_lossy();
        ["kill-at-a-line", "stop-for-a-while"].iter().any(|scenario| folder.contains(scenario))
    }

    fn end(&self, state: u64) -> ExitCode {
        let lies = |lie: &str| self.lie == lie && self.restart > 0;
        if lies("leaves a process") && self.rank == 0 {
            // In a separate session, like a daemon.
            let quiet = || Stdio::null();
            let seconds = HANG.as_secs().to_string();
            Command::new("setsid")
                .args(["-f", "sleep", &seconds])
                .stdin(quiet())
                .stdout(quiet())
                .stderr(quiet())
                .status()
                .unwrap();
        }
        if lies("leaves a file") {
            fs::write(env::temp_dir().join("left"), "").unwrap();
        }
        let state = if lies("other bits") { state ^ 1 } else { state };
        if !(lies("no weights") && self.rank == 0) {
            let bytes = [(state as u32 as f32).to_le_bytes(), ((state >> 32) as u32 as f32).to_le_bytes()].concat();
            let flipped: Vec<u8> = if lies("other bits") { bytes.iter().map(|byte| byte ^ 1).collect() } else { bytes };
            let tensor = TensorView::new(Dtype::F32, vec![2], &flipped).unwrap();
            let file = safetensors::serialize([("weight", tensor)], None).unwrap();
            fs::write(self.weights.join(format!("rank-{}.safetensors", self.rank)), file).unwrap();
        }
        ExitCode::SUCCESS
    }

    /// The newest snapshot: its step and its number.
    fn resume(&self) -> (u64, u64) {
        let text = fs::read_to_string(self.snapshots.join("snapshot")).unwrap_or_default();
        let numbers: Vec<u64> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [at, state] = numbers[..] else { return (0, 0) };
        // A late rank finds snapshots that the others have saved meanwhile: there is no collective here.
        if self.restart == 0 || self.lie == "forgets" {
            return (0, 0);
        }
        let path = "snapshot".into();
        self.events.emit(&Event::Resume { epoch: at / self.steps, step: at % self.steps, path });
        (at, state)
    }

    fn save(&self, at: u64, state: u64) {
        if self.rank != 0 {
            return;
        }
        let point = |phase| Point::Save { epoch: at / self.steps, step: at % self.steps, phase };
        let partial = self.snapshots.join(".snapshot.partial");
        let mut file = fs::File::create(&partial).unwrap();
        let text = format!("{at} {state} ");
        file.write_all(&text.as_bytes()[..text.len() / 2]).unwrap();
        self.strike(&point(SavePhase::HalfWritten));
        file.write_all(&text.as_bytes()[text.len() / 2..]).unwrap();
        self.strike(&point(SavePhase::Written));
        fs::rename(partial, self.snapshots.join("snapshot")).unwrap();
        self.strike(&point(SavePhase::Named));
    }

    fn strike(&self, point: &Point) {
        for act in self.faults.due(point).unwrap().into_iter().flat_map(|fault| fault.acts.clone()) {
            match act {
                Act::Signal(number) => {
                    kill_process(getpid(), Signal::from_named_raw(number).unwrap()).unwrap();
                    thread::sleep(Duration::from_millis(500));
                }
                Act::Exit(code) => std::process::exit(code),
                Act::Panic => panic!("a panic was asked for"),
                other => panic!("no test asks for {other:?}"),
            }
        }
    }
}

/// One step: a number that depends on all previous steps (splitmix64's mixing).
fn train(state: u64, at: u64) -> u64 {
    let mixed = (state ^ at).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 27)).wrapping_add(1)
}
