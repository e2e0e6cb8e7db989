//! Rows of a table, copied in a given order. All indices must have been checked.

/// The rows of `width` numbers, one after the other.
pub fn gather(table: &[f32], width: usize, indices: &[usize]) -> Vec<f32> {
    let mut rows = Vec::with_capacity(indices.len() * width);
    for &index in indices {
        rows.extend_from_slice(&table[index * width..(index + 1) * width]);
    }
    rows
}

/// The rows of `width` bytes, one after the other, each byte replaced by its number in `numbers`.
pub fn look_up(table: &[u8], width: usize, indices: &[usize], numbers: &[f32; 256]) -> Vec<f32> {
    let mut rows = Vec::with_capacity(indices.len() * width);
    for &index in indices {
        rows.extend(table[index * width..(index + 1) * width].iter().map(|&byte| numbers[usize::from(byte)]));
    }
    rows
}

/// The windows of `width` tokens, one after the other, filled up with `missing` past the last token.
pub fn windows(tokens: &[u32], width: usize, indices: &[usize], missing: i64) -> Vec<i64> {
    let mut rows = Vec::with_capacity(indices.len() * width);
    for &index in indices {
        let window = index * width..(index + 1) * width;
        rows.extend(window.map(|at| tokens.get(at).map_or(missing, |&token| i64::from(token))));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_rows_in_the_given_order() {
        assert_eq!(gather(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2, &[2, 0, 2]), [4.0, 5.0, 0.0, 1.0, 4.0, 5.0]);
        let halves = std::array::from_fn(|byte| byte as f32 / 2.0);
        assert_eq!(look_up(&[1, 2, 3, 255], 2, &[1, 0], &halves), [1.5, 127.5, 0.5, 1.0]);
        assert_eq!(windows(&[7, 8, 9], 2, &[1, 0], -1), [9, -1, 7, 8]);
    }
}
