//! `lockstep data` as a user meets it: good and bad files of each layout, a page of pictures.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use flate2::Compression;
use flate2::write::GzEncoder;
use insta::assert_snapshot;
use lockstep_launch::command::quoted;
use tempfile::TempDir;

use crate::running::{Ended, ended};
use crate::shown::filtered;

/// Bytes of a CIFAR-10 record.
const RECORD: usize = 3073;

fn lockstep(words: &[&str], folder: &Path) -> Ended {
    let mut command = Command::new(cargo_bin!("lockstep"));
    ended(command.arg("data").args(words).current_dir(folder))
}

/// What `lockstep data check` prints about a folder, after a headline.
fn checked(about: &str, path: &Path, code: i32) -> String {
    format!("--- {about}\n{}\n", lockstep(&["check", path.to_str().unwrap()], path.parent().unwrap()).code(code).out)
}

fn idx(dims: &[u32], bytes: &[u8]) -> Vec<u8> {
    let sizes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_be_bytes()).collect();
    [&[0, 0, 8, dims.len() as u8], &sizes[..], bytes].concat()
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

/// MNIST's four files, with pictures of 2 x 3 pixels.
fn mnist(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for (split, count) in [("train", 20), ("t10k", 5)] {
        let labels: Vec<u8> = (0..count).map(|index| index % 10).collect();
        let images: Vec<u8> = (0..count * 6).collect();
        fs::write(dir.join(format!("{split}-images-idx3-ubyte.gz")), zipped(&idx(&[count.into(), 2, 3], &images)))
            .unwrap();
        fs::write(dir.join(format!("{split}-labels-idx1-ubyte")), idx(&[count.into()], &labels)).unwrap();
    }
}

fn cifar(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let records = |count: u8| (0..count).flat_map(|label| [vec![label % 10], vec![label * 9; RECORD - 1]].concat());
    fs::write(dir.join("data_batch_1.bin"), records(12).collect::<Vec<u8>>()).unwrap();
    fs::write(dir.join("test_batch.bin"), records(10).collect::<Vec<u8>>()).unwrap();
}

/// Folders of PNG files.
fn pictures(dir: &Path) {
    for (split, count) in [("Train", 3), ("Validation", 1)] {
        for (class, grey) in [("intact", 50), ("destroyed", 200)] {
            let folder = dir.join(split).join(class);
            fs::create_dir_all(&folder).unwrap();
            for number in 0..count {
                image::RgbImage::from_pixel(40, 30, image::Rgb([grey; 3]))
                    .save(folder.join(format!("{number}.png")))
                    .unwrap();
            }
        }
    }
}

fn with(make: fn(&Path), change: impl FnOnce(&Path)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("set"));
    change(&folder.path().join("set"));
    folder
}

/// What is done to a good set, how the output calls it, and the exit code of a check after it.
type Change = (&'static str, fn(&Path), i32);

/// The output for a set with each of these changes.
fn each(make: fn(&Path), changes: &[Change]) -> String {
    let one = |(about, change, code): &Change| {
        let folder = with(make, change);
        let text = checked(about, &folder.path().join("set"), *code);
        text.replace(folder.path().to_str().unwrap(), "[folder]")
    };
    changes.iter().map(one).collect()
}

#[test]
fn checks_mnist_files() {
    let _filtered = filtered(None);
    let text = each(
        mnist,
        &[
            ("whole", |_| (), 0),
            ("a file is missing", |dir| fs::remove_file(dir.join("t10k-labels-idx1-ubyte")).unwrap(), 1),
            (
                "labels are cut off",
                |dir| {
                    let path = dir.join("train-labels-idx1-ubyte");
                    let bytes = fs::read(&path).unwrap();
                    fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
                },
                1,
            ),
            (
                "the gzip file is cut off",
                |dir| {
                    let path = dir.join("train-images-idx3-ubyte.gz");
                    let bytes = fs::read(&path).unwrap();
                    fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
                },
                1,
            ),
            ("a web page", |dir| fs::write(dir.join("train-labels-idx1-ubyte"), "<!DOCTYPE html><p>404").unwrap(), 1),
            (
                "swapped",
                |dir| {
                    fs::copy(dir.join("train-labels-idx1-ubyte"), dir.join("train-images-idx3-ubyte")).unwrap();
                },
                1,
            ),
            (
                "labels of another set",
                |dir| {
                    fs::copy(dir.join("t10k-labels-idx1-ubyte"), dir.join("train-labels-idx1-ubyte")).unwrap();
                },
                1,
            ),
            (
                "a label is no digit",
                |dir| fs::write(dir.join("t10k-labels-idx1-ubyte"), idx(&[5], &[1, 2, 3, 4, 26])).unwrap(),
                1,
            ),
        ],
    );
    assert_snapshot!("data_check_mnist", text);
}

#[test]
fn checks_cifar_10_files() {
    let _filtered = filtered(None);
    let text = each(
        cifar,
        &[
            ("whole", |_| (), 0),
            (
                "cut off",
                |dir| {
                    let path = dir.join("data_batch_1.bin");
                    let bytes = fs::read(&path).unwrap();
                    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
                },
                1,
            ),
            ("CIFAR-100's records", |dir| fs::write(dir.join("test_batch.bin"), vec![0; 5 * (RECORD + 1)]).unwrap(), 1),
            ("a label is too large", |dir| fs::write(dir.join("test_batch.bin"), vec![77; RECORD]).unwrap(), 1),
            ("a gap", |dir| fs::rename(dir.join("data_batch_1.bin"), dir.join("data_batch_2.bin")).unwrap(), 1),
            (
                "the version for Python",
                |dir| {
                    fs::remove_dir_all(dir).unwrap();
                    fs::create_dir_all(dir.join("cifar-10-batches-py")).unwrap();
                },
                1,
            ),
            (
                "still packed",
                |dir| {
                    fs::remove_dir_all(dir).unwrap();
                    fs::create_dir(dir).unwrap();
                    fs::write(dir.join("cifar-10-binary.tar.gz"), "").unwrap();
                },
                1,
            ),
        ],
    );
    assert_snapshot!("data_check_cifar", text);
}

#[test]
fn checks_folders_of_pictures() {
    let _filtered = filtered(None);
    let text = each(
        pictures,
        &[
            ("whole", |_| (), 0),
            (
                "pictures that cannot be decoded",
                |dir| {
                    let bytes = fs::read(dir.join("Train/intact/0.png")).unwrap();
                    fs::write(dir.join("Train/intact/0.png"), &bytes[..bytes.len() / 2]).unwrap();
                    fs::write(dir.join("Train/intact/1.png"), "<html>not found</html>").unwrap();
                    fs::write(dir.join("Train/destroyed/2.png"), "").unwrap();
                },
                1,
            ),
            (
                "files that are not read",
                |dir| {
                    fs::write(dir.join("Train/intact/notes.txt"), "").unwrap();
                    fs::write(dir.join("Train/intact/photo.tiff"), "").unwrap();
                    fs::write(dir.join("Train/intact/._0.png"), "").unwrap();
                },
                0,
            ),
            (
                "another class",
                |dir| fs::rename(dir.join("Validation/intact"), dir.join("Validation/whole")).unwrap(),
                1,
            ),
            (
                "a class without pictures",
                |dir| fs::rename(dir.join("Validation/intact/0.png"), dir.join("Validation/intact/0.bmp")).unwrap(),
                1,
            ),
            ("no validation", |dir| fs::remove_dir_all(dir.join("Validation")).unwrap(), 1),
            (
                "nothing",
                |dir| {
                    fs::remove_dir_all(dir).unwrap();
                    fs::create_dir(dir).unwrap();
                },
                1,
            ),
        ],
    );
    assert_snapshot!("data_check_folders", text);
}

#[test]
fn checks_single_files_and_refuses_what_it_does_not_know() {
    let folder = with(mnist, cifar);
    let check = |name: &str, code: i32| lockstep(&["check", name], &folder.path().join("set")).code(code);
    assert_eq!(
        check("train-images-idx3-ubyte.gz", 0).out,
        "train-images-idx3-ubyte.gz: an IDX file of bytes [20, 2, 3]\nno fault found\n"
    );
    assert_eq!(check("test_batch.bin", 0).out, "test_batch.bin: 10 records of CIFAR-10\nno fault found\n");
    fs::write(folder.path().join("set/what"), "").unwrap();
    check("what", 2).says(&["cannot tell by its name", "-ubyte.gz, .bin"]);
    check("nowhere", 2).says(&["cannot read nowhere"]);
}

#[test]
fn shows_the_first_pictures_of_each_class_on_a_page() {
    let folder = with(pictures, |dir| fs::write(dir.join("Train/intact/0.png"), "").unwrap());
    let shown = lockstep(&["look", "set", "--each", "2", "--out", "page.html"], folder.path()).code(0);
    assert_eq!(
        shown.out,
        "Train: destroyed 3, intact 3\nValidation: destroyed 1, intact 1\nthe pictures are in page.html\n"
    );
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert_eq!(page.matches("<img src=\"data:image/png;base64,").count(), 5, "2 + 1 of Train, 1 + 1 of Validation");
    assert!(page.contains("0.png: damaged") && page.contains("destroyed: 3"), "{page}");
    let folder = with(mnist, |_| ());
    lockstep(&["look", "set"], folder.path()).code(0);
    assert_eq!(fs::read_to_string(folder.path().join("data.html")).unwrap().matches("<img ").count(), 25);
    lockstep(&["look", "."], folder.path()).code(2).says(&["cannot find"]);
}

/// `lockstep` with programs next to it that copy these sets instead of drawing them.
fn with_fake_labs(makes: [fn(&Path); 3]) -> TempDir {
    let real = cargo_bin!("lockstep");
    let folder = tempfile::tempdir_in(real.parent().unwrap()).unwrap();
    fs::hard_link(real, folder.path().join("lockstep")).unwrap();
    for (name, make) in ["lab-02-draw-digits", "lab-07-draw-objects", "lab-08-draw-houses"].into_iter().zip(makes) {
        let (program, set) = (folder.path().join(name), folder.path().join(format!("{name}-set")));
        make(&set);
        let script = format!(
            "#!/bin/sh\necho drawn >> {name}-log\nmkdir -p \"$1\" && cp -r {}/. \"$1\"\n",
            quoted(set.to_str().unwrap())
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

#[test]
fn makes_one_set_and_checks_it() {
    let programs = with_fake_labs([mnist, cifar, |dir| fs::create_dir(dir).unwrap()]);
    let make = |words: &[&str]| {
        let mut command = Command::new(programs.path().join("lockstep"));
        ended(command.args(["data", "make"]).args(words).current_dir(programs.path()))
    };
    let made = make(&["digits", "here/digits"]).code(0).out;
    assert!(made.ends_with("no fault found\n"), "{made}");
    // A set that is not right is not passed on in silence.
    make(&["houses", "here/houses"]).code(1);
    fs::remove_file(programs.path().join("lab-07-draw-objects")).unwrap();
    make(&["objects", "here/objects"]).code(2).says(&["build it with `cargo build`"]);
}

#[test]
fn makes_a_text_of_the_book_and_checks_texts() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("text");
    // In the checkout, since the pages are there.
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = lockstep(&["make", "text", set.to_str().unwrap()], checkout).code(0).out;
    let lines: Vec<&str> = made.lines().collect();
    assert!(lines[0].starts_with("text files in ") && lines[1].starts_with("  train: 1 file; "), "{made}");
    assert!(lines[2].starts_with("  validation: 1 file; ") && lines[3] == "no fault found", "{made}");
    let train = fs::read_to_string(set.join("train.txt")).unwrap();
    assert!(train.len() > 100_000 && train.contains("gradients") && !train.contains("```"), "{} bytes", train.len());
    lockstep(&["make", "text", set.to_str().unwrap(), "--samples", "9"], checkout)
        .code(2)
        .says(&["leave out --samples"]);

    let seen = lockstep(&["look", "text", "--out", "text.html"], folder.path()).code(0).out;
    assert!(seen.ends_with("the beginning is in text.html\n"), "{seen}");
    assert!(fs::read_to_string(folder.path().join("text.html")).unwrap().contains("The most frequent characters"));

    fs::write(set.join("validation.txt"), b"caf\xe9").unwrap();
    let faults = lockstep(&["check", "text"], folder.path()).code(1).out;
    assert!(
        faults.contains("found the byte 0xe9 at position 3, in line 1\n  fix: convert it first: iconv"),
        "{faults}"
    );
    fs::remove_file(set.join("train.txt")).unwrap();
    let none = lockstep(&["check", "text"], folder.path()).code(1).out;
    assert!(none.contains("found no file that ends in .txt"), "{none}");
}
