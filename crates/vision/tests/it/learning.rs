//! What the drawn pictures are for: a convolutional network learns them, and a linear model on pixels does not.

use lockstep::data::{Batch, Dataset, Split};
use lockstep_testkit::margin;
use lockstep_vision::{DrawnHouses, Normalize, Objects, Pictures, Transformed};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor, no_grad};

#[test] // about ten seconds of a core: a network learns from 1,000 pictures
fn a_convolutional_net_learns_the_objects_and_a_linear_model_does_not() -> anyhow::Result<()> {
    let objects = |split, count| batch(Objects::new(margin::seed(1), split).first(count));
    let [net, linear] = accuracies(&objects(Split::Train, 1000)?, &objects(Split::Test, 300)?, 10);
    margin::above("accuracy of the convolutional net on 300 held-out objects of ten classes", net, 0.7);
    margin::below("accuracy of a linear model", linear, 0.3);
    Ok(())
}

#[test] // as long
fn a_convolutional_net_learns_the_grades_and_a_linear_model_falls_short() -> anyhow::Result<()> {
    let houses = |split, count| batch(DrawnHouses::new(margin::seed(1), split).first(count, 40, 40));
    let [net, linear] = accuracies(&houses(Split::Train, 720)?, &houses(Split::Test, 300)?, 3);
    margin::above("accuracy of the convolutional net on 300 held-out houses of three classes", net, 0.7);
    margin::below("accuracy of a linear model", linear, 0.6);
    margin::above("what the convolutional net is better by", net - linear, 0.2);
    Ok(())
}

const EPOCHS: u32 = 10;

/// All pictures of a set.
fn batch(set: impl Pictures + 'static) -> anyhow::Result<Batch> {
    let all: Vec<usize> = (0..set.len()).collect();
    Transformed::new(set, Normalize::IMAGENET).batch(0, &all)
}

/// The share of the test pictures that a convolutional net and a linear model classify right after training.
fn accuracies(train: &Batch, test: &Batch, classes: i64) -> [f64; 2] {
    tch::set_num_threads(1);
    tch::manual_seed(margin::seed(1) as i64);
    let pixels: i64 = train.inputs.size()[1..].iter().product();
    let linear = |path: &nn::Path<'_>| {
        nn::seq_t().add_fn(|x| x.flatten(1, -1)).add(nn::linear(path, pixels, classes, Default::default()))
    };
    let learn = |make: &dyn Fn(&nn::Path<'_>) -> nn::SequentialT, lr: f64| {
        let store = nn::VarStore::new(Device::Cpu);
        let net = make(&store.root());
        let mut optimizer = nn::Adam::default().build(&store, lr).expect("Adam takes any rate");
        for epoch in 0..EPOCHS {
            // A rate that falls to 0 keeps the last epochs from differing as much as the two models.
            optimizer.set_lr(lr * (1.0 - f64::from(epoch) / f64::from(EPOCHS)));
            let order = Tensor::randperm(train.len() as i64, (Kind::Int64, Device::Cpu));
            for some in order.split(16, 0) {
                let answers = net.forward_t(&train.inputs.index_select(0, &some), true);
                optimizer.backward_step(&answers.cross_entropy_for_logits(&train.targets.index_select(0, &some)));
            }
        }
        let answers = no_grad(|| net.forward_t(&test.inputs, false));
        answers.accuracy_for_logits(&test.targets).double_value(&[])
    };
    [learn(&|path| convolutional(path, classes), 1e-2), learn(&linear, 1e-4)]
}

fn convolutional(path: &nn::Path<'_>, classes: i64) -> nn::SequentialT {
    let mut net = nn::seq_t();
    for (layer, (inputs, outputs)) in [(3, 16), (16, 32), (32, 64)].into_iter().enumerate() {
        let config = nn::ConvConfig { padding: 1, bias: false, ..Default::default() };
        let ones = nn::Init::Const(1.0); // as in PyTorch
        let norm = nn::BatchNormConfig { momentum: 0.3, ws_init: ones, ..Default::default() };
        net = net
            .add(nn::conv2d(path / layer / "conv", inputs, outputs, 3, config))
            .add(nn::batch_norm2d(path / layer / "norm", outputs, norm))
            .add_fn(|x| x.relu().max_pool2d_default(2));
    }
    let head = nn::linear(path / "fc", 64, classes, Default::default());
    net.add_fn(|x| x.mean_dim([2, 3].as_slice(), false, Kind::Float)).add(head)
}
