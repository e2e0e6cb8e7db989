//! Reductions, by data type.

/// `ncclDataType_t` of nccl.h.
const INT32: u32 = 2;
const INT64: u32 = 4;
const FLOAT32: u32 = 7;
const FLOAT64: u32 = 8;

/// `ncclRedOp_t` of nccl.h.
const SUM: u32 = 0;
const PROD: u32 = 1;
const MAX: u32 = 2;
const MIN: u32 = 3;
const AVG: u32 = 4;

/// The bytes of an element of the types that the device knows.
pub(super) fn size(dtype: u32) -> Option<u64> {
    match dtype {
        INT32 | FLOAT32 => Some(4),
        INT64 | FLOAT64 => Some(8),
        _ => None,
    }
}

pub(super) fn knows(op: u32) -> bool {
    (SUM..=AVG).contains(&op)
}

macro_rules! reduce {
    ($type:ty, $all:expr, $op:expr, $add:expr, $multiply:expr) => {{
        let numbers = |bytes: &[u8]| -> Vec<$type> {
            let each = bytes.chunks_exact(size_of::<$type>());
            each.map(|bytes| <$type>::from_le_bytes(bytes.try_into().unwrap_or_default())).collect()
        };
        let mut all = $all.iter().map(|bytes| numbers(bytes));
        let mut result = all.next().unwrap_or_default();
        let combine: fn($type, $type) -> $type = match $op {
            PROD => $multiply,
            MAX => |a, b| if b > a { b } else { a },
            MIN => |a, b| if b < a { b } else { a },
            _ => $add,
        };
        all.for_each(|other| result.iter_mut().zip(other).for_each(|(own, other)| *own = combine(*own, other)));
        if $op == AVG {
            result.iter_mut().for_each(|own| *own /= $all.len() as $type);
        }
        result.iter().flat_map(|number| number.to_le_bytes()).collect()
    }};
}

/// Combines what all ranks have sent, in the order of the ranks.
pub(super) fn all(data: &[Vec<u8>], dtype: u32, op: u32) -> Vec<u8> {
    match dtype {
        INT32 => reduce!(i32, data, op, i32::wrapping_add, i32::wrapping_mul),
        INT64 => reduce!(i64, data, op, i64::wrapping_add, i64::wrapping_mul),
        FLOAT64 => reduce!(f64, data, op, |a, b| a + b, |a, b| a * b),
        _ => reduce!(f32, data, op, |a, b| a + b, |a, b| a * b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combines_elements_in_all_ways() {
        let data: Vec<Vec<u8>> = [[1.0_f32, 8.0], [5.0, -2.0]]
            .iter()
            .map(|two| two.iter().flat_map(|x| x.to_le_bytes()).collect())
            .collect();
        let found = |op| -> Vec<f32> {
            let bytes = all(&data, FLOAT32, op);
            bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
        };
        let ways = [SUM, PROD, MAX, MIN, AVG].map(found);
        assert_eq!(ways, [vec![6.0, 6.0], vec![5.0, -16.0], vec![5.0, 8.0], vec![1.0, -2.0], vec![3.0, 3.0]]);
        let whole = [7_i64, 4].map(|number| number.to_le_bytes().to_vec());
        assert_eq!(all(&whole, INT64, AVG), 5_i64.to_le_bytes());
    }
}
