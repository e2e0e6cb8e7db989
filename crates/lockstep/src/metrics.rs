//! Metrics over all ranks: sums over targets, added over ranks, and divided once. Besides accuracy and loss: top-k accuracy and the
//! confusion matrix.
//!
//! Targets have any shape: `[n]` of a classifier, `[n, t]` of a language model. Logits have one dimension more, the classes, as their
//! last; a target that is the criterion's `ignore_index` counts nowhere.
//!
//! A rank's own accuracy is not the accuracy over all ranks, and the mean of the batches' means depends on the batch size. Both
//! mistakes are common in tutorials, and both select the wrong model as the best.

use std::fmt;
use std::sync::Arc;

use anyhow::Context;
use c10d::{Error, ProcessGroup, ReduceOp};
use tch::nn::ModuleT;
use tch::{Device, Kind, Tensor, no_grad};

use crate::DistributedDataParallel;
use crate::data::Dataset;
use crate::loader::DataLoader;
use crate::loss::{CrossEntropy, IGNORE_INDEX, check};
use crate::nn::{caught, raise};
use crate::sampler::EvalSampler;
use crate::virtual_ranks::VirtualRanks;

/// The options of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvalOptions {
    /// The loss to sum; plain cross entropy by default.
    pub criterion: CrossEntropy,
    /// Samples per batch, which affects only memory, speed and rounding; 256 by default.
    pub batch_size: usize,
    /// Threads that load ahead; 0 by default.
    pub workers: usize,
}

impl Default for EvalOptions {
    fn default() -> Self {
        EvalOptions { criterion: CrossEntropy::default(), batch_size: 256, workers: 0 }
    }
}

/// Correct answers and loss over some targets, as sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    correct: f64,
    loss: f64,
    samples: f64,
}

impl Evaluation {
    /// Adds a batch: `logits` of shape `[…, classes]`, `targets` of shape `[…]`, and their mean loss. Targets that are
    /// [`IGNORE_INDEX`] do not count.
    ///
    /// # Panics
    /// Panics when the shapes do not fit.
    #[track_caller]
    pub fn add(&mut self, logits: &Tensor, targets: &Tensor, loss: f64) {
        if let Err(error) = self.add_mean(&CrossEntropy::default(), logits, targets, loss) {
            raise(error);
        }
    }

    /// Adds a batch as [`add`](Self::add) does, and computes its loss.
    #[track_caller]
    pub fn score(&mut self, criterion: &CrossEntropy, logits: &Tensor, targets: &Tensor) -> c10d::Result<()> {
        let loss = criterion.try_loss(logits, targets)?.double_value(&[]);
        self.add_mean(criterion, logits, targets, loss)
    }

    /// Adds `samples` predictions that are not right or wrong, with the sum of their losses, as of a regression: the accuracy is NaN.
    pub fn add_loss(&mut self, sum: f64, samples: usize) {
        self.correct = f64::NAN;
        self.loss += sum;
        self.samples += samples as f64;
    }

    fn add_mean(&mut self, criterion: &CrossEntropy, logits: &Tensor, targets: &Tensor, loss: f64) -> c10d::Result<()> {
        check("count correct answers", logits, targets)?;
        let counts = targets.ne(criterion.ignore_index);
        let n = counts.sum(Kind::Double).double_value(&[]);
        let correct = logits.argmax(-1, false).eq_tensor(targets).logical_and(&counts);
        self.correct += correct.sum(Kind::Double).double_value(&[]);
        // The mean over no targets is NaN.
        self.loss += if n > 0.0 { loss * n } else { 0.0 };
        self.samples += n;
        Ok(())
    }

    /// The sum over all ranks. A collective. Double precision counts exactly up to 2⁵³ samples.
    ///
    /// Errors: `BadArgument` on all ranks if none of them counted a sample; the same errors as any collective.
    pub fn all_reduce(self, group: &ProcessGroup) -> c10d::Result<Self> {
        let [correct, loss, samples] = sums(group, [self.correct, self.loss, self.samples])?;
        Ok(Evaluation { correct, loss, samples })
    }

    /// The sum over all virtual ranks, in the tree's order, where `own` are those of this rank. A collective.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `BadArgument` unless there is one for each of this rank's virtual ranks.
    pub fn over_virtual_ranks(own: &[Self], ranks: VirtualRanks, group: &ProcessGroup) -> c10d::Result<Self> {
        let own: Vec<_> = own.iter().map(|one| [one.correct, one.loss, one.samples]).collect();
        let [correct, loss, samples] = ranks.sums(group, &own)?;
        if samples == 0.0 { Err(no_samples()) } else { Ok(Evaluation { correct, loss, samples }) }
    }

    /// The fraction of correct answers, from 0 to 1; NaN where there are none, but only losses.
    ///
    /// # Panics
    /// Panics without samples.
    #[track_caller]
    pub fn accuracy(&self) -> f64 {
        mean(self.correct, self.samples)
    }

    /// The mean loss.
    ///
    /// # Panics
    /// Panics without samples.
    #[track_caller]
    pub fn loss(&self) -> f64 {
        mean(self.loss, self.samples)
    }

    /// e to the power of the mean loss: the number of equally likely tokens among which a language model still hesitates.
    ///
    /// # Panics
    /// Panics without samples.
    #[track_caller]
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// How many targets were counted: samples of a classifier, tokens of a language model.
    pub fn samples(&self) -> u64 {
        self.samples as u64
    }
}

/// Sums over all ranks, of which the last is a number of samples.
fn sums<const N: usize>(group: &ProcessGroup, own: [f64; N]) -> c10d::Result<[f64; N]> {
    let mut sums = Tensor::from_slice(&own).to_device(group.device());
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let all = std::array::from_fn(|i| sums.double_value(&[i as i64]));
    if all[N - 1] == 0.0 { Err(no_samples()) } else { Ok(all) }
}

#[track_caller]
fn mean(sum: f64, samples: f64) -> f64 {
    if samples == 0.0 {
        raise(no_samples());
    }
    sum / samples
}

fn no_samples() -> Error {
    let why = "it has no samples: the data set is empty, none of it could be read, or all targets are ignored";
    Error::bad_argument("the evaluation", why)
}

/// Evaluates a model on `test_set` over all ranks: every rank takes a share of the samples, each sample exactly once, and
/// the sums are added. A collective.
pub fn evaluate<M: ModuleT>(
    model: &DistributedDataParallel<M>,
    test_set: Arc<dyn Dataset>,
    device: Device,
) -> anyhow::Result<Evaluation> {
    evaluate_with(model, test_set, device, &EvalOptions::default())
}

// ANCHOR: evaluate
/// [`evaluate`] with another loss, another batch size or loader threads.
pub fn evaluate_with<M: ModuleT>(
    model: &DistributedDataParallel<M>,
    test_set: Arc<dyn Dataset>,
    device: Device,
    options: &EvalOptions,
) -> anyhow::Result<Evaluation> {
    evaluate_shares(model, test_set, device, options, |_, _| Ok(()))
}

/// Adds up the shares of all virtual ranks in the tree's order, so that the result has the same bits on any number of ranks.
fn evaluate_shares<M: ModuleT>(
    model: &DistributedDataParallel<M>,
    test_set: Arc<dyn Dataset>,
    device: Device,
    options: &EvalOptions,
    mut also: impl FnMut(&Tensor, &Tensor) -> c10d::Result<()>,
) -> anyhow::Result<Evaluation> {
    model.sync_buffers()?;
    let (ranks, forward) = (model.virtual_ranks(), |inputs: &Tensor| model.module().forward_t(inputs, false));
    let own = over_my_virtual_shares(ranks, test_set, device, options, forward, |scores, logits, targets| {
        scores.score(&options.criterion, logits, targets)?;
        also(logits, targets)
    })?;
    Ok(Evaluation::over_virtual_ranks(&own, ranks, model.group())?)
}

/// As [`over_my_share`], for each of this rank's virtual ranks, whose evaluation `body` also gets: [`Evaluation::over_virtual_ranks`] adds
/// them up.
pub fn over_my_virtual_shares(
    ranks: VirtualRanks,
    test_set: Arc<dyn Dataset>,
    device: Device,
    options: &EvalOptions,
    forward: impl Fn(&Tensor) -> Tensor,
    mut body: impl FnMut(&mut Evaluation, &Tensor, &Tensor) -> c10d::Result<()>,
) -> anyhow::Result<Vec<Evaluation>> {
    let share = |rank| {
        let (share, mut scores) = (EvalSampler::new(test_set.len(), rank, ranks.count())?, Evaluation::default());
        over_share(share, Arc::clone(&test_set), device, options, &forward, |logits, targets| {
            body(&mut scores, logits, targets)
        })?;
        Ok(scores)
    };
    ranks.own().map(share).collect()
}

/// Calls `body` with the logits and targets of this rank's share of `test_set`, batch by batch. The ranks may have different
/// numbers of batches, so `forward` and `body` must not communicate.
pub fn over_my_share(
    group: &ProcessGroup,
    test_set: Arc<dyn Dataset>,
    device: Device,
    options: &EvalOptions,
    forward: impl Fn(&Tensor) -> Tensor,
    body: impl FnMut(&Tensor, &Tensor) -> c10d::Result<()>,
) -> anyhow::Result<()> {
    let share = EvalSampler::new(test_set.len(), group.rank(), group.size())?;
    over_share(share, test_set, device, options, forward, body)
}

fn over_share(
    share: EvalSampler,
    test_set: Arc<dyn Dataset>,
    device: Device,
    options: &EvalOptions,
    forward: impl Fn(&Tensor) -> Tensor,
    mut body: impl FnMut(&Tensor, &Tensor) -> c10d::Result<()>,
) -> anyhow::Result<()> {
    let loader = DataLoader::new(test_set, share, options.batch_size)?.workers(options.workers).pin_memory(device);
    for batch in loader.epoch(0) {
        let batch = batch?.to(device);
        if batch.is_empty() {
            continue; // none of it could be read, and that is allowed
        }
        let scored = no_grad(|| caught(|| forward(&batch.inputs)).and_then(|logits| body(&logits, &batch.targets)));
        scored.with_context(|| format!("failed to evaluate the model on inputs of shape {:?}", batch.inputs.size()))?;
    }
    Ok(())
}
// ANCHOR_END: evaluate

/// [`evaluate_with`], and the confusion matrix of `classes`.
pub fn evaluate_classes<M: ModuleT>(
    model: &DistributedDataParallel<M>,
    test_set: Arc<dyn Dataset>,
    device: Device,
    options: &EvalOptions,
    classes: &[String],
) -> anyhow::Result<(Evaluation, Confusion)> {
    let mut confusion = Confusion::new(classes).ignoring(options.criterion.ignore_index);
    let evaluation =
        evaluate_shares(model, test_set, device, options, |logits, targets| confusion.try_add(logits, targets))?;
    Ok((evaluation, confusion.all_reduce(model.group())?))
}

/// How often the right class is among the `k` most likely ones; for [`over_my_share`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopK {
    k: i64,
    right: f64,
    samples: f64,
}

impl TopK {
    /// Counts nothing yet.
    pub fn new(k: usize) -> Self {
        TopK { k: k as i64, right: 0.0, samples: 0.0 }
    }

    /// Adds a batch: `logits` of shape `[…, classes]`, `targets` of shape `[…]`. Targets that are `ignore_index` do not count.
    pub fn add(&mut self, logits: &Tensor, targets: &Tensor, ignore_index: i64) -> c10d::Result<()> {
        let operation = format!("count top-{} answers", self.k);
        let classes = check(&operation, logits, targets)?;
        if !(1..=classes).contains(&self.k) {
            return Err(Error::bad_argument(
                operation,
                format!("the logits have {classes} classes: choose k from 1 to {classes}"),
            ));
        }
        let (_, best) = logits.topk(self.k, -1, true, true);
        let counts = targets.ne(ignore_index);
        let right = best.eq_tensor(&targets.unsqueeze(-1)).any_dim(-1, false).logical_and(&counts);
        self.right += right.sum(Kind::Double).double_value(&[]);
        self.samples += counts.sum(Kind::Double).double_value(&[]);
        Ok(())
    }

    /// The sum over all ranks. A collective.
    pub fn all_reduce(self, group: &ProcessGroup) -> c10d::Result<Self> {
        let [right, samples] = sums(group, [self.right, self.samples])?;
        Ok(TopK { right, samples, ..self })
    }

    /// The fraction, from 0 to 1.
    ///
    /// # Panics
    /// Panics without targets.
    #[track_caller]
    pub fn accuracy(&self) -> f64 {
        mean(self.right, self.samples)
    }
}

/// Counts of samples by true and predicted class.
#[derive(Debug)]
pub struct Confusion {
    classes: Vec<String>,
    /// `Int64 [actual, predicted]`, on the CPU.
    counts: Tensor,
    ignore_index: i64,
}

impl Confusion {
    /// An empty matrix for these classes.
    pub fn new(classes: &[String]) -> Self {
        let n = classes.len() as i64;
        let counts = Tensor::zeros([n, n], (Kind::Int64, Device::Cpu));
        Confusion { classes: classes.to_vec(), counts, ignore_index: IGNORE_INDEX }
    }

    /// Does not count targets of this number; [`IGNORE_INDEX`] by default.
    #[must_use]
    pub fn ignoring(self, ignore_index: i64) -> Self {
        Confusion { ignore_index, ..self }
    }

    /// Adds a batch: `logits` of shape `[…, classes]`, `targets` of shape `[…]` below the number of classes.
    ///
    /// # Panics
    /// Panics when the shapes do not fit.
    #[track_caller]
    pub fn add(&mut self, logits: &Tensor, targets: &Tensor) {
        if let Err(error) = self.try_add(logits, targets) {
            raise(error);
        }
    }

    /// As [`add`](Self::add).
    pub fn try_add(&mut self, logits: &Tensor, targets: &Tensor) -> c10d::Result<()> {
        const MATRIX: &str = "the confusion matrix";
        let (n, found) = (self.classes.len() as i64, check(MATRIX, logits, targets)?);
        if n != found {
            return Err(Error::bad_argument(
                MATRIX,
                format!("the logits have {found} classes, and {n} have names: name them all"),
            ));
        }
        let places = (targets * n + logits.argmax(-1, false)).masked_select(&targets.ne(self.ignore_index));
        self.counts += places.to_device(Device::Cpu).bincount(None::<&Tensor>, n * n).view([n, n]);
        Ok(())
    }

    /// The sum over all ranks. A collective.
    pub fn all_reduce(self, group: &ProcessGroup) -> c10d::Result<Self> {
        let mut counts = self.counts.to_device(group.device());
        group.all_reduce(&mut counts, ReduceOp::Sum)?;
        Ok(Confusion { counts: counts.to_device(Device::Cpu), ..self })
    }

    /// How many samples of class `actual` were predicted as class `predicted`.
    ///
    /// # Panics
    /// Panics when either is not a class.
    pub fn count(&self, actual: usize, predicted: usize) -> i64 {
        self.counts.int64_value(&[actual as i64, predicted as i64])
    }
}

/// A table with a row for each true class and a column for each predicted class.
impl fmt::Display for Confusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.classes.iter().map(String::len).max().unwrap_or(0).max(CORNER.len());
        write!(f, "{CORNER:<width$}")?;
        self.classes.iter().try_for_each(|class| write!(f, "  {class:>width$}"))?;
        for (actual, class) in self.classes.iter().enumerate() {
            write!(f, "\n{class:<width$}")?;
            (0..self.classes.len())
                .try_for_each(|predicted| write!(f, "  {:>width$}", self.count(actual, predicted)))?;
        }
        Ok(())
    }
}

/// The header of the table's first column.
const CORNER: &str = "actual \\ predicted";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_any_size_give_the_same_numbers() {
        let logits = Tensor::from_slice(&[2f32, 0., 0., 1., 3., 0., 1., 0.]).reshape([4, 2]);
        let targets = Tensor::from_slice(&[0i64, 1, 1, 0]);
        let add = |to: &mut Evaluation, start, n| {
            let (logits, targets) = (logits.narrow(0, start, n), targets.narrow(0, start, n));
            to.add(&logits, &targets, CrossEntropy::default().loss(&logits, &targets).double_value(&[]));
        };
        let (mut whole, mut parts) = (Evaluation::default(), Evaluation::default());
        add(&mut whole, 0, 4);
        for (start, n) in [(0, 1), (1, 3), (4, 0)] {
            add(&mut parts, start, n);
        }
        assert_eq!((whole.accuracy(), whole.samples()), (0.75, 4));
        assert_eq!((parts.accuracy(), parts.samples()), (0.75, 4));
        assert!((whole.loss() - parts.loss()).abs() < 1e-6);
    }

    #[test]
    fn nothing_is_computed_from_no_samples() {
        let none = Evaluation::default();
        let all: [&dyn Fn() -> f64; 4] =
            [&|| none.accuracy(), &|| none.loss(), &|| none.perplexity(), &|| TopK::new(1).accuracy()];
        for compute in all {
            let error = caught(compute).unwrap_err().to_string();
            assert!(error.contains("it has no samples"), "{error}");
        }
    }

    #[test]
    fn counts_predictions_by_true_class() {
        let classes = ["C0", "C2", "C4"].map(str::to_owned);
        let mut confusion = Confusion::new(&classes);
        let logits = |predicted: &[i64]| Tensor::from_slice(predicted).one_hot(3).to_kind(Kind::Float);
        confusion.add(&logits(&[0, 0, 2]), &Tensor::from_slice(&[0i64, 1, 2]));
        confusion.add(&logits(&[1]), &Tensor::from_slice(&[1i64]));
        confusion.add(&logits(&[2]).narrow(0, 0, 0), &Tensor::from_slice::<i64>(&[]));
        let counts: Vec<_> =
            (0..3).map(|actual| [0, 1, 2].map(|predicted| confusion.count(actual, predicted))).collect();
        assert_eq!(counts, [[1, 0, 0], [1, 1, 0], [0, 0, 1]]);
        let table = confusion.to_string();
        assert_eq!(
            table.lines().next(),
            Some("actual \\ predicted                  C0                  C2                  C4"),
            "{table}"
        );
        assert_eq!(
            table.lines().nth(2),
            Some("C2                                   1                   1                   0"),
            "{table}"
        );
    }
}
