//! Files truncated at every byte, with every byte changed, and with absurd headers: an error or a picture, never a panic.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::{ImageFormat, RgbImage};
use lockstep::data::DataError;
use lockstep::data::Split;
use lockstep_vision::Storm;
use lockstep_vision::folder::{MAX_PIXELS, decode};
use serde_json::Value;

fn photograph(format: ImageFormat) -> Vec<u8> {
    let picture: RgbImage = Storm::new(3, Split::Train).picture(1, 56, 42);
    let mut bytes = Cursor::new(Vec::new());
    match format {
        ImageFormat::Jpeg => JpegEncoder::new_with_quality(&mut bytes, 90).encode_image(&picture).unwrap(),
        format => picture.write_to(&mut bytes, format).unwrap(),
    }
    bytes.into_inner()
}

/// The files of `golden/pictures.json`.
fn golden() -> Vec<(String, Vec<u8>)> {
    let golden: Value = serde_json::from_str(include_str!("../../golden/pictures.json")).unwrap();
    let file =
        |text: &str| (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
    let pictures = golden["pictures"].as_array().unwrap().iter();
    pictures.map(|one| (one["name"].as_str().unwrap().to_owned(), file(one["file"].as_str().unwrap()))).collect()
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
    files.retain(|(name, _)| name != "jpeg with bytes after its end"); // whose end is not the file's
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
