//! Bytes by kind, counted: what theory says for DDP, divided optimizer states and fully sharded training.

use std::rc::Rc;

use crate::common::ranks;
use crate::fully_shard::{Net, adam_w, batch, loss, sharded};
use lockstep::memory::{Activations, MemoryBytes};
use lockstep::optim::{AdamW, Optimizer, ZeroRedundancyOptimizer, named_parameters};
use lockstep::parallel::FullyShardOptions;
use lockstep::{DdpOptions, DistributedDataParallel};
use tch::{Kind, Tensor};

/// Of the network: 43 + 56 + 24 doubles.
const PARAMETERS: u64 = 123 * 8;

#[test]
fn ddp_has_everything_on_each_rank_and_buckets_besides() {
    for gradient_as_bucket_view in [false, true] {
        ranks(2, |group| {
            let (vs, net) = Net::new(Kind::Double);
            let params: Vec<Tensor> = named_parameters(&vs).into_iter().map(|(_, param)| param).collect();
            let mut optimizer = AdamW::new(named_parameters(&vs), adam_w()).unwrap();
            let options = DdpOptions { gradient_as_bucket_view, fixed_buckets: true, ..Default::default() };
            let ddp = DistributedDataParallel::new(net, &vs, Rc::clone(&group), &options).unwrap();
            let before = group.traffic().unwrap().bytes;
            for step in 0..2 {
                let (inputs, targets) = batch(step, Kind::Double, Some(&group));
                optimizer.zero_grad();
                let output = ddp.forward_with(|net| net.forward(&inputs)).unwrap();
                ddp.backward(&loss(&output, &targets)).unwrap();
                optimizer.step().unwrap();
            }
            let bytes = MemoryBytes::of_ddp(&params, &optimizer, ddp.reducer()).unwrap();
            let gradients = if gradient_as_bucket_view { 0 } else { PARAMETERS };
            assert_eq!((bytes.parameters, bytes.gradients), (PARAMETERS, gradients));
            assert_eq!((bytes.optimizer, bytes.buckets), (2 * PARAMETERS, PARAMETERS));
            assert_eq!(bytes.sent - before, 2 * PARAMETERS, "each step's gradients");
        });
    }
}

#[test]
fn divided_states_add_up_to_the_whole() {
    let held = ranks(3, |group| {
        let (vs, net) = Net::new(Kind::Double);
        let params: Vec<Tensor> = named_parameters(&vs).into_iter().map(|(_, param)| param).collect();
        let mut optimizer = ZeroRedundancyOptimizer::new(named_parameters(&vs), adam_w(), Rc::clone(&group)).unwrap();
        let (inputs, targets) = batch(0, Kind::Double, None);
        loss(&net.forward(&inputs), &targets).backward();
        optimizer.step().unwrap();
        let bytes = MemoryBytes::of(&params, &optimizer);
        assert_eq!((bytes.parameters, bytes.gradients), (PARAMETERS, PARAMETERS));
        bytes.optimizer
    });
    assert_eq!(held.iter().sum::<u64>(), 2 * PARAMETERS);
    assert!(held.iter().all(|bytes| *bytes < PARAMETERS), "{held:?}");
}

#[test]
fn fully_sharded_has_a_part_of_everything_and_sends_twice_the_parts_and_once_the_whole() {
    ranks(3, |group| {
        let (_vs, net, model) = sharded(&group, Kind::Double, &FullyShardOptions::default());
        let mut optimizer = AdamW::new(model.named_parameters(), adam_w()).unwrap();
        // One element of padding at most for each rank and unit: 43, 56 and 24 on 3 ranks.
        let part = (15 + 19 + 8) * 8;
        let mut bytes = MemoryBytes::default();
        for step in 0..2 {
            let before = group.traffic().unwrap().bytes;
            let (inputs, targets) = batch(step, Kind::Double, Some(&group));
            optimizer.zero_grad();
            let (output, activations) = Activations::watch([], || net.sharded(&model, &inputs)).unwrap();
            let kept = activations.bytes();
            model.backward(&loss(&output, &targets)).unwrap();
            optimizer.step().unwrap();
            drop(output);
            assert_eq!(
                activations.bytes(),
                inputs.numel() as u64 * 8 * 3,
                "what remains is the memory of the batch, which is the data's"
            );
            bytes = MemoryBytes::of_sharded(&model, &optimizer).with_activations(kept);
            // The middle unit is used twice: gathered twice in the forward pass, and once for both in the backward pass.
            let gathered = part + 19 * 8 + part;
            assert_eq!(bytes.sent - before, gathered + 3 * part);
        }
        assert_eq!((bytes.parameters, bytes.gradients, bytes.optimizer), (part, part, 2 * part - 2 * padding(&group)));
    });
}

/// Bytes of the parts that belong to no parameter: the last rank's.
fn padding(group: &c10d::ProcessGroup) -> u64 {
    if group.rank().get() == 2 { (15 * 3 - 43 + 19 * 3 - 56) * 8 } else { 0 }
}

#[test]
fn activations_are_what_the_backward_pass_reads_and_are_freed_with_it() {
    let x = Tensor::ones([4, 5], (Kind::Double, tch::Device::Cpu));
    let weight = Tensor::ones([5, 7], (Kind::Double, tch::Device::Cpu)).set_requires_grad(true);
    // The product needs x (and the weight, which is a parameter), the tangent its own result, the sum nothing.
    let (loss, activations) = Activations::watch([&weight], || x.matmul(&weight).tanh().sum(Kind::Double)).unwrap();
    assert_eq!(activations.bytes(), (4 * 5 + 4 * 7) * 8);
    loss.backward();
    drop(loss);
    assert_eq!(activations.bytes(), 4 * 5 * 8, "x is still ours");
    drop(x);
    assert_eq!(activations.bytes(), 0);
    assert!(weight.grad().defined());
}
