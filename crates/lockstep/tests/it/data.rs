//! Drawn digits serve their purpose (a small convolutional network learns them, a linear model not quite), and the published digits, if
//! present (`LOCKSTEP_DATA`, or `shared/data` next to the checkout), are read as they are.

use lockstep::data::{Batch, Dataset, Digits, Mnist, Split, real_data_dir};
use lockstep_testkit::margin;
use tch::nn::{Module, OptimizerConfig};
use tch::{Device, Kind, nn, no_grad};

const BATCH: usize = 50;

/// Trains `model` for `epochs` in the set's own order and returns its accuracy on `test`.
fn accuracy(
    store: &nn::VarStore,
    model: &impl Module,
    train: &Mnist,
    test: &Mnist,
    epochs: usize,
) -> anyhow::Result<f64> {
    let mut optimizer = nn::Adam::default().build(store, 2e-3)?;
    for first in (0..epochs).flat_map(|_| (0..train.len()).step_by(BATCH)) {
        let Batch { inputs, targets } = train.batch(0, &(first..first + BATCH).collect::<Vec<_>>())?;
        optimizer.backward_step(&model.forward(&inputs).cross_entropy_for_logits(&targets));
    }
    let Batch { inputs, targets } = test.batch(0, &(0..test.len()).collect::<Vec<_>>())?;
    Ok(no_grad(|| model.forward(&inputs).accuracy_for_logits(&targets).double_value(&[])))
}

fn convolutional(path: &nn::Path<'_>) -> impl Module {
    let strided = nn::ConvConfig { stride: 2, ..Default::default() };
    nn::seq()
        .add(nn::conv2d(path / "c1", 1, 8, 5, strided))
        .add_fn(|x| x.relu())
        .add(nn::conv2d(path / "c2", 8, 16, 5, strided))
        .add_fn(|x| x.relu().flatten(1, -1))
        .add(nn::linear(path / "f1", 16 * 4 * 4, 64, Default::default()))
        .add_fn(|x| x.relu())
        .add(nn::linear(path / "f2", 64, 10, Default::default()))
}

fn linear(path: &nn::Path<'_>) -> impl Module {
    nn::seq().add_fn(|x| x.flatten(1, -1)).add(nn::linear(path / "f", 28 * 28, 10, Default::default()))
}

#[test]
fn a_convolutional_net_learns_drawn_digits_and_a_linear_model_falls_short() -> anyhow::Result<()> {
    tch::set_num_threads(1);
    let seed = margin::seed(1);
    tch::manual_seed(seed as i64);
    let (train, test) = (Digits::generate(seed, 8_000), Digits::new(seed, Split::Test).first(1_000));

    let store = nn::VarStore::new(Device::Cpu);
    let net = accuracy(&store, &convolutional(&store.root()), &train, &test, 5)?;
    let store = nn::VarStore::new(Device::Cpu);
    let straight = accuracy(&store, &linear(&store.root()), &train, &test, 3)?;

    margin::below("errors of the convolutional net on 1,000 held-out digits", 1.0 - net, 0.03);
    margin::below("errors of a linear model", 1.0 - straight, 0.5);
    margin::above("errors of a linear model", 1.0 - straight, 0.02);
    margin::above("what the convolutional net is better by", net - straight, 0.015);
    Ok(())
}

/// Reads both splits, or prints why not.
fn real_mnist() -> anyhow::Result<Option<(Mnist, Mnist)>> {
    let dir = real_data_dir().map(|data| data.join("mnist")).filter(|dir| dir.is_dir());
    let Some(dir) = dir else {
        println!("not verified here: the real MNIST; set LOCKSTEP_DATA to a folder that has mnist/ to verify it");
        return Ok(None);
    };
    Ok(Some((Mnist::from_dir(&dir, Split::Train)?, Mnist::from_dir(&dir, Split::Test)?)))
}

#[test]
fn reads_the_published_digits() -> anyhow::Result<()> {
    let Some((train, test)) = real_mnist()? else { return Ok(()) };
    for (name, set) in [("train", &train), ("test", &test)] {
        println!("{name}: {} digits of {} x {}", set.len(), set.rows(), set.columns());
        assert!(set.len() >= 1_000 && (set.rows(), set.columns()) == (28, 28));
        assert!((0..10).all(|digit| set.labels().contains(&digit)));
    }
    assert!(train.len() > test.len());
    Ok(())
}

#[test]
fn normalises_the_published_digits_to_mean_zero_and_variance_one() -> anyhow::Result<()> {
    let Some((train, _)) = real_mnist()? else { return Ok(()) };
    let inputs = train.batch(0, &(0..train.len()).collect::<Vec<_>>())?.inputs;
    assert_eq!(inputs.size()[1..], [1, 28, 28]);
    let (mean, spread) = (inputs.mean(Kind::Double).double_value(&[]), inputs.std(true).double_value(&[]));
    assert!(mean.abs() < 0.02 && (spread - 1.0).abs() < 0.02, "mean {mean}, standard deviation {spread}");
    Ok(())
}
