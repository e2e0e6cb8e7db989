//! `#[edit(FIND => REPLACE)]`: writes a function as an edit of the course's answer.
//!
//! Code is compared by tokens, so line breaks and comments do not count. The code to find must occur exactly once.

use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Group, Ident, Spacing, TokenStream, TokenTree};

/// The code to find, and its replacement.
struct Edit {
    find: Vec<TokenTree>,
    replace: TokenStream,
}

/// The function `item`, a name without a body, made from the answer in the file `answer`. `first` is the argument of the outermost
/// attribute; `item` contains the other attributes.
pub(crate) fn edited(answer: &Path, task: &str, first: TokenStream, item: TokenStream) -> Result<TokenStream, String> {
    let text = fs::read_to_string(answer).map_err(|error| format!("cannot read {}: {error}", answer.display()))?;
    let text = text.parse().map_err(|error| format!("{}: {error}", answer.display()))?;
    let (name, edits) = stub(first, item)?;
    let mut function = function(text, task).ok_or_else(|| format!("{} has no function {task}", answer.display()))?;
    for edit in edits {
        let mut count = 0;
        function = edit.apply(function, &mut count);
        if count != 1 {
            let sought: TokenStream = edit.find.into_iter().collect();
            return Err(format!("`{sought}` occurs {count} times in {}", answer.display()));
        }
    }
    let named = function.into_iter().map(|token| match token {
        TokenTree::Ident(ident) if ident == task => TokenTree::Ident(name.clone()),
        token => token,
    });
    Ok(named.collect())
}

/// The name of the function, and all of its edits.
fn stub(first: TokenStream, item: TokenStream) -> Result<(Ident, Vec<Edit>), String> {
    let mut edits = vec![Edit::read(first)?];
    let mut tokens = item.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(attribute) if attribute.delimiter() == Delimiter::Bracket => {
                let mut inside = attribute.stream().into_iter();
                if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(edit))) = (inside.next(), inside.next())
                    && name == "edit"
                {
                    edits.push(Edit::read(edit.stream())?);
                }
            }
            TokenTree::Ident(word) if word == "fn" => {
                let Some(TokenTree::Ident(name)) = tokens.next() else { break };
                return Ok((name, edits));
            }
            _ => {}
        }
    }
    Err("`edit` belongs above `pub fn NAME() {}`".into())
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

    const ANSWER: &str = "//! Task.\nuse x::Y;\nfn twice() {}\npub fn twice(n: i64) -> i64 {\n    // <answer>\n    let m = f(2 * n);\n    m\n}";

    fn tried(first: &str, item: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answer.rs");
        fs::write(&path, ANSWER).unwrap();
        edited(&path, "twice", first.parse().unwrap(), item.parse().unwrap()).map(|code| code.to_string())
    }

    fn plain(code: &str) -> String {
        code.parse::<TokenStream>().unwrap().to_string()
    }

    #[test]
    fn edits_the_answer_at_any_depth_and_gives_it_the_name() {
        let stub = "/// Three times.\n#[edit(m => m + 1)] pub fn thrice() {}";
        assert!(tried("2 * n => 3 * n", stub).unwrap_err().contains("`m` occurs 2 times"));
        let stub = "/// Three times.\n#[edit(; m => ; m + 1)] pub fn thrice() {}";
        let wanted = plain("pub fn thrice(n: i64) -> i64 { let m = f(3*n); m + 1 }");
        assert_eq!(tried("2 * n => 3 * n", stub).unwrap(), wanted);
    }

    #[test]
    fn refuses_an_edit_that_is_none_or_changes_nothing() {
        let stub = "pub fn thrice() {}";
        assert!(tried("4 * n => 3 * n", stub).unwrap_err().contains("`4 * n` occurs 0 times"));
        assert!(tried("2 * n", stub).unwrap_err().contains("FIND => REPLACE"));
        assert!(tried("2 => 3", "struct Twice;").unwrap_err().contains("pub fn NAME"));
    }
}
