//! Files of weights that are damaged or malicious: reading them ends with an error, and takes no more memory than the file's
//! length explains.
//!
//! One test, in a process of its own: it measures the memory of that whole process.

use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use lockstep::pretrained::Weights;
use tch::{Kind, Tensor};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::{Test, finish, program, text};

/// How much the whole test may allocate after its start; memory that is only reserved counts too.
const MOST: u64 = 1 << 30;

fn golden(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/pretrained").join(name)).unwrap()
}

/// The peak size of this process so far, in bytes, including memory that it has reserved but not touched.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// One file for all reads: truncating it each time would wait for the disk.
struct Scratch {
    file: tempfile::NamedTempFile,
}

impl Scratch {
    /// Reads the bytes as a file, and sums up the tensors.
    fn read(&self, bytes: &[u8]) -> Result<Weights, String> {
        self.file.as_file().write_all_at(bytes, 0).unwrap();
        self.file.as_file().set_len(bytes.len() as u64).unwrap();
        let read = Weights::read(self.file.path()).map_err(|error| error.to_string())?;
        for (_, tensor) in read.tensors.iter().filter(|(_, tensor)| tensor.numel() < 10_000) {
            let _sum: Tensor = tensor.sum(Kind::Double);
        }
        Ok(read)
    }

    fn refusal(&self, bytes: &[u8]) -> String {
        self.read(bytes).map(drop).expect_err("it should be refused")
    }
}

/// An archive with this pickle, and one storage with these bytes.
fn archive(pickle: &[u8], storage: &[u8], compression: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(compression);
    for (name, bytes) in [("a/data.pkl", pickle), ("a/data/0", storage)] {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn stored(pickle: &[u8]) -> Vec<u8> {
    archive(pickle, &[0; 16], CompressionMethod::Stored)
}

/// A pickle of one tensor of f32, `w`.
fn tensor(key: &str, numel: i64, offset: i64, size: &[i64], stride: &[i64]) -> Vec<u8> {
    let int = |value: i64| [b"\x8a\x08".to_vec(), value.to_le_bytes().to_vec()].concat();
    let ints =
        |values: &[i64]| [b"(".to_vec(), values.iter().flat_map(|&value| int(value)).collect(), b"t".to_vec()].concat();
    let storage = [
        b"(".to_vec(),
        pickled_text(b"storage"),
        b"ctorch\nFloatStorage\n".to_vec(),
        pickled_text(key.as_bytes()),
        pickled_text(b"cpu"),
        int(numel),
        b"tQ".to_vec(),
    ];
    let call =
        [b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec(), storage.concat(), int(offset), ints(size), ints(stride)];
    [b"\x80\x02}".to_vec(), pickled_text(b"w"), call.concat(), b"\x89NtRs.".to_vec()].concat()
}

fn cut_and_flip_every_byte(scratch: &Scratch) {
    for name in [
        "zip.pth",
        "legacy_checkpoint.pth",
        "old_parameters.pth",
        "evil_legacy.pth",
        "deflated.pth",
        "views.safetensors",
    ] {
        let mut bytes = golden(name);
        for end in 0..bytes.len() {
            scratch.refusal(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            for flip in [0x01, 0xff] {
                bytes[at] ^= flip;
                let _either = scratch.read(&bytes);
                bytes[at] ^= flip;
            }
        }
    }
}

/// In an archive the checksum precedes the pickle, so it is flipped separately.
fn flip_the_pickle_of_an_archive(scratch: &Scratch) {
    let mut pickle = tensor("0", 4, 0, &[2, 2], &[2, 1]);
    assert_eq!(scratch.read(&stored(&pickle)).unwrap().tensors[0].1.size(), [2, 2]);
    for at in 0..pickle.len() {
        for bit in 0..8 {
            pickle[at] ^= 1 << bit;
            let _either = scratch.read(&stored(&pickle));
            pickle[at] ^= 1 << bit;
        }
    }
}

fn ask_for_more_than_there_is(scratch: &Scratch) {
    let huge = 1 << 45;
    for (pickle, expected) in [
        (tensor("0", 4, 0, &[5], &[1]), "reach beyond its storage of 4"),
        (tensor("0", 4, 1, &[2, 2], &[2, 1]), "reach beyond"),
        (tensor("0", 4, -1, &[2], &[1]), "negative"),
        (tensor("0", 4, i64::MAX, &[2], &[i64::MAX]), "reach beyond"),
        (tensor("0", 4, 0, &[i64::MAX, i64::MAX], &[0, 0]), "too many elements"),
        (tensor("0", huge, 0, &[huge], &[1]), "16 bytes where its pickle says"),
        (tensor("0", i64::MAX, 0, &[2], &[1]), "elements"),
        (tensor("0", -1, 0, &[2], &[1]), "negative"),
        (tensor("0", 2, 0, &[2], &[1]), "16 bytes where its pickle says 8"),
        (tensor("../../../etc/passwd", 4, 0, &[2], &[1]), "cannot be found"),
    ] {
        let said = scratch.refusal(&stored(&pickle));
        assert!(said.contains(expected), "{said}");
    }
    // Many elements in little memory do no harm: nothing copies them.
    let repeated = scratch.read(&stored(&tensor("0", 4, 0, &[1 << 40], &[0]))).unwrap();
    assert_eq!(repeated.tensors[0].1.size(), [1 << 40]);
}

fn unpack_to_much_more(scratch: &Scratch) {
    let zeros = vec![0; 96 << 20];
    let bomb = archive(&tensor("0", 24 << 20, 0, &[1], &[1]), &zeros, CompressionMethod::Deflated);
    assert!(bomb.len() < 1 << 20);
    let said = scratch.refusal(&bomb);
    assert!(said.contains("which is too much for a file of"), "{said}");
}

/// Pickles whose few bytes request many values, deep nesting, or themselves.
fn work_the_machine(scratch: &Scratch) {
    let nested = [b"\x80\x02)".to_vec(), vec![0x85; 1 << 20], b".".to_vec()].concat();
    let marks = [b"\x80\x02".to_vec(), vec![b'('; 5 << 20], b"N.".to_vec()].concat();
    let values = [b"\x80\x02".to_vec(), vec![b'N'; 5 << 20], b".".to_vec()].concat();
    let doubled = [b"\x80\x02N".to_vec(), vec![b'2'; 5 << 20], b".".to_vec()].concat();
    // One long list of the same pair, and the same call on it repeatedly.
    let list =
        [&b"\x80\x02](NNeq\0]("[..], &b"h\0".repeat(1 << 19), b"eq\x01ccollections\nOrderedDict\nq\x02"].concat();
    let copies = [list, b"h\x02h\x01\x85R".repeat(1 << 16), b".".to_vec()].concat();
    let itself = b"\x80\x02}q\0U\x0astate_dicth\0s.".to_vec();
    let memo =
        [b"\x80\x02N".to_vec(), (0..1u32 << 20).flat_map(|at| [&b"r"[..], &at.to_le_bytes()].concat()).collect()]
            .concat();
    let text = b"\x80\x02X\xff\xff\xff\xff".to_vec();
    // Existing values, put into lists and tuples: each takes a byte or two of the pickle.
    let appended = [b"\x80\x02]".to_vec(), b"2a".repeat(5 << 20), b".".to_vec()].concat();
    let tuples =
        [b"\x80\x02".to_vec(), [&b"(N"[..], &vec![b'2'; 1 << 20], b"t"].concat().repeat(5), b".".to_vec()].concat();
    for (pickle, expected) in [
        (appended, "more than 4000000"),
        (tuples, "more than 4000000"),
        (nested, "no named tensors"),
        (marks, "more than 4000000"),
        (values, "more than 4000000"),
        (doubled, "more than 4000000"),
        (copies, "more than 4000000"),
        (itself, "no named tensors"),
        (memo, "ends at byte"),
        (text, "ends at byte"),
        (b"\x80\x02cos\nsystem\n.".to_vec(), "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.".to_vec(), "os.system"),
        (b"\x80\x02(S'touch /tmp/lockstep-was-here'\nios\nsystem\n.".to_vec(), "os.system"),
        (b"\x80\x02ctorch.storage\n_load_from_bytes\n.".to_vec(), "torch.storage._load_from_bytes"),
        (b"\x80\x02c__builtin__\neval\n(X\x01\0\0\x001tR.".to_vec(), "__builtin__.eval"),
        (b"\x80\x02\x82\x01.".to_vec(), "copyreg"),
        (b"\x80\x02ca\x1b[31m\nb\n.".to_vec(), r"refuses to run a\u{1b}[31m.b"),
    ] {
        let said = scratch.refusal(&stored(&pickle));
        assert!(said.contains(expected), "{said}");
    }
}

fn pickled_text(text: &[u8]) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text].concat()
}

/// A file in the format before PyTorch 1.6, of two pickles without their beginnings and ends, and one storage of four f32.
fn legacy(object: &[u8], keys: &[u8]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    let storage = [&4u64.to_le_bytes()[..], &[0; 16]].concat();
    [magic, &b"\x80\x02M\xe9\x03."[..], b"\x80\x02}.", b"\x80\x02", object, b".", b"\x80\x02", keys, b".", &storage]
        .concat()
}

/// One long text that is recalled repeatedly: as a key of storages, of tensors, of a dict.
fn repeat_a_long_text(scratch: &Scratch) {
    let long = [&pickled_text(&[b'k'; 1 << 20])[..], b"q\0"].concat();
    let of_storage = [&b"(U\x07storagectorch\nFloatStorage\n"[..], &long, b"U\x03cpuK\x04tq\x01Qq\x02"].concat();
    let w = [b"ctorch._utils\n_rebuild_tensor\n(", &of_storage[..], b"K\0K\x04\x85K\x01\x85tRq\x03"].concat();
    let object = [b"}U\x01w", &w[..], b"s"].concat();
    let keys = |more: &[u8]| [b"](", &long[..], more, b"e"].concat();

    let read = scratch.read(&legacy(&object, &keys(b""))).unwrap();
    assert_eq!(read.tensors[0].1.size(), [4]);
    let said = scratch.refusal(&legacy(&object, &keys(&b"h\0".repeat(1 << 20))));
    assert!(said.contains("it lists 1048577 storages where its tensors have 1"), "{said}");
    let another = [b"(U\x07storagectorch\nFloatStorage\nU\x01aU\x03cpuK\x04tQ0", &object[..]].concat();
    let said = scratch.refusal(&legacy(&another, &keys(b"h\0")));
    assert!(said.contains("kkk… is listed twice") && said.len() < 500, "{said}");
    let said = scratch.refusal(&legacy(&object, &keys(b"2a")));
    assert!(said.contains("damaged"), "{said}");

    // 400,000 storages with that key, tensors of it, and entries of a dict under it.
    let storages = [&object[..], &b"h\x01Q0".repeat(400_000)].concat();
    scratch.read(&legacy(&storages, &keys(b""))).unwrap();
    let names =
        (0..400_000u32).flat_map(|number| [pickled_text(format!("{number:x}").as_bytes()), b"h\x03".to_vec()].concat());
    let tensors = [b"}(U\x01w", &w[..], &names.collect::<Vec<u8>>(), b"u"].concat();
    assert_eq!(scratch.read(&legacy(&tensors, &keys(b""))).unwrap().tensors.len(), 400_001);
    let dict = [b"}(", &long[..], b"N", &b"h\0N".repeat(400_000), b"u."].concat();
    let said = scratch.refusal(&stored(&[b"\x80\x02", &dict[..]].concat()));
    assert!(said.contains("no named tensors") && said.len() < 500, "{said}");
}

/// Sparse files of 8 TiB: reading one completely would take hours.
fn open_a_sparse_file(scratch: &Scratch) {
    for (name, expected) in [("zip.pth", "its end is missing"), ("views.safetensors", "its length does not fit")] {
        scratch.read(&golden(name)).unwrap();
        scratch.file.as_file().set_len(1 << 43).unwrap();
        let said = Weights::read(scratch.file.path()).expect_err("it should be refused").to_string();
        assert!(said.contains(expected), "{said}");
    }
    scratch.read(&golden("legacy.pth")).unwrap();
    scratch.file.as_file().set_len(1 << 43).unwrap();
    Weights::read(scratch.file.path()).unwrap(); // what stands behind its storages is not looked at, as in PyTorch
}

/// The name of the case.
pub(crate) const CASE: &str = "hostile";

pub(crate) const TESTS: &[Test] = &[("no_file_makes_reading_weights_panic_or_take_much_memory", || {
    let output = finish(program(CASE));
    assert!(output.status.success(), "{}\n{}", output.status, text(&output.stderr));
})];

/// Reads the files, and panics if one is not refused as it should be.
pub(crate) fn case() -> anyhow::Result<()> {
    let scratch = Scratch { file: tempfile::NamedTempFile::new().unwrap() };
    scratch.read(&golden("zip.pth")).unwrap();
    scratch.read(&golden("legacy.pth")).unwrap();
    let before = peak();
    cut_and_flip_every_byte(&scratch);
    flip_the_pickle_of_an_archive(&scratch);
    ask_for_more_than_there_is(&scratch);
    unpack_to_much_more(&scratch);
    work_the_machine(&scratch);
    repeat_a_long_text(&scratch);
    open_a_sparse_file(&scratch);
    let more = peak() - before;
    assert!(more < MOST, "reading took {more} bytes");
    assert!(!Path::new("/tmp/lockstep-was-here").exists());
    Ok(())
}
