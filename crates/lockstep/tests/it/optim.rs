//! The optimizers beyond their arithmetic: state that resumes with the same bits, groups, skipped parameters, and errors that
//! say what to do. `optim_golden.rs` tests the arithmetic.

use lockstep::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, FusedOptimizer, GroupOptions, OptimError, Optimizer, ParamGroup, Rule, Sgd,
    SgdOptions, State, StateMeta, named_parameters,
};
use lockstep_testkit::margin;
use tch::{Device, Kind, Tensor, nn};

type Named = Vec<(String, Tensor)>;

fn parameter(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).set_requires_grad(true)
}

fn two_parameters() -> Named {
    vec![("w".to_owned(), parameter(&[0.5, -1.0, 2.0, 0.125])), ("b".to_owned(), parameter(&[0.25, -0.75]))]
}

fn shared(params: &Named) -> Named {
    params.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect()
}

/// Adds a gradient that depends on the values and the step.
fn give_gradient(p: &Tensor, step: i64) {
    (p * (p.detach() * 0.5 + step * 7 % 5 - 2)).sum(p.kind()).backward();
}

fn train<R: Rule>(params: &Named, optimizer: &mut FusedOptimizer<R>, steps: std::ops::Range<i64>) {
    for step in steps {
        optimizer.zero_grad();
        params.iter().for_each(|(_, p)| give_gradient(p, step));
        optimizer.step().unwrap();
    }
}

fn bits(params: &Named) -> Vec<Vec<u32>> {
    let values = params.iter().map(|(_, p)| Vec::<f32>::try_from(p.detach().to_kind(Kind::Float).view([-1])).unwrap());
    values.map(|values| values.into_iter().map(f32::to_bits).collect()).collect()
}

/// The state after a round trip through a snapshot: the description through JSON, the tensors through safetensors' bytes.
fn through_files(state: State) -> State {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.safetensors");
    let meta = serde_json::to_string(state.meta()).unwrap();
    Tensor::write_safetensors(&state.tensors(), &file).unwrap();
    let tensors = Tensor::read_safetensors(&file).unwrap();
    State::new(serde_json::from_str(&meta).unwrap(), tensors)
}

fn resumes_with_the_same_bits<R: Rule>(options: R, other: R) {
    let straight = two_parameters();
    train(&straight, &mut FusedOptimizer::new(shared(&straight), options.clone()).unwrap(), 0..10);

    let first = two_parameters();
    let mut optimizer = FusedOptimizer::new(shared(&first), options).unwrap();
    train(&first, &mut optimizer, 0..5);
    let copy = |p: &Tensor| p.detach().copy().set_requires_grad(true);
    let second: Named = first.iter().map(|(name, p)| (name.clone(), copy(p))).collect();
    // Other options and another order: names and saved options decide.
    let mut fresh = FusedOptimizer::new(shared(&second).into_iter().rev().collect(), other).unwrap();
    fresh.load_state_dict(through_files(optimizer.state_dict().unwrap())).unwrap();
    train(&second, &mut fresh, 5..10);

    assert_eq!(bits(&second), bits(&straight));
    assert_ne!(bits(&second), bits(&first), "the last five steps moved nothing");
    let steps = fresh.state_dict().unwrap().meta().groups[0].params.iter().map(|p| p.step).collect::<Vec<_>>();
    assert_eq!(steps, [10, 10]);
}

#[test]
fn sgd_resumes_with_the_same_bits() {
    let options = SgdOptions { lr: 0.1 / 3.0, momentum: 0.9, dampening: 0.1, weight_decay: 1e-3, ..Default::default() };
    resumes_with_the_same_bits(options, SgdOptions::default());
    resumes_with_the_same_bits(SgdOptions::default(), SgdOptions { momentum: 0.9, ..Default::default() });
}

#[test]
fn adam_resumes_with_the_same_bits() {
    let options = AdamOptions { lr: 0.1 / 3.0, amsgrad: true, betas: (0.7, 0.9), ..Default::default() };
    resumes_with_the_same_bits(options, AdamOptions::default());
}

#[test]
fn adamw_resumes_with_the_same_bits() {
    resumes_with_the_same_bits(AdamWOptions { lr: 0.1 / 3.0, ..Default::default() }, AdamWOptions::default());
}

#[test]
fn resumes_before_the_first_step_and_where_a_parameter_never_stepped() {
    let (a, b) = (two_parameters(), two_parameters());
    let mut one = Adam::new(shared(&a), AdamOptions::default()).unwrap();
    let mut two = Adam::new(shared(&b), AdamOptions::default()).unwrap();
    two.load_state_dict(through_files(one.state_dict().unwrap())).unwrap();
    for (params, optimizer) in [(&a, &mut one), (&b, &mut two)] {
        give_gradient(&params[0].1, 1);
        optimizer.step().unwrap();
    }
    assert_eq!(bits(&a), bits(&b));
    let state = one.state_dict().unwrap();
    assert_eq!(
        state.tensors().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["exp_avg.w", "exp_avg_sq.w"]
    );
    two.load_state_dict(through_files(state)).unwrap();
    assert_eq!(two.state_dict().unwrap().meta().groups[0].params.iter().map(|p| p.step).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_saved_state_is_a_value_that_later_steps_leave_alone() {
    let params = two_parameters();
    let mut optimizer = Adam::new(shared(&params), AdamOptions::default()).unwrap();
    train(&params, &mut optimizer, 0..2);
    let saved = optimizer.state_dict().unwrap();
    let before: Vec<Tensor> = saved.tensors().iter().map(|(_, t)| t.copy()).collect();
    train(&params, &mut optimizer, 2..4);
    assert!(saved.tensors().iter().zip(&before).all(|((_, now), then)| now == then));
    // And vice versa: an optimizer that loaded it owns its copy.
    let kept = saved.tensors();
    optimizer.load_state_dict(saved).unwrap();
    train(&params, &mut optimizer, 4..6);
    assert!(kept.iter().zip(&before).all(|((_, now), then)| now == then));
}

#[test]
fn skips_a_parameter_without_a_gradient() {
    let params = two_parameters();
    let before = bits(&params);
    let mut optimizer = AdamW::new(shared(&params), AdamWOptions::default()).unwrap();
    give_gradient(&params[0].1, 1);
    optimizer.step().unwrap();
    let after = bits(&params);
    assert_ne!(after[0], before[0]);
    assert_eq!(after[1], before[1], "weight decay alone must not move it");
    assert_eq!(
        optimizer.state_dict().unwrap().meta().groups[0].params.iter().map(|p| p.step).collect::<Vec<_>>(),
        [1, 0]
    );
}

#[test]
fn a_step_without_any_gradient_changes_nothing() {
    let params = two_parameters();
    let before = bits(&params);
    Sgd::new(shared(&params), SgdOptions { momentum: 0.9, ..Default::default() }).unwrap().step().unwrap();
    assert_eq!(bits(&params), before);
}

#[test]
fn zero_grad_lets_the_next_backward_start_from_nothing() {
    let params = two_parameters();
    let mut optimizer = Sgd::new(shared(&params), SgdOptions::default()).unwrap();
    give_gradient(&params[0].1, 1);
    let once = params[0].1.grad().copy();
    give_gradient(&params[0].1, 1);
    assert_ne!(params[0].1.grad(), once);
    optimizer.zero_grad();
    give_gradient(&params[0].1, 1);
    assert_eq!(params[0].1.grad(), once);
}

#[test]
fn zero_grad_forgets_so_that_a_parameter_out_of_use_is_skipped() {
    let params = two_parameters();
    let options = SgdOptions { momentum: 0.9, weight_decay: 0.1, ..Default::default() };
    let mut optimizer = Sgd::new(shared(&params), options).unwrap();
    train(&params, &mut optimizer, 0..2);
    optimizer.zero_grad();
    assert!(params.iter().all(|(_, p)| !p.grad().defined()));
    let before = bits(&params);
    give_gradient(&params[0].1, 1);
    optimizer.step().unwrap();
    assert_ne!(bits(&params)[0], before[0]);
    assert_eq!(bits(&params)[1], before[1], "momentum and weight decay alone must not move it");
    assert_eq!(
        optimizer.state_dict().unwrap().meta().groups[0].params.iter().map(|p| p.step).collect::<Vec<_>>(),
        [3, 2]
    );
}

#[test]
fn groups_have_their_own_learning_rate_and_weight_decay() {
    let (mut params, options) = (two_parameters(), SgdOptions { lr: 0.5, ..Default::default() });
    let all = shared(&params);
    let bias = params.pop().unwrap();
    let groups = vec![ParamGroup::new(params), ParamGroup::new(vec![bias]).lr(0.25).weight_decay(2.0)];
    let mut optimizer = Sgd::with_groups(groups, options).unwrap();
    assert_eq!((optimizer.lr(), optimizer.group_lrs()), (0.5, vec![0.5, 0.25]));
    all.iter().for_each(|(_, p)| p.sum(Kind::Float).backward());
    optimizer.step().unwrap();
    // p - lr * (1 + weight_decay * p), exact in binary.
    assert_eq!(Vec::<f32>::try_from(&all[0].1).unwrap(), [0.0, -1.5, 1.5, -0.375]);
    assert_eq!(Vec::<f32>::try_from(&all[1].1).unwrap(), [0.25 - 0.25 * 1.5, -0.75 + 0.25 * 0.5]);

    optimizer.set_group_lr(1, 0.0).unwrap();
    assert_eq!(optimizer.group_lrs(), [0.5, 0.0]);
    optimizer.set_lr(0.125);
    assert_eq!(optimizer.group_lrs(), [0.125, 0.125]);
    let error = optimizer.set_group_lr(2, 0.1).unwrap_err();
    assert_eq!(error.to_string(), "no parameter group 2: the optimizer has 2");
}

#[test]
fn steps_parameters_of_several_dtypes_together() {
    let kinds = [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half];
    let params: Named =
        kinds.iter().map(|kind| (format!("{kind:?}"), Tensor::ones([3], (*kind, Device::Cpu)))).collect();
    params.iter().for_each(|(_, p)| drop(p.set_requires_grad(true)));
    let mut optimizer = Adam::new(shared(&params), AdamOptions { lr: 0.25, ..Default::default() }).unwrap();
    params.iter().for_each(|(_, p)| p.sum(p.kind()).backward());
    optimizer.step().unwrap();
    // Adam's first step is the learning rate, against the gradient.
    for (name, p) in &params {
        let values = Vec::<f64>::try_from(p.to_kind(Kind::Double)).unwrap();
        assert!(values.iter().all(|v| (v - 0.75).abs() < 1e-2), "{name}: {values:?}");
        assert_eq!(p.kind(), kinds[params.iter().position(|(other, _)| other == name).unwrap()]);
    }
}

#[test]
fn a_network_from_a_var_store_learns_a_line() {
    let vs = nn::VarStore::new(Device::Cpu);
    tch::manual_seed(margin::seed(1) as i64);
    let layer = nn::linear(vs.root(), 3, 1, Default::default());
    let x = Tensor::randn([64, 3], tch::kind::FLOAT_CPU);
    let y = x.matmul(&Tensor::from_slice(&[1.0_f32, -2.0, 0.5]).view([3, 1])) + 0.25;
    let mut optimizer =
        Sgd::new(named_parameters(&vs), SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() }).unwrap();
    let loss = || x.apply(&layer).mse_loss(&y, tch::Reduction::Mean);
    let first = loss().double_value(&[]);
    for _ in 0..100 {
        optimizer.zero_grad();
        loss().backward();
        optimizer.step().unwrap();
    }
    let last = loss().double_value(&[]);
    margin::below("the last loss as a part of the first", last / first, 1e-3);
}

fn refuses<R: Rule>(options: R, message: &str) {
    let error = FusedOptimizer::new(two_parameters(), options).err().expect(message).to_string();
    assert!(error.contains(message), "{error:?} has no {message:?}");
}

#[test]
fn rejects_options_out_of_range() {
    let sgd = SgdOptions::default;
    refuses(SgdOptions { lr: -0.1, ..sgd() }, "invalid lr for SGD: -0.1; it must be finite and not negative");
    refuses(SgdOptions { lr: f64::NAN, ..sgd() }, "invalid lr for SGD: NaN");
    refuses(SgdOptions { momentum: -1.0, ..sgd() }, "invalid momentum for SGD: -1");
    refuses(SgdOptions { weight_decay: -1.0, ..sgd() }, "invalid weight_decay for SGD: -1");
    refuses(SgdOptions { dampening: f64::INFINITY, ..sgd() }, "invalid dampening for SGD: inf");
    refuses(SgdOptions { nesterov: true, ..sgd() }, "nesterov needs a momentum above 0");
    refuses(
        SgdOptions { nesterov: true, momentum: 0.9, dampening: 0.1, ..sgd() },
        "got momentum 0.9 and dampening 0.1",
    );
    refuses(AdamOptions { eps: -1e-8, ..Default::default() }, "invalid eps for Adam");
    refuses(
        AdamOptions { betas: (1.0, 0.999), ..Default::default() },
        "invalid betas.0 for Adam: 1; it must be at least 0",
    );
    refuses(AdamWOptions { betas: (0.9, -0.1), ..Default::default() }, "invalid betas.1 for AdamW: -0.1");
    refuses(AdamWOptions { betas: (0.9, f64::NAN), ..Default::default() }, "invalid betas.1 for AdamW: NaN");
    refuses(AdamWOptions { weight_decay: -0.1, ..Default::default() }, "invalid weight_decay for AdamW");
}

#[test]
fn rejects_the_option_of_a_group_out_of_range() {
    let group = ParamGroup::new(two_parameters()).lr(-1.0);
    let error = Sgd::with_groups(vec![group], SgdOptions::default()).unwrap_err();
    assert!(error.to_string().contains("invalid lr for SGD: -1"), "{error}");
}

#[test]
fn rejects_a_learning_rate_that_was_set_out_of_range_before_anything_moves() {
    let params = two_parameters();
    let mut optimizer = Adam::new(shared(&params), AdamOptions::default()).unwrap();
    params.iter().for_each(|(_, p)| give_gradient(p, 1));
    let before = bits(&params);
    optimizer.set_lr(f64::NAN);
    assert!(matches!(optimizer.step(), Err(OptimError::Option { option: "lr", .. })));
    assert_eq!(bits(&params), before);
}

#[test]
fn rejects_parameters_that_cannot_be_trained() {
    let refused = |params: Named| Sgd::new(params, SgdOptions::default()).unwrap_err().to_string();
    let named = |tensor| vec![("w".to_owned(), tensor)];
    assert!(refused(Vec::new()).contains("empty parameter list (group 0)"));
    assert!(refused(named(Tensor::zeros([2], tch::kind::FLOAT_CPU))).contains("w: it does not require a gradient"));
    assert!(refused(named(parameter(&[1.0]) * 2)).contains("w: it is computed from other tensors"));
    let complex = Tensor::zeros([2], (Kind::ComplexFloat, Device::Cpu)).set_requires_grad(true);
    assert!(refused(named(complex)).contains("not a real floating-point type"));
    let twice = parameter(&[1.0]);
    let both = vec![("w".to_owned(), twice.shallow_clone()), ("v".to_owned(), twice)];
    assert!(refused(both).contains("v: it is in the optimizer twice"));
    let namesakes = vec![("w".to_owned(), parameter(&[1.0])), ("w".to_owned(), parameter(&[2.0]))];
    assert!(refused(namesakes).contains("given to two parameters"));
    assert!(matches!(Sgd::with_groups(Vec::new(), SgdOptions::default()), Err(OptimError::NoParameters { group: 0 })));
    let second_empty = vec![ParamGroup::new(two_parameters()), ParamGroup::new(Vec::new())];
    let error = Sgd::with_groups(second_empty, SgdOptions::default()).unwrap_err();
    assert!(matches!(error, OptimError::NoParameters { group: 1 }));
}

#[test]
fn rejects_gradients_that_the_kernels_would_misread() {
    let step = |p: &Tensor| {
        let options = SgdOptions { momentum: 0.9, ..Default::default() };
        let mut optimizer = Sgd::new(vec![("w".to_owned(), p.shallow_clone())], options).unwrap();
        optimizer.step().unwrap_err().to_string()
    };
    // Not dense: its gradient is made contiguous, so element i of one is not element i of the other in memory.
    let gaps = Tensor::zeros([3, 4], tch::kind::FLOAT_CPU).slice(1, 0, 4, 2).detach().set_requires_grad(true);
    (&gaps * 2).sum(Kind::Float).backward();
    assert!(
        step(&gaps).contains("cannot step the parameter w: its gradient is (Float, Cpu, [2, 1])"),
        "{}",
        step(&gaps)
    );

    let table = Tensor::zeros([5, 2], tch::kind::FLOAT_CPU).set_requires_grad(true);
    let picked = Tensor::embedding(&table, &Tensor::from_slice(&[1_i64, 3]), -1, false, true);
    picked.sum(Kind::Float).backward();
    assert!(step(&table).contains("its gradient is sparse"), "{}", step(&table));
}

#[test]
fn a_sparse_gradient_steps_its_rows_as_a_dense_one_does() {
    for maximize in [false, true] {
        let tables = [true, false].map(|sparse| {
            let table = Tensor::arange(10, tch::kind::FLOAT_CPU).view([5, 2]).set_requires_grad(true);
            let picked = Tensor::embedding(&table, &Tensor::from_slice(&[1_i64, 3, 1]), -1, false, sparse);
            (&picked * &picked).sum(Kind::Float).backward();
            assert_eq!(table.grad().is_sparse(), sparse);
            let options = SgdOptions { lr: 0.25, maximize, ..Default::default() };
            Sgd::new(vec![("w".to_owned(), table.shallow_clone())], options).unwrap().step().unwrap();
            table.detach()
        });
        assert_eq!(tables[0], tables[1], "maximize: {maximize}");
        assert_ne!(tables[0], Tensor::arange(10, tch::kind::FLOAT_CPU).view([5, 2]));
    }
}

#[test]
fn steps_a_transposed_parameter_in_its_memory_order() {
    // Dense but not contiguous: autograd lays the gradient out the same way.
    let p = Tensor::arange(6, tch::kind::FLOAT_CPU).view([2, 3]).tr().detach().set_requires_grad(true);
    let c = Tensor::arange(6, tch::kind::FLOAT_CPU).view([3, 2]);
    (&p * &c).sum(Kind::Float).backward();
    let expected = p.detach() - &c;
    let options = SgdOptions { lr: 1.0, momentum: 0.5, ..Default::default() };
    Sgd::new(vec![("p".to_owned(), p.shallow_clone())], options).unwrap().step().unwrap();
    assert_eq!(p.detach(), expected);
}

#[test]
fn takes_a_gradient_whose_strides_differ_only_where_the_size_is_one() {
    let p = Tensor::zeros([4, 1], tch::kind::FLOAT_CPU).set_requires_grad(true);
    (p.tr() * Tensor::ones([1, 4], tch::kind::FLOAT_CPU)).sum(Kind::Float).backward();
    assert_ne!(p.grad().stride(), p.stride(), "the case is gone");
    Sgd::new(vec![("p".to_owned(), p.shallow_clone())], SgdOptions { lr: 1.0, ..Default::default() })
        .unwrap()
        .step()
        .unwrap();
    assert_eq!(Vec::<f32>::try_from(p.detach().view([-1])).unwrap(), [-1.0; 4]);
}

fn stepped<R: Rule>(params: Named, options: R) -> FusedOptimizer<R> {
    let mut optimizer = FusedOptimizer::new(shared(&params), options).unwrap();
    train(&params, &mut optimizer, 0..1);
    optimizer
}

/// Loads `state` into an Adam that has stepped, and checks that the error left the optimizer unchanged.
fn refusal(state: State) -> OptimError {
    let mut optimizer = stepped(two_parameters(), AdamOptions::default());
    let before = optimizer.state_dict().unwrap();
    let error = optimizer.load_state_dict(state).unwrap_err();
    let after = optimizer.state_dict().unwrap();
    assert_eq!(before.meta(), after.meta());
    assert_eq!(before.tensors(), after.tensors());
    error
}

fn renamed(params: Named, names: [&str; 2]) -> Named {
    params.into_iter().zip(names).map(|((_, tensor), name)| (name.to_owned(), tensor)).collect()
}

#[test]
fn rejects_the_state_of_another_optimizer_naming_both() {
    let error = refusal(stepped(two_parameters(), AdamWOptions::default()).state_dict().unwrap());
    assert!(error.to_string().starts_with("the saved state is of AdamW, this optimizer is Adam"), "{error}");
    let error = refusal(stepped(two_parameters(), SgdOptions::default()).state_dict().unwrap());
    assert!(error.to_string().starts_with("the saved state is of SGD, this optimizer is Adam"), "{error}");
}

#[test]
fn rejects_a_state_with_other_parameters_naming_both_sides() {
    let error =
        refusal(stepped(renamed(two_parameters(), ["w", "bias"]), AdamOptions::default()).state_dict().unwrap());
    assert_eq!(
        error.to_string(),
        "parameter group 0 differs: only in the saved state: bias; only in this optimizer: b"
    );
    let mut one = two_parameters();
    one.pop();
    let error = refusal(stepped(one, AdamOptions::default()).state_dict().unwrap());
    assert!(error.to_string().ends_with("only in the saved state: none; only in this optimizer: b"), "{error}");
}

#[test]
fn rejects_a_state_with_another_number_of_groups() {
    let groups = two_parameters().into_iter().map(|p| ParamGroup::new(vec![p])).collect();
    let optimizer = Adam::with_groups(groups, AdamOptions::default()).unwrap();
    let error = refusal(optimizer.state_dict().unwrap());
    assert_eq!(error.to_string(), "the saved state has 2 parameter groups, this optimizer has 1");
}

#[test]
fn rejects_a_state_with_another_shape_or_dtype_naming_both() {
    let with_w = |w: Tensor| {
        let mut params = two_parameters();
        params[0].1 = w.set_requires_grad(true);
        refusal(stepped(params, AdamOptions::default()).state_dict().unwrap()).to_string()
    };
    let shape = with_w(Tensor::zeros([2, 2], tch::kind::FLOAT_CPU));
    assert_eq!(shape, "the saved exp_avg.w has shape [2, 2], the parameter here has [4]");
    let dtype = with_w(Tensor::zeros([4], tch::kind::DOUBLE_CPU));
    assert_eq!(dtype, "the saved exp_avg.w has dtype Double, the parameter here has Float");
}

#[test]
fn rejects_tensors_that_are_missing_or_that_nothing_takes() {
    let change = |change: &dyn Fn(&mut StateMeta, &mut Named)| {
        let state = stepped(two_parameters(), AdamOptions::default()).state_dict().unwrap();
        let (mut meta, mut tensors) = (state.meta().clone(), state.tensors());
        change(&mut meta, &mut tensors);
        refusal(State::new(meta, tensors)).to_string()
    };
    let missing = change(&|_, tensors| tensors.retain(|(name, _)| name != "exp_avg_sq.b"));
    assert!(missing.ends_with("missing: exp_avg_sq.b; not expected: none"), "{missing}");
    let extra = change(&|_, tensors| tensors.push(("exp_avg.c".to_owned(), Tensor::zeros([1], tch::kind::FLOAT_CPU))));
    assert!(extra.ends_with("missing: none; not expected: exp_avg.c"), "{extra}");
    let never_stepped = change(&|meta, _| meta.groups[0].params[0].step = 0);
    assert!(never_stepped.contains("not expected: exp_avg"), "{never_stepped}");
    let bad_option = change(&|meta, _| {
        meta.groups[0].options = GroupOptions::Adam(AdamOptions { lr: -1.0, ..Default::default() });
    });
    assert!(bad_option.contains("invalid lr for Adam: -1"), "{bad_option}");
}

#[test]
fn describes_its_state_in_stable_json() {
    let state = Sgd::new(two_parameters(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap().state_dict().unwrap();
    let json = serde_json::to_string(state.meta()).unwrap();
    let expected = concat!(
        r#"{"groups":[{"optimizer":"SGD","options":{"lr":0.1,"momentum":0.0,"dampening":0.0,"weight_decay":0.0,"#,
        r#""nesterov":false,"maximize":false},"params":[{"name":"w","step":0},{"name":"b","step":0}]}]}"#
    );
    assert_eq!(json, expected);
}
