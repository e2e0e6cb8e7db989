//! The drawing of digits that look handwritten. `GLYPHS` holds the shapes, `draw` renders them.

use crate::Split;
use crate::rng::KeyedRng;

/// Keep the random streams of labels and pictures apart.
const LABELS: u64 = u64::from_be_bytes(*b"dglabels");
const PICTURES: u64 = u64::from_be_bytes(*b"dgpixels");

/// The class of digit `index`. Every ten in a row (0 to 9, 10 to 19, …) contain each digit once, in random order, so that
/// small sets are balanced and every second sample is not a biased choice.
pub fn label(seed: u64, split: Split, index: usize) -> u8 {
    let mut rng = KeyedRng::new(&[seed, LABELS, split as u64, (index / 10) as u64]);
    rng.shuffled::<10>()[index % 10]
}

/// The picture of digit `index`: 28 x 28 pixels row by row, from 0 for paper to 255 for ink.
pub fn image(seed: u64, split: Split, index: usize) -> [u8; PIXELS] {
    let ways = GLYPHS[usize::from(label(seed, split, index))];
    let mut rng = KeyedRng::new(&[seed, PICTURES, split as u64, index as u64]);
    draw(ways[rng.below(ways.len())], &mut rng)
}

/// The first `count` pictures, one after the other.
pub fn images(seed: u64, split: Split, count: usize) -> Vec<u8> {
    (0..count).flat_map(|index| image(seed, split, index)).collect()
}

/// Pixels along each side of a picture, as in MNIST.
pub const SIDE: usize = 28;
/// Pixels of a picture.
pub const PIXELS: usize = SIDE * SIDE;

/// The number of line segments that approximate the curve between two points of a stroke.
const PIECES: usize = 6;
/// Knots along each side of the tremble's grid.
const KNOTS: usize = 3;
/// Height of an undistorted digit in pixels; MNIST's are 20 pixels high in a picture of 28.
const HEIGHT: f32 = 19.5;

/// Draws a glyph in this handwriting.
fn draw(glyph: Glyph, rng: &mut KeyedRng) -> [u8; PIXELS] {
    let hand = Hand::draw(rng);
    let mut ink = [0.0; PIXELS];
    for stroke in glyph {
        let path = hand.path(stroke);
        let widths = (hand.radius * rng.between(0.85, 1.15), hand.radius * rng.between(0.75, 1.15));
        paint(&mut ink, &path, widths);
    }
    let strength = rng.between(0.9, 1.25);
    ink.map(|ink| grey(ink, strength, rng))
}

/// The variation from one digit to the next.
struct Hand {
    /// The matrix, row by row, from the digit's box (relative to its centre) to pixels.
    matrix: [f32; 4],
    middle: (f32, f32),
    /// Displacements at the knots of a grid over the box, as fractions of the box.
    tremble: [[(f32, f32); KNOTS]; KNOTS],
    /// Half the width of the pen in pixels.
    radius: f32,
}

impl Hand {
    fn draw(rng: &mut KeyedRng) -> Self {
        // The tangent of half the angle gives sine and cosine without calling either; the angle is at most 14 degrees.
        let half = rng.between(-0.12, 0.12);
        let (sine, cosine) = (2.0 * half / (1.0 + half * half), (1.0 - half * half) / (1.0 + half * half));
        let shear = rng.between(-0.3, 0.2); // people slant to the right more than to the left
        let (width, height) = (HEIGHT * rng.between(0.75, 1.3), HEIGHT * rng.between(0.82, 1.1));
        let centre = (SIDE as f32 - 1.0) / 2.0;
        Self {
            matrix: [
                cosine * width,
                cosine * shear * height - sine * height,
                sine * width,
                sine * shear * height + cosine * height,
            ],
            middle: (centre + rng.between(-1.5, 1.5), centre + rng.between(-1.5, 1.5)),
            tremble: std::array::from_fn(|_| {
                std::array::from_fn(|_| (rng.between(-0.085, 0.085), rng.between(-0.085, 0.085)))
            }),
            radius: rng.between(0.75, 1.7),
        }
    }

    /// The stroke's curve as points in pixels.
    fn path(&self, stroke: Stroke) -> Vec<(f32, f32)> {
        let at = |i: usize| (f32::from(stroke[i].0) / 100.0, f32::from(stroke[i].1) / 100.0);
        let last = stroke.len() - 1;
        let mut path = vec![self.place(at(0))];
        for i in 0..last {
            let around = [at(i.saturating_sub(1)), at(i), at(i + 1), at((i + 2).min(last))];
            if around[1] != around[2] {
                path.extend((1..=PIECES).map(|piece| self.place(curve(&around, piece as f32 / PIECES as f32))));
            }
        }
        path
    }

    /// From the box to pixels: tremble, then slant, scale, rotate and shift.
    fn place(&self, (x, y): (f32, f32)) -> (f32, f32) {
        let (dx, dy) = self.tremble_at(x, y);
        let (x, y) = (x + dx - 0.5, y + dy - 0.5);
        let [a, b, c, d] = self.matrix;
        (self.middle.0 + a * x + b * y, self.middle.1 + c * x + d * y)
    }

    /// The displacement at a point of the box, interpolated between the knots.
    fn tremble_at(&self, x: f32, y: f32) -> (f32, f32) {
        let ((column, right), (row, down)) = (knot(x), knot(y));
        let [above, below] = [&self.tremble[row], &self.tremble[row + 1]];
        let top = blend(above[column], above[column + 1], right);
        blend(top, blend(below[column], below[column + 1], right), down)
    }
}

/// The knot before a coordinate of the box, and the weight of the next one.
fn knot(place: f32) -> (usize, f32) {
    let scaled = place.clamp(0.0, 1.0) * (KNOTS - 1) as f32;
    let before = (scaled as usize).min(KNOTS - 2);
    let part = scaled - before as f32;
    (before, part * part * (3.0 - 2.0 * part))
}

fn blend(a: (f32, f32), b: (f32, f32), part: f32) -> (f32, f32) {
    (a.0 + (b.0 - a.0) * part, a.1 + (b.1 - a.1) * part)
}

/// The Catmull–Rom spline between the second and third of four points, at `t` from 0 to 1.
fn curve(p: &[(f32, f32); 4], t: f32) -> (f32, f32) {
    let (t2, t3) = (t * t, t * t * t);
    let weights = [2.0 * t2 - t3 - t, 2.0 - 5.0 * t2 + 3.0 * t3, t + 4.0 * t2 - 3.0 * t3, t3 - t2];
    let mix = |part: fn(&(f32, f32)) -> f32| p.iter().zip(weights).map(|(p, w)| part(p) * w).sum::<f32>() / 2.0;
    (mix(|p| p.0), mix(|p| p.1))
}

/// Draws ink along the path; the pen's radius changes from the first width to the second.
fn paint(ink: &mut [f32; PIXELS], path: &[(f32, f32)], widths: (f32, f32)) {
    let pieces = path.len().saturating_sub(1).max(1) as f32;
    for (i, ends) in path.windows(2).enumerate() {
        let radius = widths.0 + (widths.1 - widths.0) * (i as f32 / pieces);
        paint_piece(ink, ends[0], ends[1], radius);
    }
}

/// Draws ink within `radius` of a line segment, fading out over a pixel. Where strokes cross, the darker ink stays.
fn paint_piece(ink: &mut [f32; PIXELS], a: (f32, f32), b: (f32, f32), radius: f32) {
    let reach = radius + 0.5;
    let along = (b.0 - a.0, b.1 - a.1);
    let scale = 1.0 / (along.0 * along.0 + along.1 * along.1).max(1e-12);
    for y in span(a.1, b.1, reach) {
        for x in span(a.0, b.0, reach) {
            let from = (x as f32 - a.0, y as f32 - a.1);
            let nearest = ((from.0 * along.0 + from.1 * along.1) * scale).clamp(0.0, 1.0);
            let (dx, dy) = (from.0 - nearest * along.0, from.1 - nearest * along.1);
            let square = dx * dx + dy * dy;
            if square < reach * reach {
                let pixel = &mut ink[y * SIDE + x];
                *pixel = pixel.max((reach - square.sqrt()).min(1.0));
            }
        }
    }
}

/// The pixels along one axis that ink between `a` and `b` can reach, inside the picture.
fn span(a: f32, b: f32, reach: f32) -> std::ops::Range<usize> {
    let first = (a.min(b) - reach).ceil().max(0.0) as usize;
    let end = (a.max(b) + reach).floor() + 1.0;
    first..(end.max(0.0) as usize).min(SIDE)
}

/// The grey value of an amount of ink, with a little noise; paper without ink stays black, as in MNIST.
fn grey(ink: f32, strength: f32, rng: &mut KeyedRng) -> u8 {
    if ink <= 0.0 {
        return 0;
    }
    (255.0 * ink * strength + 10.0 * rng.normal()).clamp(0.0, 255.0) as u8
}

/// The points that the pen passes through.
type Stroke = &'static [(i8, i8)];
/// One way to write a digit.
type Glyph = &'static [Stroke];

/// The ways to write each digit.
static GLYPHS: [&[Glyph]; 10] = [ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT, NINE];

const ZERO: &[Glyph] = &[
    &[&[(74, 17), (52, 1), (29, 15), (19, 50), (28, 85), (50, 99), (72, 85), (81, 50), (71, 14), (50, 2), (40, 7)]],
    &[&[(68, 16), (52, 2), (36, 15), (29, 50), (35, 84), (50, 98), (64, 85), (71, 50), (64, 15), (52, 4)]],
    &[&[(58, 6), (34, 10), (17, 32), (13, 58), (26, 84), (50, 95), (74, 85), (87, 58), (80, 28), (56, 8)]],
];

const ONE: &[Glyph] = &[
    &[&[(52, 0), (50, 50), (48, 100)]],
    &[&[(60, 0), (50, 50), (42, 100)]],
    &[&[(33, 22), (46, 12), (54, 0), (54, 0), (52, 100)]],
    &[&[(36, 20), (53, 0), (53, 0), (53, 100)], &[(32, 100), (74, 100)]],
];

const TWO: &[Glyph] = &[
    &[&[(22, 25), (34, 5), (58, 2), (75, 20), (68, 45), (42, 75), (18, 98), (18, 98), (50, 96), (82, 98)]],
    &[&[(24, 22), (40, 3), (66, 6), (72, 30), (56, 60), (32, 88), (19, 93), (20, 80), (36, 82), (56, 95), (82, 90)]],
    &[&[(22, 12), (50, 2), (72, 14), (70, 38), (20, 98), (20, 98), (80, 98)]],
];

const THREE: &[Glyph] = &[
    &[&[(24, 14), (45, 1), (70, 12), (68, 34), (45, 47), (45, 47), (72, 58), (76, 82), (50, 100), (22, 88)]],
    &[&[(24, 2), (74, 2), (74, 2), (46, 40), (46, 40), (72, 52), (76, 80), (52, 100), (22, 90)]],
    &[&[(26, 12), (50, 0), (72, 18), (60, 42), (44, 48), (62, 54), (78, 74), (60, 97), (26, 94)]],
];

const FOUR: &[Glyph] = &[
    &[&[(30, 2), (20, 56), (20, 56), (82, 54)], &[(68, 8), (66, 50), (62, 100)]],
    &[&[(64, 100), (64, 0), (64, 0), (18, 64), (18, 64), (86, 64)]],
    &[&[(28, 4), (22, 34), (34, 52), (56, 50), (70, 36)], &[(74, 4), (68, 50), (60, 100)]],
];

const FIVE: &[Glyph] = &[
    &[&[(74, 2), (32, 2), (32, 2), (27, 44), (27, 44), (52, 38), (76, 58), (70, 88), (44, 100), (20, 90)]],
    &[&[(34, 4), (29, 43), (29, 43), (52, 41), (74, 58), (72, 84), (46, 100), (20, 92)], &[(34, 4), (80, 2)]],
    &[&[(74, 6), (42, 5), (30, 24), (34, 42), (62, 52), (74, 74), (56, 97), (22, 92)]],
];

const SIX: &[Glyph] = &[
    &[&[(66, 2), (40, 20), (24, 55), (28, 88), (52, 100), (74, 84), (70, 62), (48, 54), (27, 72)]],
    &[&[(50, 0), (30, 40), (22, 74), (40, 98), (66, 94), (72, 72), (52, 58), (25, 72)]],
    &[&[(60, 0), (34, 30), (22, 64), (32, 96), (58, 98), (66, 78), (50, 66), (27, 82)]],
];

const SEVEN: &[Glyph] = &[
    &[&[(20, 6), (78, 4), (78, 4), (58, 45), (42, 100)]],
    &[&[(20, 6), (78, 4), (78, 4), (56, 50), (44, 100)], &[(34, 52), (74, 48)]],
    &[&[(22, 18), (22, 4), (22, 4), (80, 4), (80, 4), (54, 50), (46, 100)]],
    &[&[(18, 10), (48, 4), (78, 6), (66, 36), (48, 68), (42, 100)]],
];

const EIGHT: &[Glyph] = &[
    &[&[
        (70, 14),
        (48, 1),
        (29, 18),
        (42, 40),
        (66, 60),
        (74, 82),
        (50, 100),
        (26, 82),
        (36, 60),
        (60, 40),
        (72, 20),
        (62, 6),
    ]],
    &[
        &[(50, 0), (31, 12), (32, 36), (50, 46), (68, 36), (69, 12), (50, 0)],
        &[(50, 46), (26, 60), (24, 88), (50, 100), (76, 88), (74, 60), (50, 46)],
    ],
    &[&[(62, 10), (44, 3), (34, 22), (58, 58), (62, 88), (46, 100), (32, 86), (40, 60), (62, 32), (64, 14), (54, 3)]],
];

const NINE: &[Glyph] = &[
    &[&[(72, 16), (50, 1), (28, 14), (26, 38), (46, 50), (68, 38), (74, 14), (74, 14), (70, 60), (62, 100)]],
    &[&[
        (70, 20),
        (48, 2),
        (26, 18),
        (28, 42),
        (50, 50),
        (68, 36),
        (73, 14),
        (73, 14),
        (76, 50),
        (68, 86),
        (46, 100),
        (26, 92),
    ]],
    &[&[(72, 4), (46, 3), (27, 24), (34, 46), (56, 46), (74, 6), (74, 6), (72, 100)]],
];
