//! The houses after a storm: the same bytes forever, files that are written atomically, and which models learn the grades.

use std::fs;

use lockstep::data::{Dataset, Split};
use lockstep_testkit::margin;
use lockstep_vision::DrawnHouses;
use lockstep_vision::folder::Splits;
use lockstep_vision::houses::CLASSES;
use lockstep_vision::{Normalize, Pictures, Transformed};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor, no_grad};

/// The CRC-32 of six pictures in two sizes each.
fn checksum(split: Split) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for index in 0..6 {
        for (width, height) in [(64, 48), (50, 75)] {
            hasher.update(DrawnHouses::new(42, split).picture(index, width, height).as_raw());
        }
    }
    hasher.finalize()
}

#[test]
fn keeps_the_bytes_of_a_seed_forever() {
    assert_eq!([checksum(Split::Train), checksum(Split::Test)], [0x2363_04b1, 0xdc68_3b11]);
    let labels: Vec<i64> = (0..12).map(|index| DrawnHouses::new(42, Split::Train).label(index)).collect();
    assert_eq!(labels, [1, 2, 0, 0, 1, 2, 2, 1, 0, 0, 2, 1]);
}

#[test]
fn draws_each_house_from_its_seed_split_and_index_alone() {
    let train = DrawnHouses::new(7, Split::Train);
    assert_eq!(train.picture(5, 40, 30), train.picture(5, 40, 30));
    let others = [
        train.picture(8, 40, 30),
        DrawnHouses::new(7, Split::Test).picture(5, 40, 30),
        DrawnHouses::new(8, Split::Train).picture(5, 40, 30),
    ];
    assert!(others.iter().all(|other| *other != train.picture(5, 40, 30)));
}

#[test]
fn draws_in_any_size() {
    for (width, height) in [(1, 1), (1, 300), (300, 1), (3, 2), (200, 50), (50, 200)] {
        assert_eq!(DrawnHouses::new(1, Split::Train).picture(2, width, height).dimensions(), (width, height));
    }
}

#[test]
fn has_each_grade_once_in_every_three() {
    let houses = DrawnHouses::new(9, Split::Test);
    let mut orders = std::collections::BTreeSet::new();
    for three in 0..50 {
        let order: Vec<i64> = (0..3).map(|i| houses.label(3 * three + i)).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2]);
        orders.insert(order);
    }
    assert_eq!(orders.len(), 6, "all orders occur");
}

#[test]
fn is_a_set_of_pictures_without_files() -> anyhow::Result<()> {
    let set = DrawnHouses::new(3, Split::Train).first(9, 32, 24);
    assert_eq!((set.len(), set.classes()), (9, &CLASSES.map(String::from)[..]));
    assert_eq!(set.picture(4)?, DrawnHouses::new(3, Split::Train).picture(4, 32, 24));
    let prints = [(3, 9, 32), (4, 9, 32), (3, 10, 32), (3, 9, 33)].map(|(seed, count, width)| {
        DrawnHouses::new(seed, Split::Train).first(count, width, 24).fingerprint().expect("is drawn")
    });
    assert_eq!(prints[0], set.fingerprint()?);
    assert!(prints[1..].iter().all(|print| *print != prints[0]), "{prints:?}");
    Ok(())
}

#[test]
fn writes_folders_that_can_be_read_back() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let sizes = [(64, 48), (48, 64), (80, 60)];
    DrawnHouses::write(folder.path(), 5, (12, 6), &sizes)?;
    let Splits { train, validation, test } = Splits::open(folder.path())?;
    assert!(test.is_none());
    assert_eq!((train.counts(), validation.counts()), (vec![4; 3], vec![2; 3]));
    assert_eq!(train.classes(), CLASSES);
    assert!(train.skipped().is_empty(), "no file is left half written");
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..train.len() {
        let picture = train.picture(index)?;
        seen.insert(picture.dimensions());
        let name = train.path(index).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let house: usize = name.trim_start_matches("house-").parse()?;
        let drawn = DrawnHouses::new(5, Split::Train).picture(house, picture.width(), picture.height());
        let apart = picture.as_raw().iter().zip(drawn.as_raw()).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>();
        assert!(apart / (drawn.as_raw().len() as f64) < 8.0, "{name} is another house");
        assert_eq!(train.label(index), DrawnHouses::new(5, Split::Train).label(house));
    }
    assert!(seen.len() > 1 && seen.iter().all(|size| sizes.contains(size)), "{seen:?}");
    Ok(())
}

#[test]
fn refuses_a_folder_with_other_photographs_and_writes_over_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let write = |seed, counts| DrawnHouses::write(folder.path(), seed, counts, &[(16, 16)]);
    write(5, (12, 3)).unwrap();
    write(5, (12, 3)).unwrap();
    for (seed, counts) in [(5, (9, 3)), (6, (12, 3))] {
        let error = write(seed, counts).unwrap_err().to_string();
        assert!(error.contains("is already there") && error.contains("draw into another folder"), "{error}");
    }
    write(5, (15, 6)).unwrap();
    let Splits { train, validation, .. } = Splits::open(folder.path()).unwrap();
    assert_eq!((train.counts(), validation.counts()), (vec![5; 3], vec![2; 3]));
}

#[test]
fn refuses_photographs_without_pixels_and_folders_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    for sizes in [&[][..], &[(0, 4)], &[(4, 4), (4, 0)]] {
        let error = DrawnHouses::write(folder.path(), 1, (3, 3), sizes).unwrap_err().to_string();
        assert!(error.contains("give at least one, of 1 x 1 or more"), "{error}");
    }
    let error = DrawnHouses::write(folder.path(), 1, (12, 2), &[(4, 4)]).unwrap_err().to_string();
    assert!(error.contains("12 and 2 photographs: each split needs one of each of the 3 classes"), "{error}");
    fs::write(folder.path().join("Train"), "in the way").unwrap();
    let error = DrawnHouses::write(folder.path(), 1, (3, 3), &[(4, 4)]).unwrap_err().to_string();
    assert!(error.contains("Train/C0"), "{error}");
}

/// Pixels along each side in the experiment below.
const SIDE: u32 = 48;

#[test]
fn a_convolutional_net_learns_the_grades_and_a_linear_model_falls_short() -> anyhow::Result<()> {
    tch::set_num_threads(1);
    let seed = margin::seed(1);
    tch::manual_seed(seed as i64);
    let tensors = |split, count| {
        let set = Transformed::new(DrawnHouses::new(seed, split).first(count, SIDE, SIDE), Normalize::IMAGENET);
        set.batch(0, &(0..count).collect::<Vec<_>>())
    };
    let (train, test) = (tensors(Split::Train, 900)?, tensors(Split::Test, 300)?);
    let learn = |make: &dyn Fn(&nn::Path<'_>) -> nn::SequentialT, lr, epochs| -> anyhow::Result<f64> {
        let store = nn::VarStore::new(Device::Cpu);
        let net = make(&store.root());
        let mut optimizer = nn::Adam::default().build(&store, lr)?;
        // Accuracy of small networks fluctuates between epochs; the best one shows what can be learned.
        let mut best = 0.0_f64;
        for _ in 0..epochs {
            let order = Tensor::randperm(train.len() as i64, (Kind::Int64, Device::Cpu));
            for some in order.split(32, 0) {
                let answers = net.forward_t(&train.inputs.index_select(0, &some), true);
                optimizer.backward_step(&answers.cross_entropy_for_logits(&train.targets.index_select(0, &some)));
            }
            let answers = no_grad(|| net.forward_t(&test.inputs, false));
            best = best.max(answers.accuracy_for_logits(&test.targets).double_value(&[]));
        }
        Ok(best)
    };
    let straight = learn(&linear, 1e-4, 20)?;
    let net = learn(&convolutional, 2e-3, 16)?;
    margin::below("least errors of the convolutional net on 300 held-out houses", 1.0 - net, 0.2);
    margin::below("least errors of a linear model", 1.0 - straight, 0.6);
    margin::above("what the convolutional net is better by", net - straight, 0.05);
    Ok(())
}

fn linear(path: &nn::Path<'_>) -> nn::SequentialT {
    let inputs = i64::from(3 * SIDE * SIDE);
    nn::seq_t().add_fn(|x| x.flatten(1, -1)).add(nn::linear(path, inputs, 3, Default::default()))
}

fn convolutional(path: &nn::Path<'_>) -> nn::SequentialT {
    let mut net = nn::seq_t();
    for (layer, (inputs, outputs)) in [(3, 16), (16, 32), (32, 64)].into_iter().enumerate() {
        let config = nn::ConvConfig { padding: 1, bias: false, ..Default::default() };
        net = net
            .add(nn::conv2d(path / layer / "conv", inputs, outputs, 3, config))
            .add(nn::batch_norm2d(
                path / layer / "norm",
                outputs,
                nn::BatchNormConfig { momentum: 0.3, ..Default::default() },
            ))
            .add_fn(|x| x.relu().max_pool2d_default(2));
    }
    net.add_fn(|x| x.mean_dim([2, 3].as_slice(), false, Kind::Float)).add(nn::linear(
        path / "fc",
        64,
        3,
        Default::default(),
    ))
}
