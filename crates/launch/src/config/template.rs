//! Python's `string.Template.safe_substitute`, which torchrun applies to worker arguments and line prefixes.
//!
//! `${name}` and `$name` are replaced if the name is known, `$$` becomes `$`, everything else stays unchanged. Works on
//! bytes, because an argument need not be UTF-8.

/// Replaces the known names in `text`.
pub(super) fn substitute(text: &[u8], known: &dyn Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        let (piece, replacement) = place(&rest[at..], known);
        match replacement {
            Some(replacement) => out.extend_from_slice(replacement.as_bytes()),
            None => out.extend_from_slice(piece),
        }
        rest = &rest[at + piece.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// The placeholder at the start of `text`, which begins with `$`, and its replacement, if it has one.
fn place<'a>(text: &'a [u8], known: &dyn Fn(&str) -> Option<String>) -> (&'a [u8], Option<String>) {
    let after = &text[1..];
    if after.first() == Some(&b'$') {
        return (&text[..2], Some("$".to_owned()));
    }
    let braced = after.first() == Some(&b'{');
    let name = identifier(if braced { &after[1..] } else { after });
    let length = 1 + name.len() + if braced { 2 } else { 0 };
    if name.is_empty() || braced && text.get(length - 1) != Some(&b'}') {
        return (&text[..1], None);
    }
    (&text[..length], known(name))
}

/// The longest identifier, `[_a-zA-Z][_a-zA-Z0-9]*`, at the start.
fn identifier(text: &[u8]) -> &str {
    let end = text.iter().position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'_')).unwrap_or(text.len());
    let name = if text.first().is_some_and(u8::is_ascii_digit) { &[] } else { &text[..end] };
    std::str::from_utf8(name).unwrap_or_default() // ASCII, by the line above
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pair is the result of `string.Template(text).safe_substitute(local_rank="3")` in Python 3.11.
    const PYTHON: [(&str, &str); 20] = [
        ("${local_rank}", "3"),
        ("$local_rank", "3"),
        ("$local_ranks", "$local_ranks"),
        ("$$", "$"),
        ("$$local_rank", "$local_rank"),
        ("$$$local_rank", "$3"),
        ("a$", "a$"),
        ("${local_rank", "${local_rank"),
        ("${}", "${}"),
        ("$1", "$1"),
        ("${ local_rank}", "${ local_rank}"),
        ("$LOCAL_RANK", "$LOCAL_RANK"),
        ("--rank=${local_rank}/x", "--rank=3/x"),
        ("${other}", "${other}"),
        ("$é", "$é"),
        ("${local_rank}${local_rank}", "33"),
        ("$$$$", "$$"),
        ("$_x", "$_x"),
        ("cost: 5$", "cost: 5$"),
        ("${local_rank}_é", "3_é"),
    ];

    fn third(name: &str) -> Option<String> {
        (name == "local_rank").then(|| "3".to_owned())
    }

    #[test]
    fn replaces_what_pythons_template_replaces() {
        for (text, expected) in PYTHON {
            assert_eq!(String::from_utf8(substitute(text.as_bytes(), &third)).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn keeps_bytes_that_are_not_utf_8() {
        assert_eq!(substitute(b"\xff$\xff${local_rank}\xfe", &third), b"\xff$\xff3\xfe");
    }
}
