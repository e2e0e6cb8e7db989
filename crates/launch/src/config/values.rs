//! The values of flags: numbers, times and choices, as torchrun's argument parser reads them.

use std::time::Duration;

use super::error::ConfigError;
use super::given::{Given, Source};

pub(super) fn whole(given: &Given) -> Result<i64, ConfigError> {
    let number = given.text.trim().parse();
    number.map_err(|_| ConfigError::NotOfType { given: given.clone(), expected: "a whole number" })
}

/// Seconds, possibly with a fraction, at most ten years, so that no sum overflows a clock.
pub(super) fn seconds(given: &Given) -> Result<Duration, ConfigError> {
    let number: f64 = given
        .text
        .trim()
        .parse()
        .map_err(|_| ConfigError::NotOfType { given: given.clone(), expected: "a number of seconds" })?;
    if !(0.0..=315_360_000.0).contains(&number) {
        return Err(ConfigError::not_allowed(given, "expected seconds from 0 to 315360000"));
    }
    Ok(Duration::from_secs_f64(number))
}

pub(super) fn seconds_if_given(given: &Given) -> Result<Option<Duration>, ConfigError> {
    if given.source == Source::Default { Ok(None) } else { seconds(given).map(Some) }
}

pub(super) fn choice<T: Copy>(given: &Given, known: &[(&str, T)], expected: &'static str) -> Result<T, ConfigError> {
    let found = known.iter().find(|(name, _)| *name == given.text).map(|(_, value)| *value);
    found.ok_or_else(|| ConfigError::NotOfType { given: given.clone(), expected })
}
