//! Right, with more traffic than needed: every rank gets all gradients and takes their mean.

use c10d::ProcessGroup;
use tch::Tensor;

pub fn average(group: &ProcessGroup, gradients: &mut [Tensor]) -> anyhow::Result<()> {
    for gradient in gradients {
        let mut all: Vec<Tensor> = group.members().iter().map(|_| gradient.zeros_like()).collect();
        group.all_gather(&mut all, gradient)?;
        gradient.copy_(&Tensor::stack(&all, 0).mean_dim(0, false, None));
    }
    Ok(())
}
