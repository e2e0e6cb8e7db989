//! Properties of transforms for any picture, including those of one pixel or none.

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
