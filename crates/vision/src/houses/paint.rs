//! A canvas for flat shapes with soft edges and textures, and the noise functions for textures.
//!
//! Uses only additions, multiplications, divisions, square roots and rounding, which IEEE 754 defines exactly, and integer
//! hashes. So the pictures of a seed are the same bytes on every machine. The module around this one decides what is painted.

use image::RgbImage;

use lockstep::data::rng::KeyedRng;

/// A point, x to the right and y downwards.
pub(super) type Point = (f32, f32);
/// Red, green and blue, 0 to 1.
pub(crate) type Colour = [f32; 3];

/// An unfinished picture. Its coordinates are in units of [`Canvas::unit`] pixels from the centre, so that a scene looks the
/// same in any size.
pub(super) struct Canvas {
    width: usize,
    height: usize,
    /// The length of 1 in pixels.
    unit: f32,
    pixels: Vec<Colour>,
}

/// The transformation of a group of shapes: rotate, scale, and move.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) at: Point,
    pub(super) scale: f32,
    /// The tangent of half the angle, clockwise.
    pub(super) turn: f32,
    /// How far a shape leans to the right, per height.
    pub(super) lean: f32,
}

impl View {
    /// The matrix, row by row, from the group's coordinates to the canvas's.
    fn matrix(&self) -> [f32; 4] {
        let t = self.turn;
        let (sine, cosine) = (2.0 * t / (1.0 + t * t), (1.0 - t * t) / (1.0 + t * t));
        let (a, c) = (cosine * self.scale, sine * self.scale);
        [a, -a * self.lean - sine * self.scale, c, -c * self.lean + cosine * self.scale]
    }
}

/// The area to fill: the inside of a convex polygon, with an edge of roughness `rough` (in the group's units).
pub(super) struct Shape<'a> {
    pub(super) points: &'a [Point],
    pub(super) rough: f32,
    pub(super) seed: u32,
}

impl Canvas {
    pub(super) fn new(width: u32, height: u32) -> Self {
        let (width, height) = (width as usize, height as usize);
        let unit = (height as f32).min(width as f32 * 0.75).max(1.0);
        Canvas { width, height, unit, pixels: vec![[0.0; 3]; width * height] }
    }

    /// The strength of a pattern with this `period` in a group of this scale: 0 where pixels cannot show it.
    pub(super) fn visible(&self, period: f32, view: &View) -> f32 {
        (period * view.scale * self.unit * 0.5 - 0.5).clamp(0.0, 1.0)
    }

    /// Paints the whole canvas: `colour` receives the canvas's coordinates.
    pub(super) fn backdrop(&mut self, colour: impl Fn(f32, f32) -> Colour) {
        let (middle_x, middle_y) = self.middle();
        for (row, pixels) in self.pixels.chunks_exact_mut(self.width).enumerate() {
            let y = (row as f32 - middle_y) / self.unit;
            for (column, pixel) in pixels.iter_mut().enumerate() {
                *pixel = colour((column as f32 - middle_x) / self.unit, y);
            }
        }
    }

    /// Paints a shape over the canvas: `colour` receives the group's coordinates.
    pub(super) fn fill(&mut self, view: &View, shape: &Shape<'_>, colour: impl Fn(f32, f32) -> Colour) {
        let [a, b, c, d] = view.matrix().map(|part| part * self.unit);
        let (middle_x, middle_y) = self.middle();
        let (at_x, at_y) = (middle_x + view.at.0 * self.unit, middle_y + view.at.1 * self.unit);
        let corners: Vec<Point> =
            shape.points.iter().map(|&(x, y)| (at_x + a * x + b * y, at_y + c * x + d * y)).collect();
        let edges = edges(&corners);
        let (scale, grain) = (view.scale * self.unit, 6.0 / shape.rough.max(1e-3));
        let reach = shape.rough * scale + 0.5;
        let inverse = 1.0 / (a * d - b * c);
        let columns = span(corners.iter().map(|p| p.0), reach, self.width);
        for row in span(corners.iter().map(|p| p.1), reach, self.height) {
            for column in columns.clone() {
                let (px, py) = (column as f32, row as f32);
                let inside = edges.iter().fold(f32::INFINITY, |least, e| least.min(e[0] * px + e[1] * py + e[2]));
                if inside <= -reach {
                    continue;
                }
                let (from_x, from_y) = (px - at_x, py - at_y);
                let (x, y) = ((d * from_x - b * from_y) * inverse, (a * from_y - c * from_x) * inverse);
                let ragged = match shape.rough > 0.0 {
                    true => (noise(shape.seed, x * grain, y * grain) - 0.5) * 2.0 * shape.rough * scale,
                    false => 0.0,
                };
                let cover = (inside + ragged + 0.5).clamp(0.0, 1.0);
                if cover > 0.0 {
                    let pixel = &mut self.pixels[row * self.width + column];
                    *pixel = mix(*pixel, colour(x, y), cover);
                }
            }
        }
    }

    /// Applies light and camera: maps each colour with `develop`, which also receives the coordinates, adds grain of the given
    /// strengths (for all three colours together, and for each), and converts to bytes.
    pub(super) fn photograph(
        &self,
        rng: &mut KeyedRng,
        (together, each): (f32, f32),
        develop: impl Fn(Colour, f32, f32) -> Colour,
    ) -> RgbImage {
        let mut bytes = Vec::with_capacity(self.pixels.len() * 3);
        let (middle_x, middle_y) = self.middle();
        for (number, &pixel) in self.pixels.iter().enumerate() {
            let (x, y) = ((number % self.width) as f32 - middle_x, (number / self.width) as f32 - middle_y);
            let bright = together * rng.normal();
            let grain = grains(rng.next_u64());
            let colours = develop(pixel, x / self.unit, y / self.unit);
            bytes.extend(
                (0..3).map(|c| ((colours[c] + bright + each * grain[c]) * 255.0 + 0.5).clamp(0.0, 255.0) as u8),
            );
        }
        RgbImage::from_raw(self.width as u32, self.height as u32, bytes).expect("three bytes a pixel were made")
    }

    fn middle(&self) -> Point {
        ((self.width as f32 - 1.0) * 0.5, (self.height as f32 - 1.0) * 0.5)
    }
}

/// Three numbers with mean 0 and about ±1, from one draw.
fn grains(bits: u64) -> [f32; 3] {
    [0, 20, 40].map(|shift| ((bits >> shift) & 0x3FF) as f32 / 511.5 - 1.0)
}

/// For each edge, the factors of x and y and the constant that give a pixel's distance from the edge.
fn edges(corners: &[Point]) -> Vec<[f32; 3]> {
    let around = || (0..corners.len()).map(|i| (corners[i], corners[(i + 1) % corners.len()]));
    let area: f32 = around().map(|(p, q)| p.0 * q.1 - p.1 * q.0).sum();
    let sign = if area < 0.0 { -1.0 } else { 1.0 };
    let of_edge = |(p, q): (Point, Point)| {
        let (x, y) = (q.0 - p.0, q.1 - p.1);
        let scale = sign / (x * x + y * y).max(1e-12).sqrt();
        let (nx, ny) = (-y * scale, x * scale);
        [nx, ny, -(nx * p.0 + ny * p.1)]
    };
    around().map(of_edge).collect()
}

/// The pixels along one axis within `reach` of the points, inside the picture.
fn span(places: impl Iterator<Item = f32>, reach: f32, pixels: usize) -> std::ops::Range<usize> {
    let (least, most) = places.fold((f32::INFINITY, f32::NEG_INFINITY), |(l, m), p| (l.min(p), m.max(p)));
    let first = (least - reach).ceil().max(0.0) as usize;
    first..((most + reach).floor() + 1.0).clamp(0.0, pixels as f32) as usize
}

/// The colour at fraction `part` between two colours.
pub(crate) fn mix(from: Colour, to: Colour, part: f32) -> Colour {
    std::array::from_fn(|c| from[c] + (to[c] - from[c]) * part)
}

/// A darker or lighter colour.
pub(super) fn shade(colour: Colour, light: f32) -> Colour {
    colour.map(|c| c * light)
}

/// Smooth noise with one hill or valley per unit, 0 to 1.
pub(super) fn noise(seed: u32, x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let (column, row) = (left as i32, top as i32);
    let (right, down) = (smooth(x - left), smooth(y - top));
    let at = |dx: i32, dy: i32| speck(seed, column.wrapping_add(dx), row.wrapping_add(dy));
    let (above, below) = (at(0, 0) + (at(1, 0) - at(0, 0)) * right, at(0, 1) + (at(1, 1) - at(0, 1)) * right);
    above + (below - above) * down
}

/// Noise on four scales, each half as wide and half as strong as the one before, 0 to 1.
pub(super) fn clouds(seed: u32, x: f32, y: f32) -> f32 {
    let octave = |n: u32, scale: f32| noise(seed.wrapping_add(n), x * scale, y * scale) / scale;
    (octave(0, 1.0) + octave(1, 2.0) + octave(2, 4.0) + octave(3, 8.0)) * (8.0 / 15.0)
}

fn smooth(part: f32) -> f32 {
    part * part * (3.0 - 2.0 * part)
}

/// A number from 0 to 1 for a cell of a grid (the finishing steps of MurmurHash3).
pub(super) fn speck(seed: u32, column: i32, row: i32) -> f32 {
    let mut hash =
        seed ^ (column as u32).wrapping_mul(0x9E37_79B1) ^ (row as u32).wrapping_mul(0x85EB_CA77).rotate_left(13);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
    ((hash ^ (hash >> 16)) >> 8) as f32 / 16_777_216.0
}

/// An approximate ellipse; its edge is rough anyway.
pub(super) fn octagon((x, y): Point, width: f32, height: f32) -> [Point; 8] {
    const C: f32 = 0.707;
    [(1.0, 0.0), (C, C), (0.0, 1.0), (-C, C), (-1.0, 0.0), (-C, -C), (0.0, -1.0), (C, -C)]
        .map(|(dx, dy)| (x + dx * width, y + dy * height))
}

/// A different brightness for each cell of a grid with this many columns and rows per unit.
pub(super) fn tiles(seed: u32, x: f32, y: f32, (columns, rows): (f32, f32)) -> f32 {
    let row = (y * rows).floor();
    let shifted = x * columns + if (row * 0.5).floor() * 2.0 == row { 0.0 } else { 0.5 };
    speck(seed, shifted.floor() as i32, row as i32)
}
