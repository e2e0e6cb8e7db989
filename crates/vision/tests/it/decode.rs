//! Pixels of files: equal to Pillow's; and of files truncated at every byte, with every byte changed, and with absurd headers: an error or a
//! picture, never a panic.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::{ImageFormat, RgbImage};
use lockstep::data::DataError;
use lockstep::data::Split;
use lockstep_vision::DrawnHouses;
use lockstep_vision::folder::{MAX_PIXELS, decode};

fn photograph(format: ImageFormat) -> Vec<u8> {
    let picture: RgbImage = DrawnHouses::new(3, Split::Train).picture(1, 56, 42);
    let mut bytes = Cursor::new(Vec::new());
    match format {
        ImageFormat::Jpeg => JpegEncoder::new_with_quality(&mut bytes, 90).encode_image(&picture).unwrap(),
        format => picture.write_to(&mut bytes, format).unwrap(),
    }
    bytes.into_inner()
}

/// The files of `golden/pictures.json`.
fn golden() -> Vec<(String, Vec<u8>)> {
    golden::pictures("").into_iter().map(|picture| (picture.name, golden::bytes(&picture.file))).collect()
}

/// Decodes; a decoder's panic fails the test here, although `decode` would turn it into an error.
fn quietly(what: &str, bytes: &[u8]) -> Result<RgbImage, DataError> {
    let decoded = decode(bytes);
    if let Err(error) = &decoded {
        assert!(!error.to_string().contains("panicked"), "{what}: {error}");
    }
    decoded
}

#[test]
fn notices_a_file_that_is_cut_off_at_any_byte() {
    let mut files = golden();
    files.retain(|(name, _)| name != "jpeg with bytes after its end"); // its end marker is not the end of the file
    files.push(("jpeg photograph".into(), photograph(ImageFormat::Jpeg)));
    files.push(("png photograph".into(), photograph(ImageFormat::Png)));
    for (name, bytes) in files {
        assert!(decode(&bytes).is_ok(), "{name} is whole");
        for end in 0..bytes.len() {
            assert!(quietly(&name, &bytes[..end]).is_err(), "{name}: half a picture of {end} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn notices_a_jpeg_file_that_is_cut_off_and_filled_with_zeros() {
    let bytes = photograph(ImageFormat::Jpeg);
    for end in (0..bytes.len() - 2).step_by(7) {
        let mut file = bytes.clone();
        file[end..].fill(0);
        assert!(quietly("filled", &file).is_err(), "{end} of {} bytes", bytes.len());
    }
}

#[test]
fn survives_any_changed_byte() {
    for (name, bytes) in golden() {
        for at in 0..bytes.len() {
            for change in [0x01, 0x80, 0xFF] {
                let mut file = bytes.clone();
                file[at] ^= change;
                // A changed byte may give another picture, since JPEG has no checksums; here decoding must only end.
                let _either = quietly(&format!("{name}, byte {at}"), &file);
            }
        }
    }
}

#[test]
fn notices_any_changed_byte_of_a_pngs_pixels() {
    let bytes = photograph(ImageFormat::Png);
    let start = bytes.windows(4).position(|name| name == b"IDAT").unwrap();
    for at in (start..bytes.len() - 12).step_by(5) {
        let mut file = bytes.clone();
        file[at] ^= 0x10;
        assert!(quietly("changed", &file).is_err(), "byte {at}");
    }
}

#[test]
fn refuses_a_header_that_claims_too_many_pixels_before_allocating_them() {
    let mut jpeg = photograph(ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|marker| marker == [0xFF, 0xC0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xFF); // 65,535 x 65,535
    let error = decode(&jpeg).unwrap_err();
    let due = format!("expected 1 to {MAX_PIXELS} pixels, found 65535 x 65535 in the header");
    assert!(error.to_string().contains(&due), "{error}");

    let mut png = photograph(ImageFormat::Png);
    png[16..24].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF, 0x7F, 0xFF, 0xFF, 0xFF]);
    let sum = crc32fast::hash(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
    let error = decode(&png).unwrap_err();
    assert!(error.to_string().contains("found 2147483647 x 2147483647 in the header"), "{error}");
}

mod golden {
    //! Pictures of many kinds against Pillow 13.
    //!
    //! Files and pixels are in `golden/pictures.json`, made by `golden/pictures.py`. PNG must give the same bytes. JPEG
    //! decoders round differently, by a few grey levels.

    use lockstep_vision::folder::decode;
    use serde::Deserialize;

    /// Tolerance in grey levels between decoders: each rounds the cosine transform, colours, and upsampled chroma in its own way.
    const ROUNDING: u8 = 4;

    #[derive(Deserialize)]
    struct Golden {
        pictures: Vec<Picture>,
    }

    /// `golden/pictures.py` documents each field.
    #[derive(Deserialize)]
    pub(super) struct Picture {
        pub(super) name: String,
        pub(super) file: String,
        width: u32,
        height: u32,
        rgb: String,
    }

    pub(super) fn pictures(kind: &str) -> Vec<Picture> {
        let golden: Golden =
            serde_json::from_str(include_str!("../../golden/pictures.json")).expect("the script wrote it");
        golden.pictures.into_iter().filter(|picture| picture.name.starts_with(kind)).collect()
    }

    pub(super) fn bytes(hexadecimal: &str) -> Vec<u8> {
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
}
