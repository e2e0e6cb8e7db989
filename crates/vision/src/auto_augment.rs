//! AutoAugment: one of 25 pairs of operations, learned on a data set (Cubuk et al., "AutoAugment: Learning Augmentation
//! Strategies from Data", CVPR 2019), as `torchvision.transforms.AutoAugment` has them.

use image::RgbImage;

use super::transform::Transform;
use crate::op::Op;
use lockstep::data::rng::KeyedRng;

/// The number of strength levels of an operation.
const LEVELS: usize = 10;
/// The largest translation, as a fraction of the side.
const LARGEST_MOVE: f64 = 150.0 / 331.0;

/// An operation of a policy, without its strength: see [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}
use OpKind::*;

/// Two operations, one after the other, each with its probability and its level of strength (0 if it has none).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubPolicy([(OpKind, f32, usize); 2]);

/// Applies to each picture a randomly drawn pair of operations of a policy.
///
/// The picture keeps its size: put a [`Resize`](super::Resize) after it, as the tutorials do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoAugment {
    policy: &'static [SubPolicy],
}

impl AutoAugment {
    /// The policy that was learned on ImageNet: torchvision's default.
    pub fn imagenet() -> Self {
        AutoAugment { policy: &IMAGENET }
    }

    /// The policy that was learned on CIFAR-10.
    pub fn cifar10() -> Self {
        AutoAugment { policy: &CIFAR10 }
    }

    /// The policy that was learned on house numbers (SVHN).
    pub fn svhn() -> Self {
        AutoAugment { policy: &SVHN }
    }

    pub fn policy(&self) -> &'static [SubPolicy] {
        self.policy
    }
}

impl Transform for AutoAugment {
    fn apply(&self, picture: RgbImage, rng: &mut KeyedRng) -> RgbImage {
        let chosen = self.policy[rng.below(self.policy.len())];
        let happens = chosen.0.map(|(_, probability, _)| rng.uniform() <= probability);
        let negative = [(); 2].map(|()| rng.below(2) == 0);
        chosen.apply(picture, happens, negative)
    }
}

impl SubPolicy {
    /// Applies those of the two operations that `happens` names; strengths with a sign are negated where `negative` says so.
    pub fn apply(&self, picture: RgbImage, happens: [bool; 2], negative: [bool; 2]) -> RgbImage {
        let size = picture.dimensions();
        let steps = self.0.iter().zip(negative).zip(happens).filter(|(_, happens)| *happens);
        steps.fold(picture, |picture, (((kind, _, level), negative), _)| kind.op(*level, negative, size).apply(picture))
    }

    /// The two operations, each with its probability and its level.
    pub fn steps(&self) -> [(OpKind, f32, usize); 2] {
        self.0
    }
}

impl OpKind {
    pub const ALL: [OpKind; 14] = [
        ShearX,
        ShearY,
        TranslateX,
        TranslateY,
        Rotate,
        Brightness,
        Color,
        Contrast,
        Sharpness,
        Posterize,
        Solarize,
        AutoContrast,
        Equalize,
        Invert,
    ];

    /// The operation at a level from 0 to 9 (those without strength have none), for a picture of this width and height.
    ///
    /// # Panics
    /// Panics when the level is above 9.
    pub fn op(self, level: usize, negative: bool, (width, height): (u32, u32)) -> Op {
        assert!(level < LEVELS, "level {level} of an operation that has levels 0 to 9");
        let signed = |largest: f64| {
            let strength = linspace(0.0, largest as f32, level);
            if negative { -strength } else { strength }
        };
        let part = |largest| 1.0 + signed(largest);
        let pixels = |side: u32| signed(LARGEST_MOVE * f64::from(side)) as i32;
        match self {
            ShearX => Op::ShearX(signed(0.3)),
            ShearY => Op::ShearY(signed(0.3)),
            TranslateX => Op::TranslateX(pixels(width)),
            TranslateY => Op::TranslateY(pixels(height)),
            Rotate => Op::Rotate(signed(30.0)),
            Brightness => Op::Brightness(part(0.9)),
            Color => Op::Color(part(0.9)),
            Contrast => Op::Contrast(part(0.9)),
            Sharpness => Op::Sharpness(part(0.9)),
            Posterize => Op::Posterize(8 - (level as f32 / ((LEVELS - 1) as f32 / 4.0)).round_ties_even() as u8),
            Solarize => Op::Solarize(linspace(255.0, 0.0, level)),
            AutoContrast => Op::AutoContrast,
            Equalize => Op::Equalize,
            Invert => Op::Invert,
        }
    }
}

/// Element `level` of `torch.linspace(first, last, 10)`, which computes from the nearer end, in single precision.
fn linspace(first: f32, last: f32, level: usize) -> f64 {
    let step = (last - first) / (LEVELS - 1) as f32;
    let from_end = LEVELS - 1 - level;
    f64::from(if level < LEVELS / 2 { first + step * level as f32 } else { last - step * from_end as f32 })
}

const IMAGENET: [SubPolicy; 25] = [
    SubPolicy([(Posterize, 0.4, 8), (Rotate, 0.6, 9)]),
    SubPolicy([(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)]),
    SubPolicy([(Equalize, 0.8, 0), (Equalize, 0.6, 0)]),
    SubPolicy([(Posterize, 0.6, 7), (Posterize, 0.6, 6)]),
    SubPolicy([(Equalize, 0.4, 0), (Solarize, 0.2, 4)]),
    SubPolicy([(Equalize, 0.4, 0), (Rotate, 0.8, 8)]),
    SubPolicy([(Solarize, 0.6, 3), (Equalize, 0.6, 0)]),
    SubPolicy([(Posterize, 0.8, 5), (Equalize, 1.0, 0)]),
    SubPolicy([(Rotate, 0.2, 3), (Solarize, 0.6, 8)]),
    SubPolicy([(Equalize, 0.6, 0), (Posterize, 0.4, 6)]),
    SubPolicy([(Rotate, 0.8, 8), (Color, 0.4, 0)]),
    SubPolicy([(Rotate, 0.4, 9), (Equalize, 0.6, 0)]),
    SubPolicy([(Equalize, 0.0, 0), (Equalize, 0.8, 0)]),
    SubPolicy([(Invert, 0.6, 0), (Equalize, 1.0, 0)]),
    SubPolicy([(Color, 0.6, 4), (Contrast, 1.0, 8)]),
    SubPolicy([(Rotate, 0.8, 8), (Color, 1.0, 2)]),
    SubPolicy([(Color, 0.8, 8), (Solarize, 0.8, 7)]),
    SubPolicy([(Sharpness, 0.4, 7), (Invert, 0.6, 0)]),
    SubPolicy([(ShearX, 0.6, 5), (Equalize, 1.0, 0)]),
    SubPolicy([(Color, 0.4, 0), (Equalize, 0.6, 0)]),
    SubPolicy([(Equalize, 0.4, 0), (Solarize, 0.2, 4)]),
    SubPolicy([(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)]),
    SubPolicy([(Invert, 0.6, 0), (Equalize, 1.0, 0)]),
    SubPolicy([(Color, 0.6, 4), (Contrast, 1.0, 8)]),
    SubPolicy([(Equalize, 0.8, 0), (Equalize, 0.6, 0)]),
];

const CIFAR10: [SubPolicy; 25] = [
    SubPolicy([(Invert, 0.1, 0), (Contrast, 0.2, 6)]),
    SubPolicy([(Rotate, 0.7, 2), (TranslateX, 0.3, 9)]),
    SubPolicy([(Sharpness, 0.8, 1), (Sharpness, 0.9, 3)]),
    SubPolicy([(ShearY, 0.5, 8), (TranslateY, 0.7, 9)]),
    SubPolicy([(AutoContrast, 0.5, 0), (Equalize, 0.9, 0)]),
    SubPolicy([(ShearY, 0.2, 7), (Posterize, 0.3, 7)]),
    SubPolicy([(Color, 0.4, 3), (Brightness, 0.6, 7)]),
    SubPolicy([(Sharpness, 0.3, 9), (Brightness, 0.7, 9)]),
    SubPolicy([(Equalize, 0.6, 0), (Equalize, 0.5, 0)]),
    SubPolicy([(Contrast, 0.6, 7), (Sharpness, 0.6, 5)]),
    SubPolicy([(Color, 0.7, 7), (TranslateX, 0.5, 8)]),
    SubPolicy([(Equalize, 0.3, 0), (AutoContrast, 0.4, 0)]),
    SubPolicy([(TranslateY, 0.4, 3), (Sharpness, 0.2, 6)]),
    SubPolicy([(Brightness, 0.9, 6), (Color, 0.2, 8)]),
    SubPolicy([(Solarize, 0.5, 2), (Invert, 0.0, 0)]),
    SubPolicy([(Equalize, 0.2, 0), (AutoContrast, 0.6, 0)]),
    SubPolicy([(Equalize, 0.2, 0), (Equalize, 0.6, 0)]),
    SubPolicy([(Color, 0.9, 9), (Equalize, 0.6, 0)]),
    SubPolicy([(AutoContrast, 0.8, 0), (Solarize, 0.2, 8)]),
    SubPolicy([(Brightness, 0.1, 3), (Color, 0.7, 0)]),
    SubPolicy([(Solarize, 0.4, 5), (AutoContrast, 0.9, 0)]),
    SubPolicy([(TranslateY, 0.9, 9), (TranslateY, 0.7, 9)]),
    SubPolicy([(AutoContrast, 0.9, 0), (Solarize, 0.8, 3)]),
    SubPolicy([(Equalize, 0.8, 0), (Invert, 0.1, 0)]),
    SubPolicy([(TranslateY, 0.7, 9), (AutoContrast, 0.9, 0)]),
];

const SVHN: [SubPolicy; 25] = [
    SubPolicy([(ShearX, 0.9, 4), (Invert, 0.2, 0)]),
    SubPolicy([(ShearY, 0.9, 8), (Invert, 0.7, 0)]),
    SubPolicy([(Equalize, 0.6, 0), (Solarize, 0.6, 6)]),
    SubPolicy([(Invert, 0.9, 0), (Equalize, 0.6, 0)]),
    SubPolicy([(Equalize, 0.6, 0), (Rotate, 0.9, 3)]),
    SubPolicy([(ShearX, 0.9, 4), (AutoContrast, 0.8, 0)]),
    SubPolicy([(ShearY, 0.9, 8), (Invert, 0.4, 0)]),
    SubPolicy([(ShearY, 0.9, 5), (Solarize, 0.2, 6)]),
    SubPolicy([(Invert, 0.9, 0), (AutoContrast, 0.8, 0)]),
    SubPolicy([(Equalize, 0.6, 0), (Rotate, 0.9, 3)]),
    SubPolicy([(ShearX, 0.9, 4), (Solarize, 0.3, 3)]),
    SubPolicy([(ShearY, 0.8, 8), (Invert, 0.7, 0)]),
    SubPolicy([(Equalize, 0.9, 0), (TranslateY, 0.6, 6)]),
    SubPolicy([(Invert, 0.9, 0), (Equalize, 0.6, 0)]),
    SubPolicy([(Contrast, 0.3, 3), (Rotate, 0.8, 4)]),
    SubPolicy([(Invert, 0.8, 0), (TranslateY, 0.0, 2)]),
    SubPolicy([(ShearY, 0.7, 6), (Solarize, 0.4, 8)]),
    SubPolicy([(Invert, 0.6, 0), (Rotate, 0.8, 4)]),
    SubPolicy([(ShearY, 0.3, 7), (TranslateX, 0.9, 3)]),
    SubPolicy([(ShearX, 0.1, 6), (Invert, 0.6, 0)]),
    SubPolicy([(Solarize, 0.7, 2), (TranslateY, 0.6, 7)]),
    SubPolicy([(ShearY, 0.8, 4), (Invert, 0.8, 0)]),
    SubPolicy([(ShearX, 0.7, 9), (TranslateY, 0.8, 3)]),
    SubPolicy([(ShearY, 0.8, 5), (AutoContrast, 0.7, 0)]),
    SubPolicy([(ShearX, 0.7, 2), (Invert, 0.1, 0)]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_pairs_and_operations_with_their_probabilities() {
        // A policy of two pairs that leave traces: 0 or 255 after the first or second step.
        const MARKS: [SubPolicy; 2] = [
            SubPolicy([(Solarize, 0.25, 9), (Posterize, 0.0, 0)]), // inverts every value
            SubPolicy([(Posterize, 0.0, 0), (Brightness, 0.8, 9)]), // nearly black, or brighter
        ];
        let grey = RgbImage::from_pixel(1, 1, image::Rgb([100; 3]));
        let drawn = |key: u64| AutoAugment { policy: &MARKS }.apply(grey.clone(), &mut KeyedRng::new(&[key]));
        let values: Vec<u8> = (0..10_000).map(|key| drawn(key).get_pixel(0, 0).0[0]).collect();
        let near = |value: u8, due: usize| values.iter().filter(|v| **v == value).count().abs_diff(due) < 200;
        // Inverted: 1/2 × 1/4; darker and brighter: 1/2 × 8/10 × 1/2 each.
        assert!(near(155, 1_250) && near(10, 2_000) && near(190, 2_000) && near(100, 4_750));
    }
}
