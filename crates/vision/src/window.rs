//! A window on a picture, for cropping, moving and padding.

use image::RgbImage;

/// The part of a picture of this width and height whose upper left corner is at (`left`, `top`); black outside the picture.
pub(super) fn window(picture: &RgbImage, left: i64, top: i64, width: u32, height: u32) -> RgbImage {
    let mut result = RgbImage::new(width, height);
    let (wide, high) = (i64::from(picture.width()), i64::from(picture.height()));
    // The overlap, in the result's columns and rows.
    let columns = inside(left, wide, width);
    let rows = inside(top, high, height);
    if columns.is_empty() {
        return result;
    }
    let bytes = columns.len() * 3;
    for row in rows {
        let from = ((top + row as i64) * wide + left + columns.start as i64) as usize * 3;
        let to = (row * width as usize + columns.start) * 3;
        result.as_mut()[to..to + bytes].copy_from_slice(&picture.as_raw()[from..from + bytes]);
    }
    result
}

/// The range of `size` positions from `start` that lies in `0..limit`, relative to `start`.
fn inside(start: i64, limit: i64, size: u32) -> std::ops::Range<usize> {
    let size = i64::from(size);
    let first = start.saturating_neg().clamp(0, size);
    let end = limit.saturating_sub(start).clamp(first, size);
    first as usize..end as usize
}
