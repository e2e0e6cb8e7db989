//! An optimizer whose state is divided among ranks: the same bits as whole, PyTorch's division, and states that fit each other.
//!
//! Bytes by kind, counted: what theory says for DDP, divided optimizer states and fully sharded training.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use c10d::{ProcessGroup, Rank};
use lockstep::memory::{Activations, MemoryBytes};
use lockstep::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, FusedOptimizer, OptimError, Optimizer, ParamGroup, Rule, SgdOptions, State,
    StateMeta, ZeroRedundancyOptimizer, named_parameters,
};
use lockstep::parallel::FullyShardOptions;
use lockstep::{DdpOptions, DistributedDataParallel};
use serde::Deserialize;
use tch::{Kind, Tensor};

use crate::common::{bits, formula_tensor, ranks};
use crate::fully_shard::{Net, adam_w, batch, loss, sharded};

const SHAPES: [&[i64]; 6] = [&[8, 6], &[8], &[4, 8], &[4], &[3, 4], &[3]];

fn groups() -> Vec<ParamGroup> {
    let param = |(salt, shape): (usize, &&[i64])| {
        (format!("layer{salt}.weight"), formula_tensor(shape, salt as i64, 0.5).set_requires_grad(true))
    };
    let mut params: Vec<_> = SHAPES.iter().enumerate().map(param).collect();
    let slow = params.split_off(4);
    vec![ParamGroup::new(params), ParamGroup::new(slow).lr(0.01).weight_decay(0.1)]
}

/// The tensors of the groups that [`groups`] makes, before the groups go to an optimizer.
fn tensors(groups: &[ParamGroup]) -> Vec<Tensor> {
    groups.iter().flat_map(ParamGroup::params).map(|(_, tensor)| tensor.shallow_clone()).collect()
}

/// Steps with gradients that depend on the values and the step; the second parameter has one in every other step only.
fn train(params: &[Tensor], optimizer: &mut impl Optimizer, steps: Range<i64>) {
    for step in steps {
        optimizer.zero_grad();
        for (index, param) in params.iter().enumerate().filter(|(index, _)| *index != 1 || step % 2 == 1) {
            (param * (param.detach() * 0.5 + (step + index as i64) * 7 % 5 - 2)).sum(param.kind()).backward();
        }
        optimizer.step().unwrap();
    }
}

fn all_bits(tensors: &[Tensor]) -> Vec<Vec<u32>> {
    tensors.iter().map(bits).collect()
}

/// A state as plain numbers, which threads may share.
#[derive(Clone, Debug, PartialEq)]
struct Saved {
    meta: StateMeta,
    tensors: BTreeMap<String, (Vec<i64>, Vec<u32>)>,
}

impl Saved {
    fn of(state: &State) -> Self {
        let tensors = state.tensors().into_iter().map(|(name, tensor)| (name, (tensor.size(), bits(&tensor))));
        Saved { meta: state.meta().clone(), tensors: tensors.collect() }
    }

    fn state(&self) -> State {
        let tensors = self.tensors.iter().map(|(name, (shape, bits))| (name.clone(), of_bits(bits).reshape(shape)));
        State::new(self.meta.clone(), tensors.collect())
    }
}

fn of_bits(bits: &[u32]) -> Tensor {
    Tensor::from_slice(&bits.iter().copied().map(f32::from_bits).collect::<Vec<_>>())
}

fn whole<R: Rule>(options: R, steps: i64) -> (Vec<Vec<u32>>, Saved) {
    let groups = groups();
    let params = tensors(&groups);
    let mut optimizer = FusedOptimizer::with_groups(groups, options).unwrap();
    train(&params, &mut optimizer, 0..steps);
    (all_bits(&params), Saved::of(&optimizer.state_dict().unwrap()))
}

fn zero<R: Rule>(options: R, group: Rc<ProcessGroup>) -> (Vec<Tensor>, ZeroRedundancyOptimizer<R>) {
    let groups = groups();
    let params = tensors(&groups);
    (params, ZeroRedundancyOptimizer::with_groups(groups, options, group).unwrap())
}

fn equals_the_whole<R: Rule + Sync>(options: R) {
    let (expected, state) = whole(options.clone(), 6);
    for world in 1..=4 {
        let to = Rank::new(world / 2);
        let ended = ranks(world, |group| {
            let (params, mut optimizer) = zero(options.clone(), Rc::clone(&group));
            train(&params, &mut optimizer, 0..6);
            optimizer.consolidate_state_dict(to).unwrap();
            let gathered = (group.rank() == to).then(|| Saved::of(&optimizer.state_dict().unwrap()));
            let held: usize = optimizer.local_state().tensors().iter().map(|(_, tensor)| tensor.numel()).sum();
            (all_bits(&params), gathered, held)
        });
        let all: usize = state.tensors.values().map(|(_, bits)| bits.len()).sum();
        assert_eq!(ended.iter().map(|(.., held)| held).sum::<usize>(), all, "each state is on one rank");
        for (rank, (params, gathered, _)) in ended.into_iter().enumerate() {
            assert_eq!(params, expected, "{world} ranks, rank {rank}");
            assert_eq!(gathered, (rank == to.get()).then(|| state.clone()));
        }
    }
}

#[test]
fn sgd_has_the_same_bits_as_whole() {
    equals_the_whole(SgdOptions { lr: 0.05, momentum: 0.9, ..Default::default() });
}

#[test]
fn adam_has_the_same_bits_as_whole() {
    equals_the_whole(AdamOptions { lr: 0.05, amsgrad: true, ..Default::default() });
}

#[test]
fn adam_w_has_the_same_bits_as_whole() {
    equals_the_whole(AdamWOptions { lr: 0.05, ..Default::default() });
}

#[test]
fn goes_on_with_the_same_bits_on_another_number_of_ranks_and_whole() {
    let options = AdamOptions { lr: 0.05, ..Default::default() };
    let (expected, _) = whole(options.clone(), 6);
    let saved = ranks(3, |group| {
        let (params, mut optimizer) = zero(options.clone(), group);
        train(&params, &mut optimizer, 0..3);
        optimizer.consolidate_state_dict(Rank::ZERO).unwrap();
        (all_bits(&params), optimizer.state_dict().ok().as_ref().map(Saved::of))
    });
    let (params, state) = &saved[0];
    let state = state.as_ref().unwrap();
    let start_from = |to: &[Tensor]| {
        let copy = |to: &Tensor, from| tch::no_grad(|| to.shallow_clone().copy_(&of_bits(from).reshape_as(to)));
        to.iter().zip(params).for_each(|(to, from)| copy(to, from));
    };
    for world in [2, 4] {
        let ended = ranks(world, |group| {
            let (params, mut optimizer) = zero(options.clone(), group);
            start_from(&params);
            optimizer.load_state_dict(state.state()).unwrap();
            train(&params, &mut optimizer, 3..6);
            all_bits(&params)
        });
        assert!(ended.iter().all(|ended| *ended == expected), "{world} ranks");
    }
    let groups = groups();
    let params = tensors(&groups);
    let mut optimizer = Adam::with_groups(groups, options).unwrap();
    start_from(&params);
    optimizer.load_state_dict(state.state()).unwrap();
    train(&params, &mut optimizer, 3..6);
    assert_eq!(all_bits(&params), expected);
}

#[test]
fn a_state_that_is_not_gathered_is_an_error_that_says_what_to_call() {
    ranks(2, |group| {
        let (params, mut optimizer) = zero(SgdOptions { momentum: 0.9, ..Default::default() }, Rc::clone(&group));
        train(&params, &mut optimizer, 0..1);
        optimizer.consolidate_state_dict(Rank::ZERO).unwrap();
        assert_eq!(optimizer.state_dict().is_ok(), group.rank().is_zero());
        train(&params, &mut optimizer, 1..2);
        let error = optimizer.state_dict().unwrap_err();
        assert!(matches!(error, OptimError::NotConsolidated { rank } if rank == group.rank()));
        assert!(error.to_string().contains("consolidate_state_dict"), "{error}");
    });
}

#[test]
fn refuses_a_state_of_other_parameters_and_stays_as_it_was() {
    let momentum = SgdOptions { momentum: 0.9, ..Default::default() };
    let (_, of_adam_w) = whole(AdamWOptions::default(), 2);
    let (_, fits) = whole(momentum.clone(), 2);
    let (mut renamed, mut fewer) = (fits.clone(), fits);
    renamed.meta.groups[1].params[0].name = "other".to_owned();
    fewer.meta.groups.pop();
    ranks(2, |group| {
        let (params, mut optimizer) = zero(momentum.clone(), group);
        train(&params, &mut optimizer, 0..2);
        let before = Saved::of(&optimizer.local_state());
        let mut refusal = |state: &Saved| optimizer.load_state_dict(state.state()).unwrap_err();
        assert!(matches!(refusal(&of_adam_w), OptimError::WrongOptimizer { .. }));
        assert!(matches!(refusal(&renamed), OptimError::Names { group: 1, .. }));
        assert!(matches!(refusal(&fewer), OptimError::GroupCount { saved: 1, here: 2 }));
        assert_eq!(Saved::of(&optimizer.local_state()), before);
    });
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Division>,
}

/// `golden/zero.py` documents each field.
#[derive(Deserialize)]
struct Division {
    sizes: Vec<Vec<i64>>,
    ranks: usize,
    owners: Vec<Vec<usize>>,
}

#[test]
fn gives_each_parameter_to_the_rank_that_pytorch_gives_it_to() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/zero.json")).unwrap();
    for Division { sizes, ranks: world, owners } in golden.cases {
        let name = |group: usize, index: usize| format!("{group}.{index}");
        let found = ranks(world, |group| {
            let params = |(at, sizes): (usize, &Vec<i64>)| {
                let zeros =
                    |size: &i64| Tensor::zeros([*size], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
                ParamGroup::new(sizes.iter().enumerate().map(|(index, size)| (name(at, index), zeros(size))).collect())
            };
            let groups = sizes.iter().enumerate().map(params).collect();
            let optimizer =
                ZeroRedundancyOptimizer::with_groups(groups, SgdOptions::default(), Rc::clone(&group)).unwrap();
            group.barrier().unwrap(); // a rank that left at once could close connections that others still make
            let of = optimizer.partition();
            of.into_iter().map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
        });
        let mut expected = vec![Vec::new(); world];
        for (group, owners) in owners.iter().enumerate() {
            owners.iter().enumerate().for_each(|(index, &owner)| expected[owner].push(name(group, index)));
        }
        assert!(
            found.iter().all(|found| *found == expected),
            "{sizes:?} on {world} ranks: {found:?}, not {expected:?}"
        );
    }
}

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
            let bytes = MemoryBytes::of_ddp(&params, &optimizer, ddp.reducer().unwrap()).unwrap();
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
