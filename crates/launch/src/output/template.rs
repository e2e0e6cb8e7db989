//! The prefix of a worker's lines.

/// torchrun's variable for it.
const VARIABLE: &str = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";

/// A text with `${role_name}`, `${rank}` and `${local_rank}` in it (elastic/agent/server/local_elastic_agent.py).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(String);

impl Default for Template {
    /// torchrun's: `[${role_name}${local_rank}]:`.
    fn default() -> Self {
        Template("[${role_name}${local_rank}]:".into())
    }
}

impl Template {
    /// A template of one's own.
    pub fn new(text: impl Into<String>) -> Self {
        Template(text.into())
    }

    /// As `TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE` says, or the default.
    pub fn from_environment() -> Self {
        std::env::var(VARIABLE).map_or_else(|_| Template::default(), Template::new)
    }

    /// The prefix of one worker. As with Python's `safe_substitute`: `$name` is `${name}`, `$$` is a dollar sign, and what
    /// is not known stays.
    pub fn render(&self, role_name: &str, rank: usize, local_rank: usize) -> String {
        let mut text = String::new();
        let mut rest = self.0.as_str();
        while let Some(dollar) = rest.find('$') {
            text.push_str(&rest[..dollar]);
            rest = &rest[dollar + 1..];
            let (name, after) = name(rest);
            match name {
                "$" => text.push('$'),
                "role_name" => text.push_str(role_name),
                "rank" => text.push_str(&rank.to_string()),
                "local_rank" => text.push_str(&local_rank.to_string()),
                _ => {
                    text.push('$');
                    continue;
                }
            }
            rest = after;
        }
        text + rest
    }
}

/// The name that follows a dollar sign, and what follows the name.
fn name(rest: &str) -> (&str, &str) {
    if let Some(after) = rest.strip_prefix('$') {
        return ("$", after);
    }
    if let Some(inner) = rest.strip_prefix('{') {
        return inner.split_once('}').unwrap_or(("", rest));
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    rest.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_torchruns_prefix() {
        assert_eq!(Template::default().render("trainer", 9, 1), "[trainer1]:");
    }

    #[test]
    fn replaces_what_is_known_and_keeps_the_rest() {
        let rendered = |text: &str| Template::new(text).render("r", 12, 3);
        assert_eq!(rendered("${role_name}-${rank}/$local_rank| "), "r-12/3| ");
        assert_eq!(rendered("$$rank ${other} $rankle ${rank $"), "$rank ${other} $rankle ${rank $");
        assert_eq!(rendered("${local_rank}${local_rank}é$é"), "33é$é");
    }
}
