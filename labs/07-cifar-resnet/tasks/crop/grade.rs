//! Grades `crop`: one picture with many keys, on two ranks in different orders; and keys that one number cannot tell apart.

use std::collections::BTreeMap;

use lockstep_grading::runner::Inputs;
use lockstep_grading::{Claim, Runner, Verdict};

type Picture = Vec<Vec<u8>>;
/// Seed, epoch, number of the picture.
type Key = (u64, u64, u64);
/// The window's offset from the top and from the left.
type Place = (usize, usize);
/// A key with one part of another key, the second.
type Other = fn(Key, Key) -> Key;

const PADDING: usize = 2;
/// With this many pictures, a place is never drawn only once in 10^9 times.
const PICTURES: u64 = 150;

/// With this padding there are 1681 places, so two keys rarely share one.
const WIDE: usize = 20;
/// The first picture of each block. Decimal digits that are reserved for a part of the key end at these numbers.
const BLOCKS: [u64; 4] = [0, 100, 1_000, 10_000];
const IN_BLOCK: u64 = 16;
/// Two blocks of different keys share this many places in less than one of 10^11 pairs.
const ALIKE: usize = 8;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let small = drawn(random.below(4..7), random.below(7..10));
    let (seed, epoch) = (random.below(1..1000) as u64, random.below(1..100) as u64);
    let mut keys: Vec<Key> = Vec::new();
    for (seed, epoch) in [(seed, epoch), (seed, epoch + 1), (seed + 1, epoch), (seed + 1, epoch + 1)] {
        keys.extend((0..PICTURES).map(|index| (seed, epoch, index)));
    }
    // Rank 1 crops some of the same pictures, in another order.
    let other: Vec<Key> = keys.iter().rev().step_by(2).copied().collect();
    let (large, blocks) = (drawn(WIDE + 4, WIDE + 5), blocks(&mut random));
    let far: Vec<Key> = blocks.concat();
    let inputs = [(&small, PADDING, [&keys[..], &other[..]]), (&large, WIDE, [&far[..], &[]])];
    let outputs = runner.call::<_, Vec<Picture>>(2, &inputs)?;
    let mut places = BTreeMap::new();
    for (key, cropped) in keys.iter().zip(outputs.of(0, 0)) {
        places.insert(*key, place(&small, PADDING, cropped, *key)?);
    }
    for (key, cropped) in other.iter().zip(outputs.of(1, 0)) {
        let here = place(&small, PADDING, cropped, *key)?;
        Claim::that(here == places[key], format!("{} on both ranks", at(places[key])), at(here))
            .verdict(Verdict::RanksDisagree)
            .on_rank(1)
            .given(describe(*key))
            .or_fail(
                "a picture is cropped differently on another rank, which has cropped other pictures before: the crop must depend on seed, \
                 epoch and picture, not on the rank or on earlier crops",
            )?;
    }
    keyed(&places)?;
    let spread = spread(&places);
    if on_the_diagonal(&places) || without_the_last(&places) {
        return spread;
    }
    let mut places = BTreeMap::new();
    for (key, cropped) in far.iter().zip(outputs.of(0, 1)) {
        places.insert(*key, place(&large, WIDE, cropped, *key)?);
    }
    // Before the places that are missing: an answer that joins the parts of the key draws less often, and may miss one by chance.
    independent(&blocks, &places)?;
    spread
}

/// A picture without a black pixel.
fn drawn(height: usize, width: usize) -> Picture {
    (0..height).map(|y| (0..width).map(|x| (1 + (y * width + x) % 255) as u8).collect()).collect()
}

/// The keys of blocks of pictures, in two epochs and with two seeds.
fn blocks(random: &mut Inputs) -> Vec<Vec<Key>> {
    // Even, so that the next number differs in one bit only: then the exclusive or repeats keys, too.
    let (seed, epoch) = (2 * random.below(1..500) as u64, 2 * random.below(1..50) as u64);
    let mut blocks = Vec::new();
    for (seed, epoch) in [(seed, epoch), (seed, epoch + 1), (seed + 1, epoch), (seed + 1, epoch + 1)] {
        blocks.extend(BLOCKS.map(|first| (first..first + IN_BLOCK).map(|index| (seed, epoch, index)).collect()));
    }
    blocks
}

/// The place of the window.
fn place(picture: &Picture, padding: usize, cropped: &Picture, key: Key) -> anyhow::Result<Place> {
    if let Some(found) = found(cropped, padding)
        && window(picture, padding, found, false) == *cropped
    {
        return Ok(found);
    }
    let size = |picture: &Picture| format!("{} × {}", picture.len(), picture.first().map_or(0, Vec::len));
    let expected = format!("a window of {} into the picture with {padding} black pixels around it", size(picture));
    let mut places = (0..=2 * padding).flat_map(|top| (0..=2 * padding).map(move |left| (top, left)));
    Claim::that(false, expected, format!("{cropped:?}"))
        .given(format!("{}, the picture {picture:?}", describe(key)))
        .diagnose_if(
            size(cropped) != size(picture),
            format!("the crop is {}, but the window must have the size of the picture", size(cropped)),
        )
        .diagnose_if(
            places.any(|place| window(picture, padding, place, true) == *cropped),
            "outside of the picture, its edge is repeated: the padding is black, 0",
        )
        .or_fail("the crop is not a window into the padded picture")?;
    Ok((0, 0))
}

/// The place that follows from the black lines at the edges of a crop. The picture is larger than the padding.
fn found(cropped: &Picture, padding: usize) -> Option<Place> {
    let width = cropped.first()?.len();
    let offset = |length: usize, lit: &dyn Fn(usize) -> bool| {
        let lit: Vec<usize> = (0..length).filter(|line| lit(*line)).collect();
        match (*lit.first()?, *lit.last()?) {
            (0, last) => Some(padding + length - 1 - last),
            (first, _) => padding.checked_sub(first),
        }
    };
    let top = offset(cropped.len(), &|y| cropped[y].iter().any(|pixel| *pixel > 0))?;
    let left = offset(width, &|x| cropped.iter().any(|row| row.get(x).is_some_and(|pixel| *pixel > 0)))?;
    Some((top, left))
}

fn window(picture: &Picture, padding: usize, (top, left): Place, repeat_edge: bool) -> Picture {
    let inside = |at: usize, length: usize| match at.checked_sub(padding) {
        Some(at) if at < length => Some(at),
        _ if repeat_edge => Some(at.saturating_sub(padding).min(length - 1)),
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
    let parts: [(&str, Other, &str); 3] = [
        // Comes first: if all pictures share one place, two epochs or seeds may have the same one by chance.
        ("picture", |key, first| (key.0, key.1, first.2), "all pictures of an epoch are cropped at the same place"),
        (
            "epoch",
            |key, first| (key.0, first.1, key.2),
            "every epoch has the same crops, so the network sees the same picture each time",
        ),
        ("seed", |key, first| (first.0, key.1, key.2), "every seed has the same crops"),
    ];
    let alike = |other: Other, of: fn(&Place) -> Place| {
        places.iter().all(|(key, place)| of(&places[&other(*key, first)]) == of(place))
    };
    let given =
        format!("{PICTURES} pictures in epochs {} and {}, with seeds {} and {}", first.1, last.1, first.0, last.0);
    for (part, other, what) in parts {
        Claim::that(!alike(other, |place| *place), format!("another {part}, other places"), "the same places")
            .given(&given)
            .or_fail(format!("{what}: the key lacks the {part}"))?;
    }
    for (side, of) in [("top", (|place| (place.0, 0)) as fn(&Place) -> Place), ("left", |place| (0, place.1))] {
        for (part, other, _) in parts {
            let expected = format!("another {part}, other distances from the {side}");
            Claim::that(!alike(other, of), expected, format!("the same distances from the {side}")).given(&given).or_fail(format!(
                "the window's distance from the {side} does not depend on the {part}: draw both numbers with the whole key"
            ))?;
        }
    }
    Ok(())
}

fn on_the_diagonal(places: &BTreeMap<Key, Place>) -> bool {
    places.values().all(|(top, left)| top == left)
}

fn without_the_last(places: &BTreeMap<Key, Place>) -> bool {
    places.values().all(|(top, left)| *top < 2 * PADDING && *left < 2 * PADDING)
}

/// Checks that all places are drawn.
fn spread(places: &BTreeMap<Key, Place>) -> anyhow::Result<()> {
    let missing: Vec<Place> = (0..=2 * PADDING)
        .flat_map(|top| (0..=2 * PADDING).map(move |left| (top, left)))
        .filter(|place| !places.values().any(|seen| seen == place))
        .collect();
    Claim::that(missing.is_empty(), "each of the 25 places", format!("never {missing:?} (from top, from left)"))
        .given(format!("{} crops with a padding of {PADDING}", places.len()))
        .diagnose_if(
            on_the_diagonal(places),
            "the window moves only along the diagonal: draw two numbers, one for each direction",
        )
        .diagnose_if(
            without_the_last(places),
            "the last places are never drawn: with a padding of p, there are 2 p + 1 places in each direction",
        )
        .diagnose_if(
            places.values().all(|(top, left)| *top >= PADDING && *left >= PADDING),
            "the window never begins in the black border above or left of the picture: draw from all 2 p + 1 places, and subtract p",
        )
        .or_fail("some places are never drawn")
}

/// Checks that no two blocks of keys share their places.
fn independent(blocks: &[Vec<Key>], places: &BTreeMap<Key, Place>) -> anyhow::Result<()> {
    for (number, block) in blocks.iter().enumerate() {
        for other in &blocks[..number] {
            let twin = |key: &Key| other.iter().find(|other| places[*other] == places[key]).map(|twin| (*key, *twin));
            let twins: Vec<(Key, Key)> = block.iter().filter_map(twin).collect();
            let Some((key, twin)) = twins.first().copied().filter(|_| twins.len() >= ALIKE) else { continue };
            Claim::that(false, "no connection between two keys", format!("{} on both", at(places[&key])))
                .given(format!("{}, and {}; a padding of {WIDE}", describe(key), describe(twin)))
                .or_fail(format!(
                    "{} is cropped like {}, and so are {} of {IN_BLOCK} pictures in a row: the parts of the key are joined into one number, \
                     such as a sum, that other keys have, too. Give the generator all three numbers",
                    describe(key),
                    describe(twin),
                    twins.len()
                ))?;
        }
    }
    Ok(())
}

fn at((top, left): Place) -> String {
    format!("the window {top} from the top and {left} from the left")
}

fn describe((seed, epoch, index): Key) -> String {
    format!("picture {index} in epoch {epoch} with seed {seed}")
}
