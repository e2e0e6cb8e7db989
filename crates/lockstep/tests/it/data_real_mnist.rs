//! The published digits, if present (`LOCKSTEP_DATA`, or `shared/data` next to the checkout).

use lockstep::data::{Dataset, Mnist, Split, real_data_dir};
use tch::Kind;

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
