//! Splits a shell script into simple commands and words.

/// A word.
#[derive(Clone, Debug, Default)]
pub(super) struct Word {
    /// Without its quotes.
    pub(super) text: String,
    /// As it stands.
    pub(super) raw: String,
    /// Its line, from 1.
    pub(super) line: usize,
    /// It is in single quotes: nothing of it is evaluated here.
    pub(super) single: bool,
    /// It has a variable outside quotes.
    pub(super) bare: bool,
    /// What stands between `$(` and `)`, with the line.
    pub(super) substitutions: Vec<(String, usize)>,
}

impl Word {
    /// `NAME=value` as two.
    pub(super) fn assignment(&self) -> Option<(String, Word)> {
        let (name, raw) = self.raw.split_once('=')?;
        let is_name = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
        let is_name = is_name && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let text = self.text.split_once('=')?.1;
        is_name.then(|| (name.into(), Word { text: text.into(), raw: raw.into(), ..self.clone() }))
    }
}

/// A simple command, its variables not yet replaced.
#[derive(Clone, Debug, Default)]
pub(super) struct Raw {
    pub(super) line: usize,
    pub(super) words: Vec<Word>,
    pub(super) background: bool,
}

/// Words of the shell itself: what follows them is a command again.
const KEYWORDS: [&str; 12] = ["if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!"];

/// The simple commands of a text whose first line has this number.
pub(super) fn lex(text: &str, line: usize) -> Vec<Raw> {
    let mut lexer = Lexer {
        chars: text.chars().collect(),
        at: 0,
        line,
        done: vec![],
        command: Raw::default(),
        word: None,
        documents: vec![],
    };
    while lexer.at < lexer.chars.len() {
        lexer.step();
    }
    lexer.end_command(false);
    lexer.done
}

/// The first word of a line, without its quotes.
pub(in crate::render) fn first_word(line: &str) -> Option<String> {
    lex(line, 1).into_iter().next()?.words.into_iter().next().map(|word| word.text)
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    done: Vec<Raw>,
    command: Raw,
    word: Option<Word>,
    /// Ends of here-documents that begin with the next line.
    documents: Vec<String>,
}

impl Lexer {
    fn step(&mut self) {
        let (c, next) = (self.chars[self.at], self.chars.get(self.at + 1).copied());
        match c {
            '\\' if next == Some('\n') => {
                self.end_word();
                self.line += 1;
                self.at += 2;
            }
            '\n' => {
                self.end_command(false);
                self.line += 1;
                self.at += 1;
                self.skip_documents();
            }
            ' ' | '\t' => {
                self.end_word();
                self.at += 1;
            }
            '#' if self.word.is_none() => self.skip_while(|c| c != '\n'),
            '&' if matches!(next, Some('>')) || self.before() == Some('>') => self.redirect(),
            '>' | '<' if next != Some('(') => self.redirect(),
            ';' | '|' | '&' | '(' | ')' => {
                let doubled = next == Some(c);
                self.end_command(c == '&' && !doubled);
                self.at += 1 + usize::from(doubled);
            }
            _ => self.in_word(c),
        }
    }

    fn before(&self) -> Option<char> {
        self.at.checked_sub(1).map(|at| self.chars[at])
    }

    fn in_word(&mut self, c: char) {
        let line = self.line;
        let mut word = self.word.take().unwrap_or(Word { line, ..Word::default() });
        match c {
            '\'' => {
                word.single = word.raw.is_empty();
                let text = self.until('\'', false, &mut word);
                word.text.push_str(&text);
            }
            '"' => {
                let text = self.until('"', true, &mut word);
                word.text.push_str(&text);
            }
            '$' if self.chars.get(self.at + 1) == Some(&'(') => {
                word.bare = true;
                let text = self.substitution(&mut word);
                word.text.push_str(&text);
            }
            '\\' => {
                let text: String = self.chars[self.at..].iter().take(2).collect();
                word.raw.push_str(&text);
                word.text.push_str(&text);
                self.at += text.chars().count();
            }
            _ => {
                let follows = self.chars.get(self.at + 1);
                word.bare |= c == '$' && follows.is_some_and(|c| c.is_ascii_alphabetic() || *c == '{' || *c == '_');
                word.raw.push(c);
                word.text.push(c);
                self.at += 1;
            }
        }
        self.word = Some(word);
    }

    /// What stands between two quotes; of double ones, with substitutions.
    fn until(&mut self, quote: char, evaluated: bool, word: &mut Word) -> String {
        let mut text = String::new();
        word.raw.push(quote);
        self.at += 1;
        while let Some(&c) = self.chars.get(self.at).filter(|c| **c != quote) {
            if evaluated && c == '$' && self.chars.get(self.at + 1) == Some(&'(') {
                text.push_str(&self.substitution(word));
                continue;
            }
            let take = if evaluated && c == '\\' { 2 } else { 1 };
            for &c in self.chars[self.at..].iter().take(take) {
                self.line += usize::from(c == '\n');
                word.raw.push(c);
                text.push(c);
            }
            self.at += take;
        }
        word.raw.push(quote);
        self.at += 1;
        text.replace("\\\n", " ").replace("\\\"", "\"")
    }

    /// `$(…)`, as it stands; its inside is kept for later.
    fn substitution(&mut self, word: &mut Word) -> String {
        let (begin, line) = (self.at, self.line);
        let mut depth = 0;
        while let Some(&c) = self.chars.get(self.at) {
            depth += i32::from(c == '(') - i32::from(c == ')');
            self.line += usize::from(c == '\n');
            self.at += 1;
            if c == ')' && depth == 0 {
                break;
            }
        }
        let text: String = self.chars[begin..self.at].iter().collect();
        if !text.starts_with("$((") {
            word.substitutions.push((text[2..].trim_end_matches(')').to_owned(), line));
        }
        word.raw.push_str(&text);
        text
    }

    /// A redirection and its target are no words; a here-document's text is skipped later.
    fn redirect(&mut self) {
        if self.word.as_ref().is_some_and(|word| word.raw.chars().all(|c| c.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        let is_document = self.chars[self.at..].starts_with(&['<', '<']) && self.chars.get(self.at + 2) != Some(&'<');
        self.skip_while(|c| "<>&-".contains(c));
        self.skip_while(|c| c == ' ');
        let begin = self.at;
        if self.chars.get(self.at) == Some(&'(') {
            return;
        }
        self.skip_while(|c| !" \t\n;|&()".contains(c));
        let target: String = self.chars[begin..self.at].iter().filter(|c| !"'\"\\".contains(**c)).collect();
        if is_document {
            self.documents.push(target);
        }
    }

    fn skip_documents(&mut self) {
        for end in std::mem::take(&mut self.documents) {
            while self.at < self.chars.len() {
                let begin = self.at;
                self.skip_while(|c| c != '\n');
                let line: String = self.chars[begin..self.at].iter().collect();
                self.at += 1;
                self.line += 1;
                if line.trim_start_matches('\t') == end {
                    break;
                }
            }
        }
    }

    fn skip_while(&mut self, holds: impl Fn(char) -> bool) {
        while self.chars.get(self.at).is_some_and(|c| holds(*c)) {
            self.at += 1;
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if self.command.words.is_empty() {
            self.command.line = word.line;
            if KEYWORDS.contains(&&*word.raw) {
                return;
            }
        }
        self.command.words.push(word);
    }

    fn end_command(&mut self, background: bool) {
        self.end_word();
        let command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            self.done.push(Raw { background, ..command });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        lex(text, 1).iter().map(|command| command.words.iter().map(|word| word.text.clone()).collect()).collect()
    }

    #[test]
    fn splits_commands_and_words_as_a_shell_does() {
        assert_eq!(
            words("a b;c | d && e & # f\ng \\\n h"),
            [vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"], vec!["g", "h"]]
        );
        assert_eq!(words("x 'a b' \"c $(d \"e\")\" f\\ g"), [["x", "a b", "c $(d \"e\")", "f\\ g"]]);
        assert_eq!(words("if a; then b; fi"), [["a"], ["b"]]);
        assert_eq!(words("a >out 2>&1 <in b"), [["a", "b"]]);
    }

    #[test]
    fn skips_here_documents_and_counts_lines() {
        let commands = lex("a <<'END' x\nb\nc\nEND\nd 'e\nf' \\\n g\nh &\n", 1);
        let seen: Vec<_> =
            commands.iter().map(|command| (command.line, command.words.len(), command.background)).collect();
        assert_eq!(seen, [(1, 2, false), (5, 3, false), (8, 1, true)]);
    }

    #[test]
    fn never_fails_on_a_text_that_is_cut_anywhere() {
        let text = "a 'b' \"c $(d $(e))\" <<E\nf\nE\ng \\\nh `i` ${j} &";
        for end in 0..text.len() {
            lex(&text[..end], 1);
        }
    }
}
