//! Operations that take each pixel from another place: Pillow's affine transform with the nearest pixel
//! (`ImagingTransformAffine`, Geometry.c), with matrices as torchvision and Pillow build them.

use image::RgbImage;

/// From the place (x, y) in the result to (a x + b y + c, d x + e y + f) in the picture.
type Matrix = [f64; 6];

/// A picture may be this large for 16.16 fixed point, in pixels; Pillow counts in floats beyond.
const FIXED_LIMIT: f64 = 32_768.0;

/// torchvision's `affine` with a shear of these tangents about the upper left corner.
pub(super) fn shear(picture: &RgbImage, x: f64, y: f64) -> RgbImage {
    // By way of the angle in degrees, which is what torchvision hands on.
    let angle = |tangent: f64| tangent.atan().to_degrees().to_radians();
    let (sx, sy) = (angle(x), angle(y));
    // The inverse of the matrix in `_get_inverse_affine_matrix` without rotation, scale and centre.
    let cos = (-sy).cos() / sy.cos();
    let sin = (-sy).sin() / sy.cos();
    transform(picture, [1.0 - sin * sx.tan(), cos * sx.tan(), 0.0, -sin, cos, 0.0])
}

/// Moves right and down, by whole pixels.
pub(super) fn translate(picture: &RgbImage, x: i32, y: i32) -> RgbImage {
    let mut moved = RgbImage::new(picture.width(), picture.height());
    image::imageops::replace(&mut moved, picture, x.into(), y.into());
    moved
}

/// Pillow's `Image.rotate` about the centre.
pub(super) fn rotate(picture: RgbImage, degrees: f64) -> RgbImage {
    let degrees = degrees.rem_euclid(360.0);
    if degrees == 0.0 {
        return picture;
    }
    let angle = -degrees.to_radians();
    // Pillow rounds to 15 decimals, so that right angles are exact.
    let round = |value: f64| (value * 1e15).round() / 1e15;
    let (cos, sin) = (round(angle.cos()), round(angle.sin()));
    let (x, y) = (f64::from(picture.width()) / 2.0, f64::from(picture.height()) / 2.0);
    transform(&picture, [cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y])
}

fn transform(picture: &RgbImage, matrix: Matrix) -> RgbImage {
    let [a, b, c, d, e, f] = matrix;
    // Pixels are looked up at their centres.
    let start = (c + a * 0.5 + b * 0.5, f + d * 0.5 + e * 0.5);
    let corners = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)];
    let (width, height) = (f64::from(picture.width()), f64::from(picture.height()));
    let fits = corners.iter().all(|(x, y)| {
        let (x, y) = (x * width, y * height);
        (a * x + b * y + c).abs() < FIXED_LIMIT && (d * x + e * y + f).abs() < FIXED_LIMIT
    });
    if fits {
        let fixed = |value: f64| (value * 65_536.0 + 0.5).floor() as i64;
        let start = (fixed(start.0), fixed(start.1));
        look_up(picture, start, (fixed(a), fixed(d)), (fixed(b), fixed(e)), |value| value >> 16)
    } else {
        look_up(picture, start, (a, d), (b, e), |value| if value < 0.0 { -1 } else { value as i64 })
    }
}

/// Walks over the result row by row: `across` is added for each pixel, `down` for each row.
fn look_up<N: Copy + std::ops::AddAssign>(
    picture: &RgbImage,
    start: (N, N),
    across: (N, N),
    down: (N, N),
    whole: impl Fn(N) -> i64,
) -> RgbImage {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let mut result = RgbImage::new(picture.width(), picture.height());
    let source = picture.as_raw().as_chunks::<3>().0;
    let pixels = result.as_chunks_mut::<3>().0;
    let (mut row_x, mut row_y) = start;
    for row in pixels.chunks_exact_mut(width.max(1)) {
        let (mut x, mut y) = (row_x, row_y);
        for pixel in row {
            // A negative number is larger than any size.
            let (column, line) = (whole(x) as usize, whole(y) as usize);
            if column < width && line < height {
                *pixel = source[line * width + column];
            }
            x += across.0;
            y += across.1;
        }
        row_x += down.0;
        row_y += down.1;
    }
    result
}
