//! A data folder with one folder per split: `Train`, `Validation` and optionally `Test`.

use std::path::Path;
use std::sync::Arc;

use super::{DecodedCache, ImageFolder};
use lockstep::data::DataError;
use lockstep_datafiles::folder::SplitFolders;

/// The splits of one data folder. All have the same classes in the same order.
#[derive(Debug, Clone)]
pub struct Splits {
    /// The pictures to train on.
    pub train: ImageFolder,
    /// The held-out pictures that select the best model.
    pub validation: ImageFolder,
    /// The held-out pictures that select nothing, if there are any.
    pub test: Option<ImageFolder>,
}

impl Splits {
    /// What was skipped in each split, as [`ImageFolder::skip_summary`] describes it.
    pub fn skip_summaries(&self) -> Vec<String> {
        let all = [Some(&self.train), Some(&self.validation), self.test.as_ref()];
        all.into_iter().flatten().filter_map(ImageFolder::skip_summary).collect()
    }

    /// Finds and checks `Train` (or `training`), `Validation` (or `val`, `valid`) and, if it exists, `Test` (or `testing`) in
    /// `dir`, ignoring case.
    ///
    /// # Errors
    /// Fails when training or validation is missing (the message lists what is there), two folders match one split, one is not
    /// a valid [`ImageFolder`], or their classes differ.
    pub fn open(dir: &Path) -> Result<Self, DataError> {
        let SplitFolders { train, validation, test } = SplitFolders::find(dir)?;
        let splits = Splits {
            train: ImageFolder::open(&train)?,
            validation: ImageFolder::open(&validation)?,
            test: test.map(|test| ImageFolder::open(&test)).transpose()?,
        };
        splits.check()?;
        Ok(splits)
    }

    /// Takes decoded pictures from this cache, and adds them to it.
    #[must_use]
    pub fn cached(self, cache: &Arc<DecodedCache>) -> Self {
        let cached = |folder: ImageFolder| folder.cached(Arc::clone(cache));
        Splits { train: cached(self.train), validation: cached(self.validation), test: self.test.map(cached) }
    }

    fn check(&self) -> Result<(), DataError> {
        let train = &self.train;
        match [Some(&self.validation), self.test.as_ref()].into_iter().flatten().find(|o| o.classes != train.classes) {
            None => Ok(()),
            Some(other) => Err(DataError::new("use")
                .at(&other.root)
                .expected(format!("the classes of {}: {}", train.root.display(), train.classes.join(", ")))
                .found(other.classes.join(", "))
                .hint("both need the same class folders")),
        }
    }
}
