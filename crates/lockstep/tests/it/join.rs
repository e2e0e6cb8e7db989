//! Ranks with different numbers of batches, models with several outputs, and parameters that DDP leaves alone.

use std::rc::Rc;

use crate::common::{formula_tensor, ranks, values};
use c10d::ErrorKind;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DdpVariables, DistributedDataParallel, JoinOptions};
use tch::nn::{self, Module, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

fn model() -> (VarStore, nn::Linear) {
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(Kind::Double);
    let net = nn::linear(vs.root(), 3, 2, Default::default());
    for (salt, (_, mut parameter)) in named_parameters(&vs).into_iter().enumerate() {
        no_grad(|| parameter.copy_(&formula_tensor(&parameter.size(), salt as i64 + 1, 0.5)));
    }
    (vs, net)
}

fn batch(rank: usize, step: usize) -> Tensor {
    formula_tensor(&[4, 3], (10 * rank + step) as i64, 1.0).to_kind(Kind::Double)
}

fn ignoring<'a>(names: &'a [&'a str]) -> DdpVariables<'a> {
    DdpVariables { ignored: names, ..Default::default() }
}

fn loss(output: &Tensor) -> Tensor {
    (output * output).mean(Kind::Double)
}

fn sgd(vs: &VarStore) -> Sgd {
    Sgd::new(named_parameters(vs), SgdOptions { lr: 0.1, ..Default::default() }).unwrap()
}

fn weights(vs: &VarStore) -> Vec<f64> {
    named_parameters(vs).iter().flat_map(|(_, parameter)| values(&parameter.detach().flatten(0, -1))).collect()
}

/// One process that takes the steps of all ranks: in each the sum of the gradients of those that have a batch, divided as asked.
fn serial(steps: &[usize], by_all: bool) -> Vec<f64> {
    let (vs, net) = model();
    let mut optimizer = sgd(&vs);
    for step in 0..*steps.iter().max().unwrap() {
        optimizer.zero_grad();
        let active: Vec<usize> = (0..steps.len()).filter(|rank| step < steps[*rank]).collect();
        let parts = if by_all { steps.len() } else { active.len() };
        for rank in active {
            (loss(&net.forward(&batch(rank, step))) / parts as f64).backward();
        }
        optimizer.step().unwrap();
    }
    weights(&vs)
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12)
}

#[test]
fn ranks_with_fewer_batches_go_along_and_all_end_with_the_last_ranks_weights() {
    for steps in [vec![2, 4], vec![5, 0, 3], vec![3, 3], vec![1, 4, 4, 2]] {
        for by_all in [true, false] {
            let found = ranks(steps.len(), |group| {
                let mine = group.rank().get();
                let (vs, net) = model();
                let mut optimizer = sgd(&vs);
                let options = JoinOptions { divide_by_initial_world_size: by_all, ..Default::default() };
                let model = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default()).unwrap();
                let trained = model.join(&options, || {
                    for step in 0..steps[mine] {
                        optimizer.zero_grad();
                        let output = model.forward_with(|net| net.forward(&batch(mine, step)))?;
                        model.backward(&loss(&output))?;
                        optimizer.step().unwrap();
                    }
                    Ok::<_, c10d::Error>(steps[mine])
                });
                assert_eq!(trained.unwrap(), steps[mine]);
                weights(&vs)
            });
            let due = serial(&steps, by_all);
            assert!(found.iter().all(|found| near(found, &due)), "{steps:?} {by_all}: {found:?} and {due:?}");
        }
    }
}

#[test]
fn passes_that_reduce_nothing_may_be_uneven_too() {
    ranks(2, |group| {
        let mine = group.rank().get();
        let (vs, net) = model();
        let model = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default()).unwrap();
        let joined = model.join(&Default::default(), || {
            for step in 0..=3 * mine {
                let pass = || -> c10d::Result<()> {
                    let output = model.forward_with(|net| net.forward(&batch(mine, step)))?;
                    model.backward(&loss(&output))
                };
                match step % 3 {
                    0 => model.no_sync(pass)?,
                    1 => pass()?,
                    _ => drop(no_grad(|| model.forward_with(|net| net.forward(&batch(mine, step))))?),
                }
            }
            Ok::<_, c10d::Error>(())
        });
        joined.unwrap();
        model.group().barrier().unwrap(); // nobody waits in another call
    });
}

#[test]
fn all_ranks_fail_if_one_has_no_more_inputs_where_that_is_asked_for() {
    ranks(3, |group| {
        let mine = group.rank().get();
        let (vs, net) = model();
        let model = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default()).unwrap();
        let options = JoinOptions { throw_on_early_termination: true, ..Default::default() };
        let joined: c10d::Result<()> = model.join(&options, || {
            for step in 0..[2, 1, 3][mine] {
                let output = model.forward_with(|net| net.forward(&batch(mine, step)))?;
                model.backward(&loss(&output))?;
            }
            Ok(())
        });
        let error = joined.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
        assert!(error.to_string().contains("rank 1 has run out of inputs"), "{error}");
    });
}

#[test]
fn an_error_of_the_loop_ends_the_join_and_a_join_inside_a_join_is_refused() {
    ranks(1, |group| {
        let (vs, net) = model();
        let model = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default()).unwrap();
        let failed: anyhow::Result<()> = model.join(&Default::default(), || anyhow::bail!("no such file"));
        assert_eq!(failed.unwrap_err().to_string(), "no such file");
        let nested: c10d::Result<()> = model.join(&Default::default(), || model.join(&Default::default(), || Ok(())));
        assert!(nested.unwrap_err().to_string().contains("in a join already"));
        model.join(&Default::default(), || Ok::<_, c10d::Error>(())).unwrap();
    });
}

#[test]
fn a_model_may_have_several_outputs() {
    for find_unused_parameters in [false, true] {
        let found = ranks(2, |group| {
            let mine = group.rank().get();
            let (vs, net) = model();
            let options = DdpOptions { find_unused_parameters, ..Default::default() };
            let model = DistributedDataParallel::new(net, &vs, group, &options).unwrap();
            let outputs = model.forward_with(|net| {
                let both = [batch(mine, 0), batch(mine, 1)].map(|batch| net.forward(&batch));
                let [first, second] = both;
                (first, Some(vec![second]))
            });
            let (first, rest) = outputs.unwrap();
            model.backward(&(loss(&first) + loss(&rest.unwrap()[0]))).unwrap();
            named_parameters(&vs).iter().flat_map(|(_, p)| values(&p.grad().flatten(0, -1))).collect::<Vec<_>>()
        });
        let (vs, net) = model();
        let sum = |rank, step| loss(&net.forward(&batch(rank, step)));
        ((sum(0, 0) + sum(0, 1) + sum(1, 0) + sum(1, 1)) / 2.0).backward();
        let due: Vec<f64> = named_parameters(&vs).iter().flat_map(|(_, p)| values(&p.grad().flatten(0, -1))).collect();
        assert!(found.iter().all(|found| near(found, &due)));
    }
}

#[test]
fn parameters_that_are_ignored_stay_each_ranks_own() {
    ranks(2, |group| {
        let mine = group.rank().get();
        let (vs, net) = model();
        let mut bias = vs.variables()["bias"].shallow_clone();
        let _ = no_grad(|| bias.fill_(mine as f64));
        let group_of = Rc::clone(&group);
        let model =
            DistributedDataParallel::new_with(net, &vs, group, &DdpOptions::default(), &ignoring(&["bias"])).unwrap();
        assert_eq!(values(&bias.detach()), [mine as f64; 2], "it is not copied at the start");
        let output = model.forward_with(|net| net.forward(&batch(mine, 0))).unwrap();
        model.backward(&(loss(&output) * (mine + 1) as f64)).unwrap();
        let mut sum = bias.grad().copy();
        group_of.all_reduce(&mut sum, c10d::ReduceOp::Sum).unwrap();
        assert!(!near(&values(&sum), &values(&(bias.grad() * 2))), "its gradient is not averaged");
        let absent = ignoring(&["weight", "bais"]);
        let (vs, net) = self::model();
        let refused = DistributedDataParallel::new_with(net, &vs, group_of, &DdpOptions::default(), &absent);
        assert!(refused.unwrap_err().to_string().contains("\"bais\""));
    });
}
