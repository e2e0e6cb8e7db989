//! The storm's damage: marks on a house that still stands (C2), or the remains of one that collapsed (C4).

use super::house::{self, House, Roof, rectangle};
use super::paint::{Canvas, Colour, Point, Shape, View, clouds, noise, octagon, shade};
use lockstep::data::rng::KeyedRng;

const TARPS: [Colour; 5] =
    [[0.12, 0.34, 0.72], [0.16, 0.42, 0.78], [0.62, 0.64, 0.66], [0.24, 0.42, 0.30], [0.80, 0.78, 0.72]];
const WOOD: [Colour; 3] = [[0.72, 0.57, 0.38], [0.58, 0.45, 0.31], [0.82, 0.70, 0.50]];
/// Plasterboard, insulation, sheet metal.
const RUBBLE: [Colour; 4] = [[0.86, 0.85, 0.81], [0.90, 0.70, 0.68], [0.60, 0.62, 0.65], [0.40, 0.36, 0.32]];

pub(super) enum Damage {
    None,
    /// The house stands, with these marks.
    Some(Marks),
    /// The house collapsed.
    Ruin(Ruin),
}

/// The number of marks of each kind; at least two kinds on any damaged house.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    holes: usize,
    tarps: usize,
    windows: usize,
    bare_walls: usize,
    debris: usize,
}

/// The remains of a destroyed house.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ruin {
    /// The roof lies askew on the stumps of the walls.
    Collapsed,
    /// Some walls and posts without a roof.
    Frame,
    Heap,
}

impl Damage {
    pub(super) fn of_grade(grade: i64, rng: &mut KeyedRng) -> Self {
        match grade {
            0 => Damage::None,
            1 => Damage::Some(Marks::draw(rng)),
            _ => Damage::Ruin([Ruin::Collapsed, Ruin::Frame, Ruin::Heap][rng.below(3)]),
        }
    }
}

impl Marks {
    fn draw(rng: &mut KeyedRng) -> Self {
        let mut marks = Marks { debris: 24 + rng.below(24), ..Marks::default() };
        match rng.below(3) {
            0 => marks.holes = 2 + rng.below(3),
            1 => marks.tarps = 1 + rng.below(2),
            _ => (marks.holes, marks.tarps) = (1 + rng.below(2), 1),
        }
        match rng.below(3) {
            0 => marks.windows = 2 + rng.below(3),
            1 => marks.bare_walls = 1 + rng.below(3),
            _ => (marks.windows, marks.bare_walls) = (1 + rng.below(3), 1),
        }
        marks
    }
}

/// A standing house with its marks, and debris around it.
pub(super) fn paint_damaged(canvas: &mut Canvas, view: &View, house: &House, marks: &Marks, rng: &mut KeyedRng) {
    house::paint(canvas, view, house, rng);
    for _ in 0..marks.bare_walls {
        let at = (rng.between(-0.42, 0.42), -house.walls * rng.between(0.3, 0.9));
        bare_wall(canvas, view, at, (rng.between(0.08, 0.18), house.walls * rng.between(0.18, 0.38)), rng);
    }
    let (mut windows, _) = house.openings();
    for _ in 0..marks.windows.min(windows.len()) {
        let window = windows.swap_remove(rng.below(windows.len()));
        if rng.below(3) == 0 { boarded(canvas, view, window, rng) } else { broken(canvas, view, house, window, rng) }
    }
    for _ in 0..marks.holes {
        hole(canvas, view, house, rng);
    }
    for _ in 0..marks.tarps {
        tarp(canvas, view, house, rng);
    }
    for _ in 0..marks.debris {
        let at = (rng.between(-0.75, 0.75), rng.between(0.01, 0.24));
        piece(canvas, view, house, at, rng.between(0.8, 1.9), rng);
    }
}

/// A point on the roof, well away from its edges.
fn on_roof(house: &House, rng: &mut KeyedRng) -> Point {
    let up = rng.between(0.25, 0.7);
    (rng.between(-0.42, 0.42) * (1.0 - up * 0.75), -house.walls - house.rise * up)
}

/// A ragged hole in the roof, with the rafters showing.
fn hole(canvas: &mut Canvas, view: &View, house: &House, rng: &mut KeyedRng) {
    let (at, seed) = (on_roof(house, rng), rng.next_u64() as u32);
    let (w, h) = (rng.between(0.1, 0.2), house.rise * rng.between(0.3, 0.5));
    let (rafters, wood) = (rng.between(20.0, 34.0), WOOD[rng.below(WOOD.len())]);
    let torn = octagon(at, w * 1.35, h * 1.35);
    let felt = |x: f32, y: f32| shade([0.62, 0.52, 0.40], 0.6 + 0.7 * noise(seed ^ 1, x * 25.0, y * 25.0));
    canvas.fill(view, &Shape { points: &torn, rough: 0.035, seed }, felt);
    let inside = |x: f32, _: f32| {
        let along = x * rafters;
        if along - along.floor() < 0.3 { shade(wood, 0.75) } else { [0.07, 0.06, 0.06] }
    };
    canvas.fill(view, &Shape { points: &octagon(at, w, h), rough: 0.03, seed: seed ^ 2 }, inside);
}

/// A tarpaulin over a part of the roof, with folds, held by battens.
fn tarp(canvas: &mut Canvas, view: &View, house: &House, rng: &mut KeyedRng) {
    let ((x, y), seed) = (on_roof(house, rng), rng.next_u64() as u32);
    let narrow = if house.roof == Roof::Front { 0.6 } else { 1.0 }; // a gable has less room
    let (w, h) = (narrow * rng.between(0.14, 0.26), house.rise * rng.between(0.32, 0.52));
    let colour = TARPS[rng.below(TARPS.len())];
    let mut loose =
        |corner: Point| (x + corner.0 * w + rng.between(-0.04, 0.04), y + corner.1 * h + rng.between(-0.03, 0.03));
    let corners = [loose((-1.0, -1.0)), loose((1.0, -1.0)), loose((1.0, 1.0)), loose((-1.0, 1.0))];
    let cloth = |px: f32, py: f32| shade(colour, 0.6 + 0.75 * noise(seed, px * 34.0 + py * 9.0, py * 12.0));
    canvas.fill(view, &Shape { points: &corners, rough: 0.006, seed }, cloth);
    for part in [0.2, 0.5, 0.8] {
        let x = corners[0].0 + (corners[1].0 - corners[0].0) * part;
        let batten = rectangle((x, y), (0.005, h * 0.9));
        canvas.fill(view, &Shape { points: &batten, rough: 0.0, seed }, |_, _| WOOD[2]);
    }
}

/// A broken window.
fn broken(canvas: &mut Canvas, view: &View, house: &House, (at, half): (Point, Point), rng: &mut KeyedRng) {
    let dark = rectangle(at, half);
    canvas.fill(view, &Shape { points: &dark, rough: 0.008, seed: house.seed }, |_, _| [0.05, 0.05, 0.06]);
    for _ in 0..2 + rng.below(3) {
        let (x, y) = (at.0 + half.0 * rng.between(-0.9, 0.5), at.1 + half.1 * [-1.0, 1.0][rng.below(2)]);
        let tip = (at.0 + half.0 * rng.between(-0.6, 0.6), at.1 + half.1 * rng.between(-0.5, 0.5));
        let shard = [(x, y), (x + half.0 * 0.4, y), tip];
        canvas.fill(view, &Shape { points: &shard, rough: 0.0, seed: 0 }, |_, _| [0.66, 0.74, 0.78]);
    }
}

/// A window behind plywood.
fn boarded(canvas: &mut Canvas, view: &View, (at, half): (Point, Point), rng: &mut KeyedRng) {
    let (seed, wood) = (rng.next_u64() as u32, WOOD[rng.below(WOOD.len())]);
    let sheet = turned(&rectangle((0.0, 0.0), (half.0 + 0.02, half.1 + 0.02)), at, rng.between(-0.05, 0.05));
    let grain = |x: f32, y: f32| shade(wood, 0.75 + 0.45 * noise(seed, x * 20.0, y * 140.0));
    canvas.fill(view, &Shape { points: &sheet, rough: 0.0, seed }, grain);
}

/// Missing cladding: sheathing, and the dark between studs.
fn bare_wall(canvas: &mut Canvas, view: &View, at: Point, (w, h): (f32, f32), rng: &mut KeyedRng) {
    let (seed, under) = (rng.next_u64() as u32, [WOOD[0], WOOD[2], RUBBLE[1], RUBBLE[3]][rng.below(4)]);
    let studs = rng.between(18.0, 26.0);
    let inside = |x: f32, y: f32| {
        let along = x * studs;
        let light = if along - along.floor() < 0.25 { 0.45 } else { 1.0 };
        shade(under, light * (0.7 + 0.5 * noise(seed ^ 1, x * 40.0, y * 40.0)))
    };
    canvas.fill(view, &Shape { points: &octagon(at, w, h), rough: 0.04, seed }, inside);
}

/// The remains of a house that collapsed.
pub(super) fn paint_ruin(canvas: &mut Canvas, view: &View, house: &House, ruin: Ruin, rng: &mut KeyedRng) {
    house::shadow(canvas, view, house);
    match ruin {
        Ruin::Collapsed => collapsed(canvas, view, house, rng),
        Ruin::Frame => frame(canvas, view, house, rng),
        Ruin::Heap => heap(canvas, view, house, rng),
    }
    for _ in 0..25 + rng.below(30) {
        let at = (rng.between(-0.8, 0.8), rng.between(-0.02, 0.25));
        piece(canvas, view, house, at, rng.between(0.5, 1.5), rng);
    }
}

/// Stumps of walls, and the roof, broken in two, askew on them.
fn collapsed(canvas: &mut Canvas, view: &View, house: &House, rng: &mut KeyedRng) {
    stumps(canvas, view, house, (0.3, 0.75), rng);
    let visible = canvas.visible(1.0 / 40.0, view);
    let side = if rng.below(2) == 0 { 1.0 } else { -1.0 };
    for half in [-side, side] {
        let seed = rng.next_u64() as u32;
        let (w, h) = (rng.between(0.28, 0.4), house.rise * rng.between(0.45, 0.7));
        let slab = [(-w, h), (-w * 0.8, -h), (w * 0.85, -h), (w, h)];
        let at = (half * rng.between(0.18, 0.3), -house.walls * rng.between(0.2, 0.6) - h * 0.4);
        let points = turned(&slab, at, half * side * rng.between(0.06, 0.26));
        canvas.fill(view, &Shape { points: &points, rough: 0.025, seed }, |x, y| house.roof_at(x, y, visible));
        gash(canvas, view, at, rng);
    }
    rubble(canvas, view, house, 25 + rng.below(25), 0.1, rng);
}

/// A dark tear through a slab of roof.
fn gash(canvas: &mut Canvas, view: &View, (x, y): Point, rng: &mut KeyedRng) {
    let seed = rng.next_u64() as u32;
    let at = (x + rng.between(-0.12, 0.12), y + rng.between(-0.03, 0.03));
    let points = octagon(at, rng.between(0.05, 0.13), rng.between(0.03, 0.06));
    canvas.fill(view, &Shape { points: &points, rough: 0.035, seed }, |_, _| [0.08, 0.07, 0.07]);
}

/// Walls of uneven height, with posts and rafters that carry nothing.
fn frame(canvas: &mut Canvas, view: &View, house: &House, rng: &mut KeyedRng) {
    let back = shade(house.wall_colour, 0.42);
    let seed = house.seed ^ 11;
    let inside = [(-0.44, -house.walls * 0.55), (0.44, -house.walls * 0.55), (0.44, 0.0), (-0.44, 0.0)];
    let room = |x: f32, y: f32| shade(back, 0.5 + 0.8 * clouds(seed, x * 10.0, y * 10.0));
    canvas.fill(view, &Shape { points: &inside, rough: 0.06, seed }, room);
    stumps(canvas, view, house, (0.35, 0.95), rng);
    for _ in 0..5 + rng.below(6) {
        let foot = rng.between(-0.48, 0.48);
        let top = (foot + rng.between(-0.16, 0.16), -house.walls * rng.between(0.7, 1.25));
        beam(canvas, view, (foot, 0.0), top, rng);
    }
    rubble(canvas, view, house, 30 + rng.below(25), 0.12, rng);
}

/// Only rubble, higher in the middle.
fn heap(canvas: &mut Canvas, view: &View, house: &House, rng: &mut KeyedRng) {
    let (seed, height) = (rng.next_u64() as u32, rng.between(0.06, 0.16));
    let mound = [(-0.55, 0.02), (-0.3, -height), (0.25, -height * 1.2), (0.55, 0.02)];
    let earth = |x: f32, y: f32| shade([0.44, 0.39, 0.33], 0.35 + 0.9 * clouds(seed, x * 22.0, y * 22.0));
    canvas.fill(view, &Shape { points: &mound, rough: 0.05, seed }, earth);
    if rng.below(2) == 0 {
        stumps(canvas, view, house, (0.1, 0.35), rng);
    }
    rubble(canvas, view, house, 80 + rng.below(50), height * 1.3, rng);
    for _ in 0..2 + rng.below(4) {
        let foot = (rng.between(-0.4, 0.4), 0.0);
        let top = (foot.0 + rng.between(-0.2, 0.2), -rng.between(0.1, 0.26));
        beam(canvas, view, foot, top, rng);
    }
}

/// Pieces of wall that still stand, with ragged tops, at these fractions of the walls' height.
fn stumps(canvas: &mut Canvas, view: &View, house: &House, (least, most): (f32, f32), rng: &mut KeyedRng) {
    let visible = canvas.visible(1.0 / 42.0, view);
    let mut x = -0.5;
    while x < 0.5 {
        let (w, h) = (rng.between(0.08, 0.24), house.walls * rng.between(least, most));
        let seed = rng.next_u64() as u32;
        if rng.below(4) > 0 {
            let end = (x + w).min(0.5);
            let points = [(x, -h), (end, -h * rng.between(0.6, 1.1)), (end, 0.02), (x, 0.02)];
            let colour = |x: f32, y: f32| shade(house.wall_at(x, y, visible), 0.9);
            canvas.fill(view, &Shape { points: &points, rough: 0.03, seed }, colour);
            if rng.below(2) == 0 {
                let gap = rectangle((x + w * 0.5, -h * 0.45), (w * 0.2, h * 0.25));
                canvas.fill(view, &Shape { points: &gap, rough: 0.012, seed }, |_, _| [0.07, 0.07, 0.07]);
            }
        }
        x += w + rng.between(0.0, 0.06);
    }
}

/// Debris on and around the site of the house, up to `height` high in the middle.
fn rubble(canvas: &mut Canvas, view: &View, house: &House, count: usize, height: f32, rng: &mut KeyedRng) {
    for _ in 0..count {
        let x = rng.between(-0.6, 0.6);
        let up = height * (1.0 - x * x * 2.2) * rng.uniform();
        piece(canvas, view, house, (x, 0.03 - up), rng.between(0.7, 1.9), rng);
    }
}

/// A piece of the house on the ground: a board, a sheet, some roof, at any angle.
fn piece(canvas: &mut Canvas, view: &View, house: &House, at: Point, size: f32, rng: &mut KeyedRng) {
    let colours = [house.wall_colour, house.roof_colour, WOOD[0], WOOD[1], WOOD[2], RUBBLE[rng.below(4)]];
    let colour = shade(colours[rng.below(colours.len())], rng.between(0.55, 1.1));
    let half = match rng.below(3) {
        0 => (rng.between(0.03, 0.075) * size, rng.between(0.004, 0.008) * size),
        _ => (rng.between(0.012, 0.04) * size, rng.between(0.01, 0.025) * size),
    };
    let (seed, turn) = (rng.next_u64() as u32, rng.between(-0.6, 0.6));
    let below = turned(&rectangle((0.0, 0.0), half), (at.0 + 0.006, at.1 + 0.008), turn);
    canvas.fill(view, &Shape { points: &below, rough: 0.004, seed }, |_, _| [0.12, 0.11, 0.10]);
    let points = turned(&rectangle((0.0, 0.0), half), at, turn);
    let rough = if seed & 1 == 0 { 0.0 } else { 0.008 };
    let worn = |x: f32, y: f32| shade(colour, 0.75 + 0.5 * noise(seed, x * 60.0, y * 60.0));
    canvas.fill(view, &Shape { points: &points, rough, seed }, worn);
}

/// A post or rafter between two points.
fn beam(canvas: &mut Canvas, view: &View, from: Point, to: Point, rng: &mut KeyedRng) {
    let (half, colour) = (rng.between(0.006, 0.012), shade(WOOD[rng.below(WOOD.len())], rng.between(0.7, 1.0)));
    let (x, y) = (to.0 - from.0, to.1 - from.1);
    let scale = half / (x * x + y * y).max(1e-12).sqrt();
    let (across_x, across_y) = (-y * scale, x * scale);
    let points = [
        (from.0 - across_x, from.1 - across_y),
        (to.0 - across_x, to.1 - across_y),
        (to.0 + across_x, to.1 + across_y),
        (from.0 + across_x, from.1 + across_y),
    ];
    canvas.fill(view, &Shape { points: &points, rough: 0.0, seed: 0 }, |_, _| colour);
}

/// The corners, rotated about 0 by an angle (given as the tangent of its half) and moved to a point.
fn turned(corners: &[Point; 4], (x, y): Point, turn: f32) -> [Point; 4] {
    let (sine, cosine) = (2.0 * turn / (1.0 + turn * turn), (1.0 - turn * turn) / (1.0 + turn * turn));
    corners.map(|(px, py)| (x + cosine * px - sine * py, y + sine * px + cosine * py))
}
