//! A word of a shell script: what is known of it before anything runs, and in which process the rest is made.

/// Around what a shell further out puts in before this shell reads it: characters that Unicode leaves to private use.
const MADE: char = '\u{e000}';
const END: char = '\u{e001}';

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// What stands there, without its quotes. What shells further out have made is marked in it.
    Text(String),
    /// What this shell makes, as it is written: `$head`, `$(hostname)`.
    Made(String),
}

/// A word, its known variables replaced.
#[derive(Clone, Debug, Default)]
pub(super) struct Word {
    /// Its line, from 1.
    pub(super) line: usize,
    /// As it stands in the script.
    pub(super) raw: String,
    /// It has an expansion outside quotes.
    pub(super) bare: bool,
    /// It is all that one expansion makes, which may be several words.
    pub(super) open: bool,
    /// Without its quotes. What its shell makes stands in it as it is written; what shells further out have made, between marks.
    pub(super) text: String,
    pieces: Vec<Piece>,
}

impl Word {
    pub(super) fn new(line: usize, raw: &str, bare: bool, pieces: Vec<Piece>) -> Self {
        let text = pieces.iter().map(|(Piece::Text(text) | Piece::Made(text))| text.as_str()).collect();
        let open = matches!(&*pieces, [Piece::Made(made)] if bare || made.contains(['@', '*']));
        Word { line, raw: raw.into(), bare, open, text, pieces }
    }

    /// The parts.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// What its own shell makes of it.
    pub(super) fn made(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Made(made) => Some(made.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// The text as another shell gets it: what this one makes is marked.
    pub(super) fn handed(&self) -> String {
        handed(&self.pieces)
    }
}

/// The pieces as another shell gets them.
pub(super) fn handed(pieces: &[Piece]) -> String {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(known) => text.push_str(known),
            Piece::Made(made) => text.push_str(&format!("{MADE}{}{END}", made.trim_start_matches('$'))),
        }
    }
    text
}

/// What shells further out have made within a text.
pub(super) fn made_outside(text: &str) -> impl Iterator<Item = &str> {
    text.split(MADE).skip(1).map(|rest| rest.split(END).next().unwrap_or_default())
}

/// Puts numbers in the place of what was made outside, whose characters are nothing to this shell, and keeps them in a list.
pub(super) fn hide(text: &str, hidden: &mut Vec<String>) -> String {
    let mut parts = text.split(MADE);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (made, rest) = part.split_once(END).unwrap_or((part, ""));
        out.push_str(&format!("{MADE}{}{END}{rest}", hidden.len()));
        hidden.push(made.into());
    }
    out
}

/// Undoes [`hide`].
pub(super) fn unhide(text: &str, hidden: &[String]) -> String {
    let mut parts = text.split(MADE);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once(END).unwrap_or((part, ""));
        let made = number.parse().ok().and_then(|number: usize| hidden.get(number)).map_or(number, String::as_str);
        out.push_str(&format!("{MADE}{made}{END}{rest}"));
    }
    out
}

/// The text for people.
pub(super) fn shown(text: &str) -> String {
    text.replace(MADE, "$").replace(END, "")
}

/// Returns true if nothing in it has to be made by any shell.
pub(super) fn is_plain(text: &str) -> bool {
    !text.contains(['$', '`', MADE])
}
