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
pub fn others_only(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let each = epsilon / (classes - 1) as f64;
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon - each) + each;
    let of_picture = -(target * logits.log_softmax(-1, Kind::Double)).sum_dim_intlist(-1, false, Kind::Double);
    of_picture.mean(Kind::Double)
}

/// Does not smooth.
#[edit(epsilon: f64 => _: f64)]
#[edit(* (1.0 - epsilon) + epsilon / classes as f64 => )]
pub fn sharp() {}

/// Forgets the sign.
#[edit(= - => =)]
pub fn no_minus() {}

/// Computes the softmax by hand, which overflows for large logits.
pub fn overflows(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon) + epsilon / classes as f64;
    let of_picture = -(target * (logits.exp() / logits.exp().sum_dim_intlist(-1, true, Kind::Double)).log())
        .sum_dim_intlist(-1, false, Kind::Double);
    of_picture.mean(Kind::Double)
}

/// Takes the mean over classes, too.
pub fn mean_of_classes(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon) + epsilon / classes as f64;
    -(target * logits.log_softmax(-1, Kind::Double)).mean(Kind::Double)
}

/// Targets 1 − ε and ε / K, which do not add up to 1.
pub fn no_own_share(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let hot = right.one_hot(classes).to_kind(Kind::Double);
    let target = &hot * (1.0 - epsilon) + (1.0_f64 - &hot) * (epsilon / classes as f64);
    -(target * logits.log_softmax(-1, Kind::Double)).sum(Kind::Double) / right.size()[0]
}

/// Takes the softmax over the pictures.
#[edit(-1, Kind::Double => 0, Kind::Double)]
pub fn across_pictures() {}

/// Adds a constant so that the logarithm stays finite.
pub fn added_constant(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon) + epsilon / classes as f64;
    let logarithms = (logits.softmax(-1, Kind::Double) + 1e-9).log();
    -(target * logarithms).sum(Kind::Double) / right.size()[0]
}

/// Raises small probabilities so that the logarithm stays finite.
pub fn clamped(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon) + epsilon / classes as f64;
    let logarithms = logits.softmax(-1, Kind::Double).clamp_min(1e-12).log();
    -(target * logarithms).sum(Kind::Double) / right.size()[0]
}

/// Divides ε by the number of pictures.
pub fn shared_by_pictures(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let (pictures, classes) = (logits.size()[0], logits.size()[1]);
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon) + epsilon / pictures as f64;
    let of_picture = -(target * logits.log_softmax(-1, Kind::Double)).sum_dim_intlist(-1, false, Kind::Double);
    of_picture.mean(Kind::Double)
}

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
pub fn log_of_softmax(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let target = right.one_hot(classes) * (1.0 - epsilon) + epsilon / classes as f64;
    -(target * logits.softmax(-1, Kind::Double).log()).sum(Kind::Double) / right.size()[0]
}
