//! Task 2: a loss that can be true.
//!
//! Cross entropy with label smoothing ε: of K classes, the right one has the target 1 − ε + ε / K, and each other class has the
//! target ε / K. The loss of a picture is −Σ target · ln(probability), where the probabilities are the softmax of the logits. The
//! loss of a batch is the mean over its pictures. You implement `torch.nn.CrossEntropyLoss(label_smoothing=ε)` by hand.

use tch::{Kind, Tensor};

/// Returns the mean loss of `logits`, of shape `[n, classes]` (`Double`). `right` has the right class numbers, of shape `[n]`.
pub fn smoothing(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    // <answer>
    //~ // `logits.log_softmax(-1, Kind::Double)` is exact where `softmax` is 0; `right.one_hot(classes)` has a 1 at each right class.
    //~ todo!("cross entropy with label smoothing")
    let classes = logits.size()[1];
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon) + epsilon / classes as f64;
    let of_picture = -(target * logits.log_softmax(-1, Kind::Double)).sum_dim_intlist(-1, false, Kind::Double);
    of_picture.mean(Kind::Double)
    // </answer>
}
