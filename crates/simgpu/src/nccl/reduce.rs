//! Reductions, by data type.
//!
//! Half precision is added pair by pair, in the order of the ranks, and rounded after each addition, as kernels on halves do.

/// `ncclDataType_t` of nccl.h.
const INT8: u32 = 0;
const UINT8: u32 = 1;
const INT32: u32 = 2;
const UINT32: u32 = 3;
const INT64: u32 = 4;
const UINT64: u32 = 5;
const FLOAT16: u32 = 6;
const FLOAT32: u32 = 7;
const FLOAT64: u32 = 8;
const BFLOAT16: u32 = 9;

/// `ncclRedOp_t` of nccl.h.
const SUM: u32 = 0;
const PROD: u32 = 1;
const MAX: u32 = 2;
const MIN: u32 = 3;
const AVG: u32 = 4;

/// The bytes of an element of the types that the device knows: all but 8-bit floats.
pub(super) fn size(dtype: u32) -> Option<u64> {
    match dtype {
        INT8 | UINT8 => Some(1),
        FLOAT16 | BFLOAT16 => Some(2),
        INT32 | UINT32 | FLOAT32 => Some(4),
        INT64 | UINT64 | FLOAT64 => Some(8),
        _ => None,
    }
}

pub(super) fn knows(op: u32) -> bool {
    (SUM..=AVG).contains(&op)
}

/// A type of elements.
trait Element: Copy + PartialOrd {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// What a mean does with each rank's number before the sum: NCCL scales floats by 1/n (`ncclDevPreMulSum`).
    fn before_mean(self, ranks: usize) -> Self;
    /// What a mean does with the sum: NCCL divides a sum of integers (`ncclDevSumPostDiv`).
    fn after_mean(self, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Element for $type {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn before_mean(self, _: usize) -> Self {
                self
            }

            fn after_mean(self, ranks: usize) -> Self {
                // If there are more ranks than the type can count, the mean is less than one.
                <$type>::try_from(ranks).map_or(0, |ranks| self / ranks)
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Element for $type {
            fn add(self, other: Self) -> Self {
                self + other
            }

            fn multiply(self, other: Self) -> Self {
                self * other
            }

            fn before_mean(self, ranks: usize) -> Self {
                self * (1.0 / ranks as $type)
            }

            fn after_mean(self, _: usize) -> Self {
                self
            }
        }
    )*};
}
floats!(f32, f64);

/// A half, as the nearest `f32` of its values.
trait Half: Copy {
    fn from_bits(bits: u16) -> f32;
    fn to_bits(value: f32) -> u16;
}

#[derive(Clone, Copy)]
struct Float16;
#[derive(Clone, Copy)]
struct Bfloat16;

impl Half for Float16 {
    fn from_bits(bits: u16) -> f32 {
        let (sign, exponent, fraction) =
            (u32::from(bits >> 15) << 31, u32::from(bits >> 10) & 31, u32::from(bits) & 1023);
        let magnitude = match exponent {
            0 => fraction as f32 / 16_777_216.0, // 2⁻²⁴
            31 => f32::from_bits(0x7f80_0000 | (fraction << 13)),
            _ => f32::from_bits(((exponent + 112) << 23) | (fraction << 13)),
        };
        f32::from_bits(magnitude.to_bits() | sign)
    }

    /// Rounds to the nearest value, and ties to even.
    fn to_bits(value: f32) -> u16 {
        let sign = (value.to_bits() >> 16) as u16 & 0x8000;
        let magnitude = value.abs();
        let bits = if magnitude.is_nan() {
            0x7e00
        } else if magnitude >= 65_520.0 {
            0x7c00
        } else if magnitude < 0.000_061_035_156 {
            // Below the least normal number: a multiple of 2⁻²⁴.
            (magnitude * 16_777_216.0).round_ties_even() as u16
        } else {
            let bits = magnitude.to_bits() - (112 << 23);
            ((bits + 0xfff + ((bits >> 13) & 1)) >> 13) as u16
        };
        sign | bits
    }
}

impl Half for Bfloat16 {
    fn from_bits(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    fn to_bits(value: f32) -> u16 {
        let bits = value.to_bits();
        if value.is_nan() {
            return (bits >> 16) as u16 | 0x40;
        }
        ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    }
}

fn combine<T: Element>(op: u32) -> fn(T, T) -> T {
    match op {
        PROD => T::multiply,
        MAX => |a, b| if b > a { b } else { a },
        MIN => |a, b| if b < a { b } else { a },
        _ => T::add,
    }
}

/// Combines numbers of all ranks; `round` makes each result one of the type.
fn reduce<T: Element>(all: &[Vec<T>], op: u32, round: impl Fn(T) -> T) -> Vec<T> {
    let (ranks, combine) = (all.len(), combine::<T>(op));
    let scaled = |number: &T| if op == AVG { round(number.before_mean(ranks)) } else { *number };
    let mut each = all.iter().map(|numbers| numbers.iter().map(scaled));
    let mut result: Vec<T> = each.next().map(Iterator::collect).unwrap_or_default();
    each.for_each(|other| result.iter_mut().zip(other).for_each(|(own, other)| *own = round(combine(*own, other))));
    if op == AVG {
        result.iter_mut().for_each(|own| *own = own.after_mean(ranks));
    }
    result
}

macro_rules! plain {
    ($type:ty, $data:expr, $op:expr) => {{
        let numbers = |bytes: &Vec<u8>| -> Vec<$type> {
            let each = bytes.chunks_exact(size_of::<$type>());
            each.map(|bytes| <$type>::from_le_bytes(bytes.try_into().unwrap_or_default())).collect()
        };
        let all: Vec<Vec<$type>> = $data.iter().map(numbers).collect();
        reduce(&all, $op, |number| number).into_iter().flat_map(<$type>::to_le_bytes).collect()
    }};
}

fn halves<H: Half>(data: &[Vec<u8>], op: u32) -> Vec<u8> {
    let numbers = |bytes: &Vec<u8>| -> Vec<f32> {
        bytes.chunks_exact(2).map(|bytes| H::from_bits(u16::from_le_bytes([bytes[0], bytes[1]]))).collect()
    };
    let all: Vec<Vec<f32>> = data.iter().map(numbers).collect();
    let result = reduce(&all, op, |number| H::from_bits(H::to_bits(number)));
    result.into_iter().flat_map(|number| H::to_bits(number).to_le_bytes()).collect()
}

/// Combines what all ranks have sent, in the order of the ranks.
pub(super) fn all(data: &[Vec<u8>], dtype: u32, op: u32) -> Vec<u8> {
    match dtype {
        INT8 => plain!(i8, data, op),
        UINT8 => plain!(u8, data, op),
        INT32 => plain!(i32, data, op),
        UINT32 => plain!(u32, data, op),
        INT64 => plain!(i64, data, op),
        UINT64 => plain!(u64, data, op),
        FLOAT16 => halves::<Float16>(data, op),
        BFLOAT16 => halves::<Bfloat16>(data, op),
        FLOAT64 => plain!(f64, data, op),
        _ => plain!(f32, data, op),
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
        assert_eq!(all(&[vec![250], vec![10]], UINT8, SUM), [4]);
        assert_eq!(all(&[vec![250], vec![10]], INT8, MAX), [10]);
    }

    #[test]
    fn each_half_is_its_own_nearest_and_others_round_to_even() {
        for bits in 0..=u16::MAX {
            for (value, back) in [
                (Float16::from_bits(bits), Float16::to_bits as fn(f32) -> u16),
                (Bfloat16::from_bits(bits), Bfloat16::to_bits),
            ] {
                assert!(value.is_nan() || back(value) == bits, "{bits:#x}: {value}");
            }
        }
        // 1 + 2⁻¹¹ is between two neighbours, 1 + 3·2⁻¹¹ too.
        let step = 1.0 / 2048.0;
        assert_eq!([1.0 + step, 1.0 + 3.0 * step].map(Float16::to_bits), [0x3c00, 0x3c02]);
        assert_eq!(
            [65_504.0, 65_519.9, 65_520.0, f32::INFINITY].map(Float16::to_bits),
            [0x7bff, 0x7bff, 0x7c00, 0x7c00]
        );
        assert_eq!([1e-8, 5.960_464_5e-8, -0.0].map(Float16::to_bits), [0, 1, 0x8000]);
        assert_eq!([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0].map(Bfloat16::to_bits), [0x3f80, 0x3f82]);
        assert!(Bfloat16::from_bits(Bfloat16::to_bits(f32::NAN)).is_nan() && Float16::from_bits(0x7e00).is_nan());
    }

    #[test]
    fn halves_round_after_each_addition_and_a_mean_does_not_overflow() {
        let of = |numbers: &[f32], dtype, op| {
            let half =
                |number: f32| if dtype == FLOAT16 { Float16::to_bits(number) } else { Bfloat16::to_bits(number) };
            let data: Vec<Vec<u8>> = numbers.iter().map(|number| half(*number).to_le_bytes().to_vec()).collect();
            let bits = u16::from_le_bytes(all(&data, dtype, op).try_into().unwrap());
            if dtype == FLOAT16 { Float16::from_bits(bits) } else { Bfloat16::from_bits(bits) }
        };
        // 1 is added twice and lost both times: neighbours of 2048 are 2 apart.
        assert_eq!(of(&[2048.0, 1.0, 1.0], FLOAT16, SUM), 2048.0);
        assert_eq!(of(&[256.0, 1.0, 1.0], BFLOAT16, SUM), 256.0);
        assert_eq!(of(&[60_000.0, 60_000.0], FLOAT16, SUM), f32::INFINITY);
        assert_eq!(of(&[60_000.0, 60_000.0], FLOAT16, AVG), 60_000.0);
        assert_eq!(of(&[1.5, -3.0], BFLOAT16, MIN), -3.0);
    }
}
