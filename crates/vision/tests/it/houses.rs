//! The houses after a storm: the same bytes forever, files that are written atomically and read back, and folders that are refused.

use std::collections::BTreeSet;
use std::fs;

use lockstep::data::Split;
use lockstep_vision::folder::Splits;
use lockstep_vision::houses::CLASSES;
use lockstep_vision::{DrawnHouses, Pictures};

/// The CRC-32 of six pictures in two sizes each.
fn checksum(split: Split) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for index in 0..6 {
        for (width, height) in [(64, 48), (50, 75)] {
            hasher.update(DrawnHouses::new(42, split).picture(index, width, height).as_raw());
        }
    }
    hasher.finalize()
}

#[test]
fn keeps_the_bytes_of_a_seed_forever() {
    assert_eq!([checksum(Split::Train), checksum(Split::Test)], [0x9be5_a0d5, 0x8947_0478]);
    let labels: Vec<i64> = (0..12).map(|index| DrawnHouses::new(42, Split::Train).label(index)).collect();
    assert_eq!(labels, [1, 2, 0, 0, 1, 2, 2, 1, 0, 0, 2, 1]);
}

#[test]
fn draws_each_house_from_its_seed_split_and_index_alone_in_any_size() {
    let train = DrawnHouses::new(7, Split::Train);
    let picture = train.picture(5, 40, 30);
    assert_eq!(picture, train.picture(5, 40, 30));
    let others = [
        train.picture(8, 40, 30),
        DrawnHouses::new(7, Split::Test).picture(5, 40, 30),
        DrawnHouses::new(8, Split::Train).picture(5, 40, 30),
    ];
    assert!(others.iter().all(|other| *other != picture));
    for (width, height) in [(1, 1), (1, 300), (300, 1), (3, 2), (200, 50), (50, 200)] {
        assert_eq!(train.picture(2, width, height).dimensions(), (width, height));
    }
}

#[test]
fn has_each_grade_once_in_every_three_in_all_orders() {
    let houses = DrawnHouses::new(9, Split::Test);
    let orders: BTreeSet<Vec<i64>> =
        (0..50).map(|three| (0..3).map(|i| houses.label(3 * three + i)).collect()).collect();
    assert_eq!(orders.len(), 6);
    assert!(orders.iter().all(|order| (0..3).all(|grade| order.contains(&grade))), "{orders:?}");
}

#[test]
fn is_a_set_of_pictures_without_files() -> anyhow::Result<()> {
    let set = DrawnHouses::new(3, Split::Train).first(9, 32, 24);
    assert_eq!((set.len(), set.classes()), (9, &CLASSES.map(String::from)[..]));
    assert_eq!(set.picture(4)?, DrawnHouses::new(3, Split::Train).picture(4, 32, 24));
    let prints = [(3, 9, 32), (4, 9, 32), (3, 10, 32), (3, 9, 33)].map(|(seed, count, width)| {
        DrawnHouses::new(seed, Split::Train).first(count, width, 24).fingerprint().expect("is drawn")
    });
    assert_eq!(prints[0], set.fingerprint()?);
    assert!(prints[1..].iter().all(|print| *print != prints[0]), "{prints:?}");
    Ok(())
}

#[test]
fn writes_folders_that_can_be_read_back() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let sizes = [(64, 48), (48, 64), (80, 60)];
    DrawnHouses::write(folder.path(), 5, (12, 6), &sizes)?;
    let Splits { train, validation, test } = Splits::open(folder.path())?;
    assert!(test.is_none());
    assert_eq!((train.counts(), validation.counts()), (vec![4; 3], vec![2; 3]));
    assert_eq!(train.classes(), CLASSES);
    assert!(train.skipped().is_empty(), "no file is left half written");
    let mut seen = BTreeSet::new();
    for index in 0..train.len() {
        let picture = train.picture(index)?;
        seen.insert(picture.dimensions());
        let name = train.path(index).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let house: usize = name.trim_start_matches("house-").parse()?;
        let drawn = DrawnHouses::new(5, Split::Train).picture(house, picture.width(), picture.height());
        let apart = picture.as_raw().iter().zip(drawn.as_raw()).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>();
        assert!(apart / (drawn.as_raw().len() as f64) < 8.0, "{name} is another house");
        assert_eq!(train.label(index), DrawnHouses::new(5, Split::Train).label(house));
    }
    assert!(seen.len() > 1 && seen.iter().all(|size| sizes.contains(size)), "{seen:?}");
    Ok(())
}

#[test]
fn refuses_a_folder_with_other_photographs_and_writes_over_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let write = |seed, counts| DrawnHouses::write(folder.path(), seed, counts, &[(16, 16)]);
    write(5, (12, 3)).unwrap();
    write(5, (12, 3)).unwrap();
    for (seed, counts) in [(5, (9, 3)), (6, (12, 3))] {
        let error = write(seed, counts).unwrap_err().to_string();
        assert!(error.contains("is already there") && error.contains("draw into another folder"), "{error}");
    }
    write(5, (15, 6)).unwrap();
    let Splits { train, validation, .. } = Splits::open(folder.path()).unwrap();
    assert_eq!((train.counts(), validation.counts()), (vec![5; 3], vec![2; 3]));
}

#[test]
fn refuses_photographs_without_pixels_too_few_of_them_and_folders_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("Train"), "in the way").unwrap();
    for (counts, sizes, words) in [
        ((3, 3), &[][..], "give at least one, of 1 x 1 or more"),
        ((3, 3), &[(0, 4)], "give at least one, of 1 x 1 or more"),
        ((3, 3), &[(4, 4), (4, 0)], "give at least one, of 1 x 1 or more"),
        ((12, 2), &[(4, 4)], "12 and 2 photographs: each split needs one of each of the 3 classes"),
        ((3, 3), &[(4, 4)], "Train/C0"),
    ] {
        let error = DrawnHouses::write(folder.path(), 1, counts, sizes).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
