//! The container that libtorch reads TorchScript from: a zip archive of four stored (never compressed) entries.
//!
//! Only what [`super::Kernels`] needs: small files, no attributes on the module, no reading.
//! Source: PKWARE's APPNOTE 6.3 for the records, `torch/csrc/jit/serialization/import.cpp` for the entries.

use flate2::Crc;

/// The module object. Pickle protocol 2: build `__torch__.Fused()` with an empty attribute table.
const MODULE: &[u8] = b"\x80\x02c__torch__\nFused\n)\x81}b.";
/// An empty tuple: the source holds no tensor constants.
const CONSTANTS: &[u8] = b"\x80\x02).";
/// The file format's version, as `torch.jit.save` of 2.11 writes it.
const VERSION: &[u8] = b"3\n";

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
/// Zip 2.0, the oldest that every reader takes.
const ZIP_VERSION: u16 = 20;
/// 1 January 1980, the zip epoch: the bytes never depend on when they were made.
const DATE: u16 = 0x0021;

/// The archive of a module whose class `Fused` is written in `source`.
pub(super) fn torchscript(source: &str) -> Vec<u8> {
    let entries = [
        ("fused/data.pkl", MODULE),
        ("fused/code/__torch__.py", source.as_bytes()),
        ("fused/constants.pkl", CONSTANTS),
        ("fused/version", VERSION),
    ];
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let offset = archive.len() as u32;
        let common = common_fields(name, data);
        put(&mut archive, &[&LOCAL.to_le_bytes(), &common, name.as_bytes(), data]);
        // Comment length, disk, internal attributes (u16 each) and external attributes (u32): all zero.
        put(
            &mut directory,
            &[
                &CENTRAL.to_le_bytes(),
                &ZIP_VERSION.to_le_bytes(),
                &common,
                &[0; 10],
                &offset.to_le_bytes(),
                name.as_bytes(),
            ],
        );
    }
    let (at, size, count) = (archive.len() as u32, directory.len() as u32, (entries.len() as u16).to_le_bytes());
    put(
        &mut archive,
        &[&directory, &END.to_le_bytes(), &[0; 4], &count, &count, &size.to_le_bytes(), &at.to_le_bytes(), &[0; 2]],
    );
    archive
}

/// The fields that an entry's local header and its directory record share, from "version needed" to "extra length".
fn common_fields(name: &str, data: &[u8]) -> Vec<u8> {
    let mut crc = Crc::new();
    crc.update(data);
    let mut fields = Vec::new();
    for short in [ZIP_VERSION, 0, 0, 0, DATE] {
        fields.extend(short.to_le_bytes());
    }
    for long in [crc.sum(), data.len() as u32, data.len() as u32] {
        fields.extend(long.to_le_bytes());
    }
    for short in [name.len() as u16, 0] {
        fields.extend(short.to_le_bytes());
    }
    fields
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}
