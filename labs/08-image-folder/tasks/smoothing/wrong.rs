//! Answers to `smoothing`: wrong ones, and unusual right ones.

use lockstep_answers::edit;
use tch::{Kind, Tensor};

/// As in the tutorial: divides the mean of a batch by its length again.
#[edit(mean(Kind::Double) => mean(Kind::Double) / right.size()[0])]
pub fn divided_twice() {}

/// Sums over the batch.
#[edit(mean => sum)]
pub fn summed() {}

/// Shares ε among the wrong classes only.
#[edit(let target => let each = epsilon / (classes - 1) as f64; let target)]
#[edit((1.0 - epsilon) + epsilon / classes as f64 => (1.0 - epsilon - each) + each)]
pub fn others_only() {}

/// Does not smooth.
#[edit(epsilon: f64 => _: f64)]
#[edit(* (1.0 - epsilon) + epsilon / classes as f64 => )]
pub fn sharp() {}

/// Forgets the sign.
#[edit(= - => =)]
pub fn no_minus() {}

/// Computes the softmax by hand, which overflows for large logits.
#[edit(logits.log_softmax(-1, Kind::Double) => (logits.exp() / logits.exp().sum_dim_intlist(-1, true, Kind::Double)).log())]
pub fn overflows() {}

/// Takes the mean over classes, too.
#[edit(.sum_dim_intlist(-1, false, Kind::Double) => )]
pub fn mean_of_classes() {}

/// Targets 1 − ε and ε / K, which do not add up to 1.
#[edit((1.0 - epsilon) => (1.0 - epsilon - epsilon / classes as f64))]
pub fn no_own_share() {}

/// Takes the softmax over the pictures.
#[edit(-1, Kind::Double => 0, Kind::Double)]
pub fn across_pictures() {}

/// Adds a constant so that the logarithm stays finite.
#[edit(logits.log_softmax(-1, Kind::Double) => (logits.softmax(-1, Kind::Double) + 1e-9).log())]
pub fn added_constant() {}

/// Raises small probabilities so that the logarithm stays finite.
#[edit(logits.log_softmax(-1, Kind::Double) => logits.softmax(-1, Kind::Double).clamp_min(1e-12).log())]
pub fn clamped() {}

/// Divides ε by the number of pictures.
#[edit(classes as f64 => logits.size()[0] as f64)]
pub fn shared_by_pictures() {}

/// Right: blends the plain cross entropy and the mean over all classes.
pub fn two_terms(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let logarithms = logits.log_softmax(-1, Kind::Double);
    let plain = -logarithms.gather(1, &right.unsqueeze(1), false).mean(Kind::Double);
    let all = -logarithms.mean(Kind::Double);
    plain * (1.0 - epsilon) + all * epsilon
}

/// Right: libtorch's own function.
pub fn the_librarys(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    logits.cross_entropy_loss::<Tensor>(right, None, tch::Reduction::Mean, -100, epsilon)
}

/// Takes the logarithm of the softmax, which is 0 for what is very unlikely.
#[edit(logits.log_softmax(-1, Kind::Double) => logits.softmax(-1, Kind::Double).log())]
pub fn log_of_softmax() {}
