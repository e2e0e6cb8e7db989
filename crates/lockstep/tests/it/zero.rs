//! An optimizer whose state is divided among ranks: the same bits as whole, PyTorch's division, and states that fit each other.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::common::{bits, formula_tensor, ranks};
use c10d::{ProcessGroup, Rank};
use lockstep::optim::{
    Adam, AdamOptions, AdamWOptions, FusedOptimizer, OptimError, Optimizer, ParamGroup, Rule, SgdOptions, State,
    StateMeta, ZeroRedundancyOptimizer,
};
use serde::Deserialize;
use tch::{Kind, Tensor};

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
    cases: Vec<Case>,
}

/// `scripts/golden/zero.py` documents each field.
#[derive(Deserialize)]
struct Case {
    sizes: Vec<Vec<i64>>,
    ranks: usize,
    owners: Vec<Vec<usize>>,
}

#[test]
fn gives_each_parameter_to_the_rank_that_pytorch_gives_it_to() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/zero.json")).unwrap();
    for Case { sizes, ranks: world, owners } in golden.cases {
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
