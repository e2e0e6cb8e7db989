//! Characters in a command line that look like others, as web pages, PDFs and word processors put them in: an en dash for `--`.

use std::ffi::OsStr;

use clap::Parser;
use lockstep_contract::foreign;

/// What each is called, the characters themselves, and what is meant.
const LOOK_ALIKES: [(&str, &str, &str); 13] = [
    ("an en dash", "\u{2013}", "`--` or `-`"),
    ("an em dash", "\u{2014}\u{2015}", "`--`"),
    ("a typographic hyphen or minus sign", "\u{2010}\u{2011}\u{2012}\u{2212}\u{2043}\u{fe58}\u{fe63}\u{ff0d}", "`-`"),
    (
        "a typographic quotation mark",
        "\u{2018}\u{2019}\u{201a}\u{201c}\u{201d}\u{201e}\u{ab}\u{bb}\u{2032}\u{2033}",
        "`'` or `\"`",
    ),
    ("a space of another kind", "\u{a0}\u{2002}\u{2003}\u{2007}\u{2009}\u{202f}\u{3000}", "an ordinary space"),
    ("an invisible character", "\u{ad}\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}", "nothing"),
    ("a colon of another kind", "\u{2236}\u{a789}\u{ff1a}", "`:`"),
    ("an equals sign of another kind", "\u{ff1d}\u{fe66}", "`=`"),
    ("a comma of another kind", "\u{ff0c}\u{3001}", "`,`"),
    ("an ellipsis", "\u{2026}", "what it stands for"),
    ("a slash of another kind", "\u{2044}\u{2215}\u{ff0f}", "`/`"),
    ("a full stop of another kind", "\u{ff0e}\u{3002}", "`.`"),
    ("a full-width digit", "０１２３４５６７８９", "an ordinary digit"),
];

/// Names the first look-alike among these words; `None` if there is none.
pub(super) fn find<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> Option<String> {
    words.into_iter().find_map(|word| {
        let word = word.to_str()?;
        let (name, c, meant) = word.chars().find_map(known)?;
        let word = foreign::escaped(word);
        let code = u32::from(c);
        Some(format!(
            "`{word}` has {name} (U+{code:04X}) where {meant} is meant, as in commands that were copied from a page or a PDF: type it again"
        ))
    })
}

fn known(c: char) -> Option<(&'static str, char, &'static str)> {
    let entry = LOOK_ALIKES.iter().find(|(_, all, _)| all.contains(c))?;
    Some((entry.0, c, entry.2))
}

/// Names the first of a program's arguments that begins like a flag, but for its dash.
pub(super) fn flag_like<'a>(args: impl IntoIterator<Item = &'a OsStr>) -> Option<String> {
    let is_flag = |word: &&OsStr| {
        let mut letters = word.to_str().unwrap_or_default().chars().skip_while(|c| *c == '-');
        let dashes = LOOK_ALIKES[..3].iter();
        letters.next().is_some_and(|first| dashes.clone().any(|(_, all, _)| all.contains(first)))
            && letters.find(|c| known(*c).is_none() && *c != '-').is_some_and(char::is_alphabetic)
    };
    find(args.into_iter().filter(is_flag))
}

/// This process's command line. An error in it names look-alikes, too.
pub fn parse<T: Parser>() -> T {
    T::try_parse().unwrap_or_else(|error| {
        let text = error.to_string();
        let named = std::env::args_os().skip(1).find_map(|word| {
            let shown = word.to_str().is_some_and(|word| word.chars().any(|c| known(c).is_some() && text.contains(c)));
            find([word.as_os_str()].into_iter().filter(|_| shown))
        });
        match named.filter(|_| error.use_stderr()) {
            Some(named) => T::command().error(error.kind(), format!("{named}\n\n{text}")).exit(),
            None => error.exit(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_looks_like_another_character() {
        for (word, name) in [
            ("–nproc-per-node=2", "an en dash (U+2013) where `--`"),
            ("—standalone", "an em dash (U+2014)"),
            ("--nproc\u{2011}per-node", "a typographic hyphen"),
            ("“host:29400”", "a typographic quotation mark"),
            ("--nnodes\u{a0}2", "a space of another kind (U+00A0)"),
            ("\u{200b}--standalone", "an invisible character"),
            ("--nnodes=1：2", "a colon of another kind"),
            ("--nnodes=２", "a full-width digit"),
        ] {
            let found = find(["run", word].map(OsStr::new)).unwrap();
            assert!(found.contains(name), "{found}");
        }
        assert_eq!(find(["--rdzv-endpoint=[::1]:0", "zürich.py", "-r", "0:3,1:2"].map(OsStr::new)), None);
    }

    #[test]
    fn a_programs_argument_is_named_only_if_it_begins_like_a_flag() {
        let found = |word: &str| flag_like([OsStr::new(word)]).is_some();
        assert!(["–lr=0.1", "-–lr", "—epochs"].into_iter().all(found));
        assert!(!["–", "−0.5", "a–b", "--text=“a”", "–5"].into_iter().any(found));
    }
}
