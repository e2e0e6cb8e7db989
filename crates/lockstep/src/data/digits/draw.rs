//! Renders a glyph to pixels: handwriting that slants and trembles, and a pen with a soft edge.
//!
//! Uses only additions, multiplications, divisions and square roots, which IEEE 754 rounds the same everywhere. So the pictures
//! of a seed are the same bytes on every machine.

use super::glyphs::{Glyph, Stroke};
use crate::data::rng::KeyedRng;

/// Pixels along each side of a picture, as in MNIST.
pub const SIDE: usize = 28;
pub(super) const PIXELS: usize = SIDE * SIDE;

/// The number of line segments that approximate the curve between two points of a stroke.
const PIECES: usize = 6;
/// Knots along each side of the tremble's grid.
const KNOTS: usize = 3;
/// Height of an undistorted digit in pixels; MNIST's are 20 pixels high in a picture of 28.
const HEIGHT: f32 = 19.5;

/// Draws a glyph in this handwriting.
pub(super) fn draw(glyph: Glyph, rng: &mut KeyedRng) -> [u8; PIXELS] {
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
