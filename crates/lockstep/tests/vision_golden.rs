//! Transforms of pictures against torchvision 0.26 on PIL pictures (`scripts/golden/vision.py` makes `golden/vision.json`).

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use image::Rgb;
use lockstep::data::rng::KeyedRng;
use lockstep::data::vision::{
    AutoAugment, Normalize, Op, RandomCrop, RandomHorizontalFlip, Resize, RgbImage, SubPolicy, Transform,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    sizes: Vec<(u32, u32)>,
    pictures: Vec<u32>,
    ops: BTreeMap<String, Applied>,
    policies: BTreeMap<String, Vec<Pair>>,
    crops: Vec<Crop>,
    flipped: Vec<u32>,
    resized: Vec<Resized>,
    normalized: BTreeMap<String, Vec<u32>>,
}

/// By picture, then by strength.
#[derive(Deserialize)]
struct Applied {
    strengths: Vec<Vec<f64>>,
    crc32: Vec<Vec<u32>>,
}

/// By signs, then by picture.
#[derive(Deserialize)]
struct Pair {
    probabilities: [f32; 2],
    crc32: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Crop {
    at: (u32, u32),
    crc32: u32,
}

#[derive(Deserialize)]
struct Resized {
    from: (u32, u32),
    to: (u32, u32),
    pixels: Vec<String>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/vision.json")).unwrap()
}

/// The formula of the script.
fn picture((width, height): (u32, u32), smooth: bool) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([0, 1, 2].map(|c| {
            let noise = (x * x * 3 + y * y * 5 + x * y * 7 + c * 91 + x * 17 + y * 29) % 256;
            let gradient = 40 + c * 10 + x * 120 / width + y * 50 / height;
            (if smooth { gradient } else { noise }) as u8
        }))
    })
}

fn pictures(golden: &Golden) -> Vec<RgbImage> {
    golden.sizes.iter().flat_map(|size| [false, true].map(|smooth| picture(*size, smooth))).collect()
}

fn crc32(picture: &RgbImage) -> u32 {
    crc32fast::hash(picture.as_raw())
}

fn op(name: &str, strength: f64) -> Op {
    match name {
        "ShearX" => Op::ShearX(strength),
        "ShearY" => Op::ShearY(strength),
        "TranslateX" => Op::TranslateX(strength as i32),
        "TranslateY" => Op::TranslateY(strength as i32),
        "Rotate" => Op::Rotate(strength),
        "Brightness" => Op::Brightness(1.0 + strength),
        "Color" => Op::Color(1.0 + strength),
        "Contrast" => Op::Contrast(1.0 + strength),
        "Sharpness" => Op::Sharpness(1.0 + strength),
        "Posterize" => Op::Posterize(strength as u8),
        "Solarize" => Op::Solarize(strength),
        "AutoContrast" => Op::AutoContrast,
        "Equalize" => Op::Equalize,
        "Invert" => Op::Invert,
        other => panic!("{other}"),
    }
}

#[test]
fn both_sides_make_the_same_pictures() {
    let golden = golden();
    let made: Vec<u32> = pictures(&golden).iter().map(crc32).collect();
    assert_eq!(made, golden.pictures);
}

#[test]
fn every_operation_at_every_strength_is_torchvisions_to_the_pixel() {
    let golden = golden();
    let pictures = pictures(&golden);
    assert_eq!(golden.ops.len(), 14);
    for (name, Applied { strengths, crc32: expected }) in &golden.ops {
        for ((picture, strengths), expected) in pictures.iter().zip(strengths).zip(expected) {
            for (strength, expected) in strengths.iter().zip(expected) {
                let made = op(name, *strength).apply(picture.clone());
                assert_eq!(made.dimensions(), picture.dimensions());
                assert_eq!(crc32(&made), *expected, "{name} {strength} of {:?}", picture.dimensions());
            }
        }
    }
}

#[test]
fn every_pair_of_every_policy_is_torchvisions_to_the_pixel() {
    let golden = golden();
    let pictures = pictures(&golden);
    let largest = &pictures[pictures.len() - 2..];
    for (name, policy) in
        [("imagenet", AutoAugment::imagenet()), ("cifar10", AutoAugment::cifar10()), ("svhn", AutoAugment::svhn())]
    {
        let expected = &golden.policies[name];
        assert_eq!(policy.policy().len(), expected.len());
        for (index, (pair, expected)) in policy.policy().iter().zip(expected).enumerate() {
            assert_eq!(SubPolicy::probabilities(pair), expected.probabilities, "pair {index} of {name}");
            // torchvision's sign 0 is negative.
            let signs = [[true, true], [true, false], [false, true], [false, false]];
            for (negative, expected) in signs.into_iter().zip(&expected.crc32) {
                let made: Vec<u32> =
                    largest.iter().map(|picture| crc32(&pair.apply(picture.clone(), [true, true], negative))).collect();
                assert_eq!(made, *expected, "pair {index} of {name}, negative {negative:?}");
            }
        }
    }
}

#[test]
fn crops_and_flips_are_torchvisions_to_the_pixel() {
    let golden = golden();
    let pictures = pictures(&golden);
    let cut = image::imageops::crop_imm(&pictures[pictures.len() - 2], 0, 0, 32, 32).to_image();
    for Crop { at: (left, top), crc32: expected } in &golden.crops {
        assert_eq!(crc32(&RandomCrop { size: 32, padding: 4 }.at(&cut, *left, *top)), *expected, "{left} {top}");
    }
    let always = RandomHorizontalFlip { p: 1.0 };
    let flipped: Vec<u32> =
        pictures.iter().map(|picture| crc32(&always.apply(picture.clone(), &mut KeyedRng::new(&[])))).collect();
    assert_eq!(flipped, golden.flipped);
}

#[test]
fn resizing_is_within_one_grey_level_of_torchvisions() {
    for Resized { from, to, pixels } in golden().resized {
        for (smooth, expected) in [false, true].into_iter().zip(&pixels) {
            let resize = Resize { width: to.0, height: to.1 };
            let made = resize.apply(picture(from, smooth), &mut KeyedRng::new(&[]));
            assert_eq!(made.dimensions(), to);
            let byte = |at: usize| u8::from_str_radix(&expected[2 * at..2 * at + 2], 16).unwrap();
            assert_eq!(expected.len(), made.as_raw().len() * 2);
            for (at, value) in made.as_raw().iter().enumerate() {
                assert!(value.abs_diff(byte(at)) <= 1, "{from:?} to {to:?}, byte {at}: {value}, not {}", byte(at));
            }
        }
    }
}

#[test]
fn normalised_numbers_are_torchvisions_to_the_bit() {
    let golden = golden();
    for (name, normalize) in
        [("none", Normalize::NONE), ("cifar10", Normalize::CIFAR10), ("imagenet", Normalize::IMAGENET)]
    {
        for (picture, expected) in pictures(&golden).iter().zip(&golden.normalized[name]) {
            let mut planes = vec![0.0; picture.as_raw().len()];
            normalize.write(picture, &mut planes);
            let bytes: Vec<u8> = planes.iter().flat_map(|number| number.to_le_bytes()).collect();
            assert_eq!(crc32fast::hash(&bytes), *expected, "{name} of {:?}", picture.dimensions());
        }
    }
}
