//! The sign is forgotten.

use tch::{Kind, Tensor};

pub fn smoothing(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let classes = logits.size()[1];
    let target = right.one_hot(classes).to_kind(Kind::Double) * (1.0 - epsilon) + epsilon / classes as f64;
    let of_picture = (target * logits.log_softmax(-1, Kind::Double)).sum_dim_intlist(-1, false, Kind::Double);
    of_picture.mean(Kind::Double)
}
