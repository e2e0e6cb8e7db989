//! What drawn objects are for: a small residual network learns them in a few epochs, not in one, and a linear model falls short.
//!
//! One test in a binary of its own, because libtorch's seed and thread count belong to the whole process.

use lockstep::data::vision::{Normalize, Pipeline, RandomHorizontalFlip, Transformed};
use lockstep::data::{Batch, Cifar10, Dataset, Objects, Split};
use lockstep::models::{Depth, ResNet, ResNetOptions};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, no_grad};

const BATCH: usize = 32;
const EPOCHS: u64 = 5;

/// Trains the model in the set's own order and returns its accuracy on `test` after each epoch.
fn accuracies(
    store: &nn::VarStore,
    model: &impl ModuleT,
    train: &impl Dataset,
    test: &impl Dataset,
) -> anyhow::Result<Vec<f64>> {
    let mut optimizer = nn::Adam::default().build(store, 2e-3)?;
    let mut reached = Vec::new();
    for epoch in 0..EPOCHS {
        for first in (0..train.len()).step_by(BATCH) {
            let Batch { inputs, targets } = train.batch(epoch, &(first..first + BATCH).collect::<Vec<_>>())?;
            optimizer.backward_step(&model.forward_t(&inputs, true).cross_entropy_for_logits(&targets));
        }
        let Batch { inputs, targets } = test.batch(0, &(0..test.len()).collect::<Vec<_>>())?;
        reached.push(no_grad(|| model.forward_t(&inputs, false).accuracy_for_logits(&targets).double_value(&[])));
    }
    Ok(reached)
}

fn normalized(objects: Cifar10) -> Transformed<Cifar10> {
    Transformed::new(objects, Normalize::CIFAR10)
}

#[test]
fn a_residual_network_learns_drawn_objects_in_some_epochs_and_a_linear_model_falls_short() -> anyhow::Result<()> {
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let train = normalized(Objects::new(1, Split::Train).first(2_048))
        .pipeline(Pipeline::new().then(RandomHorizontalFlip { p: 0.5 }));
    let test = normalized(Objects::new(1, Split::Test).first(500));

    let store = nn::VarStore::new(Device::Cpu);
    let options = ResNetOptions { width: 8, ..ResNetOptions::new(10) };
    let net = accuracies(&store, &ResNet::new(&store.root(), Depth::Eighteen, &options), &train, &test)?;
    let store = nn::VarStore::new(Device::Cpu);
    let linear = nn::linear(store.root() / "f", 3 * 32 * 32, 10, Default::default());
    let model = nn::func_t(move |x, _| x.flatten(1, -1).apply(&linear));
    let straight = accuracies(&store, &model, &train, &test)?;

    println!("accuracy on 500 held-out objects after each epoch: residual {net:.3?}, linear {straight:.3?}");
    let last = net[net.len() - 1];
    assert!(net[0] < 0.6, "one epoch is enough: {net:?}");
    assert!(last > 0.55 && last > net[0] + 0.1, "{net:?}");
    assert!(straight.iter().all(|linear| linear + 0.1 < last), "residual {net:?}, linear {straight:?}");
    Ok(())
}
