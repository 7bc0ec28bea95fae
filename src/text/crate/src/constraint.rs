// SPDX-License-Identifier: Apache-2.0
//! Constrained decoding over llguidance: a vocabulary, grammars over it, and matchers that say which tokens may come
//! next.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::gbnf;
use crate::{Failure, Outcome};

/// Everything that grammars of one vocabulary share.
pub struct Vocabulary {
    factory: ParserFactory,
    size: usize,
}

/// Where one output is in its grammar.
pub struct GrammarMatcher {
    matcher: Matcher,
    words: usize,
}

impl Vocabulary {
    /// The bytes of token i end at `ends[i]`. Special tokens never match text. `eos` out of range: there is none.
    pub fn new(bytes: &[u8], ends: &[u32], special: &[u8], eos: u32) -> Outcome<Vocabulary> {
        let mut words = Vec::with_capacity(ends.len());
        let mut begin = 0;
        for (id, end) in ends.iter().enumerate() {
            let end = *end as usize;
            let word = bytes
                .get(begin..end)
                .ok_or_else(|| Failure::Internal(format!("token {id} ends at {end}, after {begin}")))?;
            let marked = special.get(id).is_some_and(|flag| *flag != 0) && !word.is_empty();
            words.push(if marked { [&[TokTrie::SPECIAL_TOKEN_MARKER], word].concat() } else { word.to_vec() });
            begin = end;
        }
        let size =
            u32::try_from(words.len()).map_err(|_| Failure::Invalid("the vocabulary is too large".to_owned()))?;
        let info = TokRxInfo::new(size, if eos < size { eos } else { INVALID_TOKEN });
        let trie = TokTrie::from(&info, &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| Failure::Internal(error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Vocabulary { factory, size: words.len() })
    }

    /// `kind`: json_schema, lark, grammar (Lark or GBNF), regex or choice (a JSON array of strings).
    pub fn compile(&self, kind: &str, source: &str) -> Outcome<GrammarMatcher> {
        let invalid = |error: &dyn std::fmt::Display| Failure::Invalid(error.to_string());
        let grammar = match kind {
            "json_schema" => {
                TopLevelGrammar::from_json_schema(serde_json::from_str(source).map_err(|error| invalid(&error))?)
            }
            "regex" => TopLevelGrammar::from_regex(source),
            "choice" => TopLevelGrammar::from_lark(choice_of(source)?),
            "grammar" if gbnf::is_gbnf(source) => TopLevelGrammar::from_lark(gbnf::to_lark(source)?),
            "lark" | "grammar" => TopLevelGrammar::from_lark(source.to_owned()),
            _ => return Err(Failure::Internal(format!("unknown kind of grammar {kind:?}"))),
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(Failure::Invalid(error)),
            None => Ok(GrammarMatcher { matcher, words: self.size.div_ceil(32) }),
        }
    }
}

/// Lark has strings as JSON has them.
fn choice_of(source: &str) -> Outcome<String> {
    let texts: Vec<String> = serde_json::from_str(source).map_err(|error| Failure::Invalid(error.to_string()))?;
    let quoted: Vec<String> = texts.iter().map(|text| serde_json::Value::from(text.as_str()).to_string()).collect();
    Ok(format!("start: {}", quoted.join(" | ")))
}

impl GrammarMatcher {
    /// A matcher at the same place that goes its own way from here.
    pub fn copy(&self) -> GrammarMatcher {
        GrammarMatcher { matcher: self.matcher.deep_clone(), words: self.words }
    }

    /// The output goes on with `token`. An error if the grammar does not allow it.
    pub fn accept(&mut self, token: u32) -> Outcome<()> {
        self.matcher.consume_token(token).map_err(|error| Failure::Invalid(error.to_string()))
    }

    /// The output is complete and nothing can follow.
    pub fn finished(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// One bit a token: those that may come next.
    pub fn mask(&mut self) -> Outcome<Vec<u32>> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| Failure::Invalid(error.to_string()))?;
        let mut words = allowed.as_slice().to_vec();
        words.resize(self.words, 0);
        Ok(words)
    }
}
