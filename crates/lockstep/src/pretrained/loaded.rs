//! The result of loading, as a value and as text.

use std::fmt;
use std::path::PathBuf;

use tch::Kind;

use crate::snapshot::listed;

/// The result of [`load`](super::load), name by name; every list of names is sorted. `Display` writes one or a few sentences in
/// one line.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The file.
    pub path: PathBuf,
    /// Variables that now have the file's values.
    pub matched: Vec<String>,
    /// Variables of the model that [`LoadOptions::skip`](super::LoadOptions::skip) left out.
    pub skipped: Vec<String>,
    /// Tensors of the file with names that the model lacks, left out by `skip`, such as an old head.
    pub ignored: Vec<String>,
    /// Variables of the model that the file lacks; always empty if loading was strict.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks; always empty if loading was strict.
    pub unexpected: Vec<String>,
    /// Variables whose dtype differs from the file's: name, the file's dtype, the model's.
    pub converted: Vec<(String, Kind, Kind)>,
    /// Other notes: where in the file the weights were, and which prefixes were stripped.
    pub notes: Vec<String>,
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loaded { path, matched, skipped, ignored, missing, unexpected, converted, notes } = self;
        let all = matched.len() + skipped.len() + missing.len();
        write!(f, "loaded {} of {all} variables from {}", matched.len(), path.display())?;
        for (label, names) in [
            ("left as they are", skipped),
            ("not taken", ignored),
            ("not in the file", missing),
            ("only in the file", unexpected),
        ] {
            if !names.is_empty() {
                write!(f, "; {label}: {}", listed(names))?;
            }
        }
        if let [(_, from, to), ..] = converted[..] {
            let same = converted.iter().all(|(_, other_from, other_to)| (*other_from, *other_to) == (from, to));
            let (from, to) =
                if same { (format!("{from:?}"), format!("{to:?}")) } else { ("several".into(), "the model's".into()) };
            write!(f, "; {} converted from {from} to {to}", converted.len())?;
        }
        notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}
