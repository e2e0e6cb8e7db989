//! Output for people: the tutorials' lines, and rank 0's progress: a bar on a terminal, elsewhere a line in a long epoch.
//!
//! Lines go to stdout and progress to stderr, so that redirected output does not contain it. [`crate::events`] writes the output
//! for programs.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tch::Device;

use crate::Rank;
use crate::metrics::Evaluation;

const TEMPLATE: &str = "{prefix} {bar:30} {pos}/{len} {msg} {elapsed}";
/// After how long in an epoch, and then how often, a line takes the place of the bar.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// A rank's prefix at the start of a line: `[GPU0]`, or `[rank 0]` on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The device, as the tutorials print it.
    Gpu(usize),
    /// The rank, since all ranks share the CPU.
    Cpu(Rank),
}

impl Tag {
    /// The tag of `rank` on `device`.
    pub fn new(rank: Rank, device: Device) -> Self {
        match device {
            Device::Cuda(index) => Tag::Gpu(index),
            _ => Tag::Cpu(rank),
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tag::Gpu(index) => write!(f, "[GPU{index}]"),
            Tag::Cpu(rank) => write!(f, "[rank {rank}]"),
        }
    }
}

/// `[GPU0] Epoch 3 | Batchsize: 32 | Steps: 64`, at the start of an epoch.
pub fn epoch_line(tag: Tag, epoch: u64, batch_size: usize, steps: u64) -> String {
    format!("{tag} Epoch {epoch} | Batchsize: {batch_size} | Steps: {steps}")
}

/// `Epoch 3 | Training checkpoint saved at checkpoint.pt`, after a save; `what` is `checkpoint` or `snapshot`.
pub fn saved_line(epoch: u64, what: &str, path: &std::path::Path) -> String {
    format!("Epoch {epoch} | Training {what} saved at {}", path.display())
}

/// `Resuming training from snapshot at Epoch 3`, after a load.
pub fn resumed_line(epoch: u64) -> String {
    format!("Resuming training from snapshot at Epoch {epoch}")
}

/// `Epoch: 3, Accuracy: 0.9625, Loss: 0.1234`, after an evaluation; `accuracy` from 0 to 1, or NaN where there is none.
pub fn eval_line(epoch: u64, accuracy: f64, loss: f64) -> String {
    if accuracy.is_nan() {
        return format!("Epoch: {epoch}, Loss: {loss:.4}");
    }
    format!("Epoch: {epoch}, Accuracy: {accuracy:.4}, Loss: {loss:.4}")
}

/// `(Epoch 4/5) Average train loss: 0.1234, Average train accuracy: 0.9625, over 512 samples`, after `epoch` of `epochs`.
pub fn training_line(epoch: u64, epochs: u64, all: &Evaluation) -> String {
    let (loss, accuracy, samples) = (all.loss(), all.accuracy(), all.samples());
    let of = of_epochs(epoch, epochs);
    format!("{of} Average train loss: {loss:.4}, Average train accuracy: {accuracy:.4}, over {samples} samples")
}

/// `(Epoch 4/5) Val loss: 0.1234, Val accuracy: 0.9625`, after a validation.
pub fn validation_line(epoch: u64, epochs: u64, all: &Evaluation) -> String {
    format!("{} Val loss: {:.4}, Val accuracy: {:.4}", of_epochs(epoch, epochs), all.loss(), all.accuracy())
}

/// `Epoch 3 | train loss: 0.1234, train accuracy: 0.9625, over 512 samples | 412 images/s over all ranks`, after steps of an
/// epoch, which took `time`: fewer samples than the epoch has if a resumed run started inside it.
pub fn speed_line(epoch: u64, all: &Evaluation, time: Duration) -> String {
    let rate = all.samples() as f64 / time.as_secs_f64().max(f64::EPSILON);
    let (loss, accuracy, samples) = (all.loss(), all.accuracy(), all.samples());
    format!(
        "Epoch {epoch} | train loss: {loss:.4}, train accuracy: {accuracy:.4}, over {samples} samples | {rate:.0} images/s over all ranks"
    )
}

/// `(Epoch 4/5)`: displayed epochs count from 1.
pub fn of_epochs(epoch: u64, epochs: u64) -> String {
    format!("(Epoch {}/{epochs})", epoch + 1)
}

/// The progress over the steps of an epoch, shown only on rank 0: as a bar if stderr is a terminal, otherwise as a line every half
/// minute, so that a log of long epochs shows a sign of life. Dropping it clears the bar.
pub struct Progress {
    bar: ProgressBar,
    /// When the last line was due; `None` where there are no lines.
    line: Option<Mutex<Instant>>,
}

impl Progress {
    /// The progress of `rank`. If it is `watched`, its events go to a reader, such as the launcher's status, and there are no lines.
    pub fn new(rank: Rank, watched: bool) -> Self {
        let (shown, terminal) = (rank.is_zero(), io::stderr().is_terminal());
        let visible = shown && terminal;
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let mut progress = Self::drawing_on(target);
        progress.line = (shown && !terminal && !watched).then(|| Mutex::new(Instant::now()));
        progress
    }

    fn drawing_on(target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), target);
        // The template is a constant that a test renders.
        bar.set_style(ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, line: None }
    }

    /// Starts an epoch of `steps` steps, of which `done` are already done.
    pub fn epoch(&self, epoch: u64, done: u64, steps: u64) {
        self.bar.reset();
        self.bar.set_length(steps);
        self.bar.set_position(done);
        self.bar.set_prefix(format!("Epoch {epoch}"));
        self.bar.set_message("");
        if let Some(line) = &self.line {
            *line.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }

    /// Records a finished step with this loss.
    pub fn step(&self, loss: f64) {
        self.bar.set_message(format!("loss {loss:.4}"));
        self.bar.inc(1);
        if let Some(line) = self.line_due(loss, Instant::now()) {
            self.eprintln(line);
        }
    }

    /// `Epoch 3 | Step 120 of 256 | loss 0.1234`, if it is time for a line.
    fn line_due(&self, loss: f64, now: Instant) -> Option<String> {
        let mut last = self.line.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, steps) = (self.bar.position(), self.bar.length()?);
        if now.duration_since(*last) < LINE_EVERY || done >= steps {
            return None; // the lines at the end of an epoch follow
        }
        *last = now;
        Some(format!("{} | Step {done} of {steps} | loss {loss:.4}", self.bar.prefix()))
    }

    /// Prints a line to stdout without disturbing the bar, in one write, so that the lines of several ranks do not mix.
    pub fn println(&self, line: impl AsRef<str>) {
        self.bar.suspend(|| print_line(&mut io::stdout().lock(), line.as_ref()));
    }

    /// The same to stderr.
    pub fn eprintln(&self, line: impl AsRef<str>) {
        self.bar.suspend(|| print_line(&mut io::stderr().lock(), line.as_ref()));
    }

    /// The time since the epoch began.
    pub fn elapsed(&self) -> Duration {
        self.bar.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a warning to stderr after the bar is gone.
pub(crate) fn warn(line: &str) {
    print_line(&mut io::stderr().lock(), &format!("warning: {line}"));
}

/// A reader that exits early (`… | head`) must not end training, so errors are ignored.
fn print_line(out: &mut impl Write, line: &str) {
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    #[test]
    fn prints_the_tutorials_lines() {
        assert_eq!(epoch_line(Tag::Gpu(0), 3, 32, 64), "[GPU0] Epoch 3 | Batchsize: 32 | Steps: 64");
        let cpu = Tag::new(Rank::new(1), Device::Cpu);
        assert_eq!(epoch_line(cpu, 3, 32, 64), "[rank 1] Epoch 3 | Batchsize: 32 | Steps: 64");
        assert_eq!(Tag::new(Rank::new(5), Device::Cuda(1)), Tag::Gpu(1));
        assert_eq!(
            saved_line(2, "checkpoint", "checkpoint.pt".as_ref()),
            "Epoch 2 | Training checkpoint saved at checkpoint.pt"
        );
        assert_eq!(resumed_line(4), "Resuming training from snapshot at Epoch 4");
        let mut all = Evaluation::default();
        all.add(&tch::Tensor::from_slice(&[2f32, 0.0]).view([1, 2]), &tch::Tensor::from_slice(&[0i64]), 0.5);
        assert_eq!(
            speed_line(3, &all, Duration::from_secs(1)),
            "Epoch 3 | train loss: 0.5000, train accuracy: 1.0000, over 1 samples | 1 images/s over all ranks"
        );
        assert_eq!(eval_line(1, 0.30241, 2.0), "Epoch: 1, Accuracy: 0.3024, Loss: 2.0000");
        assert_eq!(eval_line(1, f64::NAN, 2.0), "Epoch: 1, Loss: 2.0000");
    }

    #[test]
    fn shows_epoch_steps_and_loss() {
        let term = InMemoryTerm::new(3, 80);
        let progress = Progress::drawing_on(ProgressDrawTarget::term_like(Box::new(term.clone())));
        progress.epoch(2, 0, 64);
        progress.step(0.125);
        progress.bar.force_draw();
        let shown = term.contents();
        assert!(shown.starts_with("Epoch 2 ") && shown.contains(" 1/64 loss 0.1250"), "{shown:?}");
        drop(progress);
        assert_eq!(term.contents(), "");
    }

    #[test]
    fn draws_nothing_on_other_ranks() {
        let progress = Progress::new(Rank::new(1), false);
        assert!(progress.bar.is_hidden());
        progress.epoch(0, 0, 1);
        progress.step(1.0);
        assert!(progress.line.is_none());
    }

    #[test]
    fn a_long_epoch_without_a_terminal_gets_a_line_now_and_then() {
        let begun = Instant::now();
        let mut progress = Progress::drawing_on(ProgressDrawTarget::hidden());
        progress.line = Some(Mutex::new(begun));
        progress.bar.set_prefix("Epoch 2");
        progress.bar.set_length(3);
        let step = |after: Duration| {
            progress.bar.inc(1);
            progress.line_due(0.125, begun + after)
        };
        assert_eq!(step(LINE_EVERY), Some("Epoch 2 | Step 1 of 3 | loss 0.1250".into()));
        assert_eq!(step(LINE_EVERY + LINE_EVERY / 2), None, "too early");
        assert_eq!(step(LINE_EVERY * 3), None, "the epoch is over");
    }

    #[test]
    fn writes_each_line_in_one_piece() {
        struct Writes(Vec<Vec<u8>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writes = Writes(Vec::new());
        print_line(&mut writes, "Epoch 1");
        assert_eq!(writes.0, [b"Epoch 1\n".to_vec()]);
    }
}
