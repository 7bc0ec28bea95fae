// SPDX-License-Identifier: Apache-2.0
//! Grammars in GBNF (`root ::= "a" rule [0-9]+`), which people write for vLLM's guided_grammar, as Lark.

use crate::{Failure, Outcome};

pub fn is_gbnf(source: &str) -> bool {
    source.contains("::=")
}

/// Rules get names that cannot be keywords of Lark; strings are the same in both, classes become regular expressions.
pub fn to_lark(source: &str) -> Outcome<String> {
    let mut lark = String::with_capacity(source.len() * 2);
    let mut characters = source.char_indices().peekable();
    let mut has_root = false;
    while let Some((at, character)) = characters.next() {
        match character {
            '"' | '[' => {
                let close = if character == '"' { '"' } else { ']' };
                let mut body = String::new();
                loop {
                    match characters.next() {
                        Some((_, '\\')) => {
                            body.push('\\');
                            body.extend(characters.next().map(|(_, escaped)| escaped));
                        }
                        Some((_, next)) if next == close => break,
                        Some((_, next)) => body.push(next),
                        None => return Err(unclosed(at, character)),
                    }
                }
                if character == '"' {
                    lark.push_str(&format!("\"{body}\""));
                } else {
                    lark.push_str(&format!("/[{}]/", body.replace('/', "\\/")));
                }
            }
            '#' => while characters.next_if(|(_, next)| *next != '\n').is_some() {},
            ':' if source[at..].starts_with("::=") => {
                characters.next();
                characters.next();
                lark.push(':');
            }
            _ if character.is_ascii_alphabetic() => {
                let mut name = String::from(character);
                while let Some((_, next)) =
                    characters.next_if(|(_, next)| next.is_ascii_alphanumeric() || "-_".contains(*next))
                {
                    name.push(if next == '-' { '_' } else { next.to_ascii_lowercase() });
                }
                if name == "root" {
                    has_root = true;
                    lark.push_str("start");
                } else {
                    lark.push_str(&format!("rule_{}", name.to_ascii_lowercase()));
                }
            }
            _ => lark.push(character),
        }
    }
    if !has_root {
        return Err(Failure::Invalid("the grammar has no rule named root".to_owned()));
    }
    Ok(lark)
}

fn unclosed(at: usize, what: char) -> Failure {
    Failure::Invalid(format!("the grammar's {what} at byte {at} is not closed"))
}
