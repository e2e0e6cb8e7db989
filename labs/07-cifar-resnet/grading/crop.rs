//! Grades `crop`: one picture with many keys, on two ranks in different orders.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Runner, Verdict};

type Picture = Vec<Vec<u8>>;
/// Seed, epoch, number of the picture.
type Key = (u64, u64, u64);
/// The window's offset from the top and from the left.
type Place = (usize, usize);

const PADDING: usize = 2;
/// With this many pictures, a place is never drawn only once in 10^9 times.
const PICTURES: u64 = 150;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (height, width) = (random.below(4..7), random.below(7..10));
    let picture: Picture = (0..height).map(|y| (0..width).map(|x| (1 + y * width + x) as u8).collect()).collect();
    let (seed, epoch) = (random.below(1..1000) as u64, random.below(1..100) as u64);
    let mut keys: Vec<Key> = Vec::new();
    for (seed, epoch) in [(seed, epoch), (seed, epoch + 1), (seed + 1, epoch), (seed + 1, epoch + 1)] {
        keys.extend((0..PICTURES).map(|index| (seed, epoch, index)));
    }
    // Rank 1 crops some of the same pictures, in another order.
    let other: Vec<Key> = keys.iter().rev().step_by(2).copied().collect();
    let outputs = runner.call::<_, Vec<Picture>>(2, &[(&picture, PADDING, [&keys, &other])])?;
    let mut places = BTreeMap::new();
    for (key, cropped) in keys.iter().zip(outputs.of(0, 0)) {
        places.insert(*key, place(&picture, cropped, *key)?);
    }
    for (key, cropped) in other.iter().zip(outputs.of(1, 0)) {
        let here = place(&picture, cropped, *key)?;
        Claim::that(here == places[key], format!("{} on both ranks", at(places[key])), at(here))
            .verdict(Verdict::RanksDisagree)
            .on_rank(1)
            .given(describe(*key))
            .or_fail(
                "a picture is cropped differently on another rank, which has cropped other pictures before: the crop depends on \
                 history or on the rank, not only on seed, epoch and picture",
            )?;
    }
    keyed(&places)?;
    spread(&places)
}

/// The place of the window.
fn place(picture: &Picture, cropped: &Picture, key: Key) -> anyhow::Result<Place> {
    let places = || (0..=2 * PADDING).flat_map(|top| (0..=2 * PADDING).map(move |left| (top, left)));
    let found = places().find(|place| window(picture, *place, false) == *cropped);
    if let Some(found) = found {
        return Ok(found);
    }
    let size = |picture: &Picture| format!("{} × {}", picture.len(), picture.first().map_or(0, Vec::len));
    let expected = format!("a window of {} into the picture with {PADDING} black pixels around it", size(picture));
    Claim::that(false, expected, format!("{cropped:?}"))
        .given(format!("{}, the picture {picture:?}", describe(key)))
        .diagnose_if(
            size(cropped) != size(picture),
            format!("the crop is {}, but the window must have the size of the picture", size(cropped)),
        )
        .diagnose_if(
            places().any(|place| window(picture, place, true) == *cropped),
            "outside of the picture, its edge is repeated: the padding is black, 0",
        )
        .or_fail("the crop is not a window into the padded picture")?;
    Ok((0, 0))
}

fn window(picture: &Picture, (top, left): Place, repeat_edge: bool) -> Picture {
    let inside = |at: usize, length: usize| match at.checked_sub(PADDING) {
        Some(at) if at < length => Some(at),
        _ if repeat_edge => Some(at.saturating_sub(PADDING).min(length - 1)),
        _ => None,
    };
    let pixel = |y, x| Some(picture[inside(y + top, picture.len())?][inside(x + left, picture[0].len())?]);
    let row = |y| (0..picture[0].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Checks that the place depends on each part of the key.
fn keyed(places: &BTreeMap<Key, Place>) -> anyhow::Result<()> {
    let (first, last) = match (places.first_key_value(), places.last_key_value()) {
        (Some((first, _)), Some((last, _))) => (*first, *last),
        _ => return Ok(()),
    };
    let alike =
        |other: fn(Key, Key, Key) -> Key| places.iter().all(|(key, place)| places[&other(*key, first, last)] == *place);
    let parts = [
        // Comes first: if all pictures share one place, two epochs or seeds may have the same one by chance.
        (
            "picture",
            alike(|key, first, _| (key.0, key.1, first.2)),
            "all pictures of an epoch are cropped at the same place",
        ),
        (
            "epoch",
            alike(|key, first, _| (key.0, first.1, key.2)),
            "every epoch has the same crops, so the network sees the same picture each time",
        ),
        ("seed", alike(|key, first, _| (first.0, key.1, key.2)), "every seed has the same crops"),
    ];
    for (part, alike, what) in parts {
        Claim::that(!alike, format!("another {part}, other places"), "the same places")
            .given(format!(
                "{PICTURES} pictures in epochs {} and {}, with seeds {} and {}",
                first.1, last.1, first.0, last.0
            ))
            .or_fail(format!("{what}: the key lacks the {part}"))?;
    }
    Ok(())
}

/// Checks that all places are drawn.
fn spread(places: &BTreeMap<Key, Place>) -> anyhow::Result<()> {
    let missing: Vec<Place> = (0..=2 * PADDING)
        .flat_map(|top| (0..=2 * PADDING).map(move |left| (top, left)))
        .filter(|place| !places.values().any(|seen| seen == place))
        .collect();
    let all = |what: fn(&Place) -> bool| places.values().all(what);
    Claim::that(missing.is_empty(), "each of the 25 places", format!("never {missing:?} (from top, from left)"))
        .given(format!("{} crops with a padding of {PADDING}", places.len()))
        .diagnose_if(
            all(|(top, left)| top == left),
            "the window moves only along the diagonal: draw two numbers, one for each direction",
        )
        .diagnose_if(
            all(|(top, left)| *top < 2 * PADDING && *left < 2 * PADDING),
            "the last places are never drawn: with a padding of p, there are 2 p + 1 places in each direction",
        )
        .or_fail("some places are never drawn")
}

fn at((top, left): Place) -> String {
    format!("the window {top} from the top and {left} from the left")
}

fn describe((seed, epoch, index): Key) -> String {
    format!("picture {index} in epoch {epoch} with seed {seed}")
}
