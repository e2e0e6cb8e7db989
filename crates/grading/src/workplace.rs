//! Where a learner works: in a checkout of the course, or in a folder that `lockstep init` has made, which has the tasks in Python and needs
//! no checkout.

use std::path::{Path, PathBuf};

use lockstep_contract::is_checkout;

use crate::Language;
use crate::language::PYTHON;

/// The file by which a learner's folder is known.
pub const MARKER: &str = "lockstep.toml";
/// The folder with a folder for each lab.
const TASKS: &str = "tasks";

/// Where a learner's answers are, and the record of those that have passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workplace {
    /// With the answers in Rust, and those in Python in its folder `python`.
    Checkout(PathBuf),
    /// With answers in Python only.
    Folder(PathBuf),
}

impl Workplace {
    /// The nearest one that contains this file or folder.
    pub fn around(path: &Path) -> Option<Self> {
        let root = path.ancestors().find(|folder| folder.join(MARKER).is_file() || is_checkout(folder))?;
        Some(Self::at(root))
    }

    /// The nearest one that contains the current folder.
    pub fn here() -> Option<Self> {
        Self::around(&std::env::current_dir().ok()?)
    }

    /// Whether this is a folder without a checkout.
    pub fn is_folder(&self) -> bool {
        matches!(self, Workplace::Folder(_))
    }

    /// Where a chapter is read, by the name of its file: the file of the checkout, or the command without one.
    pub fn chapter(file: &str) -> String {
        if Self::here().is_some_and(|here| here.is_folder()) {
            format!("`lockstep book {}`", file.trim_end_matches(".md"))
        } else {
            format!("book/src/{file}")
        }
    }

    /// The one whose root this is.
    pub fn at(root: &Path) -> Self {
        if root.join(MARKER).is_file() { Workplace::Folder(root.into()) } else { Workplace::Checkout(root.into()) }
    }

    /// The folder with the tasks in Python of all labs, relative to the root. It looks the same in a checkout, where it is in a folder of its own, and
    /// without one.
    pub fn tasks_in_python(&self) -> PathBuf {
        match self {
            Workplace::Checkout(_) => Path::new(PYTHON).join(TASKS),
            Workplace::Folder(_) => TASKS.into(),
        }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        match self {
            Workplace::Checkout(root) | Workplace::Folder(root) => root,
        }
    }

    /// The language of its tasks, unless a command asks for another.
    pub fn language(&self) -> Language {
        match self {
            Workplace::Checkout(_) => Language::Rust,
            Workplace::Folder(_) => Language::Python,
        }
    }

    /// Its folder.
    pub fn into_root(self) -> PathBuf {
        match self {
            Workplace::Checkout(root) | Workplace::Folder(root) => root,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_nearest_workplace_counts() {
        let outer = tempfile::tempdir().unwrap();
        let checkout = outer.path();
        let inner = checkout.join("target/mine");
        let task = inner.join("tasks/05_collectives/mean.py");
        fs::create_dir_all(task.parent().unwrap()).unwrap();
        assert_eq!(
            Workplace::around(&task),
            Workplace::around(checkout.parent().unwrap()),
            "nothing marks a workplace"
        );
        fs::create_dir(checkout.join("labs")).unwrap();
        fs::write(checkout.join("Cargo.lock"), "").unwrap();
        assert_eq!(Workplace::around(&task), Some(Workplace::Checkout(checkout.into())));
        fs::write(inner.join(MARKER), "").unwrap();
        assert_eq!(Workplace::around(&task), Some(Workplace::Folder(inner.clone())));
        assert_eq!(Workplace::around(&task).unwrap().root(), inner);
        let shown = |place: &Path| (Workplace::at(place).language(), Workplace::at(place).tasks_in_python());
        assert_eq!(shown(&inner), (Language::Python, "tasks".into()));
        assert_eq!(shown(checkout), (Language::Rust, "python/tasks".into()));
    }
}
