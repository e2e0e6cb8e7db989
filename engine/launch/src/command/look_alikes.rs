//! Characters in a command line or a script that look like others, as web pages, PDFs and word processors put them in: an en dash for
//! `--`.

use std::ffi::OsStr;

use clap::Parser;
use lockstep_contract::foreign;

use LookAlikeKind::{Blank, Dash, Quote, Sign};

/// A character that looks like another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookAlike {
    /// The character itself.
    pub c: char,
    /// What it looks like.
    pub kind: LookAlikeKind,
    name: &'static str,
    meant: &'static str,
}

/// What a look-alike is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookAlikeKind {
    /// `-` or `--`.
    Dash,
    /// `'` or `"`.
    Quote,
    /// A space, or nothing.
    Blank,
    /// A digit or another sign.
    Sign,
}

/// What each is called, the characters themselves, and what is meant.
const LOOK_ALIKES: [(LookAlikeKind, &str, &str, &str); 13] = [
    (Dash, "an en dash", "\u{2013}", "`--` or `-`"),
    (Dash, "an em dash", "\u{2014}\u{2015}", "`--`"),
    (
        Dash,
        "a typographic hyphen or minus sign",
        "\u{2010}\u{2011}\u{2012}\u{2212}\u{2043}\u{fe58}\u{fe63}\u{ff0d}",
        "`-`",
    ),
    (
        Quote,
        "a typographic quotation mark",
        "\u{2018}\u{2019}\u{201a}\u{201c}\u{201d}\u{201e}\u{ab}\u{bb}\u{2032}\u{2033}",
        "`'` or `\"`",
    ),
    (
        Blank,
        "a space of another kind",
        "\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{202f}\u{205f}\u{3000}",
        "an ordinary space",
    ),
    (
        Blank,
        "an invisible character",
        "\u{ad}\u{85}\u{200b}\u{200c}\u{200d}\u{2028}\u{2029}\u{2060}\u{feff}",
        "nothing",
    ),
    (Sign, "a colon of another kind", "\u{2236}\u{a789}\u{ff1a}", "`:`"),
    (Sign, "an equals sign of another kind", "\u{ff1d}\u{fe66}", "`=`"),
    (Sign, "a comma of another kind", "\u{ff0c}\u{3001}", "`,`"),
    (Sign, "an ellipsis", "\u{2026}", "what it stands for"),
    (Sign, "a slash of another kind", "\u{2044}\u{2215}\u{ff0f}", "`/`"),
    (Sign, "a full stop of another kind", "\u{ff0e}\u{3002}", "`.`"),
    (Sign, "a full-width digit", "０１２３４５６７８９", "an ordinary digit"),
];

impl LookAlike {
    /// The look-alike that this character is.
    pub fn of(c: char) -> Option<Self> {
        let (kind, name, _, meant) = *LOOK_ALIKES.iter().find(|(_, _, all, _)| all.contains(c))?;
        Some(LookAlike { c, kind, name, meant })
    }

    /// Says what is wrong with a word that has it.
    pub fn in_word(self, word: &str) -> String {
        let LookAlike { name, meant, .. } = self;
        format!("`{}` has {name} (U+{:04X}) where {meant} is meant", foreign::escaped(word), u32::from(self.c))
    }
}

/// Names the first look-alike among these words; `None` if there is none.
pub(super) fn find<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> Option<String> {
    words.into_iter().find_map(|word| {
        let word = word.to_str()?;
        let wrong = word.chars().find_map(LookAlike::of)?.in_word(word);
        Some(format!("{wrong}, as in commands that were copied from a page or a PDF: type it again"))
    })
}

/// Names the first of a program's arguments that begins like a flag, but for its dash.
pub(super) fn flag_like<'a>(args: impl IntoIterator<Item = &'a OsStr>) -> Option<String> {
    let is_flag = |word: &&OsStr| {
        let mut letters = word.to_str().unwrap_or_default().chars().skip_while(|c| *c == '-');
        letters.next().and_then(LookAlike::of).is_some_and(|first| first.kind == Dash)
            && letters.find(|c| LookAlike::of(*c).is_none() && *c != '-').is_some_and(char::is_alphabetic)
    };
    find(args.into_iter().filter(is_flag))
}

/// This process's command line. An error in it names look-alikes, too.
pub fn parse<T: Parser>() -> T {
    T::try_parse().unwrap_or_else(|error| {
        let text = error.to_string();
        let named = std::env::args_os().skip(1).find_map(|word| {
            let shown =
                word.to_str().is_some_and(|word| word.chars().any(|c| LookAlike::of(c).is_some() && text.contains(c)));
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
