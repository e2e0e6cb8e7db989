//! The program's own state, apart from the model and the optimizer: a value of any type, to JSON and back.

use std::any::type_name;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{SnapshotError, Unfit};

/// Maximum length of the state, in bytes: it is in the header of the file, which must stay below 100 MB.
const LONGEST: usize = 16 << 20;

/// How many characters of a saved state a message shows.
const SHOWN: usize = 200;

/// The JSON to save. Checks that it reads back to equal JSON, so that a loss is found now and not when resuming.
pub(super) fn encode<E: Serialize + DeserializeOwned>(extra: &E) -> Result<String, SnapshotError> {
    let lost = |why: String| SnapshotError::State { type_name: type_name::<E>(), why };
    let text = serde_json::to_string(extra).map_err(|error| lost(error.to_string()))?;
    if text.len() > LONGEST {
        return Err(lost(format!(
            "it takes {} bytes and may take {LONGEST}; keep large values in tensors",
            text.len()
        )));
    }
    let again: E = serde_json::from_str(&text)
        .map_err(|error| lost(format!("it would be written as {} and not be read again: {error}", shortened(&text))))?;
    if value(&again).is_none_or(|again| Some(again) != value(extra)) {
        return Err(lost(format!("it would be written as {} and be read as something else", shortened(&text))));
    }
    Ok(text)
}

/// The saved value, if it is an `E` and an `E` has a place for all of it.
pub(super) fn decode<E: Serialize + DeserializeOwned>(text: &str) -> Result<E, Unfit> {
    let unfit =
        |why: String| Unfit::State { saved: shortened(text), type_name: type_name::<E>(), why: shortened(&why) };
    let extra: E = serde_json::from_str(text).map_err(|error| unfit(error.to_string()))?;
    let saved = serde_json::from_str(text).map_err(|error| unfit(error.to_string()))?;
    let lost = value(&extra).and_then(|here| lost_field(&saved, &here, ""));
    lost.map_or(Ok(extra), |field| Err(unfit(format!("it has no field `{field}` here"))))
}

fn value(extra: &impl Serialize) -> Option<Value> {
    serde_json::to_value(extra).ok()
}

/// The path of the first field that `saved` has and `here` lacks.
fn lost_field(saved: &Value, here: &Value, path: &str) -> Option<String> {
    match (saved, here) {
        (Value::Object(saved), Value::Object(here)) => saved.iter().find_map(|(name, saved)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            here.get(name).map_or(Some(path.clone()), |here| lost_field(saved, here, &path))
        }),
        (Value::Array(saved), Value::Array(here)) => saved
            .iter()
            .zip(here)
            .enumerate()
            .find_map(|(at, (saved, here))| lost_field(saved, here, &format!("{path}[{at}]"))),
        _ => None,
    }
}

fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct SoFar {
        best: f64,
        names: Vec<String>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Other {
        best: f64,
        epochs: u64,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Less {
        best: f64,
    }

    fn message(refused: Unfit) -> String {
        refused.to_string()
    }

    #[test]
    fn refuses_a_state_that_lacks_a_field_and_names_both_sides() {
        let text = encode(&SoFar { best: 0.5, names: vec!["a".into()] }).unwrap();
        let message = message(decode::<Other>(&text).unwrap_err());
        assert!(message.contains(r#"{"best":0.5,"names":["a"]}"#), "{message}");
        assert!(message.contains("Other") && message.contains("missing field `epochs`"), "{message}");
    }

    #[test]
    fn refuses_a_state_of_which_a_field_would_be_lost() {
        let text = encode(&vec![SoFar { best: 0.5, names: Vec::new() }]).unwrap();
        let message = message(decode::<Vec<Less>>(&text).unwrap_err());
        assert!(message.contains("no field `[0].names`") && message.contains("Less"), "{message}");
    }

    #[test]
    fn refuses_to_save_what_json_would_lose() {
        let error = encode(&SoFar { best: f64::NAN, names: Vec::new() }).unwrap_err().to_string();
        assert!(error.contains("SoFar") && error.contains(r#""best":null"#), "{error}");
    }

    #[test]
    fn refuses_to_save_what_no_header_would_hold() {
        let error = encode(&"x".repeat(LONGEST)).unwrap_err().to_string();
        assert!(error.contains("may take 16777216"), "{error}");
    }

    #[test]
    fn shows_the_beginning_of_a_long_state() {
        let message = message(decode::<Less>(&encode(&"é".repeat(500)).unwrap()).unwrap_err());
        assert!(message.contains("ééé…") && message.chars().count() < 600, "{message}");
    }

    proptest! {
        #[test]
        fn brings_back_every_bit(best in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL, names: Vec<String>) {
            let so_far = SoFar { best, names };
            let back: SoFar = decode(&encode(&so_far).unwrap()).unwrap();
            prop_assert_eq!((back.best.to_bits(), &back.names), (so_far.best.to_bits(), &so_far.names));
        }
    }
}
