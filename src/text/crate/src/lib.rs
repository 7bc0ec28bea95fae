// SPDX-License-Identifier: Apache-2.0
//! The bridge to C++: tokenizers, minijinja and llguidance for `src/text/*.cc`.
//!
//! Every function that can fail returns a `Result`, which is an exception on the C++ side; a panic of a library is
//! caught and becomes one too. The text of an error starts with one letter for its kind: see [`Failure`].

mod constraint;
mod content;
mod deep_stack;
mod gbnf;
mod gguf;
mod python;
mod rewrite;
mod template;
mod tokenizer;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use constraint::{GrammarMatcher, Vocabulary};
use template::ChatTemplate;
use tokenizer::TextTokenizer;

#[cxx::bridge(namespace = "tandem::text::bridge")]
mod ffi {
    /// What C++ needs to decode: everything by token id, in two blobs with end offsets.
    struct TokenTable {
        bytes: Vec<u8>,
        byte_ends: Vec<u32>,
        pieces: Vec<u8>,
        piece_ends: Vec<u32>,
        special: Vec<u8>,
    }

    extern "Rust" {
        type TextTokenizer;
        fn tokenizer_from_json(json: &[u8]) -> Result<Box<TextTokenizer>>;
        /// `types` may be empty; `bos` is prepended when special tokens are asked for, -1 for none.
        fn tokenizer_from_gguf(
            pre: &[u8],
            tokens: &CxxVector<CxxString>,
            types: &[i32],
            merges: &CxxVector<CxxString>,
            bos: i64,
        ) -> Result<Box<TextTokenizer>>;
        fn token_table(tokenizer: &TextTokenizer) -> Result<TokenTable>;
        fn encode(tokenizer: &TextTokenizer, text: &[u8], add_special_tokens: bool) -> Result<Vec<u32>>;
        fn piece_to_id(tokenizer: &TextTokenizer, piece: &[u8]) -> i64;

        type ChatTemplate;
        fn template_compile(source: &[u8]) -> Result<Box<ChatTemplate>>;
        /// `context` is one JSON object: the variables of the template.
        fn template_render(chat: &ChatTemplate, context: &[u8]) -> Result<Vec<u8>>;
        fn template_wants_content_parts(chat: &ChatTemplate) -> bool;

        type Vocabulary;
        type GrammarMatcher;
        /// The bytes of token i end at ends[i]; `special` has one flag a token.
        fn vocabulary_new(bytes: &[u8], ends: &[u32], special: &[u8], eos: u32) -> Result<Box<Vocabulary>>;
        fn grammar_compile(vocabulary: &Vocabulary, kind: &[u8], source: &[u8]) -> Result<Box<GrammarMatcher>>;
        fn matcher_copy(matcher: &GrammarMatcher) -> Result<Box<GrammarMatcher>>;
        fn matcher_accept(matcher: &mut GrammarMatcher, token: u32) -> Result<()>;
        fn matcher_finished(matcher: &GrammarMatcher) -> bool;
        fn matcher_mask(matcher: &mut GrammarMatcher) -> Result<Vec<u32>>;
    }
}

/// An error on its way to C++.
#[derive(Debug)]
pub enum Failure {
    /// The input is wrong: "I" and the message.
    Invalid(String),
    /// The input may be fine but is of a kind we do not handle: "U" and the message.
    Unsupported(String),
    /// A library broke its own rules: "X" and the message.
    Internal(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Invalid(message) => write!(f, "I{message}"),
            Failure::Unsupported(message) => write!(f, "U{message}"),
            Failure::Internal(message) => write!(f, "X{message}"),
        }
    }
}

impl std::error::Error for Failure {}

pub type Outcome<T> = Result<T, Failure>;

/// Runs `body`; a panic becomes an error that says where it came from.
fn guarded<T>(what: &str, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(outcome) => outcome,
        Err(payload) => {
            let reason = payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no reason given".to_owned());
            Err(Failure::Internal(format!("{what} panicked: {reason}")))
        }
    }
}

fn utf8<'a>(bytes: &'a [u8], what: &str) -> Outcome<&'a str> {
    std::str::from_utf8(bytes)
        .map_err(|error| Failure::Invalid(format!("{what} is not valid UTF-8 at byte {}", error.valid_up_to())))
}

fn tokenizer_from_json(json: &[u8]) -> Outcome<Box<TextTokenizer>> {
    guarded("reading the tokenizer", || Ok(Box::new(TextTokenizer::from_json(json)?)))
}

fn tokenizer_from_gguf(
    pre: &[u8],
    tokens: &cxx::CxxVector<cxx::CxxString>,
    types: &[i32],
    merges: &cxx::CxxVector<cxx::CxxString>,
    bos: i64,
) -> Outcome<Box<TextTokenizer>> {
    guarded("building the tokenizer", || {
        let mut texts = Vec::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            texts.push(utf8(token.as_bytes(), &format!("tokenizer.ggml.tokens[{id}]"))?);
        }
        let mut pairs = Vec::with_capacity(merges.len());
        for (rank, merge) in merges.iter().enumerate() {
            pairs.push(utf8(merge.as_bytes(), &format!("tokenizer.ggml.merges[{rank}]"))?);
        }
        let pre = utf8(pre, "tokenizer.ggml.pre")?;
        Ok(Box::new(gguf::build(pre, &texts, types, &pairs, bos)?))
    })
}

fn token_table(tokenizer: &TextTokenizer) -> Outcome<ffi::TokenTable> {
    guarded("listing the vocabulary", || {
        let table = tokenizer.table()?;
        Ok(ffi::TokenTable {
            bytes: table.bytes,
            byte_ends: table.byte_ends,
            pieces: table.pieces,
            piece_ends: table.piece_ends,
            special: table.special,
        })
    })
}

fn encode(tokenizer: &TextTokenizer, text: &[u8], add_special_tokens: bool) -> Outcome<Vec<u32>> {
    guarded("tokenizing", || tokenizer.encode(utf8(text, "the text")?, add_special_tokens))
}

fn piece_to_id(tokenizer: &TextTokenizer, piece: &[u8]) -> i64 {
    guarded("looking up a token", || Ok(tokenizer.piece_to_id(utf8(piece, "the token")?)))
        .ok()
        .flatten()
        .map_or(-1, i64::from)
}

fn template_compile(source: &[u8]) -> Outcome<Box<ChatTemplate>> {
    guarded("compiling the chat template", || Ok(Box::new(ChatTemplate::compile(utf8(source, "the chat template")?)?)))
}

fn template_render(chat: &ChatTemplate, context: &[u8]) -> Outcome<Vec<u8>> {
    guarded("rendering the chat template", || chat.render(context))
}

fn template_wants_content_parts(chat: &ChatTemplate) -> bool {
    chat.wants_content_parts()
}

fn vocabulary_new(bytes: &[u8], ends: &[u32], special: &[u8], eos: u32) -> Outcome<Box<Vocabulary>> {
    guarded("indexing the vocabulary", || Ok(Box::new(Vocabulary::new(bytes, ends, special, eos)?)))
}

fn grammar_compile(vocabulary: &Vocabulary, kind: &[u8], source: &[u8]) -> Outcome<Box<GrammarMatcher>> {
    guarded("compiling the grammar", || {
        Ok(Box::new(vocabulary.compile(utf8(kind, "the kind")?, utf8(source, "the grammar")?)?))
    })
}

fn matcher_copy(matcher: &GrammarMatcher) -> Outcome<Box<GrammarMatcher>> {
    guarded("copying the grammar's state", || Ok(Box::new(matcher.copy())))
}

fn matcher_accept(matcher: &mut GrammarMatcher, token: u32) -> Outcome<()> {
    guarded("following the grammar", || matcher.accept(token))
}

fn matcher_finished(matcher: &GrammarMatcher) -> bool {
    matcher.finished()
}

fn matcher_mask(matcher: &mut GrammarMatcher) -> Outcome<Vec<u32>> {
    guarded("asking the grammar for tokens", || matcher.mask())
}
