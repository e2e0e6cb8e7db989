//! The book's page on what doctor finds.

use super::check::{CHECKS, Check};

/// The book's page on what doctor finds, without its title.
pub(crate) fn page() -> String {
    let all = || CHECKS.into_iter().flatten();
    let mut page = format!(
        "`lockstep doctor` knows {} faults; [When nodes do not find each other](when-nodes-do-not-meet.md) explains the command and the \
         most frequent of them. An *error* keeps training from starting, makes it hang or lose data, and the exit code is 1. With a \
         *warning* it works, until it does not, or it is slow. A *note* is good to know.\n\n<div class=\"wide\">\n\n\
         | fault | level | what happens | where doctor looks |\n|---|---|---|---|\n",
        all().count()
    );
    for Check { name, level, why, source, .. } in all() {
        let cell = |text: &str| text.replace('|', "\\|");
        page.push_str(&format!("| `{name}` | {level} | {} | {} |\n", cell(why), cell(source)));
    }
    page + "\n</div>\n"
}
