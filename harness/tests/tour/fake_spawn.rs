//! Lab 02 without libtorch: it writes the same files as the real one, correct or with the one lie that `FAKE_LAB` names.

use std::collections::HashMap;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lockstep_contract::events::{Event, EventSink, FOLDER};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

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

pub(crate) fn main() -> ExitCode {
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
            sink.emit(&Event::Step { epoch, step, loss, samples: batch.len() as u64 });
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
