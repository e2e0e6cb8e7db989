//! The book's pages on profiles and on mistakes in scripts.

use super::check;
use super::profile::{FIELDS, Field};

/// The book's page on the fields of a site profile, without its title.
pub(crate) fn profile_page() -> String {
    let mut page = String::from(
        "A site profile is a TOML file. It tells `lockstep render` what a cluster is like; [Batch scripts](batch-scripts.md) explains \
         the command. An unknown field is refused, with the nearest name.\n\n<div class=\"wide\">\n\n| field | such as | meaning |\n|---|---|---|\n",
    );
    for Field { name, example, meaning } in FIELDS {
        page.push_str(&format!("| `{name}` | `{example}` | {meaning} |\n"));
    }
    page + "\n</div>\n"
}

/// The book's page on the mistakes that `--check` knows, without its title.
pub(crate) fn mistakes_page() -> String {
    let rules = || check::RULES.iter().copied().flatten();
    let mut page = format!(
        "`lockstep render --check FILE` knows {} kinds of mistake; [Batch scripts](batch-scripts.md#check-a-script) explains the command. An \
         *error* makes a job fail, hang or do something else than the script says. A *warning* works, until it does not, or is slow.\n",
        rules().count()
    );
    for check::Rule { name, level, why, wrong, right, .. } in rules() {
        let shown = |text: &str| text.trim_end().replace('\r', "^M");
        page.push_str(&format!("\n## {name}\n\n{}: {why}.\n\n", capital(&level.to_string())));
        page.push_str(&format!(
            "Wrong:\n\n```text\n{}\n```\n\nRight:\n\n```text\n{}\n```\n",
            shown(wrong),
            shown(right)
        ));
    }
    page
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}
