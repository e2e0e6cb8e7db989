//! The shapes of the ten kinds of objects: ovals and polygons in a box, later parts over earlier ones, a few views of each kind.
//!
//! Coordinates are hundredths of the box: x to the right, y downwards. Objects face left; half of them are mirrored when drawn.

use Outline::{Area, Oval};
use Paint::{Body, Dark, Glass, Light, Trim};
use lockstep::data::rng::KeyedRng;

use crate::houses::paint::mix;

/// The colour of a part.
#[derive(Clone, Copy)]
pub(crate) enum Paint {
    /// The object's own colour.
    Body,
    /// The object's second colour.
    Trim,
    /// Nearly black: tyres, eyes, manes.
    Dark,
    /// Nearly white.
    Light,
    Glass,
}

/// The outline of a part.
pub(crate) enum Outline {
    /// Centre and radii.
    Oval(i8, i8, i8, i8),
    /// Corners.
    Area(&'static [(i8, i8)]),
}

pub(crate) type Part = (Paint, Outline);
pub(crate) type View = &'static [Part];

pub(crate) struct ObjectKind {
    pub(crate) views: &'static [View],
    pub(crate) colours: &'static [Colour],
    pub(crate) themes: &'static [Theme],
}

const FURS: &[Colour] =
    &[[120, 80, 50], [160, 120, 80], [60, 50, 45], [200, 180, 150], [140, 140, 140], [175, 105, 55]];
const PAINTS: &[Colour] =
    &[[190, 30, 30], [40, 70, 160], [230, 230, 230], [40, 40, 45], [220, 190, 40], [130, 135, 140], [30, 110, 70]];
const METALS: &[Colour] = &[[225, 228, 232], [170, 178, 188], [120, 130, 145], [70, 80, 100]];

/// The kinds, by label.
pub(crate) static KINDS: [ObjectKind; 10] = [
    ObjectKind { views: AIRPLANE, colours: METALS, themes: &[Theme::Sky, Theme::Sky, Theme::Sky, Theme::Road] },
    ObjectKind { views: AUTOMOBILE, colours: PAINTS, themes: &[Theme::Road, Theme::Road, Theme::Meadow, Theme::Room] },
    ObjectKind {
        views: BIRD,
        colours: &[[150, 110, 70], [60, 70, 80], [190, 60, 50], [90, 130, 170], [220, 215, 200], [205, 165, 60]],
        themes: &[Theme::Sky, Theme::Meadow, Theme::Wood, Theme::Sea],
    },
    ObjectKind { views: CAT, colours: FURS, themes: &[Theme::Room, Theme::Room, Theme::Meadow] },
    ObjectKind {
        views: DEER,
        colours: &[[150, 100, 60], [175, 130, 85], [115, 85, 60]],
        themes: &[Theme::Wood, Theme::Wood, Theme::Meadow],
    },
    ObjectKind { views: DOG, colours: FURS, themes: &[Theme::Meadow, Theme::Room, Theme::Road] },
    ObjectKind {
        views: FROG,
        colours: &[[80, 130, 50], [120, 140, 60], [130, 110, 70], [60, 90, 60]],
        themes: &[Theme::Wood, Theme::Meadow, Theme::Sea],
    },
    ObjectKind {
        views: HORSE,
        colours: &[[130, 75, 40], [90, 55, 35], [60, 55, 55], [215, 205, 195]],
        themes: &[Theme::Meadow, Theme::Meadow, Theme::Wood, Theme::Road],
    },
    ObjectKind { views: SHIP, colours: PAINTS, themes: &[Theme::Sea, Theme::Sea, Theme::Sea, Theme::Sky] },
    ObjectKind { views: TRUCK, colours: PAINTS, themes: &[Theme::Road, Theme::Road, Theme::Meadow] },
];

const AIRPLANE: &[View] = &[
    &[
        (Trim, Area(&[(44, 46), (58, 46), (72, 20), (64, 20)])),
        (Body, Oval(50, 50, 45, 9)),
        (Body, Area(&[(80, 48), (90, 24), (98, 24), (95, 50)])),
        (Trim, Area(&[(40, 52), (60, 52), (82, 84), (70, 84)])),
        (Glass, Oval(14, 47, 6, 3)),
    ],
    &[
        (Body, Area(&[(46, 34), (97, 58), (97, 66), (50, 56), (3, 66), (3, 58)])),
        (Trim, Area(&[(46, 80), (70, 94), (70, 98), (30, 98), (30, 94)])),
        (Body, Oval(50, 50, 7, 46)),
        (Glass, Oval(50, 12, 4, 5)),
    ],
    &[
        (Body, Oval(50, 46, 12, 12)),
        (Body, Area(&[(2, 52), (98, 52), (60, 60), (40, 60)])),
        (Body, Area(&[(47, 36), (50, 12), (53, 36)])),
        (Dark, Oval(26, 60, 5, 5)),
        (Dark, Oval(74, 60, 5, 5)),
        (Glass, Oval(50, 42, 7, 4)),
    ],
];

const AUTOMOBILE: &[View] = &[
    &[
        (Body, Area(&[(24, 54), (36, 32), (66, 32), (82, 54)])),
        (Glass, Area(&[(30, 52), (39, 36), (50, 36), (50, 52)])),
        (Glass, Area(&[(53, 52), (53, 36), (64, 36), (74, 52)])),
        (Body, Area(&[(3, 58), (24, 52), (84, 52), (97, 58), (97, 74), (3, 74)])),
        (Dark, Oval(24, 75, 10, 10)),
        (Dark, Oval(76, 75, 10, 10)),
        (Light, Oval(24, 75, 4, 4)),
        (Light, Oval(76, 75, 4, 4)),
    ],
    &[
        (Dark, Oval(18, 80, 8, 12)),
        (Dark, Oval(82, 80, 8, 12)),
        (Body, Area(&[(22, 48), (32, 24), (68, 24), (78, 48)])),
        (Glass, Area(&[(29, 46), (36, 29), (64, 29), (71, 46)])),
        (Body, Area(&[(8, 52), (20, 46), (80, 46), (92, 52), (92, 80), (8, 80)])),
        (Light, Oval(20, 60, 7, 5)),
        (Light, Oval(80, 60, 7, 5)),
        (Dark, Area(&[(34, 60), (66, 60), (66, 70), (34, 70)])),
    ],
];

const BIRD: &[View] = &[
    &[
        (Dark, Area(&[(44, 74), (47, 74), (46, 96), (43, 96)])),
        (Dark, Area(&[(54, 74), (57, 74), (58, 96), (55, 96)])),
        (Trim, Area(&[(66, 50), (98, 66), (94, 76), (64, 66)])),
        (Body, Oval(52, 56, 24, 20)),
        (Body, Oval(30, 32, 14, 14)),
        (Trim, Oval(58, 56, 16, 11)),
        (Light, Area(&[(18, 30), (2, 36), (18, 39)])),
        (Dark, Oval(27, 29, 3, 3)),
    ],
    &[
        (Trim, Area(&[(44, 48), (20, 12), (36, 14), (62, 46)])),
        (Trim, Area(&[(46, 50), (70, 8), (78, 18), (64, 50)])),
        (Body, Oval(52, 54, 26, 10)),
        (Body, Oval(24, 48, 9, 8)),
        (Body, Area(&[(74, 50), (97, 46), (97, 60), (74, 58)])),
        (Light, Area(&[(17, 47), (5, 51), (17, 52)])),
    ],
    &[
        (Body, Oval(50, 64, 34, 18)),
        (Body, Area(&[(20, 66), (26, 24), (36, 24), (38, 60)])),
        (Body, Oval(28, 22, 11, 9)),
        (Trim, Oval(58, 62, 22, 11)),
        (Light, Area(&[(20, 20), (4, 26), (20, 28)])),
    ],
];

const CAT: &[View] = &[
    &[
        (Body, Area(&[(16, 46), (20, 6), (46, 26)])),
        (Body, Area(&[(84, 46), (80, 6), (54, 26)])),
        (Body, Oval(50, 54, 38, 36)),
        (Light, Oval(34, 48, 8, 7)),
        (Light, Oval(66, 48, 8, 7)),
        (Dark, Oval(34, 48, 3, 6)),
        (Dark, Oval(66, 48, 3, 6)),
        (Trim, Oval(50, 70, 14, 9)),
        (Dark, Area(&[(45, 64), (55, 64), (50, 70)])),
    ],
    &[
        (Trim, Area(&[(82, 90), (96, 50), (88, 30), (94, 28), (99, 50), (92, 94)])),
        (Body, Oval(60, 72, 26, 26)),
        (Body, Area(&[(26, 40), (70, 50), (64, 97), (30, 97)])),
        (Body, Area(&[(16, 30), (18, 4), (32, 16)])),
        (Body, Area(&[(52, 30), (50, 4), (36, 16)])),
        (Body, Oval(34, 30, 19, 17)),
        (Light, Oval(28, 28, 4, 4)),
        (Light, Oval(40, 28, 4, 4)),
        (Dark, Oval(34, 36, 3, 2)),
    ],
    &[
        (Body, Area(&[(84, 52), (98, 8), (92, 6), (76, 46)])),
        (Body, Area(&[(30, 66), (38, 66), (38, 92), (30, 92)])),
        (Body, Area(&[(74, 66), (82, 66), (82, 92), (74, 92)])),
        (Body, Oval(56, 58, 30, 14)),
        (Body, Area(&[(10, 34), (12, 14), (22, 26)])),
        (Body, Area(&[(36, 34), (36, 14), (26, 26)])),
        (Body, Oval(23, 38, 15, 13)),
        (Dark, Oval(18, 36, 2, 3)),
        (Trim, Oval(58, 52, 18, 5)),
    ],
];

const DEER: &[View] = &[
    &[
        (Trim, Area(&[(34, 60), (40, 60), (38, 98), (34, 98)])),
        (Trim, Area(&[(74, 60), (80, 60), (80, 98), (76, 98)])),
        (Body, Area(&[(42, 60), (48, 60), (46, 98), (42, 98)])),
        (Body, Area(&[(66, 60), (72, 60), (70, 98), (66, 98)])),
        (Body, Oval(58, 54, 26, 12)),
        (Body, Area(&[(34, 58), (24, 28), (34, 26), (48, 46)])),
        (Body, Oval(22, 30, 12, 7)),
        (Dark, Area(&[(28, 26), (24, 2), (27, 2), (32, 24)])),
        (Dark, Area(&[(26, 14), (12, 6), (13, 3), (27, 10)])),
        (Dark, Area(&[(32, 24), (44, 4), (47, 5), (35, 26)])),
        (Light, Oval(84, 50, 4, 6)),
    ],
    &[
        (Dark, Area(&[(40, 34), (20, 16), (14, 2), (18, 2), (25, 14), (44, 32)])),
        (Dark, Area(&[(60, 34), (80, 16), (86, 2), (82, 2), (75, 14), (56, 32)])),
        (Body, Area(&[(38, 60), (62, 60), (74, 98), (26, 98)])),
        (Trim, Oval(24, 42, 13, 5)),
        (Trim, Oval(76, 42, 13, 5)),
        (Body, Area(&[(34, 36), (66, 36), (58, 76), (42, 76)])),
        (Dark, Oval(50, 74, 7, 5)),
        (Dark, Oval(40, 46, 3, 3)),
        (Dark, Oval(60, 46, 3, 3)),
    ],
];

const DOG: &[View] = &[
    &[
        (Trim, Oval(18, 44, 12, 24)),
        (Trim, Oval(82, 44, 12, 24)),
        (Body, Oval(50, 46, 32, 34)),
        (Light, Oval(50, 68, 18, 16)),
        (Dark, Oval(50, 60, 8, 6)),
        (Dark, Oval(37, 42, 4, 4)),
        (Dark, Oval(63, 42, 4, 4)),
        (Body, Area(&[(34, 78), (66, 78), (74, 99), (26, 99)])),
    ],
    &[
        (Body, Area(&[(80, 46), (97, 24), (99, 30), (86, 54)])),
        (Trim, Area(&[(36, 62), (44, 62), (42, 94), (34, 94)])),
        (Trim, Area(&[(72, 62), (80, 62), (82, 94), (74, 94)])),
        (Body, Area(&[(44, 62), (52, 62), (52, 94), (44, 94)])),
        (Body, Area(&[(64, 62), (72, 62), (70, 94), (62, 94)])),
        (Body, Oval(58, 56, 28, 15)),
        (Body, Oval(30, 36, 17, 14)),
        (Body, Area(&[(22, 32), (4, 38), (4, 46), (24, 48)])),
        (Trim, Oval(38, 40, 6, 14)),
        (Dark, Oval(5, 40, 4, 3)),
        (Dark, Oval(24, 32, 2, 2)),
    ],
    &[
        (Body, Area(&[(84, 88), (98, 70), (96, 66), (80, 80)])),
        (Body, Oval(62, 76, 26, 22)),
        (Body, Area(&[(30, 46), (60, 50), (60, 98), (32, 98)])),
        (Body, Oval(36, 30, 19, 16)),
        (Light, Area(&[(26, 30), (8, 36), (8, 44), (30, 44)])),
        (Trim, Oval(48, 36, 7, 15)),
        (Dark, Oval(9, 36, 4, 3)),
        (Light, Oval(42, 68, 8, 14)),
    ],
];

const FROG: &[View] = &[
    &[
        (Trim, Oval(76, 74, 22, 12)),
        (Body, Area(&[(14, 62), (34, 36), (66, 34), (96, 76), (84, 88), (20, 84)])),
        (Trim, Area(&[(24, 74), (34, 74), (30, 95), (16, 95)])),
        (Trim, Area(&[(58, 80), (92, 86), (92, 95), (56, 95)])),
        (Body, Oval(30, 36, 10, 10)),
        (Light, Oval(29, 35, 6, 6)),
        (Dark, Oval(28, 35, 3, 3)),
        (Light, Oval(26, 66, 12, 5)),
    ],
    &[
        (Trim, Oval(16, 74, 16, 14)),
        (Trim, Oval(84, 74, 16, 14)),
        (Body, Oval(50, 64, 38, 26)),
        (Body, Oval(30, 38, 12, 12)),
        (Body, Oval(70, 38, 12, 12)),
        (Light, Oval(30, 37, 7, 7)),
        (Light, Oval(70, 37, 7, 7)),
        (Dark, Oval(30, 37, 3, 5)),
        (Dark, Oval(70, 37, 3, 5)),
        (Dark, Area(&[(22, 60), (50, 67), (78, 60), (78, 63), (50, 71), (22, 63)])),
    ],
    &[
        (Trim, Area(&[(36, 30), (10, 12), (4, 24), (34, 46)])),
        (Trim, Area(&[(64, 30), (90, 12), (96, 24), (66, 46)])),
        (Trim, Area(&[(36, 66), (6, 70), (12, 94), (24, 94), (20, 80), (42, 80)])),
        (Trim, Area(&[(64, 66), (94, 70), (88, 94), (76, 94), (80, 80), (58, 80)])),
        (Body, Oval(50, 52, 22, 32)),
        (Dark, Oval(40, 26, 5, 5)),
        (Dark, Oval(60, 26, 5, 5)),
    ],
];

const HORSE: &[View] = &[
    &[
        (Trim, Area(&[(34, 62), (41, 62), (38, 98), (32, 98)])),
        (Trim, Area(&[(74, 62), (82, 62), (84, 98), (78, 98)])),
        (Dark, Area(&[(86, 46), (94, 50), (97, 86), (90, 84)])),
        (Body, Area(&[(42, 62), (50, 62), (48, 98), (42, 98)])),
        (Body, Area(&[(64, 62), (73, 62), (71, 98), (65, 98)])),
        (Body, Oval(60, 54, 30, 16)),
        (Body, Area(&[(32, 58), (20, 18), (38, 10), (56, 44)])),
        (Body, Area(&[(36, 10), (22, 12), (4, 34), (10, 42), (30, 30)])),
        (Dark, Area(&[(34, 6), (42, 12), (58, 42), (48, 42)])),
        (Dark, Oval(22, 22, 2, 2)),
    ],
    &[
        (Body, Area(&[(30, 98), (34, 46), (72, 40), (88, 98)])),
        (Body, Area(&[(40, 16), (46, 2), (50, 16)])),
        (Body, Area(&[(58, 14), (60, 1), (66, 16)])),
        (Dark, Area(&[(58, 10), (72, 16), (84, 70), (70, 60)])),
        (Body, Area(&[(36, 14), (66, 12), (60, 50), (46, 82), (22, 80), (24, 64)])),
        (Dark, Oval(28, 74, 4, 3)),
        (Dark, Oval(46, 34, 4, 4)),
        (Light, Area(&[(38, 22), (44, 22), (36, 62), (30, 62)])),
    ],
];

const SHIP: &[View] = &[
    &[
        (Light, Area(&[(30, 58), (30, 40), (80, 40), (80, 58)])),
        (Glass, Area(&[(34, 50), (34, 45), (76, 45), (76, 50)])),
        (Trim, Area(&[(54, 40), (54, 20), (64, 20), (64, 40)])),
        (Dark, Area(&[(36, 40), (37, 14), (39, 14), (40, 40)])),
        (Body, Area(&[(2, 54), (98, 58), (90, 80), (14, 80)])),
    ],
    &[
        (Dark, Area(&[(49, 76), (49, 2), (51, 2), (51, 76)])),
        (Light, Area(&[(47, 6), (47, 68), (10, 68)])),
        (Trim, Area(&[(53, 10), (53, 68), (86, 68)])),
        (Body, Area(&[(8, 74), (92, 74), (78, 92), (22, 92)])),
    ],
    &[
        (Trim, Area(&[(70, 58), (70, 28), (88, 28), (88, 58)])),
        (Glass, Area(&[(70, 36), (70, 32), (88, 32), (88, 36)])),
        (Light, Area(&[(14, 58), (14, 46), (38, 46), (38, 58)])),
        (Trim, Area(&[(40, 58), (40, 42), (66, 42), (66, 58)])),
        (Body, Area(&[(1, 56), (99, 56), (94, 78), (10, 78)])),
        (Dark, Area(&[(8, 74), (95, 74), (94, 79), (10, 79)])),
    ],
];

const TRUCK: &[View] = &[
    &[
        (Trim, Area(&[(30, 18), (98, 18), (98, 72), (30, 72)])),
        (Body, Area(&[(3, 74), (3, 50), (12, 32), (28, 32), (28, 74)])),
        (Glass, Area(&[(8, 50), (14, 36), (24, 36), (24, 50)])),
        (Dark, Area(&[(3, 72), (98, 72), (98, 77), (3, 77)])),
        (Dark, Oval(17, 80, 10, 10)),
        (Dark, Oval(66, 80, 10, 10)),
        (Dark, Oval(87, 80, 10, 10)),
        (Light, Oval(17, 80, 4, 4)),
        (Light, Oval(87, 80, 4, 4)),
    ],
    &[
        (Body, Area(&[(4, 74), (4, 54), (26, 50), (32, 32), (52, 32), (52, 54), (97, 54), (97, 74)])),
        (Glass, Area(&[(31, 50), (35, 36), (48, 36), (48, 50)])),
        (Trim, Area(&[(54, 46), (97, 46), (97, 56), (54, 56)])),
        (Dark, Oval(22, 76, 12, 12)),
        (Dark, Oval(78, 76, 12, 12)),
        (Light, Oval(22, 76, 5, 5)),
        (Light, Oval(78, 76, 5, 5)),
    ],
    &[
        (Dark, Oval(20, 88, 9, 10)),
        (Dark, Oval(80, 88, 9, 10)),
        (Trim, Area(&[(12, 4), (88, 4), (88, 40), (12, 40)])),
        (Body, Area(&[(12, 36), (88, 36), (88, 88), (12, 88)])),
        (Glass, Area(&[(18, 40), (82, 40), (80, 58), (20, 58)])),
        (Light, Oval(21, 76, 6, 5)),
        (Light, Oval(79, 76, 6, 5)),
        (Dark, Area(&[(32, 66), (68, 66), (68, 82), (32, 82)])),
    ],
];

// The surroundings of an object: two surfaces that meet at a horizon, blotches, and the light.

/// Red, green and blue, 0 to 255.
pub(crate) type Colour = [u8; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    Sky,
    Sea,
    Meadow,
    Wood,
    Road,
    Room,
}

impl Theme {
    const ALL: [Self; 6] = [Self::Sky, Self::Sea, Self::Meadow, Self::Wood, Self::Road, Self::Room];

    /// One of the usual surroundings, or any with a probability of one third.
    pub(crate) fn pick(usual: &[Self], rng: &mut KeyedRng) -> Self {
        let from = if rng.below(3) == 0 { &Self::ALL } else { usual };
        from[rng.below(from.len())]
    }

    /// The colours above and below the horizon.
    fn colours(self) -> [Colour; 2] {
        match self {
            Self::Sky => [[110, 160, 215], [185, 205, 225]],
            Self::Sea => [[170, 195, 215], [45, 95, 130]],
            Self::Meadow => [[165, 190, 200], [95, 140, 60]],
            Self::Wood => [[50, 75, 40], [105, 95, 60]],
            Self::Road => [[160, 165, 160], [110, 108, 105]],
            Self::Room => [[195, 180, 160], [130, 95, 70]],
        }
    }
}

/// The surroundings of one picture.
pub(crate) struct Scene {
    above: [f32; 3],
    below: [f32; 3],
    /// The row of the horizon at the left edge, and its slope per column.
    horizon: (f32, f32),
    blotches: Vec<Blotch>,
}

/// Something out of focus: a cloud, a bush, a stone.
struct Blotch {
    middle: (f32, f32),
    radii: (f32, f32),
    colour: [f32; 3],
}

impl Scene {
    pub(crate) fn draw(theme: Theme, rng: &mut KeyedRng) -> Self {
        let [above, below] = theme.colours();
        let count = rng.below(4);
        Self {
            above: varied(above, 38.0, rng),
            below: varied(below, 38.0, rng),
            horizon: (rng.between(8.0, 27.0), rng.between(-0.12, 0.12)),
            blotches: (0..count).map(|_| Blotch::draw([above, below], rng)).collect(),
        }
    }

    /// The colour at a point of the picture, in pixels.
    pub(crate) fn at(&self, x: f32, y: f32) -> [f32; 3] {
        let deep = (y - self.horizon.0 - self.horizon.1 * x + 0.5).clamp(0.0, 1.0);
        let base = mix(self.above, self.below, deep);
        self.blotches.iter().fold(base, |colour, blotch| blotch.over(colour, x, y))
    }
}

impl Blotch {
    fn draw(colours: [Colour; 2], rng: &mut KeyedRng) -> Self {
        let colour = colours[rng.below(2)];
        Self {
            middle: (rng.between(0.0, 32.0), rng.between(0.0, 32.0)),
            radii: (rng.between(2.0, 9.0), rng.between(2.0, 6.0)),
            colour: varied(colour, 90.0, rng),
        }
    }

    /// Blends the blotch over the colour behind it; it fades out towards its edge.
    fn over(&self, behind: [f32; 3], x: f32, y: f32) -> [f32; 3] {
        let (dx, dy) = ((x - self.middle.0) / self.radii.0, (y - self.middle.1) / self.radii.1);
        mix(behind, self.colour, (1.6 * (1.0 - dx * dx - dy * dy)).clamp(0.0, 0.85))
    }
}

/// A similar colour: lighter or darker, and slightly different in hue.
pub(crate) fn varied(colour: Colour, by: f32, rng: &mut KeyedRng) -> [f32; 3] {
    let light = rng.between(-by, by);
    colour.map(|part| (f32::from(part) + light + rng.between(-by, by) * 0.35).clamp(0.0, 255.0))
}
