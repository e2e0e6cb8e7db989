//! Right: the plain cross entropy and the mean over all classes, blended.

use tch::{Kind, Tensor};

pub fn smoothing(logits: &Tensor, right: &Tensor, epsilon: f64) -> Tensor {
    let logarithms = logits.log_softmax(-1, Kind::Double);
    let plain = -logarithms.gather(1, &right.unsqueeze(1), false).mean(Kind::Double);
    let all = -logarithms.mean(Kind::Double);
    plain * (1.0 - epsilon) + all * epsilon
}
