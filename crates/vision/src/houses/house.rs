//! A house: its shape and colours, and how it is painted when undamaged. Its width is 1, its base is at 0, up is negative.

use super::paint::{Canvas, Colour, Point, Shape, View, mix, noise, shade, tiles};
use lockstep::data::rng::KeyedRng;

const WALLS: [Colour; 8] = [
    [0.87, 0.86, 0.82],
    [0.78, 0.70, 0.56],
    [0.60, 0.66, 0.70],
    [0.66, 0.36, 0.28],
    [0.52, 0.58, 0.47],
    [0.84, 0.76, 0.52],
    [0.45, 0.48, 0.54],
    [0.72, 0.56, 0.50],
];
const ROOFS: [Colour; 6] = [
    [0.30, 0.29, 0.30],
    [0.45, 0.33, 0.26],
    [0.56, 0.28, 0.20],
    [0.52, 0.52, 0.53],
    [0.28, 0.34, 0.40],
    [0.62, 0.56, 0.46],
];
const TRIMS: [Colour; 3] = [[0.93, 0.93, 0.90], [0.35, 0.28, 0.24], [0.75, 0.74, 0.70]];
const DOORS: [Colour; 5] =
    [[0.48, 0.18, 0.14], [0.22, 0.30, 0.42], [0.38, 0.28, 0.20], [0.86, 0.85, 0.82], [0.20, 0.34, 0.26]];

/// The kinds of roof, seen from the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Roof {
    /// The ridge runs along the front.
    Side,
    /// Slopes on all four sides.
    Hip,
    /// The gable faces the front: a triangle of wall under two slopes.
    Front,
}

/// What a wall is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cladding {
    Boards,
    Bricks,
    Plaster,
}

/// A house before the storm.
#[derive(Debug, Clone)]
pub(super) struct House {
    pub(super) storeys: usize,
    pub(super) walls: f32,
    /// Height of the roof above them.
    pub(super) rise: f32,
    /// How far the roof overhangs the walls.
    pub(super) eaves: f32,
    pub(super) roof: Roof,
    pub(super) cladding: Cladding,
    pub(super) wall_colour: Colour,
    pub(super) roof_colour: Colour,
    pub(super) trim: Colour,
    door: (Colour, usize),
    /// Window positions along a storey.
    pub(super) bays: usize,
    chimney: Option<f32>,
    /// Windows or solar panels in the roof: dark and regular, but not damage.
    panels: usize,
    pub(super) seed: u32,
}

impl House {
    pub(super) fn draw(rng: &mut KeyedRng) -> Self {
        let storeys = 1 + rng.below(2);
        let bays = 3 + rng.below(3);
        House {
            storeys,
            walls: rng.between(0.24, 0.31) * if storeys == 1 { 1.0 } else { 1.7 },
            rise: rng.between(0.17, 0.3),
            eaves: rng.between(0.02, 0.07),
            roof: [Roof::Side, Roof::Hip, Roof::Front][rng.below(3)],
            cladding: [Cladding::Boards, Cladding::Boards, Cladding::Bricks, Cladding::Plaster][rng.below(4)],
            wall_colour: shade(WALLS[rng.below(WALLS.len())], rng.between(0.85, 1.08)),
            roof_colour: shade(ROOFS[rng.below(ROOFS.len())], rng.between(0.8, 1.2)),
            trim: TRIMS[rng.below(TRIMS.len())],
            door: (DOORS[rng.below(DOORS.len())], rng.below(bays)),
            bays,
            chimney: (rng.below(3) == 0).then(|| rng.between(-0.35, 0.35)),
            panels: if rng.below(4) == 0 { 1 + rng.below(4) } else { 0 },
            seed: rng.next_u64() as u32,
        }
    }

    /// The corners of the wall.
    pub(super) fn wall(&self) -> [Point; 4] {
        [(-0.5, -self.walls), (0.5, -self.walls), (0.5, 0.0), (-0.5, 0.0)]
    }

    /// The corners of the visible roof; for a gable that faces the front, the outline of its two slopes.
    pub(super) fn roof_corners(&self) -> Vec<Point> {
        let (low, top, out) = (-self.walls + 0.015, -self.walls - self.rise, 0.5 + self.eaves);
        match self.roof {
            Roof::Side => vec![(-out, low), (-out + 0.05, top), (out - 0.05, top), (out, low)],
            Roof::Hip => vec![(-out, low), (-0.24, top), (0.24, top), (out, low)],
            Roof::Front => vec![(-out, low), (0.0, top - 0.04), (out, low)],
        }
    }

    /// The centres and half sizes of the windows, and of the door as the second part.
    pub(super) fn openings(&self) -> (Vec<(Point, Point)>, (Point, Point)) {
        let storey = self.walls / self.storeys as f32;
        let bay = 1.0 / self.bays as f32;
        let half = (bay * 0.26, storey * 0.24);
        let x = |place: usize| -0.5 + bay * (place as f32 + 0.5);
        let windows = (0..self.storeys).flat_map(|floor| (0..self.bays).map(move |place| (floor, place)));
        let windows = windows.filter(|&(floor, place)| floor > 0 || place != self.door.1);
        let windows = windows.map(|(floor, place)| ((x(place), -storey * (floor as f32 + 0.55)), half)).collect();
        let tall = storey.min(0.3) * 0.38;
        (windows, ((x(self.door.1), -tall), (0.045, tall)))
    }

    /// The wall's colour at a point of the house.
    pub(super) fn wall_at(&self, x: f32, y: f32, visible: f32) -> Colour {
        let worn = 0.9 + 0.2 * noise(self.seed ^ 7, x * 6.0, y * 6.0);
        let pattern = match self.cladding {
            Cladding::Boards => {
                let row = y * 42.0;
                let part = row - row.floor();
                1.0 - 0.28 * visible * (1.0 - part) * (1.0 - part)
            }
            Cladding::Bricks => 0.86 + 0.28 * tiles(self.seed, x, y, (22.0, 48.0)) * visible,
            Cladding::Plaster => 0.95 + 0.1 * noise(self.seed, x * 90.0, y * 90.0) * visible,
        };
        shade(self.wall_colour, worn * pattern)
    }

    /// The roof's colour at a point of the house.
    pub(super) fn roof_at(&self, x: f32, y: f32, visible: f32) -> Colour {
        let row = y * 55.0;
        let part = row - row.floor();
        let tile = 0.8 + 0.36 * tiles(self.seed ^ 5, x, y, (30.0, 55.0)) * visible;
        shade(self.roof_colour, (tile - 0.16 * visible * part) * (0.88 + 0.24 * noise(self.seed ^ 6, x * 5.0, y * 5.0)))
    }
}

/// Paints the whole house.
pub(super) fn paint(canvas: &mut Canvas, view: &View, house: &House, rng: &mut KeyedRng) {
    shadow(canvas, view, house);
    walls(canvas, view, house);
    roof(canvas, view, house);
    let (windows, door) = house.openings();
    let sky = rng.between(0.3, 0.75);
    windows.iter().for_each(|window| self::window(canvas, view, house, *window, sky));
    paint_door(canvas, view, house, door);
}

/// The dark strip on the ground along the wall.
pub(super) fn shadow(canvas: &mut Canvas, view: &View, house: &House) {
    let strip = [(-0.52, -0.005), (0.52, -0.005), (0.57, 0.03), (-0.47, 0.03)];
    canvas.fill(view, &Shape { points: &strip, rough: 0.008, seed: house.seed }, |_, _| [0.14, 0.14, 0.13]);
}

pub(super) fn walls(canvas: &mut Canvas, view: &View, house: &House) {
    let visible = canvas.visible(1.0 / 42.0, view);
    let under_eaves = house.eaves * 1.2;
    let colour = |x: f32, y: f32| {
        let dark = if y < -house.walls + under_eaves { 0.68 } else { 1.0 };
        shade(house.wall_at(x, y, visible), dark)
    };
    canvas.fill(view, &Shape { points: &house.wall(), rough: 0.0, seed: 0 }, colour);
}

pub(super) fn roof(canvas: &mut Canvas, view: &View, house: &House) {
    let visible = canvas.visible(1.0 / 40.0, view);
    if let Some(x) = house.chimney {
        let top = -house.walls - house.rise - 0.07;
        let bricks =
            |x: f32, y: f32| shade([0.52, 0.32, 0.26], 0.7 + 0.5 * tiles(house.seed ^ 9, x, y, (50.0, 80.0)) * visible);
        let stack = [(x - 0.035, top), (x + 0.035, top), (x + 0.035, top + 0.2), (x - 0.035, top + 0.2)];
        canvas.fill(view, &Shape { points: &stack, rough: 0.0, seed: 0 }, bricks);
    }
    let corners = house.roof_corners();
    canvas.fill(view, &Shape { points: &corners, rough: 0.0, seed: 0 }, |x, y| house.roof_at(x, y, visible));
    if house.roof == Roof::Front {
        let (low, top, side) = (-house.walls + 0.02, -house.walls - house.rise + 0.025, 0.5 - house.eaves * 0.5);
        let gable = [(-side, low), (0.0, top), (side, low)];
        canvas.fill(view, &Shape { points: &gable, rough: 0.0, seed: 0 }, |x, y| {
            shade(house.wall_at(x, y, visible), 0.9)
        });
    } else {
        panels(canvas, view, house);
    }
    gutter(canvas, view, house);
}

/// Solar panels or windows in the roof, in a row.
fn panels(canvas: &mut Canvas, view: &View, house: &House) {
    for number in 0..house.panels {
        let (x, y) = (-0.2 + 0.11 * number as f32, -house.walls - house.rise * 0.62);
        let (w, h) = (0.095, house.rise * 0.36);
        for (grow, colour) in [(0.006, [0.72, 0.73, 0.74]), (0.0, [0.13, 0.16, 0.26])] {
            let points = rectangle((x + w * 0.5, y + h * 0.5), (w * 0.5 + grow, h * 0.5 + grow));
            canvas.fill(view, &Shape { points: &points, rough: 0.0, seed: 0 }, |_, py| shade(colour, 1.0 + (y - py)));
        }
    }
}

fn gutter(canvas: &mut Canvas, view: &View, house: &House) {
    let (y, out) = (-house.walls + 0.015, 0.5 + house.eaves);
    let line = [(-out, y - 0.008), (out, y - 0.008), (out, y + 0.006), (-out, y + 0.006)];
    canvas.fill(view, &Shape { points: &line, rough: 0.0, seed: 0 }, |_, _| house.trim);
}

/// An undamaged window: frame, panes that mirror the sky, bars.
pub(super) fn window(canvas: &mut Canvas, view: &View, house: &House, (at, half): (Point, Point), sky: f32) {
    let frame = rectangle(at, (half.0 + 0.012, half.1 + 0.012));
    canvas.fill(view, &Shape { points: &frame, rough: 0.0, seed: 0 }, |_, _| house.trim);
    let glass = |x: f32, y: f32| {
        let up = ((at.1 + half.1 - y) / half.1 * 0.5).clamp(0.0, 1.0);
        mix([0.16, 0.18, 0.22], [sky * 0.8, sky * 0.9, sky], up * 0.7 + 0.3 * noise(house.seed ^ 3, x * 12.0, y * 12.0))
    };
    canvas.fill(view, &Shape { points: &rectangle(at, half), rough: 0.0, seed: 0 }, glass);
    for bar in [rectangle(at, (0.004, half.1)), rectangle(at, (half.0, 0.004))] {
        canvas.fill(view, &Shape { points: &bar, rough: 0.0, seed: 0 }, |_, _| house.trim);
    }
}

pub(super) fn paint_door(canvas: &mut Canvas, view: &View, house: &House, (at, half): (Point, Point)) {
    let frame = rectangle((at.0, at.1 - 0.006), (half.0 + 0.01, half.1 + 0.006));
    canvas.fill(view, &Shape { points: &frame, rough: 0.0, seed: 0 }, |_, _| house.trim);
    canvas.fill(view, &Shape { points: &rectangle(at, half), rough: 0.0, seed: 0 }, |x, y| {
        shade(house.door.0, 0.85 + 0.3 * noise(house.seed ^ 4, x * 30.0, y * 10.0))
    });
}

/// The corners of a rectangle around a point.
pub(super) fn rectangle((x, y): Point, (w, h): Point) -> [Point; 4] {
    [(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)]
}
