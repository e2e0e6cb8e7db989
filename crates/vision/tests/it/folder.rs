//! Folders of pictures: which entries are classes and samples, their order, and the messages about invalid folders.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep::data::{DataError, Dataset};
use lockstep_testkit::python::python_with;
use lockstep_vision::folder::{ImageFolder, Splits, Why};
use lockstep_vision::{Normalize, OnBroken, Pictures, Pipeline, Resize, RgbImage, Transformed};
use tempfile::TempDir;

/// A folder with these files, each a PNG of 2 x 2 pixels whatever its name says.
fn folder_of(files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|name| add(folder.path(), name, &png(2, 2)));
    folder
}

fn add(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let picture = RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, 200]));
    let mut bytes = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn names(set: &ImageFolder) -> Vec<(String, i64)> {
    let name = |index| set.path(index).strip_prefix(set.root()).unwrap().to_str().unwrap().to_owned();
    (0..set.len()).map(|index| (name(index), set.label(index))).collect()
}

fn refused(folder: &Path) -> String {
    ImageFolder::open(folder).unwrap_err().to_string()
}

fn is_about(error: &DataError, path: &Path) -> bool {
    error.path.as_deref() == Some(path)
}

fn kind(error: &DataError) -> Option<std::io::ErrorKind> {
    error.source.as_ref().map(std::io::Error::kind)
}

/// Files whose order, kind and depth matter to torchvision.
const MANY: [&str; 13] = [
    "C2/b.JPG",
    "C2/a.png",
    "C2/a/z.jpeg",
    "C2/a-b/y.jpg",
    "C2/a/b/x.PNG",
    "C2/B.jpg",
    "C0/é.png",
    "C0/10.png",
    "C0/9.png",
    "C0/notes.txt",
    "C0/photo.jpg.bak",
    "c1/deep/er/one.Jpeg",
    "next_to.jpg",
];

#[test]
fn takes_folders_for_classes_and_pictures_below_them_for_samples_in_the_order_of_their_paths() {
    let folder = folder_of(&MANY);
    let set = ImageFolder::open(folder.path()).unwrap();
    assert_eq!(set.classes(), ["C0", "C2", "c1"]);
    assert_eq!(set.counts(), [3, 6, 1]);
    let due = [
        ("C0/10.png", 0),
        ("C0/9.png", 0),
        ("C0/é.png", 0),
        ("C2/B.jpg", 1),
        ("C2/a.png", 1),
        ("C2/b.JPG", 1),
        ("C2/a/z.jpeg", 1),
        ("C2/a-b/y.jpg", 1),
        ("C2/a/b/x.PNG", 1),
        ("c1/deep/er/one.Jpeg", 2),
    ];
    assert_eq!(names(&set), due.map(|(name, class)| (name.to_owned(), class)));
    assert_eq!(set.picture(8).unwrap().dimensions(), (2, 2));
}

#[test]
fn agrees_with_torchvision_on_classes_and_samples() {
    let folder = folder_of(&MANY);
    let script = "import sys, os, torchvision.datasets as d\n\
                  s = d.ImageFolder(sys.argv[1])\n\
                  print(','.join(s.classes))\n\
                  for p, c in s.samples: print(f'{os.path.relpath(p, sys.argv[1])} {c}')";
    let Some(python) = python_with(&["torchvision"], "equality with torchvision's ImageFolder") else { return };
    let output = Command::new(python).args(["-c", script]).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let set = ImageFolder::open(folder.path()).unwrap();
    let ours = names(&set).into_iter().map(|(name, class)| format!("{name} {class}\n"));
    let ours = format!("{}\n{}", set.classes().join(","), ours.collect::<String>());
    assert_eq!(ours, String::from_utf8(output.stdout).unwrap());
}

#[test]
fn skips_files_that_are_not_samples_and_says_why() {
    let folder = folder_of(&[
        "A/a.png",
        "A/._a.png",
        "A/.thumbnails/b.png",
        "A/b.webp",
        "A/readme",
        ".ipynb_checkpoints/c.png",
        "list.csv",
    ]);
    let set = ImageFolder::open(folder.path()).unwrap();
    assert_eq!((set.len(), set.classes()), (1, &["A".to_owned()][..]));
    let skipped: Vec<(PathBuf, Why)> = set
        .skipped()
        .iter()
        .map(|skipped| (skipped.path.strip_prefix(folder.path()).unwrap().to_owned(), skipped.why))
        .collect();
    let due = [
        (".ipynb_checkpoints", Why::Hidden),
        ("list.csv", Why::OutsideOfClasses),
        ("A/._a.png", Why::Hidden),
        ("A/.thumbnails", Why::Hidden),
        ("A/b.webp", Why::OtherFormat),
        ("A/readme", Why::NotAPicture),
    ];
    assert_eq!(skipped, due.map(|(path, why)| (PathBuf::from(path), why)));
    let root = folder.path().display();
    let text = format!(
        "passed over in {root}: 1 without a picture's name, 1 of a format that is not read here, 1 next to the class folders, \
         3 with a hidden name; first {root}/A/readme"
    );
    assert_eq!(set.skip_summary(), Some(text));
    assert_eq!(ImageFolder::open(folder_of(&["A/a.png"]).path()).unwrap().skip_summary(), None);
}

#[test]
fn refuses_a_folder_without_class_folders_and_says_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(folder.path()).contains("found no folder, but nothing; give the folder that holds one folder"));
    add(folder.path(), "list.csv", b"");
    assert!(refused(folder.path()).contains("but 1 file; give the folder"));
    add(folder.path(), "a.jpg", b"");
    let error = refused(folder.path());
    assert!(error.contains("but 1 picture; put them into one folder per class"), "{error}");
}

#[test]
fn refuses_a_missing_folder_and_a_file() {
    let folder = folder_of(&["A/a.png"]);
    let missing = folder.path().join("missing");
    let error = ImageFolder::open(&missing).unwrap_err();
    assert!(is_about(&error, &missing) && kind(&error) == Some(std::io::ErrorKind::NotFound), "{error}");
    let error = refused(&folder.path().join("A/a.png"));
    assert!(
        error.ends_with("expected a folder of pictures, found a file; give the folder that holds one folder per class"),
        "{error}"
    );
}

#[test]
fn refuses_a_class_without_pictures_and_says_what_is_there() {
    let folder = folder_of(&["A/a.png", "B/b.gif", "B/deep/c.txt"]);
    let error = refused(folder.path());
    assert!(error.contains("find pictures of the class \"B\"") && error.contains("only b.gif, deep/c.txt"), "{error}");
    let folder = folder_of(&["A/a.png"]);
    fs::create_dir(folder.path().join("C")).unwrap();
    let error = refused(folder.path());
    assert!(
        error.contains("the class \"C\"") && error.contains(".jpg, .jpeg or .png, found none; add some"),
        "{error}"
    );
}

#[test]
fn refuses_splits_for_classes() {
    let folder = folder_of(&["Train/C0/a.png", "Validation/C0/a.png"]);
    let error = refused(folder.path());
    assert!(error.contains("found Train, Validation, which are splits of the data, not classes"), "{error}");
    assert!(error.contains(&format!("give {}", folder.path().join("Train").display())), "{error}");
    // A folder with one class of that name, or with other folders next to it, is fine.
    assert!(ImageFolder::open(folder_of(&["train/a.png", "bus/b.png"]).path()).is_ok());
    assert!(ImageFolder::open(folder_of(&["test/a.png"]).path()).is_ok());
}

#[test]
fn follows_links_but_not_in_circles() {
    let folder = folder_of(&["A/a.png", "A/deep/b.png", "B/c.png"]);
    symlink(folder.path().join("A/deep"), folder.path().join("B/again")).unwrap();
    symlink(folder.path().join("B"), folder.path().join("C")).unwrap();
    symlink(folder.path().join("A/a.png"), folder.path().join("B/linked.png")).unwrap();
    let set = ImageFolder::open(folder.path()).unwrap();
    assert_eq!(set.counts(), [2, 3, 3]);

    symlink(folder.path().join("A"), folder.path().join("A/deep/up")).unwrap();
    let error = ImageFolder::open(folder.path()).unwrap_err();
    assert!(is_about(&error, &folder.path().join("A/deep/up")) && error.hint.contains("leads back"), "{error}");
}

#[test]
fn refuses_a_picture_that_is_a_link_to_nowhere_or_to_itself() {
    for target in ["nowhere.png", "a.png"] {
        let folder = folder_of(&["A/b.png"]);
        symlink(folder.path().join("A").join(target), folder.path().join("A/a.png")).unwrap();
        let error = ImageFolder::open(folder.path()).unwrap_err();
        assert!(is_about(&error, &folder.path().join("A/a.png")) && error.source.is_some(), "{error}");
    }
}

#[test]
fn refuses_a_link_to_nowhere_where_a_class_or_a_split_may_be_meant() {
    for link in ["Train/C2", "Test"] {
        let folder = folder_of(&["Train/C0/a.png", "Validation/C0/b.png"]);
        symlink(folder.path().join("nowhere"), folder.path().join(link)).unwrap();
        let error = Splits::open(folder.path()).unwrap_err();
        assert!(is_about(&error, &folder.path().join(link)) && error.source.is_some(), "{error}");
    }
}

#[test]
fn refuses_a_pipe_with_a_pictures_name_instead_of_waiting_for_it() {
    let folder = folder_of(&["A/b.png"]);
    let pipe = folder.path().join("A/a.png");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let error = ImageFolder::open(folder.path()).unwrap_err();
    assert!(is_about(&error, &pipe) && error.found == "a pipe, socket or device", "{error}");
}

#[test]
fn refuses_files_and_folders_that_this_user_may_not_read() {
    for name in ["A/a.png", "A/deep", "A"] {
        let folder = folder_of(&["A/a.png", "A/deep/b.png"]);
        let path = folder.path().join(name);
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        let allowed = if path.is_dir() { fs::read_dir(&path).is_ok() } else { fs::read(&path).is_ok() };
        let opened = ImageFolder::open(folder.path());
        fs::set_permissions(&path, before).unwrap();
        if allowed {
            println!("not verified here: files without the right to read them; this user (root?) may read all");
            return;
        }
        let error = opened.unwrap_err();
        assert!(is_about(&error, &path) && error.source.is_some(), "{name}: {error}");
    }
}

#[test]
fn identifies_a_set_by_its_names_classes_and_sizes() {
    let of = |folder: &TempDir| ImageFolder::open(folder.path()).unwrap().fingerprint().unwrap();
    let files = ["A/a.png", "A/b.png", "B/c.png"];
    let whole = of(&folder_of(&files));
    assert_eq!(of(&folder_of(&files)), whole, "elsewhere, the same");
    for others in [
        &["A/a.png", "B/c.png"][..],
        &["A/a.png", "B/b.png", "B/c.png"],
        &["A/a.png", "A/c.png", "B/c.png"],
        &["A/a.png", "A/b.png", "C/c.png"],
    ] {
        assert_ne!(of(&folder_of(others)), whole, "{others:?}");
    }
    let larger = folder_of(&files);
    add(larger.path(), "B/c.png", &png(40, 40));
    assert_ne!(of(&larger), whole);
}

#[test]
fn finds_splits_in_any_case_and_names() {
    for [train, validation, test] in
        [["Train", "Validation", "Test"], ["TRAIN", "val", "testing"], ["training", "Valid", "test"]]
    {
        let file = |split: &str, name: &str| format!("{split}/{name}.png");
        let files = [
            file(train, "A/a"),
            file(train, "B/b"),
            file(validation, "A/c"),
            file(validation, "B/d"),
            file(test, "A/e"),
            file(test, "B/f"),
        ];
        let folder = folder_of(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let splits = Splits::open(folder.path()).unwrap();
        assert_eq!(splits.train.root(), folder.path().join(train));
        assert_eq!(splits.validation.root(), folder.path().join(validation));
        assert_eq!(splits.test.unwrap().root(), folder.path().join(test));
    }
    assert!(Splits::open(folder_of(&["train/A/a.png", "val/A/b.png"]).path()).unwrap().test.is_none());
}

#[test]
fn says_which_split_is_missing_and_what_is_there() {
    let folder = folder_of(&["Train/A/a.png", "Pictures/A/b.png"]);
    let error = Splits::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("find the validation pictures") && error.contains("validation or val or valid"), "{error}");
    assert!(error.contains("found the folders Pictures, Train; add it"), "{error}");
    let error = Splits::open(tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
    assert!(error.contains("find the training pictures") && error.contains("found no folder; add it"), "{error}");
}

#[test]
fn refuses_splits_that_could_be_meant_twice_or_have_other_classes() {
    let folder = folder_of(&["Train/A/a.png", "training/A/a.png", "val/A/b.png"]);
    let error = Splits::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("Train, training could all be meant"), "{error}");
    let folder = folder_of(&["Train/A/a.png", "Train/B/a.png", "val/A/b.png", "val/C/b.png"]);
    let error = Splits::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("Train: A, B, found A, C; both need the same class folders"), "{error}");
    let folder = folder_of(&["Train/A/a.png", "val/A/b.png", "test/B/b.png"]);
    let error = Splits::open(folder.path()).unwrap_err();
    assert!(is_about(&error, &folder.path().join("test")) && &*error.operation == "use", "{error}");
}

#[test]
fn names_a_file_that_is_not_a_picture_and_says_what_it_looks_like() {
    let folder = folder_of(&["A/ok.png"]);
    let whole = png(30, 30);
    let broken: [(&str, &[u8], &str); 8] = [
        ("a.png", b"", "an empty file"),
        ("b.jpg", b"<html>not found</html>", "HTML"),
        ("c.jpg", b"GIF89a", "a GIF picture"),
        ("d.png", &[0; 500], "zeros only"),
        ("e.jpg", b"just words", "text"),
        ("f.jpg", b"\x01\xfe\xfd\xfc\xfb", "something else"),
        ("g.png", &whole[..whole.len() / 2], "the file is cut off"),
        ("h.jpeg", b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
    ];
    broken.iter().for_each(|(name, bytes, _)| add(folder.path(), &format!("A/{name}"), bytes));
    let set = ImageFolder::open(folder.path()).unwrap();
    for (index, (name, _, found)) in broken.iter().enumerate() {
        let error = set.picture(index).unwrap_err();
        assert!(error.downcast_ref::<DataError>().is_some_and(|error| is_about(error, set.path(index))), "{error:?}");
        let text = format!("{error:#}");
        assert!(text.contains(name) && text.contains(found), "{text}");
    }
    assert!(set.picture(broken.len()).is_ok());
}

#[test]
fn names_a_file_that_went_away_after_the_folder_was_opened() {
    let folder = folder_of(&["A/a.png"]);
    let set = ImageFolder::open(folder.path()).unwrap();
    fs::remove_file(folder.path().join("A/a.png")).unwrap();
    let text = format!("{:#}", set.picture(0).unwrap_err());
    assert!(text.contains("A/a.png") && text.contains("still there"), "{text}");
}

#[test]
fn stops_at_a_broken_picture_or_leaves_it_out_by_choice() {
    let folder = folder_of(&["A/a.png", "B/c.png"]);
    add(folder.path(), "A/b.jpg", b"no picture");
    let set = |on_broken| {
        let pictures = ImageFolder::open(folder.path()).unwrap();
        let pipeline = Pipeline::new().then(Resize { width: 4, height: 4 });
        Transformed::new(pictures, Normalize::NONE).pipeline(pipeline).on_broken(on_broken)
    };
    let text = format!("{:#}", set(OnBroken::Stop).batch(0, &[0, 1, 2]).unwrap_err());
    assert!(text.contains("A/b.jpg"), "{text}");
    let batch = set(OnBroken::Skip).batch(0, &[0, 1, 2]).unwrap();
    assert_eq!(batch.inputs.size()[1..], [3, 4, 4]);
    assert_eq!(Vec::<i64>::try_from(&batch.targets).unwrap(), [0, 1]);
}
