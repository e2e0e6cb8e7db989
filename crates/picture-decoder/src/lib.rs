//! Decodes a file's bytes to pixels: JPEG with zune-jpeg and PNG with png, both strict, by content rather than by name.
//!
//! The result equals that of Pillow's `Image.open(…).convert("RGB")`, which torchvision's `ImageFolder` calls: grey is
//! repeated, palettes are looked up, the upper 8 of 16 bits are kept, transparency is dropped without blending, CMYK and YCCK
//! are assumed to be inverted, as Adobe writes them, and converted without a colour profile, and EXIF's orientation is **not**
//! applied. PNG gives the same bytes; JPEG decoders may round differently, so pixels differ by a few grey levels. One
//! difference is deliberate: Pillow clips all values above 255 in grey pictures of 16 bits to white, which leaves no picture.
//!
//! `image`'s own JPEG decoder is not used: it is lenient, and silently fills the missing part of a truncated file with grey.
//! Here the end-of-image marker must be present, and data that cannot be decoded is an error, as with Pillow.

use std::fs::File;
use std::io::{Cursor, Read};
use std::panic::catch_unwind;
use std::path::Path;

use image::RgbImage;
use lockstep_contract::error_file::panic_text;
use lockstep_datasets::DataError;
use png::{ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Maximum size of a file: 256 MiB. Photographs have a few megabytes.
pub const MAX_BYTES: u64 = 256 << 20;
/// Maximum number of decoded pixels: 89,478,485, the number from which Pillow warns of a decompression bomb
/// (`Image.MAX_IMAGE_PIXELS`). The largest cameras produce 60 million; in RGB this is a quarter of a gigabyte.
pub const MAX_PIXELS: usize = (1 << 30) / 4 / 3;

const JPEG_OR_PNG: &str = "JPEG or PNG";
const JPEG: &str = "JPEG";
const PNG: &str = "PNG";
const JPEG_START: &[u8] = &[0xFF, 0xD8, 0xFF];
const PNG_START: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The first bytes of files of other kinds.
const OTHERS: [(&[u8], &str); 11] = [
    (b"GIF8", "a GIF picture"),
    (b"BM", "a BMP picture"),
    (b"II*\0", "a TIFF picture"),
    (b"MM\0*", "a TIFF picture"),
    (b"RIFF", "a RIFF file (a WebP picture?)"),
    (b"<", "HTML or XML (a web page that says that the download failed?)"),
    (b"{", "JSON"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer (the file itself was not fetched)"),
];

/// The pixels of a JPEG or PNG file.
///
/// Fails when the file is neither, is truncated, is damaged, claims more than [`MAX_PIXELS`], or uses an unsupported feature
/// (arithmetic coding, 12 bits, lossless JPEG).
pub fn decode(bytes: &[u8]) -> Result<RgbImage, DataError> {
    let (format, decoder): (_, fn(&[u8]) -> _) = match bytes {
        _ if bytes.starts_with(JPEG_START) => (JPEG, jpeg),
        _ if bytes.starts_with(PNG_START) => (PNG, png),
        _ => return Err(refuse(JPEG_OR_PNG, guess(bytes), "convert or remove it")),
    };
    // Neither decoder should panic. If one does, only this picture fails.
    catch_unwind(|| decoder(bytes)).unwrap_or_else(|panic| {
        Err(damaged(format, format!("the decoder panicked: {}", panic_text(&*panic).unwrap_or("no message"))))
    })
}

/// Reads and decodes a file of at most [`MAX_BYTES`].
pub fn read(path: &Path) -> Result<RgbImage, DataError> {
    let fail = |source| {
        let hint = "check that the file is still there and that this user may read it";
        refuse("", "", hint).at(path).because(source)
    };
    let file = File::open(path).map_err(fail)?;
    let claimed = file.metadata().map_err(fail)?.len();
    if claimed > MAX_BYTES {
        return Err(refuse(format!("at most {MAX_BYTES} bytes"), claimed.to_string(), "").at(path));
    }
    let mut bytes = Vec::with_capacity(claimed as usize + 1); // room for the read that finds the end
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(fail)?;
    decode(&bytes).map_err(|error| error.at(path))
}

fn refuse(expected: impl Into<String>, found: impl Into<String>, hint: &str) -> DataError {
    DataError::new("read the picture").expected(expected).found(found).hint(hint)
}

fn truncated(bytes: usize) -> DataError {
    refuse("a whole picture", format!("{bytes} bytes that end before it does"), "the file is cut off: get it again")
}

fn wrong_size(width: usize, height: usize) -> DataError {
    let found = format!("{width} x {height} in the header");
    refuse(format!("1 to {MAX_PIXELS} pixels"), found, "the file is damaged or no photograph")
}

fn jpeg(bytes: &[u8]) -> Result<RgbImage, DataError> {
    if !ends(bytes) {
        return Err(truncated(bytes.len()));
    }
    let broken = |error: zune_jpeg::errors::DecodeErrors| damaged(JPEG, error.to_string());
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(broken)?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    let mut pixels = pixels(width, height, 3)?;
    decoder.decode_into(&mut pixels).map_err(broken)?;
    picture(width, height, pixels)
}

/// Returns true if the end-of-image marker is present. Nothing else in a JPEG file can be mistaken for it: in the coded data a
/// byte 0xFF is followed by 0, and other segments are skipped by their lengths. Bytes after the marker are ignored (cameras
/// append previews there).
fn ends(bytes: &[u8]) -> bool {
    bytes.ends_with(&[0xFF, 0xD9]) || markers(bytes).any(|marker| marker == 0xD9)
}

/// The markers of a JPEG file up to its end; coded data between them and the contents of segments are skipped.
fn markers(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let at = rest.windows(2).position(|pair| pair[0] == 0xFF && !matches!(pair[1], 0 | 0xFF))?;
        let marker = rest[at + 1];
        rest = &rest[at + 2..];
        let stands_alone = matches!(marker, 0x01 | 0xD0..=0xD9);
        if !stands_alone {
            let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
            rest = rest.get(length.max(2)..)?;
        }
        Some(marker)
    })
}

fn png(bytes: &[u8]) -> Result<RgbImage, DataError> {
    let broken = |error| of_png(error, bytes.len());
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(broken)?;
    let (width, height) = (header.width as usize, header.height as usize);
    check_size(width, height)?;
    let mut reader = decoder.read_info().map_err(broken)?;
    let (colour, _) = reader.output_color_type();
    let mut raw = pixels(width, height, colour.samples())?;
    reader.next_frame(&mut raw).map_err(broken)?;
    reader.finish().map_err(broken)?;
    picture(width, height, to_rgb(raw, colour))
}

fn to_rgb(raw: Vec<u8>, colour: ColorType) -> Vec<u8> {
    match colour {
        ColorType::Grayscale => raw.iter().flat_map(|&grey| [grey; 3]).collect(),
        ColorType::GrayscaleAlpha => raw.as_chunks::<2>().0.iter().flat_map(|&[grey, _]| [grey; 3]).collect(),
        ColorType::Rgba => raw.as_chunks::<4>().0.iter().flat_map(|&[r, g, b, _]| [r, g, b]).collect(),
        ColorType::Rgb | ColorType::Indexed => raw, // the decoder has looked palettes up
    }
}

fn of_png(error: png::DecodingError, bytes: usize) -> DataError {
    match error {
        png::DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => truncated(bytes),
        error => damaged(PNG, error.to_string()),
    }
}

/// A buffer for a picture whose header claims this size.
fn pixels(width: usize, height: usize, samples: usize) -> Result<Vec<u8>, DataError> {
    check_size(width, height)?;
    Ok(vec![0; width * height * samples])
}

fn check_size(width: usize, height: usize) -> Result<(), DataError> {
    match width.checked_mul(height) {
        Some(1..=MAX_PIXELS) => Ok(()),
        _ => Err(wrong_size(width, height)),
    }
}

fn picture(width: usize, height: usize, pixels: Vec<u8>) -> Result<RgbImage, DataError> {
    let sides = (u32::try_from(width).ok(), u32::try_from(height).ok());
    let picture = match sides {
        (Some(width), Some(height)) => RgbImage::from_raw(width, height, pixels),
        _ => None,
    };
    picture.ok_or_else(|| wrong_size(width, height))
}

fn damaged(format: &str, reason: String) -> DataError {
    refuse("", format!("damage, or a kind of {format} that is not read here"), &reason)
}

/// Describes a file that is not a picture, by its first bytes.
fn guess(bytes: &[u8]) -> &'static str {
    match OTHERS.iter().find(|(start, _)| bytes.starts_with(start)) {
        _ if bytes.is_empty() => "an empty file",
        Some((_, what)) => what,
        None if bytes.get(4..8) == Some(b"ftyp") => "an HEIF or AVIF picture, or a film",
        None if bytes.iter().all(|byte| *byte == 0) => "zeros only (an interrupted copy?)",
        None if std::str::from_utf8(&bytes[..bytes.len().min(64)]).is_ok() => "text",
        None => "something else",
    }
}
