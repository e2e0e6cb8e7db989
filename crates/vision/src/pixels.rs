//! Turns pixels into the numbers that a network takes.

use image::RgbImage;

/// `ToTensor`, then `Normalize`: each channel of 0 to 255 becomes (v / 255 - mean) / std, in single precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    /// For red, green and blue, in units of 0 to 1.
    pub mean: [f32; 3],
    /// The same; never 0.
    pub std: [f32; 3],
}

impl Normalize {
    /// `ToTensor` alone: numbers from 0 to 1.
    pub const NONE: Self = Normalize { mean: [0.0; 3], std: [1.0; 3] };
    /// The tutorials' values for CIFAR-10.
    pub const CIFAR10: Self = Normalize { mean: [0.4914, 0.4822, 0.4465], std: [0.2023, 0.1994, 0.2010] };
    /// ImageNet's values, with which torchvision's pretrained networks were trained.
    pub const IMAGENET: Self = Normalize { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };

    /// Writes the picture as planes of red, green and blue, row by row: shape `[3, height, width]`.
    ///
    /// # Panics
    /// Panics when `planes` does not have three numbers for each pixel.
    pub fn write(&self, picture: &RgbImage, planes: &mut [f32]) {
        let pixels = picture.as_raw().as_chunks::<3>().0;
        assert_eq!(planes.len(), pixels.len() * 3, "three planes of {} pixels", pixels.len());
        let (red, rest) = planes.split_at_mut(pixels.len());
        let (green, blue) = rest.split_at_mut(pixels.len());
        // Divides once for each possible value, not for each pixel.
        let [reds, greens, blues] = std::array::from_fn(|channel| self.table(channel));
        for (((pixel, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
            let [r, g, b] = pixel.map(usize::from);
            (*red, *green, *blue) = (reds[r], greens[g], blues[b]);
        }
    }

    /// The number for each value of a channel.
    fn table(&self, channel: usize) -> [f32; 256] {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        std::array::from_fn(|value| (value as f32 / 255.0 - mean) / std)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_planes_of_normalised_numbers() {
        let picture = RgbImage::from_raw(2, 1, vec![0, 51, 255, 255, 0, 102]).unwrap();
        let mut planes = [0.0; 6];
        Normalize::NONE.write(&picture, &mut planes);
        assert_eq!(planes, [0.0, 1.0, 0.2, 0.0, 1.0, 0.4]);
        Normalize { mean: [0.5; 3], std: [0.5, 0.25, 1.0] }.write(&picture, &mut planes);
        assert_eq!(planes[..3], [-1.0, 1.0, (0.2 - 0.5) / 0.25]);
    }
}
