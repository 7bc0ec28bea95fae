// SPDX-License-Identifier: Apache-2.0
//! The tokenizer that a GGUF file's byte-level BPE metadata stands for, as its tokenizer.json would describe it.

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use crate::tokenizer::TextTokenizer;
use crate::{Failure, Outcome};

const QWEN2_REGEX: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_REGEX: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TYPE_CONTROL: i32 = 3;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_UNUSED: i32 = 5;

/// What `tokenizer.ggml.pre` names.
struct Style {
    pre_tokenizer: PreTokenizerWrapper,
    nfc: bool,
    ignore_merges: bool,
}

pub fn build(pre: &str, tokens: &[&str], types: &[i32], merges: &[&str], bos: i64) -> Outcome<TextTokenizer> {
    if tokens.is_empty() {
        return Err(Failure::Invalid("tokenizer.ggml.tokens is empty".to_owned()));
    }
    if !types.is_empty() && types.len() != tokens.len() {
        return Err(Failure::Invalid(format!(
            "tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}",
            types.len(),
            tokens.len()
        )));
    }
    let bos = match u32::try_from(bos) {
        Ok(id) if (id as usize) < tokens.len() => Some(id),
        _ if bos == -1 => None,
        _ => {
            return Err(Failure::Invalid(format!(
                "tokenizer.ggml.bos_token_id is {bos}, but there are {} tokens",
                tokens.len()
            )));
        }
    };
    let style = style_of(pre)?;

    let mut vocabulary = AHashMap::with_capacity(tokens.len());
    let (mut control, mut user_defined, mut unused) = (Vec::new(), Vec::new(), Vec::new());
    for (id, token) in tokens.iter().enumerate() {
        let number = u32::try_from(id).map_err(|_| Failure::Invalid("tokenizer.ggml.tokens is too long".to_owned()))?;
        match types.get(id).copied().unwrap_or(1) {
            TYPE_CONTROL => control.push(AddedToken::from(*token, true).normalized(false)),
            TYPE_USER_DEFINED => user_defined.push(AddedToken::from(*token, false).normalized(false)),
            TYPE_UNUSED => unused.push(number),
            _ => {}
        }
        vocabulary.entry((*token).to_owned()).or_insert(number);
    }
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary, split_merges(merges)?)
        .ignore_merges(style.ignore_merges)
        .build()
        .map_err(|error| Failure::Invalid(format!("tokenizer.ggml.merges: {error}")))?;

    let mut inner = Tokenizer::new(bpe);
    inner.with_pre_tokenizer(Some(style.pre_tokenizer));
    inner.with_decoder(Some(ByteLevel::default()));
    if style.nfc {
        inner.with_normalizer(Some(NFC));
    }
    inner.add_special_tokens(&control);
    inner.add_tokens(&user_defined);
    Ok(TextTokenizer::new(inner, bos, unused))
}

fn split_merges(merges: &[&str]) -> Outcome<Vec<(String, String)>> {
    merges
        .iter()
        .enumerate()
        .map(|(rank, merge)| match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                Ok((left.to_owned(), right.to_owned()))
            }
            _ => Err(Failure::Invalid(format!(
                "tokenizer.ggml.merges[{rank}] is {merge:?}: two pieces with one space between them expected"
            ))),
        })
        .collect()
}

fn style_of(pre: &str) -> Outcome<Style> {
    let plain = |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, use_regex));
    let sequence =
        |first: PreTokenizerWrapper, use_regex| PreTokenizerWrapper::from(Sequence::new(vec![first, plain(use_regex)]));
    let split = |regex: &str| {
        Split::new(SplitPattern::Regex(regex.to_owned()), SplitDelimiterBehavior::Isolated, false)
            .map(|split| sequence(split.into(), false))
            .map_err(|error| Failure::Internal(error.to_string()))
    };
    let (pre_tokenizer, nfc, ignore_merges) = match pre {
        "" | "default" | "gpt-2" => (plain(true), false, false),
        "smollm" => (sequence(Digits::new(true).into(), true), false, false),
        "qwen2" | "deepseek-r1-qwen" => (split(QWEN2_REGEX)?, true, false),
        "llama-bpe" | "llama3" | "llama-v3" => (split(LLAMA3_REGEX)?, false, true),
        _ => {
            return Err(Failure::Unsupported(format!(
                "tokenizer.ggml.pre is \"{pre}\"; known are smollm, qwen2, llama-bpe, gpt-2 and default"
            )));
        }
    };
    Ok(Style { pre_tokenizer, nfc, ignore_merges })
}
