//! Pictures of many kinds against Pillow 13.
//!
//! Files and pixels are in `golden/pictures.json`, made by `scripts/golden/pictures.py`. PNG must give the same bytes. JPEG
//! decoders round differently, by a few grey levels.

use lockstep_vision::folder::decode;
use serde::Deserialize;

/// Tolerance in grey levels between decoders: each rounds the cosine transform, colours, and upsampled chroma in its own way.
const ROUNDING: u8 = 4;

#[derive(Deserialize)]
struct Golden {
    pictures: Vec<Picture>,
}

/// `scripts/golden/pictures.py` documents each field.
#[derive(Deserialize)]
struct Picture {
    name: String,
    file: String,
    width: u32,
    height: u32,
    rgb: String,
}

fn pictures(kind: &str) -> Vec<Picture> {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/pictures.json")).expect("the script wrote it");
    golden.pictures.into_iter().filter(|picture| picture.name.starts_with(kind)).collect()
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&hexadecimal[at..at + 2], 16).expect("two digits");
    (0..hexadecimal.len()).step_by(2).map(digits).collect()
}

/// The largest and the mean difference from Pillow's pixels, in grey levels.
fn differences(picture: &Picture) -> (u8, f64) {
    let decoded = decode(&bytes(&picture.file)).unwrap_or_else(|error| panic!("{}: {error}", picture.name));
    assert_eq!(decoded.dimensions(), (picture.width, picture.height), "{}", picture.name);
    let due = bytes(&picture.rgb);
    let apart: Vec<u8> = decoded.as_raw().iter().zip(&due).map(|(&is, &due)| is.abs_diff(due)).collect();
    let mean = apart.iter().map(|&apart| f64::from(apart)).sum::<f64>() / due.len() as f64;
    (apart.into_iter().max().expect("a picture has pixels"), mean)
}

#[test]
fn gives_the_same_bytes_as_pillow_for_a_png_file() {
    let pictures = pictures("png");
    assert_eq!(pictures.len(), 13);
    for picture in pictures.iter().filter(|picture| picture.name != "png grey of 16 bits") {
        assert_eq!(differences(picture), (0, 0.0), "{}", picture.name);
    }
}

#[test]
fn is_within_rounding_of_pillow_for_a_jpeg_file() {
    let pictures = pictures("jpeg");
    assert_eq!(pictures.len(), 12);
    for picture in &pictures {
        let (most, mean) = differences(picture);
        println!("{}: at most {most}, mean {mean:.3}", picture.name);
        assert!(most <= ROUNDING, "{}: {most} apart", picture.name);
        assert!(mean <= 0.5, "{}: {mean} apart in the mean", picture.name);
    }
}

#[test]
fn keeps_the_upper_byte_of_a_grey_picture_of_16_bits_where_pillow_clips_to_white() {
    let pictures = pictures("png grey");
    let of = |name: &str| {
        let picture = pictures.iter().find(|picture| picture.name == name).expect("it is in the golden file");
        (decode(&bytes(&picture.file)).expect("it is whole"), bytes(&picture.rgb))
    };
    let ((narrow, _), (wide, pillow)) = (of("png grey"), of("png grey of 16 bits"));
    assert_eq!(narrow, wide);
    assert!(pillow.iter().all(|&byte| byte == 255), "Pillow does better than it did: follow it");
}
