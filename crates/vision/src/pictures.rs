//! Labelled sets of pictures, and the data set that transforms them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use anyhow::ensure;
use clap::ValueEnum;
use image::RgbImage;
use tch::Tensor;

use super::transform::{Pipeline, Transform};
use crate::transform::Normalize;
use lockstep::data::rng::KeyedRng;
use lockstep::data::{Batch, Dataset, Floats, check_indices};

/// Keeps the random numbers of transforms apart from other streams of the same seed.
const AUGMENT: u64 = u64::from_be_bytes(*b"augments");

/// A labelled set of pictures with random access, at any time and from any thread.
pub trait Pictures: Send + Sync {
    fn len(&self) -> usize;

    /// Returns true if there are no pictures.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the classes, in the order of their numbers.
    fn classes(&self) -> &[String];

    /// The class of a picture: an index into [`classes`](Self::classes). `index` is below [`len`](Self::len).
    fn label(&self, index: usize) -> i64;

    /// A picture. `index` is below [`len`](Self::len).
    fn picture(&self, index: usize) -> anyhow::Result<RgbImage>;

    /// A number that distinguishes this set from others: see [`Dataset::fingerprint`].
    fn fingerprint(&self) -> anyhow::Result<u32>;
}

/// What to do about a picture that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnBroken {
    /// Stop with an error that names it.
    #[default]
    Stop,
    /// Leave it out, and warn about it once. In a training set the next readable picture takes its place.
    Skip,
}

/// A set of pictures as a network takes them: each transformed, then normalised.
///
/// Batches hold inputs of shape `[n, 3, height, width]` (`Float`) and targets of shape `[n]` (`Int64`). Random choices for a
/// picture depend on the seed, the epoch and its index alone.
pub struct Transformed<P> {
    pictures: P,
    normalize: Normalize,
    pipeline: Pipeline,
    seed: u64,
    on_broken: OnBroken,
    in_training: bool,
    warn: Box<dyn Fn(String) + Send + Sync>,
    /// Pictures that have been warned about.
    warned: Mutex<BTreeSet<usize>>,
}

impl<P: Pictures> Transformed<P> {
    /// The pictures without a transform, normalised.
    pub fn new(pictures: P, normalize: Normalize) -> Self {
        let (pipeline, warned) = (Pipeline::new(), Mutex::default());
        let warn = Box::new(|message| eprintln!("warning: {message}"));
        let on_broken = OnBroken::Stop;
        Transformed { pictures, normalize, pipeline, seed: 0, on_broken, in_training: false, warn, warned }
    }

    /// The transform of each picture before normalisation.
    #[must_use]
    pub fn pipeline(mut self, pipeline: Pipeline) -> Self {
        self.pipeline = pipeline;
        self
    }

    /// The seed of random choices; 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What to do about a picture that cannot be read; [`OnBroken::Stop`] by default.
    #[must_use]
    pub fn on_broken(mut self, on_broken: OnBroken) -> Self {
        self.on_broken = on_broken;
        self
    }

    /// Marks this as a training set. A picture that is left out is then replaced by the next one that can be read, so that
    /// every batch keeps its size: a rank whose whole batch is broken still takes its step like the others, and each rank's
    /// gradient stays the mean over equally many pictures. In an evaluation a replacement would count twice: there, batches are
    /// smaller, or empty.
    #[must_use]
    pub fn in_training(mut self) -> Self {
        self.in_training = true;
        self
    }

    /// The function that receives a warning, once per picture that is left out; by default it is printed to stderr. A lab
    /// passes its reporter: `.warn(move |message| report.warn(message))`.
    #[must_use]
    pub fn warn(mut self, warn: impl Fn(String) + Send + Sync + 'static) -> Self {
        self.warn = Box::new(warn);
        self
    }

    pub fn pictures(&self) -> &P {
        &self.pictures
    }

    /// The picture as it is in `epoch`; `None` if it is left out.
    fn transformed(&self, epoch: u64, index: usize) -> anyhow::Result<Option<RgbImage>> {
        match self.pictures.picture(index) {
            Ok(picture) => {
                let mut rng = KeyedRng::new(&[self.seed, AUGMENT, epoch, index as u64]);
                Ok(Some(self.pipeline.apply(picture, &mut rng)))
            }
            Err(error) if self.on_broken == OnBroken::Skip => {
                self.warn_once(index, &error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The picture and its number. If it is left out: nothing, or in training the next one.
    fn or_next(&self, epoch: u64, index: usize) -> anyhow::Result<Option<(usize, RgbImage)>> {
        let candidates = if self.in_training { self.len() } else { 1 };
        for candidate in (index..self.len()).chain(0..index).take(candidates) {
            if let Some(picture) = self.transformed(epoch, candidate)? {
                return Ok(Some((candidate, picture)));
            }
        }
        let of = self.len();
        ensure!(
            !self.in_training,
            "none of the {of} pictures can be read (a warning named each): repair or remove them"
        );
        Ok(None)
    }

    fn warn_once(&self, index: usize, error: &anyhow::Error) {
        if self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(index) {
            (self.warn)(format!("left out of training and evaluation: {error:#}"));
        }
    }
}

impl<P: Pictures> Dataset for Transformed<P> {
    fn len(&self) -> usize {
        self.pictures.len()
    }

    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        check_indices(self.len(), indices)?;
        let mut batch = Stack::default();
        for &index in indices {
            if let Some((index, picture)) = self.or_next(epoch, index)? {
                batch.add(&picture, self.pictures.label(index), &self.normalize, indices.len())?;
            }
        }
        Ok(batch.finish())
    }

    fn leaves_out(&self) -> bool {
        self.on_broken == OnBroken::Skip && !self.in_training
    }

    /// Covers the pictures, their transforms and normalisation. The seed is not covered, since a snapshot compares it
    /// separately. Neither is the handling of broken pictures: a run that stopped at one may continue from its snapshot without
    /// it.
    fn fingerprint(&self) -> anyhow::Result<u32> {
        let done = format!("{:08x} {:?} {:?}", self.pictures.fingerprint()?, self.pipeline, self.normalize);
        Ok(crc32fast::hash(done.as_bytes()))
    }
}

/// The tensor data of pictures of one size.
#[derive(Default)]
struct Stack {
    /// The numbers of all pictures of the batch; `None` before the first picture.
    numbers: Option<Floats>,
    labels: Vec<i64>,
    /// Width and height.
    size: (u32, u32),
}

impl Stack {
    /// Adds one picture of a batch of `of`.
    fn add(&mut self, picture: &RgbImage, label: i64, normalize: &Normalize, of: usize) -> anyhow::Result<()> {
        let size = picture.dimensions();
        let numbers = picture.as_raw().len();
        if self.labels.is_empty() {
            self.size = size;
            self.numbers = Some(Floats::zeros(&[of as i64, 3, size.1.into(), size.0.into()]));
        }
        let (first, here) = (self.size, size);
        ensure!(
            first == here,
            "pictures of {} × {} and {} × {} pixels cannot be in one batch: add a Resize to the transforms",
            first.0,
            first.1,
            here.0,
            here.1
        );
        let begin = self.labels.len() * numbers;
        let all = self.numbers.as_mut().map_or(&mut [][..], Floats::numbers);
        normalize.write(picture, &mut all[begin..begin + numbers]);
        self.labels.push(label);
        Ok(())
    }

    fn finish(self) -> Batch {
        let all = self.numbers.unwrap_or_else(|| Floats::zeros(&[0, 3, 0, 0])).into_tensor();
        // Broken pictures may be missing.
        let inputs = all.narrow(0, 0, self.labels.len() as i64);
        Batch { inputs, targets: Tensor::from_slice(&self.labels) }
    }
}

impl<P: Pictures + ?Sized> Pictures for Box<P> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn classes(&self) -> &[String] {
        (**self).classes()
    }

    fn label(&self, index: usize) -> i64 {
        (**self).label(index)
    }

    fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
        (**self).picture(index)
    }

    fn fingerprint(&self) -> anyhow::Result<u32> {
        (**self).fingerprint()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use image::Rgb;

    use super::*;
    use crate::RandomHorizontalFlip;

    /// Pictures of 2 × 1 pixels whose left one is as red as their number; picture 3 cannot be read, picture 4 is larger.
    struct Six(Vec<String>);

    impl Pictures for Six {
        fn len(&self) -> usize {
            6
        }

        fn classes(&self) -> &[String] {
            &self.0
        }

        fn label(&self, index: usize) -> i64 {
            index as i64 % 2
        }

        fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
            match index {
                3 => bail!("cannot read three.png"),
                4 => Ok(RgbImage::new(3, 1)),
                _ => Ok(RgbImage::from_fn(2, 1, |x, _| Rgb([if x == 0 { index as u8 } else { 0 }, 0, 0]))),
            }
        }

        fn fingerprint(&self) -> anyhow::Result<u32> {
            Ok(6)
        }
    }

    /// Six pictures of which at most one can be read.
    struct Only(Option<usize>);

    impl Pictures for Only {
        fn len(&self) -> usize {
            6
        }

        fn classes(&self) -> &[String] {
            &[]
        }

        fn label(&self, index: usize) -> i64 {
            index as i64
        }

        fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
            if self.0 == Some(index) { Six(Vec::new()).picture(index) } else { bail!("cannot read it") }
        }

        fn fingerprint(&self) -> anyhow::Result<u32> {
            Ok(1)
        }
    }

    fn six() -> Transformed<Six> {
        Transformed::new(Six(vec!["even".into(), "odd".into()]), Normalize::NONE)
    }

    fn reds(batch: &Batch) -> Vec<f32> {
        Vec::try_from(batch.inputs.select(1, 0).flatten(0, -1) * 255.0).unwrap()
    }

    #[test]
    fn stacks_pictures_and_labels_in_the_order_asked() {
        let batch = six().batch(0, &[5, 1]).unwrap();
        assert_eq!(batch.inputs.size(), [2, 3, 1, 2]);
        assert_eq!(reds(&batch), [5.0, 0.0, 1.0, 0.0]);
        assert_eq!(Vec::<i64>::try_from(&batch.targets).unwrap(), [1, 1]);
    }

    #[test]
    fn stops_at_a_broken_picture_or_leaves_it_out() {
        let error = six().batch(0, &[0, 3]).unwrap_err();
        assert!(error.to_string().contains("three.png"), "{error}");
        let (sender, warnings) = std::sync::mpsc::channel();
        let skips = six().on_broken(OnBroken::Skip).warn(move |message| sender.send(message).unwrap());
        let batch = skips.batch(0, &[5, 3, 1]).unwrap();
        assert_eq!((batch.inputs.size(), reds(&batch)), (vec![2, 3, 1, 2], vec![5.0, 0.0, 1.0, 0.0]));
        assert_eq!(Vec::<i64>::try_from(&batch.targets).unwrap(), [1, 1]);
        assert!(skips.leaves_out() && skips.batch(0, &[3]).unwrap().is_empty());
        let warnings: Vec<String> = warnings.try_iter().collect();
        assert!(warnings.len() == 1 && warnings[0].contains("three.png"), "once for two times: {warnings:?}");
    }

    #[test]
    fn in_training_the_next_picture_that_can_be_read_takes_the_place_of_a_broken_one() {
        let set = || six().on_broken(OnBroken::Skip).in_training().warn(drop);
        let batch = set().batch(0, &[3]).unwrap(); // number 4, which is larger and black
        assert_eq!((batch.inputs.size(), Vec::<i64>::try_from(&batch.targets).unwrap()), (vec![1, 3, 1, 3], vec![0]));
        assert!(!set().leaves_out());

        let only = |readable| {
            Transformed::new(Only(readable), Normalize::NONE).on_broken(OnBroken::Skip).in_training().warn(drop)
        };
        assert_eq!(
            reds(&only(Some(1)).batch(0, &[2, 1, 0]).unwrap()),
            [1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
            "also from the front"
        );
        let error = only(None).batch(0, &[2]).unwrap_err().to_string();
        assert!(error.starts_with("none of the 6 pictures can be read"), "{error}");
        let error = only(Some(1)).on_broken(OnBroken::Stop).batch(0, &[2]).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }

    #[test]
    fn refuses_pictures_of_two_sizes_and_missing_indices() {
        let error = six().batch(0, &[0, 4]).unwrap_err().to_string();
        assert!(error.contains("2 × 1 and 3 × 1") && error.contains("Resize"), "{error}");
        assert!(six().batch(0, &[6]).is_err());
    }

    #[test]
    fn distinguishes_sets_by_their_transforms() {
        let of = |set: Transformed<Six>| set.fingerprint().unwrap();
        let flip = |p| Pipeline::new().then(RandomHorizontalFlip { p });
        assert_eq!(of(six().pipeline(flip(0.5))), of(six().pipeline(flip(0.5)).seed(1)));
        assert_ne!(of(six().pipeline(flip(0.5))), of(six().pipeline(flip(0.6))));
        assert_ne!(of(six()), of(Transformed::new(Six(Vec::new()), Normalize::CIFAR10)));
    }

    #[test]
    fn draws_by_seed_epoch_and_index_independently_of_earlier_requests() {
        let flips = |seed| six().pipeline(Pipeline::new().then(RandomHorizontalFlip { p: 0.5 })).seed(seed);
        let of = |seed, epoch: u64| reds(&flips(seed).batch(epoch, &[1, 2, 5]).unwrap());
        let set = flips(1);
        let together = reds(&set.batch(7, &[1, 2, 5]).unwrap());
        let apart: Vec<f32> =
            [5, 2, 1].iter().rev().flat_map(|index| reds(&set.batch(7, &[*index]).unwrap())).collect();
        assert_eq!(together, apart);
        assert!((0..20).any(|epoch| of(1, epoch) != of(1, 0)) && (0..20).any(|epoch| of(2, epoch) != of(1, epoch)));
    }
}
