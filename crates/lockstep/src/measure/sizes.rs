//! The sweep: the message sizes to measure.

use crate::exit::UsageError;

/// Powers of two in bytes, from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    least: u64,
    most: u64,
}

/// The smallest message: one element of a float tensor.
const ELEMENT: u64 = 4;

/// The largest message, 4 GiB: more is probably a typing mistake.
const GREATEST: u64 = 1 << 32;

impl Sizes {
    /// The powers of two between `least` and `most` bytes.
    ///
    /// # Errors
    /// One of them is not a power of two, is less than one 4-byte element or more than 4 GiB, or `least` is above `most`.
    pub fn new(least: u64, most: u64) -> Result<Self, UsageError> {
        let usable = |bytes: u64| bytes.is_power_of_two() && (ELEMENT..=GREATEST).contains(&bytes);
        if let Some(bad) = [least, most].into_iter().find(|&bytes| !usable(bytes)) {
            return Err(UsageError(format!(
                "a message of {bad} bytes cannot be measured: give a power of two from {ELEMENT} to {GREATEST}"
            )));
        }
        if least > most {
            return Err(UsageError(format!("no sizes from {least} to {most} bytes: the least is above the most")));
        }
        Ok(Sizes { least, most })
    }

    /// The sizes in bytes, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        let most = self.most;
        std::iter::successors(Some(self.least), |bytes| Some(bytes * 2)).take_while(move |&bytes| bytes <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_powers_of_two_with_both_ends() {
        assert_eq!(Sizes::new(4, 32).unwrap().iter().collect::<Vec<_>>(), [4, 8, 16, 32]);
        assert_eq!(Sizes::new(8, 8).unwrap().iter().collect::<Vec<_>>(), [8]);
        assert_eq!(Sizes::new(GREATEST, GREATEST).unwrap().iter().count(), 1);
    }

    #[test]
    fn refuses_sizes_that_no_float_tensor_has_and_those_that_no_memory_holds() {
        for (least, most, named) in [
            (2, 8, "of 2 bytes"),
            (4, 12, "of 12 bytes"),
            (0, 8, "of 0 bytes"),
            (16, 8, "from 16 to 8"),
            (4, 1 << 33, "of 8589934592 bytes cannot be measured: give a power of two from 4 to 4294967296"),
            (1 << 63, 1 << 63, "of 9223372036854775808 bytes"),
        ] {
            let message = Sizes::new(least, most).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
