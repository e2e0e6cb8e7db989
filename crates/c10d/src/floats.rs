//! A tensor that is still being written, number by number, in its own memory.

use tch::{Device, Kind, Tensor};

/// A tensor of float32 on the CPU whose memory only this value knows. [`Tensor::from_slice`] copies what was written elsewhere.
#[derive(Debug)]
pub struct Floats(Tensor);

impl Floats {
    /// Zeros of this shape.
    ///
    /// # Panics
    /// Panics when a size is negative.
    #[must_use]
    pub fn zeros(size: &[i64]) -> Self {
        Floats(Tensor::zeros(size, (Kind::Float, Device::Cpu)))
    }

    /// Its numbers, row by row.
    pub fn numbers(&mut self) -> &mut [f32] {
        let count = self.0.numel();
        if count == 0 {
            return &mut [];
        }
        // SAFETY: libtorch allocated this many aligned floats for `zeros`, contiguously, and set them. The tensor is private and was
        // never copied or passed on, so `&mut self` is the only way to its memory as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.0.data_ptr().cast::<f32>(), count) }
    }

    /// The tensor.
    pub fn into_tensor(self) -> Tensor {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_tensors_row_by_row() {
        let mut floats = Floats::zeros(&[2, 3]);
        floats.numbers().copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        floats.numbers()[4] = 7.0;
        let expected = Tensor::from_slice(&[1_f32, 2.0, 3.0, 4.0, 7.0, 6.0]).view([2, 3]);
        assert!(floats.into_tensor().equal(&expected));
        assert_eq!(Floats::zeros(&[0, 3]).numbers(), [] as [f32; 0]);
    }
}
