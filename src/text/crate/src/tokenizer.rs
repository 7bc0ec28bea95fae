// SPDX-License-Identifier: Apache-2.0
//! A byte-level tokenizer of the `tokenizers` library, and the table of its tokens' bytes.

use std::collections::HashMap;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Model, Tokenizer};

use crate::{Failure, Outcome};

/// Ids above this are refused: the table is as long as the largest id.
const MAX_TOKEN_ID: u32 = 1 << 24;
/// The regex engine keeps a stack entry per white-space character of a run and gives up silently, with other ids, when
/// its stack is full (one million entries).
const MAX_WHITESPACE_RUN: usize = 500_000;

pub struct TextTokenizer {
    inner: Tokenizer,
    /// Prepended when special tokens are asked for (GGUF; a tokenizer.json says so in its post-processor).
    bos: Option<u32>,
    /// Ids that stand for nothing: padding rows of a GGUF vocabulary.
    unused: Vec<u32>,
}

/// Bytes and piece of every id up to the largest; ids that do not exist are empty.
pub struct Table {
    pub bytes: Vec<u8>,
    pub byte_ends: Vec<u32>,
    pub pieces: Vec<u8>,
    pub piece_ends: Vec<u32>,
    pub special: Vec<u8>,
}

impl TextTokenizer {
    pub fn new(inner: Tokenizer, bos: Option<u32>, unused: Vec<u32>) -> TextTokenizer {
        TextTokenizer { inner, bos, unused }
    }

    pub fn from_json(json: &[u8]) -> Outcome<TextTokenizer> {
        let mut inner = Tokenizer::from_bytes(json).map_err(|error| Failure::Invalid(error.to_string()))?;
        // A server neither cuts nor pads a prompt because of what a file was trained with.
        inner.with_truncation(None).map_err(|error| Failure::Internal(error.to_string()))?;
        inner.with_padding(None);
        if !is_byte_level(&inner) {
            return Err(Failure::Unsupported(
                "the tokenizer is not a byte-level one (decoder or pre_tokenizer of type ByteLevel expected)"
                    .to_owned(),
            ));
        }
        Ok(TextTokenizer::new(inner, None, Vec::new()))
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Outcome<Vec<u32>> {
        if longest_whitespace_run(text) > MAX_WHITESPACE_RUN {
            return Err(Failure::Invalid(format!(
                "the text has more than {MAX_WHITESPACE_RUN} white-space characters in a row"
            )));
        }
        let encoding =
            self.inner.encode_fast(text, add_special_tokens).map_err(|error| Failure::Invalid(error.to_string()))?;
        let mut ids = Vec::with_capacity(encoding.get_ids().len() + 1);
        ids.extend(self.bos.filter(|_| add_special_tokens));
        ids.extend_from_slice(encoding.get_ids());
        Ok(ids)
    }

    pub fn piece_to_id(&self, piece: &str) -> Option<u32> {
        self.inner.token_to_id(piece)
    }

    pub fn table(&self) -> Outcome<Table> {
        let added = self.inner.get_added_tokens_decoder();
        let vocabulary = self.inner.get_model().get_vocab();
        let largest = vocabulary.values().chain(added.keys()).max().copied();
        if largest.is_some_and(|id| id > MAX_TOKEN_ID) {
            return Err(Failure::Invalid(format!("token id {} is above {MAX_TOKEN_ID}", largest.unwrap_or_default())));
        }
        let size = largest.map_or(0, |id| id as usize + 1);

        let alphabet = byte_alphabet();
        let mut pieces: Vec<&str> = vec![""; size];
        for (piece, id) in &vocabulary {
            pieces[*id as usize] = piece;
        }
        let mut contents: Vec<Option<&str>> = vec![None; size];
        let mut special = vec![0u8; size];
        for (id, token) in &added {
            contents[*id as usize] = Some(&token.content);
            pieces[*id as usize] = &token.content;
            special[*id as usize] = u8::from(token.special);
        }
        for id in &self.unused {
            if let Some(slot) = contents.get_mut(*id as usize) {
                *slot = Some("");
            }
        }

        let mut table = Table {
            bytes: Vec::new(),
            byte_ends: Vec::with_capacity(size),
            pieces: Vec::new(),
            piece_ends: Vec::with_capacity(size),
            special,
        };
        for (piece, content) in pieces.into_iter().zip(contents) {
            match content {
                Some(content) => table.bytes.extend_from_slice(content.as_bytes()),
                None => push_piece_bytes(&alphabet, piece, &mut table.bytes),
            }
            table.pieces.extend_from_slice(piece.as_bytes());
            table.byte_ends.push(offset(table.bytes.len())?);
            table.piece_ends.push(offset(table.pieces.len())?);
        }
        Ok(table)
    }
}

fn offset(length: usize) -> Outcome<u32> {
    u32::try_from(length).map_err(|_| Failure::Invalid("the vocabulary has more than 4 GiB of text".to_owned()))
}

fn is_byte_level(tokenizer: &Tokenizer) -> bool {
    match tokenizer.get_decoder() {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(DecoderWrapper::Sequence(sequence)) => {
            sequence.get_decoders().iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_)))
        }
        Some(_) => false,
        None => match tokenizer.get_pre_tokenizer() {
            Some(PreTokenizerWrapper::ByteLevel(_)) => true,
            Some(PreTokenizerWrapper::Sequence(sequence)) => {
                sequence.as_ref().iter().any(|part| matches!(part, PreTokenizerWrapper::ByteLevel(_)))
            }
            _ => false,
        },
    }
}

/// The characters that stand for bytes: printable Latin-1 for itself, the other 68 from U+0100 upwards in order.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut alphabet = HashMap::with_capacity(256);
    let mut next = 0x100u32;
    for byte in 0..=255u8 {
        let itself = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let character = if itself {
            char::from(byte)
        } else {
            let character = char::from_u32(next).unwrap_or('\u{100}');
            next += 1;
            character
        };
        alphabet.insert(character, byte);
    }
    alphabet
}

/// A piece with any character outside the alphabet stands for its own UTF-8.
fn push_piece_bytes(alphabet: &HashMap<char, u8>, piece: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in piece.chars() {
        match alphabet.get(&character) {
            Some(byte) => bytes.push(*byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(piece.as_bytes());
                return;
            }
        }
    }
}

fn longest_whitespace_run(text: &str) -> usize {
    if text.len() <= MAX_WHITESPACE_RUN {
        return 0;
    }
    let (mut longest, mut run) = (0, 0);
    for character in text.chars() {
        run = if character.is_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}
