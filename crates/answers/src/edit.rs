//! `#[edit(FIND => REPLACE)]` writes a function as an edit of the course's answer, `#[given]` as the program that the learner finds.
//!
//! Code is compared by tokens, so line breaks and comments do not count. The code to find must occur exactly once.

use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Group, Ident, Spacing, TokenStream, TokenTree};

use crate::answers::skeleton;

/// The code to find, and its replacement.
struct Edit {
    find: Vec<TokenTree>,
    replace: TokenStream,
}

/// Where a function begins, before its edits.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Base {
    /// The course's answer.
    Answer,
    /// The program that the learner finds.
    Given,
}

/// The function `item`, a name without a body, made from the task's file `path`. `edit` is the argument of the outermost attribute, if that
/// is an edit; `item` contains the other attributes.
pub(crate) fn made(
    path: &Path,
    task: &str,
    mut base: Base,
    edit: Option<TokenStream>,
    item: TokenStream,
) -> Result<TokenStream, String> {
    let mut edits: Vec<Edit> = edit.map(Edit::read).transpose()?.into_iter().collect();
    let name = stub(item, &mut base, &mut edits)?;
    let mut text = fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if base == Base::Given {
        text = skeleton(&text, "//")?;
    }
    let text = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let mut function = function(text, task).ok_or_else(|| format!("{} has no function {task}", path.display()))?;
    for edit in edits {
        let mut count = 0;
        function = edit.apply(function, &mut count);
        if count != 1 {
            let sought: TokenStream = edit.find.into_iter().collect();
            return Err(format!("`{sought}` occurs {count} times in {}", path.display()));
        }
    }
    let named = function.into_iter().map(|token| match token {
        TokenTree::Ident(ident) if ident == task => TokenTree::Ident(name.clone()),
        token => token,
    });
    // What an edit leaves without a use is not worth an edit of its own.
    let unused: TokenStream = "#[allow(unused)]".parse().map_err(|error| format!("{error}"))?;
    Ok(unused.into_iter().chain(named).collect())
}

/// The name of the function. Adds the edits of its attributes, and notes that one says `given`.
fn stub(item: TokenStream, base: &mut Base, edits: &mut Vec<Edit>) -> Result<Ident, String> {
    let mut tokens = item.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(attribute) if attribute.delimiter() == Delimiter::Bracket => {
                let mut inside = attribute.stream().into_iter();
                match (inside.next(), inside.next()) {
                    (Some(TokenTree::Ident(name)), Some(TokenTree::Group(edit))) if name == "edit" => {
                        edits.push(Edit::read(edit.stream())?);
                    }
                    (Some(TokenTree::Ident(name)), None) if name == "given" => *base = Base::Given,
                    _ => {}
                }
            }
            TokenTree::Ident(word) if word == "fn" => {
                let Some(TokenTree::Ident(name)) = tokens.next() else { break };
                return Ok(name);
            }
            _ => {}
        }
    }
    Err("`edit` and `given` belong above `pub fn NAME() {}`".into())
}

/// The tokens of the public function `name`, from `pub` to its body.
fn function(text: TokenStream, name: &str) -> Option<Vec<TokenTree>> {
    let tokens: Vec<TokenTree> = text.into_iter().collect();
    let is = |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(ident) if ident == word);
    let begin =
        tokens.windows(3).position(|three| is(&three[0], "pub") && is(&three[1], "fn") && is(&three[2], name))?;
    let is_body = |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
    let end = begin + tokens[begin..].iter().position(is_body)?;
    Some(tokens[begin..=end].to_vec())
}

impl Edit {
    /// Reads `FIND => REPLACE`.
    fn read(argument: TokenStream) -> Result<Self, String> {
        let tokens: Vec<TokenTree> = argument.into_iter().collect();
        let is = |token: &TokenTree, sign: char| matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign);
        let joint = |token: &TokenTree| matches!(token, TokenTree::Punct(sign) if sign.spacing() == Spacing::Joint);
        let arrow = tokens.windows(2).position(|two| is(&two[0], '=') && joint(&two[0]) && is(&two[1], '>'));
        match arrow {
            Some(arrow) if arrow > 0 => {
                Ok(Edit { find: tokens[..arrow].to_vec(), replace: tokens[arrow + 2..].iter().cloned().collect() })
            }
            _ => Err("an edit is `FIND => REPLACE`".into()),
        }
    }

    /// Replaces the code to find, at every depth, and counts its occurrences.
    fn apply(&self, tokens: Vec<TokenTree>, count: &mut usize) -> Vec<TokenTree> {
        let (mut edited, mut rest) = (Vec::new(), &tokens[..]);
        while let [first, after @ ..] = rest {
            if rest.len() >= self.find.len() && rest.iter().zip(&self.find).all(|(token, sought)| same(token, sought)) {
                *count += 1;
                edited.extend(self.replace.clone());
                rest = &rest[self.find.len()..];
                continue;
            }
            edited.push(match first {
                TokenTree::Group(group) => {
                    let inside = self.apply(group.stream().into_iter().collect(), count);
                    TokenTree::Group(Group::new(group.delimiter(), inside.into_iter().collect()))
                }
                token => token.clone(),
            });
            rest = after;
        }
        edited
    }
}

/// Returns true if both are the same code, regardless of position.
fn same(one: &TokenTree, other: &TokenTree) -> bool {
    match (one, other) {
        (TokenTree::Group(one), TokenTree::Group(other)) => {
            let (inside, others): (Vec<_>, Vec<_>) =
                (one.stream().into_iter().collect(), other.stream().into_iter().collect());
            one.delimiter() == other.delimiter()
                && inside.len() == others.len()
                && inside.iter().zip(&others).all(|(one, other)| same(one, other))
        }
        (TokenTree::Punct(one), TokenTree::Punct(other)) => one.as_char() == other.as_char(),
        (TokenTree::Group(_) | TokenTree::Punct(_), _) | (_, TokenTree::Group(_) | TokenTree::Punct(_)) => false,
        (one, other) => one.to_string() == other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "//! Task.\nuse x::Y;\nfn twice() {}\npub fn twice(n: i64) -> i64 {\n    // <answer>\n    //~ n + 2\n    let m = f(2 * n);\n    m\n    // </answer>\n}";

    fn tried(base: Base, edit: Option<&str>, item: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answer.rs");
        fs::write(&path, ANSWER).unwrap();
        let edit = edit.map(|edit| edit.parse().unwrap());
        made(&path, "twice", base, edit, item.parse().unwrap()).map(|code| code.to_string())
    }

    fn plain(code: &str) -> String {
        format!("#[allow(unused)] {code}").parse::<TokenStream>().unwrap().to_string()
    }

    #[test]
    fn edits_the_answer_at_any_depth_and_gives_it_the_name() {
        let edit = Some("2 * n => 3 * n");
        let stub = "/// Three times.\n#[edit(m => m + 1)] pub fn thrice() {}";
        assert!(tried(Base::Answer, edit, stub).unwrap_err().contains("`m` occurs 2 times"));
        let stub = "/// Three times.\n#[edit(; m => ; m + 1)] pub fn thrice() {}";
        let wanted = plain("pub fn thrice(n: i64) -> i64 { let m = f(3*n); m + 1 }");
        assert_eq!(tried(Base::Answer, edit, stub).unwrap(), wanted);
    }

    #[test]
    fn takes_the_program_that_the_learner_finds_and_edits_it() {
        let found = plain("pub fn adds(n: i64) -> i64 { n + 2 }");
        assert_eq!(tried(Base::Given, None, "pub fn adds() {}").unwrap(), found);
        let edited = plain("pub fn adds(n: i64) -> i64 { n + 3 }");
        assert_eq!(tried(Base::Given, None, "#[edit(2 => 3)] pub fn adds() {}").unwrap(), edited);
        assert_eq!(tried(Base::Answer, Some("2 => 3"), "#[given] pub fn adds() {}").unwrap(), edited);
    }

    #[test]
    fn refuses_an_edit_that_is_none_or_changes_nothing() {
        let tried = |edit, stub| tried(Base::Answer, Some(edit), stub).unwrap_err();
        let stub = "pub fn thrice() {}";
        assert!(tried("4 * n => 3 * n", stub).contains("`4 * n` occurs 0 times"));
        assert!(tried("2 * n", stub).contains("FIND => REPLACE"));
        assert!(tried("2 => 3", "struct Twice;").contains("pub fn NAME"));
    }
}
