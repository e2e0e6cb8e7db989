//! Checks: pure functions from the files of runs to a [`Finding`].
//!
//! Each check either shows its claim with numbers, or says what contradicts it, or says why this run cannot decide it. No check
//! relies on the lab's own output, and missing evidence contradicts a claim.

mod falls;
mod learning;
mod messages;
mod near;
mod same_training;
mod same_weights;
mod samples;

#[cfg(test)]
use crate::report::Verdict;
use crate::report::{Doubt, Finding};
pub(crate) use falls::loss_falls;
pub(crate) use learning::learns;
pub(crate) use messages::{collectives_hold, messages_arrive};
pub(crate) use near::loss_is_near;
pub(crate) use same_training::{same_training, same_training_as};
pub(crate) use same_weights::{compare as compare_weights, same_weights, same_weights_as};
pub(crate) use samples::each_sample_once;

/// An integer with thousands separators: `105,866`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 rank`, `2 ranks`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count as u64), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_numbers_with_commas() {
        let texts = [0, 999, 1000, 105_866, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "105,866", "1,234,567"]);
    }
}
