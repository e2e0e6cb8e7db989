//! Transforms: properties for any picture, including those of one pixel or none, and equality with torchvision.

use lockstep::data::rng::KeyedRng;
use lockstep_vision::{
    AutoAugment, CenterCrop, Normalize, Op, OpKind, RandomCrop, RandomHorizontalFlip, Resize, RgbImage, Transform,
};
use proptest::prelude::*;

fn any_picture() -> impl Strategy<Value = RgbImage> {
    (0_u32..24, 0_u32..24).prop_flat_map(|(width, height)| {
        let pixels = proptest::collection::vec(any::<u8>(), (width * height * 3) as usize);
        pixels.prop_map(move |pixels| RgbImage::from_raw(width, height, pixels).unwrap())
    })
}

fn any_op() -> impl Strategy<Value = Op> {
    let strength = prop_oneof![any::<f64>(), -2.0..2.0_f64, -400.0..400.0_f64];
    (0..14_usize, strength, any::<i32>(), any::<u8>()).prop_map(|(kind, by, pixels, bits)| {
        let signed = [Op::ShearX, Op::ShearY, Op::Rotate, Op::Brightness, Op::Color, Op::Contrast, Op::Sharpness];
        let tables = [Op::Solarize(by), Op::Posterize(bits), Op::AutoContrast, Op::Equalize, Op::Invert];
        match kind {
            0..7 => signed[kind](by),
            7 => Op::TranslateX(pixels),
            8 => Op::TranslateY(pixels % 30),
            _ => tables[kind - 9],
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn an_operation_of_any_strength_keeps_the_size_of_any_picture(picture in any_picture(), op in any_op()) {
        let size = picture.dimensions();
        prop_assert_eq!(op.apply(picture).dimensions(), size);
    }

    #[test]
    fn an_operation_at_level_0_changes_nothing_where_it_has_strength(picture in any_picture(), negative: bool) {
        let with_strength = OpKind::ALL.into_iter().filter(|kind| {
            !matches!(kind, OpKind::Solarize | OpKind::AutoContrast | OpKind::Equalize | OpKind::Invert)
        });
        for kind in with_strength {
            let op = kind.op(0, negative, picture.dimensions());
            prop_assert_eq!(op.apply(picture.clone()), picture.clone(), "{:?}", op);
        }
    }

    #[test]
    fn augmentation_keeps_the_size_and_repeats_for_a_key(picture in any_picture(), key: u64) {
        let once = || AutoAugment::imagenet().apply(picture.clone(), &mut KeyedRng::new(&[key]));
        prop_assert_eq!(once().dimensions(), picture.dimensions());
        prop_assert_eq!(once(), once());
    }

    #[test]
    fn crops_and_resized_pictures_have_the_size_that_was_asked(picture in any_picture(), width in 1_u32..40, height in 1_u32..40) {
        let mut rng = KeyedRng::new(&[]);
        for transform in [&Resize { width, height } as &dyn Transform, &CenterCrop { width, height }] {
            prop_assert_eq!(transform.apply(picture.clone(), &mut rng).dimensions(), (width, height));
        }
        let crop = RandomCrop { size: width, padding: 20 };
        prop_assert_eq!(crop.apply(picture, &mut rng).dimensions(), (width, width));
    }

    #[test]
    fn a_flip_of_a_flip_is_the_picture(picture in any_picture()) {
        let flip = |picture| RandomHorizontalFlip { p: 1.0 }.apply(picture, &mut KeyedRng::new(&[]));
        prop_assert_eq!(flip(flip(picture.clone())), picture);
    }

    #[test]
    fn normalised_numbers_stand_in_planes(picture in any_picture()) {
        let mut planes = vec![f32::NAN; picture.as_raw().len()];
        Normalize::NONE.write(&picture, &mut planes);
        let pixels = planes.len() / 3;
        for (at, value) in picture.as_raw().iter().enumerate() {
            prop_assert_eq!(planes[at % 3 * pixels + at / 3], f32::from(*value) / 255.0);
        }
    }
}

mod golden {
    //! Transforms of pictures against torchvision 0.26 on Pillow 13 (`golden/transforms.py` makes `golden/transforms.json`):
    //! equal bytes, and resized pictures within one grey level.

    use std::collections::BTreeMap;

    use lockstep::data::rng::KeyedRng;
    use lockstep_vision::{
        AutoAugment, CenterCrop, Normalize, Op, OpKind, RandomCrop, RandomHorizontalFlip, Resize, RgbImage, SubPolicy,
        Transform,
    };
    use serde::Deserialize;

    /// Two operations: name, probability, level.
    type Pair = [(String, f32, usize); 2];

    #[derive(Deserialize)]
    struct Golden {
        policies: BTreeMap<String, Vec<Pair>>,
        normalize: BTreeMap<String, u32>,
        resized: Vec<Resized>,
        pictures: Vec<Picture>,
    }

    #[derive(Deserialize)]
    struct Resized {
        picture: (String, u32, u32),
        to: (u32, u32),
        every: usize,
        pixels: String,
    }

    #[derive(Deserialize)]
    struct Picture {
        picture: (String, u32, u32),
        crc32: u32,
        operations: BTreeMap<String, Vec<u32>>,
        sub_policies: Vec<Vec<u32>>,
        rotations: Vec<u32>,
        crops: Vec<u32>,
        center_crops: Vec<u32>,
        flip: u32,
    }

    const SIGNS: [bool; 2] = [false, true];

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../../golden/transforms.json")).unwrap()
    }

    /// The formula of `golden/transforms.py`.
    fn picture((kind, width, height): &(String, u32, u32)) -> RgbImage {
        RgbImage::from_fn(*width, *height, |x, y| {
            image::Rgb([0, 1, 2].map(|c: u64| {
                let (x, y) = (u64::from(x), u64::from(y));
                let noise = ((x * 7919 + y * 104_729 + c * 1_299_709 + 12_345) * 2_654_435_761 % (1 << 32)) >> 24;
                let value = match kind.as_str() {
                    "noise" => noise,
                    "dull" => 60 + 20 * c + (x * 3 / 4 + y / 2 + noise % 16) % 110,
                    "flat" => 10 + 100 * c,
                    kind => panic!("no picture is {kind}"),
                };
                u8::try_from(value).unwrap()
            }))
        })
    }

    fn crc(picture: &RgbImage) -> u32 {
        crc32fast::hash(picture.as_raw())
    }

    /// For each picture: the result of `given`, and torchvision's.
    fn compare(what: &str, given: impl Fn(&RgbImage, &Picture) -> Vec<u32>, want: impl Fn(&Picture) -> &[u32]) {
        let golden = golden();
        assert!(golden.pictures.iter().any(|case| !want(case).is_empty()), "{what}");
        for case in &golden.pictures {
            let picture = picture(&case.picture);
            if !want(case).is_empty() {
                assert_eq!(given(&picture, case), want(case), "{what} of {:?}", case.picture);
            }
        }
    }

    fn no_rng() -> KeyedRng {
        KeyedRng::new(&[])
    }

    #[test]
    fn makes_the_pictures_that_python_made() {
        compare("nothing", |picture, _| vec![crc(picture)], |case| std::slice::from_ref(&case.crc32));
    }

    #[test]
    fn has_the_policies_of_torchvision() {
        let names = |policy: &'static [SubPolicy]| -> Vec<_> {
            policy.iter().map(|pair| pair.steps().map(|(kind, p, level)| (format!("{kind:?}"), p, level))).collect()
        };
        let ours =
            [("cifar10", AutoAugment::cifar10()), ("imagenet", AutoAugment::imagenet()), ("svhn", AutoAugment::svhn())];
        let ours: BTreeMap<_, _> = ours.map(|(name, policy)| (name.to_owned(), names(policy.policy()))).into();
        assert_eq!(ours, golden().policies);
    }

    #[test]
    fn does_each_operation_at_each_level_and_sign_as_pillow_does() {
        for kind in OpKind::ALL {
            let name = format!("{kind:?}");
            let given = |picture: &RgbImage, case: &Picture| {
                let size = picture.dimensions();
                let (levels, signs) = match case.operations[&name].len() {
                    20 => (10, &SIGNS[..]),
                    10 => (10, &SIGNS[..1]),
                    _ => (1, &SIGNS[..1]),
                };
                let ops = (0..levels).flat_map(|level| signs.iter().map(move |sign| kind.op(level, *sign, size)));
                ops.map(|op| crc(&op.apply(picture.clone()))).collect()
            };
            compare(&name, given, |case| &case.operations[&name]);
        }
    }

    #[test]
    fn does_each_of_the_25_pairs_with_all_signs_as_torchvision_does() {
        let golden = golden();
        for (number, pair) in AutoAugment::imagenet().policy().iter().enumerate() {
            let given = |picture: &RgbImage| -> Vec<u32> {
                let signs = SIGNS.iter().flat_map(|first| SIGNS.map(|second| [*first, second]));
                signs.map(|negative| crc(&pair.apply(picture.clone(), [true, true], negative))).collect()
            };
            for case in golden.pictures.iter().filter(|case| !case.sub_policies.is_empty()) {
                assert_eq!(
                    given(&picture(&case.picture)),
                    case.sub_policies[number],
                    "pair {number} of {:?}",
                    case.picture
                );
            }
        }
    }

    #[test]
    fn rotates_by_right_and_other_angles_as_pillow_does() {
        let degrees = [0.0, 90.0, 180.0, 270.0, -90.0, 45.0, 45.3, -12.7, 359.5, 725.0];
        let given = |picture: &RgbImage, _: &Picture| {
            degrees.map(|degrees| crc(&Op::Rotate(degrees).apply(picture.clone()))).to_vec()
        };
        compare("rotate", given, |case| &case.rotations);
    }

    #[test]
    fn crops_and_flips_as_torchvision_does() {
        let crop = RandomCrop { size: 16, padding: 4 };
        let places = [(0, 0), (4, 4), (3, 9), (12, 1)];
        let given =
            |picture: &RgbImage, _: &Picture| places.map(|(top, left)| crc(&crop.at(picture, left, top))).to_vec();
        compare("crop", given, |case| &case.crops);
        let sizes = [(5, 4), (16, 16), (31, 9), (30, 100)];
        let given = |picture: &RgbImage, _: &Picture| {
            let crop = |(width, height)| CenterCrop { width, height }.apply(picture.clone(), &mut no_rng());
            sizes.map(|size| crc(&crop(size))).to_vec()
        };
        compare("center crop", given, |case| &case.center_crops);
        let flip = RandomHorizontalFlip { p: 1.0 };
        let given = |picture: &RgbImage, _: &Picture| vec![crc(&flip.apply(picture.clone(), &mut no_rng()))];
        compare("flip", given, |case| std::slice::from_ref(&case.flip));
    }

    #[test]
    fn resizes_within_one_grey_level_of_pillow() {
        for case in golden().resized {
            let resize = Resize { width: case.to.0, height: case.to.1 };
            let resized = resize.apply(picture(&case.picture), &mut no_rng());
            assert_eq!(resized.dimensions(), case.to);
            let rows = resized.rows().step_by(case.every);
            let given: Vec<u8> = rows.flat_map(|row| row.step_by(case.every).flat_map(|pixel| pixel.0)).collect();
            let want: Vec<u8> = (0..case.pixels.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&case.pixels[at..at + 2], 16).unwrap())
                .collect();
            assert_eq!(given.len(), want.len());
            let apart = given.iter().zip(&want).map(|(given, want)| given.abs_diff(*want));
            let (largest, unequal) = (apart.clone().max().unwrap(), apart.filter(|apart| *apart > 0).count());
            println!("{:?} to {:?}: {unequal} of {} values differ, by {largest}", case.picture, case.to, given.len());
            assert!(largest <= 1, "{:?} to {:?} is off by {largest}", case.picture, case.to);
        }
    }

    #[test]
    fn normalises_to_the_bits_of_torchvision() {
        let all = RgbImage::from_raw(16, 16, (0..768_u32).map(|at| at as u8).collect()).unwrap();
        let of = |normalize: Normalize| {
            let mut planes = [0.0; 768];
            normalize.write(&all, &mut planes);
            crc32fast::hash(&planes.map(f32::to_le_bytes).concat())
        };
        let ours = [("cifar10", Normalize::CIFAR10), ("imagenet", Normalize::IMAGENET), ("none", Normalize::NONE)];
        let ours: BTreeMap<_, _> = ours.map(|(name, normalize)| (name.to_owned(), of(normalize))).into();
        assert_eq!(ours, golden().normalize);
    }
}
