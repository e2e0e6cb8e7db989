//! The surroundings of a thing: two surfaces that meet at a horizon, blotches, and the light.

use lockstep::data::rng::KeyedRng;

/// Red, green and blue, 0 to 255.
pub(super) type Colour = [u8; 3];

/// A kind of surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
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
    pub(super) fn pick(usual: &[Self], rng: &mut KeyedRng) -> Self {
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
pub(super) struct Scene {
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
    pub(super) fn draw(theme: Theme, rng: &mut KeyedRng) -> Self {
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
    pub(super) fn at(&self, x: f32, y: f32) -> [f32; 3] {
        let deep = (y - self.horizon.0 - self.horizon.1 * x + 0.5).clamp(0.0, 1.0);
        let base = blend(self.above, self.below, deep);
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
        blend(behind, self.colour, (1.6 * (1.0 - dx * dx - dy * dy)).clamp(0.0, 0.85))
    }
}

/// A random mix of `a` and `b`.
pub(super) fn blend(a: [f32; 3], b: [f32; 3], part: f32) -> [f32; 3] {
    [0, 1, 2].map(|i| a[i] + (b[i] - a[i]) * part)
}

/// A similar colour: lighter or darker, and slightly different in hue.
pub(super) fn varied(colour: Colour, by: f32, rng: &mut KeyedRng) -> [f32; 3] {
    let light = rng.between(-by, by);
    colour.map(|part| (f32::from(part) + light + rng.between(-by, by) * 0.35).clamp(0.0, 255.0))
}
