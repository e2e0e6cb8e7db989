//! Learning-rate schedules: [`ReduceLrOnPlateau`], which follows a metric, and [`Warmup`] and [`Cosine`], which follow the step.
//!
//! All call [`Optimizer::set_group_lr`](super::Optimizer::set_group_lr), whose rates a snapshot saves with the optimizer. A
//! schedule's own state is a value to save next to it ([`PlateauState`]), or nothing at all (the others are functions of the
//! step).
//!
//! Leaves out PyTorch's other schedulers, and its chaining of several.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use super::cosine::Cosine;
use super::{OptimError, Optimizer};

/// What the threshold is relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ThresholdMode {
    /// Relative to the best value: better is beyond `best * (1 ∓ threshold)`.
    #[default]
    Rel,
    /// Absolute: better is beyond `best ∓ threshold`.
    Abs,
}

/// The options of `ReduceLROnPlateau`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlateauOptions {
    /// What counts as better; [`Mode::Min`] by default.
    pub mode: Mode,
    /// The factor for learning rates, at least 0 and less than 1; 0.1.
    pub factor: f64,
    /// How many calls in a row may pass without an improvement before the next one reduces; 10.
    pub patience: u64,
    /// How much better a metric must be to count as an improvement; 1e-4.
    pub threshold: f64,
    /// What `threshold` is relative to; [`ThresholdMode::Rel`].
    pub threshold_mode: ThresholdMode,
    /// How many calls after a reduction are not counted as bad; 0.
    pub cooldown: u64,
    /// The lowest learning rate: one for all parameter groups, or one for each; 0.
    pub min_lr: Vec<f64>,
    /// A reduction by no more than this is not applied; 1e-8.
    pub eps: f64,
}

impl Default for PlateauOptions {
    fn default() -> Self {
        PlateauOptions {
            mode: Mode::default(),
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: ThresholdMode::default(),
            cooldown: 0,
            min_lr: vec![0.0],
            eps: 1e-8,
        }
    }
}

/// Multiplies the learning rates by a factor once a metric has not improved for longer than its patience.
///
/// Every rank must pass the same metric (an all-reduced one), or the ranks' learning rates diverge.
///
/// ```
/// use lockstep::optim::schedule::{PlateauOptions, ReduceLrOnPlateau};
/// use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
///
/// # fn main() -> anyhow::Result<()> {
/// let vs = tch::nn::VarStore::new(tch::Device::Cpu);
/// let _weight = vs.root().zeros("weight", &[2]);
/// let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: 0.1, ..Default::default() })?;
/// let mut schedule = ReduceLrOnPlateau::new(PlateauOptions { factor: 0.5, patience: 1, ..Default::default() })?;
/// for validation_loss in [1.0, 0.8, 0.8, 0.9] {
///     for reduced in schedule.step(validation_loss, &mut optimizer)? {
///         println!("{reduced}"); // parameter group 0: learning rate 0.1 -> 0.05
///     }
/// }
/// assert_eq!(optimizer.lr(), 0.05);
/// # Ok(()) }
/// ```
///
/// A metric that is NaN is never better, as in PyTorch.
///
/// Source: `torch/optim/lr_scheduler.py`.
#[derive(Clone, Debug)]
pub struct ReduceLrOnPlateau {
    options: PlateauOptions,
    state: PlateauState,
}

/// The state of a [`ReduceLrOnPlateau`] between calls; for serde, including JSON.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauState {
    /// The direction of `best`.
    pub mode: Mode,
    /// The best metric so far; before the first call infinite, the worst value.
    #[serde(with = "any_float")]
    pub best: f64,
    /// How many calls in a row did not improve.
    pub num_bad_epochs: u64,
    /// How many calls the cooldown still lasts.
    pub cooldown_counter: u64,
    /// The number of calls so far.
    pub last_epoch: u64,
}

/// A reduction of a learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduced {
    /// The parameter group, counted from 0.
    pub group: usize,
    /// The previous learning rate.
    pub from: f64,
    /// The new learning rate.
    pub to: f64,
}

impl fmt::Display for Reduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parameter group {}: learning rate {} -> {}", self.group, self.from, self.to)
    }
}

impl ReduceLrOnPlateau {
    /// A schedule that has not seen a metric yet.
    ///
    /// Errors: a factor that is not at least 0 and less than 1 (PyTorch's check), and numbers that are negative or not finite.
    pub fn new(options: PlateauOptions) -> Result<Self, ScheduleError> {
        options.check()?;
        let state = PlateauState {
            mode: options.mode,
            best: options.mode.worst(),
            num_bad_epochs: 0,
            cooldown_counter: 0,
            last_epoch: 0,
        };
        Ok(ReduceLrOnPlateau { options, state })
    }

    /// Takes the metric of an epoch, and reduces the learning rates of `optimizer` if it is time. Returns the reductions.
    ///
    /// Errors: the number of lower bounds is not the number of parameter groups; neither the schedule nor a learning rate has changed then.
    pub fn step(&mut self, metric: f64, optimizer: &mut impl Optimizer) -> Result<Vec<Reduced>, ScheduleError> {
        let rates = optimizer.group_lrs();
        let bounds = self.bounds(rates.len())?;
        if !self.is_time(metric) {
            return Ok(Vec::new());
        }
        let mut reduced = Vec::new();
        for (group, (from, bound)) in rates.into_iter().zip(bounds).enumerate() {
            let to = lowered(from, self.options.factor, bound);
            if from - to > self.options.eps {
                optimizer.set_group_lr(group, to)?;
                reduced.push(Reduced { group, from, to });
            }
        }
        Ok(reduced)
    }

    /// The state that the next call depends on, besides the options and the optimizer's learning rates.
    pub fn state(&self) -> PlateauState {
        self.state
    }

    /// Continues from a saved state. The options stay this schedule's own.
    ///
    /// Errors: a state of the other [`Mode`]; this schedule is then unchanged.
    pub fn load_state(&mut self, state: PlateauState) -> Result<(), ScheduleError> {
        if state.mode != self.options.mode {
            return Err(ScheduleError::Mode { saved: state.mode, here: self.options.mode });
        }
        self.state = state;
        Ok(())
    }

    /// The options.
    pub fn options(&self) -> &PlateauOptions {
        &self.options
    }

    /// Counts the metric. Returns true if the patience is exhausted.
    fn is_time(&mut self, metric: f64) -> bool {
        let state = &mut self.state;
        state.last_epoch += 1;
        if self.options.is_better(metric, state.best) {
            state.best = metric;
            state.num_bad_epochs = 0;
        } else {
            state.num_bad_epochs += 1;
        }
        if state.cooldown_counter > 0 {
            state.cooldown_counter -= 1;
            state.num_bad_epochs = 0;
        }
        let time = state.num_bad_epochs > self.options.patience;
        if time {
            state.cooldown_counter = self.options.cooldown;
            state.num_bad_epochs = 0;
        }
        time
    }

    fn bounds(&self, groups: usize) -> Result<Vec<f64>, ScheduleError> {
        match self.options.min_lr[..] {
            [bound] => Ok(vec![bound; groups]),
            ref bounds if bounds.len() == groups => Ok(bounds.to_vec()),
            ref bounds => Err(ScheduleError::Bounds { bounds: bounds.len(), groups }),
        }
    }
}

impl PlateauOptions {
    fn is_better(&self, metric: f64, best: f64) -> bool {
        match (self.mode, self.threshold_mode) {
            (Mode::Min, ThresholdMode::Rel) => metric < best * (1.0 - self.threshold),
            (Mode::Min, ThresholdMode::Abs) => metric < best - self.threshold,
            (Mode::Max, ThresholdMode::Rel) => metric > best * (self.threshold + 1.0),
            (Mode::Max, ThresholdMode::Abs) => metric > best + self.threshold,
        }
    }

    fn check(&self) -> Result<(), ScheduleError> {
        let refused =
            |option, value, must_be| ScheduleError::Option { schedule: "ReduceLrOnPlateau", option, value, must_be };
        if !(0.0..1.0).contains(&self.factor) {
            return Err(refused("factor", self.factor, "at least 0 and less than 1"));
        }
        let bounds = self.min_lr.iter().map(|&bound| ("min_lr", bound));
        let mut others = bounds.chain([("threshold", self.threshold), ("eps", self.eps)]);
        others
            .find(|(_, value)| !(value.is_finite() && *value >= 0.0))
            .map_or(Ok(()), |(option, value)| Err(refused(option, value, "finite and at least 0")))
    }
}

/// Python's `max`, which keeps its first argument unless the second is greater.
fn lowered(rate: f64, factor: f64, bound: f64) -> f64 {
    let lower = rate * factor;
    if bound > lower { bound } else { lower }
}

mod any_float {
    //! A float that may be infinite: JSON has only finite numbers, so other values are written as text.

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
    }

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        let written = if value.is_finite() { Written::Number(*value) } else { Written::Text(value.to_string()) };
        written.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(value) => Ok(value),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

/// A learning rate that rises linearly over the first steps and is constant from then on. It is a function of the step alone,
/// so a resumed run needs no saved state.
///
/// Like Python's `LinearLR(optimizer, start_factor, end_factor=1.0, total_iters)`, in its closed form: step 0 trains with
/// `start_factor * lr`, step `total_iters` and all later ones with `lr`.
///
/// ```
/// use lockstep::optim::schedule::Warmup;
///
/// # fn main() -> anyhow::Result<()> {
/// // 8 ranks of 64 samples make batches of 512. The recipe's 0.1 is for batches of 256.
/// let warmup = Warmup::linear_scaling(0.1, 256, 64, 8, 5 * 100)?; // over 5 epochs of 100 steps
/// assert_eq!([warmup.lr(0), warmup.lr(250), warmup.lr(500), warmup.lr(9999)], [0.1, 0.15000000000000002, 0.2, 0.2]);
/// # Ok(()) }
/// ```
///
/// Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), sections 2.1 and 2.2;
/// `torch/optim/lr_scheduler.py`, `LinearLR._get_closed_form_lr`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    lr: f64,
    start_factor: f64,
    steps: u64,
}

impl Warmup {
    /// From `start_factor * lr` at step 0 up to `lr` at step `steps`; constant if `steps` is 0.
    ///
    /// Errors: a learning rate that is negative or not finite, and a factor that is not above 0 and at most 1 (PyTorch's check).
    pub fn new(lr: f64, start_factor: f64, steps: u64) -> Result<Self, ScheduleError> {
        let refused = |option, value, must_be| ScheduleError::Option { schedule: "Warmup", option, value, must_be };
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(refused("lr", lr, "finite and at least 0"));
        }
        if !(start_factor > 0.0 && start_factor <= 1.0) {
            return Err(refused("start_factor", start_factor, "above 0 and at most 1"));
        }
        Ok(Warmup { lr, start_factor, steps })
    }

    /// The linear scaling rule: a recipe's `lr`, chosen for batches of `base` samples, times the ratio of the batch of all
    /// ranks (`batch` samples on each of `world_size`) to `base`. Starts at the recipe's own `lr`, whatever the number of
    /// ranks, and reaches the scaled one at step `steps`. If the batch is not larger than `base`, no warm-up is needed and the
    /// scaled rate is constant.
    pub fn linear_scaling(
        lr: f64,
        base: usize,
        batch: usize,
        world_size: usize,
        steps: u64,
    ) -> Result<Self, ScheduleError> {
        let (global, base) = (batch as f64 * world_size as f64, base as f64);
        if !(global > 0.0 && base > 0.0) {
            let (option, value) = if base > 0.0 { ("batch of all ranks", global) } else { ("base batch", base) };
            return Err(ScheduleError::Option { schedule: "linear scaling", option, value, must_be: "above 0" });
        }
        let scale = global / base;
        Self::new(lr * scale, (1.0 / scale).min(1.0), steps)
    }

    /// The learning rate of the step, counted from 0 over all epochs.
    pub fn lr(&self, step: u64) -> f64 {
        self.lr * self.factor(step)
    }

    /// The fraction of its full rate that a parameter group has in the step: from the start factor up to 1.
    pub fn factor(&self, step: u64) -> f64 {
        if self.is_over(step) {
            return 1.0;
        }
        self.start_factor + (1.0 - self.start_factor) * step as f64 / self.steps as f64
    }

    /// How many steps it lasts.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns true if the rate is constant from this step on. Then something else may set it, such as
    /// [`ReduceLrOnPlateau`].
    pub fn is_over(&self, step: u64) -> bool {
        step >= self.steps
    }

    /// Sets the rates of all parameter groups for the step.
    pub fn apply(&self, step: u64, optimizer: &mut impl Optimizer) {
        optimizer.set_lr(self.lr(step));
    }
}

/// What counts as better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Lower is better, as for a loss.
    #[default]
    Min,
    /// Higher is better, as for an accuracy.
    Max,
}

impl Mode {
    /// The initial value, which any metric improves on.
    fn worst(self) -> f64 {
        match self {
            Mode::Min => f64::INFINITY,
            Mode::Max => f64::NEG_INFINITY,
        }
    }
}

/// Why a schedule refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// An option is out of range.
    #[error("invalid {option} for {schedule}: {value}; it must be {must_be}")]
    Option {
        schedule: &'static str,
        option: &'static str,
        value: f64,
        /// The valid range, as text.
        must_be: &'static str,
    },
    /// There are several lower bounds of the learning rate, but not one for each parameter group.
    #[error("{bounds} lower bounds (min_lr) for {groups} parameter groups; give one for all, or one for each")]
    Bounds {
        bounds: usize,
        /// The number of groups of the optimizer.
        groups: usize,
    },
    /// The saved state followed a metric in the other direction.
    #[error(
        "the saved state of the schedule is of mode {saved:?}, this run's is {here:?}; continue with the same metric, or start over"
    )]
    Mode {
        /// The mode of the saved run.
        saved: Mode,
        here: Mode,
    },
    /// The optimizer rejected the new rate.
    #[error("failed to set a learning rate")]
    Optimizer(#[from] OptimError),
}

#[cfg(test)]
mod tests {
    use tch::Device;
    use tch::nn::VarStore;

    use super::super::{ParamGroup, Sgd, SgdOptions};
    use super::*;

    /// Two groups, of rates 0.1 and 0.01.
    fn optimizer() -> Sgd {
        let vs = VarStore::new(Device::Cpu);
        let group = |name: &str, lr| ParamGroup::new(vec![(name.to_owned(), vs.root().zeros(name, &[1]))]).lr(lr);
        Sgd::with_groups(vec![group("a", 0.1), group("b", 0.01)], SgdOptions::default()).unwrap()
    }

    fn impatient() -> PlateauOptions {
        PlateauOptions { patience: 0, factor: 0.5, ..Default::default() }
    }

    #[test]
    fn says_which_groups_it_reduced() {
        let mut optimizer = optimizer();
        let options = PlateauOptions { min_lr: vec![0.07, 0.01], ..impatient() };
        let mut schedule = ReduceLrOnPlateau::new(options).unwrap();
        assert_eq!(schedule.step(1.0, &mut optimizer).unwrap(), []);
        let reduced = schedule.step(1.0, &mut optimizer).unwrap();
        assert_eq!(reduced, [Reduced { group: 0, from: 0.1, to: 0.07 }]);
        assert_eq!(reduced[0].to_string(), "parameter group 0: learning rate 0.1 -> 0.07");
        assert_eq!(optimizer.group_lrs(), [0.07, 0.01]);
    }

    #[test]
    fn a_state_survives_json_at_any_moment_and_continues_the_same_way() {
        let metrics = [f64::INFINITY, 1.0, f64::NAN, 1.0, f64::NEG_INFINITY, 0.5, 0.5, 0.5];
        let options = PlateauOptions { cooldown: 1, ..impatient() };
        let (mut whole, mut rates) = (ReduceLrOnPlateau::new(options.clone()).unwrap(), optimizer());
        for (at, &metric) in metrics.iter().enumerate() {
            let json = serde_json::to_string(&whole.state()).unwrap();
            let mut resumed = ReduceLrOnPlateau::new(options.clone()).unwrap();
            resumed.load_state(serde_json::from_str(&json).unwrap()).unwrap();
            assert_eq!(resumed.state(), whole.state(), "call {at}: {json}");
            let mut copy = optimizer();
            rates.group_lrs().into_iter().enumerate().for_each(|(group, lr)| copy.set_group_lr(group, lr).unwrap());
            assert_eq!(resumed.step(metric, &mut copy).unwrap(), whole.step(metric, &mut rates).unwrap());
        }
        assert!(rates.group_lrs()[0] < 0.1);
    }

    #[test]
    fn refuses_options_out_of_range_and_names_them() {
        for (options, expected) in [
            (PlateauOptions { factor: 1.0, ..Default::default() }, "factor for ReduceLrOnPlateau: 1;"),
            (PlateauOptions { factor: f64::NAN, ..Default::default() }, "factor"),
            (PlateauOptions { threshold: -1.0, ..Default::default() }, "threshold"),
            (PlateauOptions { min_lr: vec![f64::INFINITY], ..Default::default() }, "min_lr"),
            (PlateauOptions { eps: f64::NAN, ..Default::default() }, "eps"),
        ] {
            let refused = ReduceLrOnPlateau::new(options).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn changes_nothing_when_the_bounds_are_not_one_for_each_group() {
        for min_lr in [vec![], vec![0.0; 3]] {
            let mut optimizer = optimizer();
            let mut schedule = ReduceLrOnPlateau::new(PlateauOptions { min_lr, ..impatient() }).unwrap();
            let before = schedule.state();
            let refused = schedule.step(1.0, &mut optimizer).unwrap_err();
            assert!(matches!(refused, ScheduleError::Bounds { groups: 2, .. }), "{refused}");
            assert_eq!((schedule.state(), optimizer.group_lrs()), (before, vec![0.1, 0.01]));
        }
    }

    #[test]
    fn refuses_a_state_of_the_other_mode() {
        let saved = ReduceLrOnPlateau::new(PlateauOptions { mode: Mode::Max, ..Default::default() }).unwrap().state();
        let mut schedule = ReduceLrOnPlateau::new(PlateauOptions::default()).unwrap();
        let before = schedule.state();
        let message = schedule.load_state(saved).unwrap_err().to_string();
        assert!(message.contains("Max") && message.contains("Min"), "{message}");
        assert_eq!(schedule.state(), before);
    }

    #[test]
    fn rises_from_the_recipes_rate_to_the_scaled_one_and_stays() {
        let warmup = Warmup::linear_scaling(0.1, 32, 32, 4, 10).unwrap();
        assert_eq!([warmup.lr(0), warmup.lr(10), warmup.lr(11), warmup.lr(u64::MAX)], [0.1, 0.4, 0.4, 0.4]);
        assert!((0..10).all(|step| warmup.lr(step) < warmup.lr(step + 1)));
        assert!(!warmup.is_over(9) && warmup.is_over(10));
    }

    #[test]
    fn does_not_warm_up_to_a_smaller_rate_nor_without_steps() {
        let smaller = Warmup::linear_scaling(0.1, 256, 32, 4, 10).unwrap();
        assert_eq!([smaller.lr(0), smaller.lr(10)], [0.05, 0.05]);
        assert_eq!(Warmup::new(0.3, 0.1, 0).unwrap().lr(0), 0.3);
    }

    #[test]
    fn refuses_a_warm_up_out_of_range_and_names_the_option() {
        let message = |refused: Result<Warmup, ScheduleError>| refused.unwrap_err().to_string();
        assert!(message(Warmup::new(f64::NAN, 0.5, 1)).contains("lr"));
        assert!(message(Warmup::new(0.1, 0.0, 1)).contains("start_factor"));
        assert!(message(Warmup::new(0.1, 1.5, 1)).contains("start_factor"));
        assert!(message(Warmup::linear_scaling(0.1, 0, 32, 4, 1)).contains("base batch"));
        assert!(message(Warmup::linear_scaling(0.1, 32, 0, 4, 1)).contains("batch of all ranks"));
        assert!(message(Warmup::linear_scaling(f64::MAX, 1, 32, 4, 1)).contains("lr"));
    }
}
