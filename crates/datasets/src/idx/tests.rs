//! Tests of the IDX reader and writer: round trips, and malformed files.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use crate::DataError;
use crate::idx::*;

/// Writes `bytes` as a file and reads it as `kind`.
fn read_bytes(bytes: &[u8], kind: IdxKind) -> Result<Idx, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    Idx::read(&path, kind)
}

/// A header of unsigned bytes with these dimensions.
fn header(dims: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    bytes
}

fn images() -> Vec<u8> {
    [header(&[2, 3, 2]), (1..=12).collect()].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::default());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn message(bytes: &[u8], kind: IdxKind) -> String {
    read_bytes(bytes, kind).unwrap_err().to_string()
}

#[test]
fn reads_the_published_layout() {
    let idx = read_bytes(&images(), IdxKind::Images).unwrap();
    assert_eq!((idx.dims(), idx.data()), (&[2, 3, 2][..], &(1..=12).collect::<Vec<u8>>()[..]));
}

#[test]
fn recognizes_gzip_by_content_not_by_name() {
    assert_eq!(read_bytes(&gzip(&images()), IdxKind::Images).unwrap(), read_bytes(&images(), IdxKind::Images).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain.gz");
    std::fs::write(&path, images()).unwrap();
    assert_eq!(Idx::read(&path, IdxKind::Any).unwrap().dims(), [2, 3, 2]);
}

#[test]
fn reads_gzip_members_one_after_another() {
    let whole = images();
    let parts = [gzip(&whole[..9]), gzip(&whole[9..])].concat();
    assert_eq!(read_bytes(&parts, IdxKind::Images).unwrap().data().len(), 12);
}

#[test]
fn writes_the_published_layout_readable_by_others_and_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, packed) = (folder.path().join("a"), folder.path().join("a.gz"));
    let idx = Idx::new(vec![2, 3, 2], (1..=12).collect()).unwrap();
    idx.write(&plain).unwrap();
    idx.write(&packed).unwrap();
    assert_eq!(std::fs::read(&plain).unwrap(), images());
    let first = std::fs::read(&packed).unwrap();
    assert!(first.starts_with(b"\x1f\x8b"));
    idx.write(&packed).unwrap();
    assert_eq!(std::fs::read(&packed).unwrap(), first);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "a temporary file was left");
    assert_eq!(plain.metadata().unwrap().permissions().mode() & 0o600, 0o600);
    assert_eq!(plain.metadata().unwrap().permissions().mode() & 0o111, 0);
}

#[test]
fn leaves_nothing_when_it_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let idx = Idx::new(vec![1], vec![1]).unwrap();
    let error = idx.write(&folder.path().join("absent/file")).unwrap_err();
    assert!(error.to_string().starts_with("write "), "{error}");
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    assert!(idx.write(&taken).unwrap_err().to_string().starts_with("write "));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
}

#[test]
fn rejects_a_plain_file_cut_at_every_byte() {
    let whole = images();
    for end in 0..whole.len() {
        let text = message(&whole[..end], IdxKind::Images);
        let due = match end {
            0 => "found an empty file; a download failed".to_owned(),
            1..4 => format!("expected a header of 4 bytes, found the end of the file after {end};"),
            4..16 => format!("expected a header of 16 bytes, found the end of the file after {end};"),
            _ => format!("expected 12 bytes, as the header claims ([2, 3, 2]), found {};", end - 16),
        };
        assert!(text.contains(&due), "cut at {end}: {text}");
    }
}

#[test]
fn rejects_a_gzip_file_cut_at_every_byte() {
    let whole = gzip(&images());
    for end in 2..whole.len() {
        let text = message(&whole[..end], IdxKind::Images);
        assert!(text.contains("found a gzip stream that is cut off after "), "cut at {end}: {text}");
    }
}

#[test]
fn rejects_a_gzip_file_with_any_byte_of_its_data_changed() {
    let whole = gzip(&images());
    for at in 10..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        assert!(read_bytes(&damaged, IdxKind::Images).is_err(), "byte {at} was changed unnoticed");
    }
}

#[test]
fn rejects_bytes_after_the_data() {
    for tail in [&b"\0"[..], &images()] {
        let joined = [&images()[..], tail].concat();
        for bytes in [gzip(&joined), joined] {
            let text = message(&bytes, IdxKind::Images);
            assert!(text.contains("expected 12 bytes,") && text.contains("found more after them"), "{text}");
        }
    }
    let after_gzip = [gzip(&images()), b"more".to_vec()].concat();
    let text = message(&after_gzip, IdxKind::Images);
    assert!(text.contains("found a gzip stream that is "), "{text}");
}

#[test]
fn rejects_dimensions_whose_product_is_absurd() {
    for dims in [&[u32::MAX; 3][..], &[u32::MAX; 255], &[1 << 31, 28, 28], &[(1 << 30) + 1]] {
        for bytes in [header(dims), gzip(&header(dims))] {
            let text = message(&bytes, IdxKind::Any);
            assert!(text.contains(&format!("expected at most {MAX_BYTES} bytes, found [")), "{text}");
        }
    }
}

#[test]
fn rejects_a_claim_that_the_file_is_too_small_for_before_reading_it() {
    let text = message(&[header(&[60_000, 28, 28]), vec![0; 784]].concat(), IdxKind::Images);
    assert!(text.contains("expected 47040000 bytes, as the header claims ([60000, 28, 28]), found 784;"), "{text}");
    let packed = gzip(&header(&[1 << 20, 28, 28]));
    let text = message(&packed, IdxKind::Images);
    let most = packed.len() * 1032 - 16;
    assert!(text.contains(&format!("found a gzip file that unpacks to {most} at most;")), "{text}");
}

#[test]
fn stops_at_the_claim_when_a_small_gzip_file_unpacks_to_much_more() {
    let bomb = gzip(&[header(&[10]), vec![0; 64 << 20]].concat());
    assert!(bomb.len() < 100_000);
    let text = message(&bomb, IdxKind::Labels);
    assert!(text.contains("expected 10 bytes,") && text.contains("found more after them"), "{text}");
}

#[test]
fn accepts_an_empty_dimension() {
    for dims in [&[0, 28, 28][..], &[u32::MAX, u32::MAX, u32::MAX, 0]] {
        assert_eq!(read_bytes(&header(dims), IdxKind::Any).unwrap().data(), b"");
    }
}

#[test]
fn says_that_images_and_labels_are_swapped() {
    let labels = [header(&[2]), vec![7, 8]].concat();
    let text = message(&labels, IdxKind::Images);
    assert!(text.contains("expected an image file (3 dimensions, magic 0x00000803), found a label file"), "{text}");
    assert!(text.contains("probably swapped"), "{text}");
    let text = message(&images(), IdxKind::Labels);
    assert!(text.contains("expected a label file (1 dimension, magic 0x00000801), found an image file"), "{text}");
    let text = message(&[header(&[1, 1]), vec![0]].concat(), IdxKind::Images);
    assert!(text.contains("neither images nor labels (2 dimensions, magic 0x00000802)"), "{text}");
}

#[test]
fn names_what_a_file_is_when_it_is_not_idx() {
    let cases: [(&[u8], &str); 11] = [
        (b"", "an empty file"),
        (b"\n<!DOCTYPE html><title>404</title>", "a HTML or XML page"),
        (b"<html><body>Forbidden", "a HTML or XML page"),
        (b"{\"error\": 403}", "JSON text"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (b"PK\x03\x04\x14\0", "a zip archive"),
        (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        (b"\x03\x08\0\0\x10\x27\0\0", "with its bytes reversed"),
        (b"label,pixel0,pixel1\n5,0,0", "text that begins \"label,pixel0,pix\""),
        (b"\0\0\x0a\x03\0\0", "bytes 00 00 0a 03"),
        (b"\0\0\x08\0\0\0", "bytes 00 00 08 00"),
    ];
    for (bytes, want) in cases {
        for text in [message(bytes, IdxKind::Images), message(&gzip(bytes), IdxKind::Images)] {
            assert!(text.contains("expected an IDX file") && text.contains(want), "{text}");
        }
    }
    let text = message(&gzip(&gzip(&images())), IdxKind::Images);
    assert!(text.contains("a gzip file inside the gzip file"), "{text}");
}

#[test]
fn names_the_element_types_that_it_does_not_read() {
    for (code, name) in
        [(9, "signed bytes"), (0x0B, "16-bit"), (0x0C, "32-bit i"), (0x0D, "32-bit f"), (0x0E, "64-bit")]
    {
        let mut bytes = images();
        bytes[2] = code;
        let text = message(&bytes, IdxKind::Images);
        assert!(text.contains(name) && text.contains(&format!("0x{code:02x}")), "{text}");
    }
}

#[test]
fn names_the_path_of_what_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let error = Idx::read(&folder.path().join("absent"), IdxKind::Any).unwrap_err();
    assert!(error.source.is_some() && error.to_string().contains("absent: check the path"), "{error}");
    let error = Idx::read(folder.path(), IdxKind::Any).unwrap_err();
    assert!(error.to_string().contains("found a folder"), "{error}");
}

#[test]
fn rejects_arrays_that_the_format_cannot_hold() {
    for (dims, bytes) in
        [(vec![], 1), (vec![2, 3], 5), (vec![1; 256], 1), (vec![usize::MAX, 2], 0), (vec![1 << 32, 0], 0)]
    {
        let error = Idx::new(dims, vec![0; bytes]).unwrap_err();
        assert!(error.to_string().starts_with("make an IDX file of ["), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn reads_back_what_it_wrote(
        dims in prop::collection::vec(0usize..7, 1..5),
        seed in any::<u8>(),
        packed in any::<bool>(),
    ) {
        let bytes = (0..dims.iter().product()).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
        let idx = Idx::new(dims, bytes).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(if packed { "file.gz" } else { "file" });
        idx.write(&path).unwrap();
        prop_assert_eq!(Idx::read(&path, IdxKind::Any).unwrap(), idx);
    }

    #[test]
    fn never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64), start in 0usize..5) {
        let starts: [&[u8]; 5] =
            [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\x03"];
        let bytes = [starts[start], &bytes].concat();
        if let Ok(idx) = read_bytes(&bytes, IdxKind::Any) {
            prop_assert_eq!(product(idx.dims()), Some(idx.data().len() as u64));
        }
    }
}
