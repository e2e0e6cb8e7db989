//! Texts as tokens, by characters or by byte pairs that are learned from a text.
//!
//! A tokenizer depends on the text alone, so all ranks make the same one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Converts a text to tokens, and tokens to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokenizer {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// The characters in their order, without repetition: a character's number is its position.
    Characters(Vec<char>),
    /// Pairs of tokens that are one token: the first pair is token 256. Tokens below are bytes.
    BytePairs(Vec<(u32, u32)>),
}

/// Why a text cannot become tokens, or tokens cannot become a data set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A character that the tokenizer has not seen.
    #[error(
        "the character {character:?} at byte {at} is not among the tokenizer's {known}: make the tokenizer of all texts, or of byte pairs"
    )]
    Unknown {
        character: char,
        at: usize,
        /// The number of characters that it knows.
        known: usize,
    },
    /// Fewer tokens than there are bytes.
    #[error(
        "a vocabulary of {asked} tokens is too small for byte pairs: the 256 bytes are tokens, so ask for 256 or more"
    )]
    Vocabulary { asked: usize },
    /// A window without tokens.
    #[error("windows of 0 tokens: choose how many tokens a sample has, 1 or more")]
    Window,
    /// No token follows another.
    #[error("a text of {tokens} tokens has nothing to predict: it needs 2 or more")]
    Short { tokens: usize },
}

/// How many tokens there are before the first pair.
const BYTES: u32 = 256;

impl Tokenizer {
    /// A token for each character that occurs in the text.
    pub fn characters(text: &str) -> Self {
        Tokenizer { kind: Kind::Characters(text.chars().collect::<BTreeSet<_>>().into_iter().collect()) }
    }

    /// Byte-pair encoding (Sennrich and others, "Neural Machine Translation of Rare Words with Subword Units", 2016; on bytes as in GPT-2):
    /// begins with the 256 bytes, and makes the most frequent pair of neighbours one token until there are `vocabulary` tokens or no pair
    /// occurs twice. Among equally frequent pairs, the one with the smaller numbers comes first. No token crosses the boundary of a word.
    pub fn byte_pairs(text: &str, vocabulary: usize) -> Result<Self, TextError> {
        if vocabulary < BYTES as usize {
            return Err(TextError::Vocabulary { asked: vocabulary });
        }
        let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
        words(text).for_each(|word| *counted.entry(word).or_default() += 1);
        let mut counted: Vec<(Vec<u32>, u64)> = counted.into_iter().map(|(word, count)| (bytes(word), count)).collect();
        let mut pairs = Vec::new();
        while pairs.len() + (BYTES as usize) < vocabulary {
            let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
            for (word, count) in &counted {
                word.windows(2).for_each(|two| *counts.entry((two[0], two[1])).or_default() += count);
            }
            let best = counts.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair)));
            let Some((pair, 2..)) = best else { break };
            let token = BYTES + pairs.len() as u32;
            counted.iter_mut().for_each(|(word, _)| merge(word, pair, token));
            pairs.push(pair);
        }
        Ok(Tokenizer { kind: Kind::BytePairs(pairs) })
    }

    /// The number of different tokens.
    pub fn vocabulary(&self) -> usize {
        match &self.kind {
            Kind::Characters(characters) => characters.len(),
            Kind::BytePairs(pairs) => BYTES as usize + pairs.len(),
        }
    }

    /// The tokens of a text.
    ///
    /// Errors: a character that the tokenizer has not seen; byte pairs know every text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        match &self.kind {
            Kind::Characters(known) => text
                .char_indices()
                .map(|(at, character)| match known.binary_search(&character) {
                    Ok(place) => Ok(place as u32),
                    Err(_) => Err(TextError::Unknown { character, at, known: known.len() }),
                })
                .collect(),
            Kind::BytePairs(pairs) => {
                let numbers: HashMap<(u32, u32), u32> = pairs.iter().copied().zip(BYTES..).collect();
                let mut done: HashMap<&str, Vec<u32>> = HashMap::new();
                let tokens =
                    words(text).flat_map(|word| done.entry(word).or_insert_with(|| merged(word, &numbers)).clone());
                Ok(tokens.collect())
            }
        }
    }

    /// The text of tokens. Bytes that are not text, such as half a character, become U+FFFD, and so do numbers beyond the
    /// vocabulary.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match &self.kind {
            Kind::Characters(known) => tokens
                .iter()
                .map(|&token| known.get(token as usize).copied().unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect(),
            Kind::BytePairs(pairs) => {
                let mut bytes = Vec::new();
                tokens.iter().for_each(|&token| spell(token, pairs, &mut bytes));
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }
}

/// Appends the bytes of a token.
fn spell(token: u32, pairs: &[(u32, u32)], bytes: &mut Vec<u8>) {
    match (u8::try_from(token), pairs.get(token.saturating_sub(BYTES) as usize)) {
        (Ok(byte), _) => bytes.push(byte),
        (_, Some(&(first, second))) => {
            spell(first, pairs, bytes);
            spell(second, pairs, bytes);
        }
        (_, None) => bytes.push(0xFF), // never occurs in UTF-8
    }
}

fn bytes(word: &str) -> Vec<u32> {
    word.bytes().map(u32::from).collect()
}

/// Replaces each pair, from the left, by its token.
fn merge(word: &mut Vec<u32>, pair: (u32, u32), token: u32) {
    let mut kept = 0;
    let mut at = 0;
    while at < word.len() {
        let is_pair = at + 1 < word.len() && (word[at], word[at + 1]) == pair;
        word[kept] = if is_pair { token } else { word[at] };
        (kept, at) = (kept + 1, at + 1 + usize::from(is_pair));
    }
    word.truncate(kept);
}

/// The tokens of a word: the pair that was learned first is merged first.
fn merged(word: &str, numbers: &HashMap<(u32, u32), u32>) -> Vec<u32> {
    let mut word = bytes(word);
    loop {
        let learned = |two: &[u32]| numbers.get(&(two[0], two[1])).map(|&token| (token, (two[0], two[1])));
        let Some((token, pair)) = word.windows(2).filter_map(learned).min() else { return word };
        merge(&mut word, pair, token);
    }
}

/// Cuts a text where its kind of characters changes: letters, digits, spaces and all others. A single space belongs to what follows it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let kind = |c: char| match c {
        _ if c.is_whitespace() => 0,
        _ if c.is_alphabetic() => 1,
        _ if c.is_numeric() => 2,
        _ => 3,
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let of = |text: &str, of: u8| text.find(|c| kind(c) != of).unwrap_or(text.len());
        let after = if first == ' ' { rest[1..].chars().next().map_or(0, kind) } else { 0 };
        let end = match kind(first) {
            0 if after > 0 => 1 + of(&rest[1..], after),
            0 => {
                let spaces = of(rest, 0);
                // The last space belongs to the word that follows.
                let keeps_last = spaces == rest.len() || spaces == 1 || !rest[..spaces].ends_with(' ');
                spaces - usize::from(!keeps_last)
            }
            kind => of(rest, kind),
        };
        let (word, others) = rest.split_at(end);
        rest = others;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_words_with_the_space_before_them() {
        let all = |text| words(text).collect::<Vec<_>>();
        assert_eq!(
            all("the 2 runs,  and\n\n so on "),
            ["the", " 2", " runs", ",", " ", " and", "\n\n", " so", " on", " "]
        );
        assert_eq!(all("x=10ms\té"), ["x", "=", "10", "ms", "\t", "é"]);
        assert_eq!(all(""), [""; 0]);
        assert_eq!(all("   "), ["   "]);
    }

    #[test]
    fn every_text_comes_back() {
        let text = "Ranks and bytes: é, 漢字 and 🦀\r\n\tend  ";
        for tokenizer in [Tokenizer::characters(text), Tokenizer::byte_pairs(text, 300).unwrap()] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
            assert!(tokenizer.encode(text).unwrap().iter().all(|&token| (token as usize) < tokenizer.vocabulary()));
        }
        // One that it has not seen, and half a character.
        let pairs = Tokenizer::byte_pairs("aa aa", 300).unwrap();
        assert_eq!(pairs.decode(&pairs.encode("🦀 ab").unwrap()), "🦀 ab");
        assert_eq!(pairs.decode(&[0xC3, 97, 9999]), "\u{FFFD}a\u{FFFD}");
    }

    #[test]
    fn stops_when_no_pair_occurs_twice() {
        let pairs = Tokenizer::byte_pairs("abab", 1000).unwrap();
        assert_eq!((pairs.vocabulary(), pairs.encode("abab").unwrap()), (257, vec![256, 256]));
    }

    #[test]
    fn says_what_is_wrong_with_a_text() {
        let unknown = Tokenizer::characters("ab").encode("abc").unwrap_err().to_string();
        assert!(unknown.starts_with("the character 'c' at byte 2 is not among the tokenizer's 2"), "{unknown}");
        assert_eq!(Tokenizer::byte_pairs("", 255).unwrap_err(), TextError::Vocabulary { asked: 255 });
    }
}
