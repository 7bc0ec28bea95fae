// SPDX-License-Identifier: Apache-2.0
//! What is changed in a template's text before minijinja parses it, tag by tag; line numbers stay:
//!
//! * `{% generation %}`, transformers' own tag, marks the assistant's text for training and otherwise renders its body
//!   in a scope of its own. It becomes `{% with %}`, which does just that.
//! * `{% raw %}` becomes `{% raw +%}`: Jinja2 does not trim the newline after it, minijinja does.
//! * Line ends become `\n`, as in Jinja2.

pub fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 16);
    let mut rest = source.as_str();
    let mut raw = false;
    while let Some(open) = rest.find('{') {
        let (text, tail) = rest.split_at(open);
        out.push_str(text);
        let length = if tail.starts_with("{%") && (!raw || first_word(tail) == "endraw") {
            let end = expression_end(tail, "%}");
            let (tag, word) = (&tail[..end], first_word(tail));
            match word {
                "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
                "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
                "raw" if tag.ends_with("%}") && !tag.ends_with("-%}") && !tag.ends_with("+%}") => {
                    out.push_str(&tag[..end - 2]);
                    out.push_str("+%}");
                }
                _ => out.push_str(tag),
            }
            raw = word == "raw";
            rest = &tail[end..];
            continue;
        } else if tail.starts_with("{#") && !raw {
            tail.find("#}").map_or(tail.len(), |end| end + 2)
        } else if tail.starts_with("{{") && !raw {
            expression_end(tail, "}}")
        } else {
            1
        };
        out.push_str(&tail[..length]);
        rest = &tail[length..];
    }
    out.push_str(rest);
    out
}

/// The name of the tag that `tag` starts with ("{%- name").
fn first_word(tag: &str) -> &str {
    let inside = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let end = inside.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    &inside[..end.unwrap_or(inside.len())]
}

/// Where the tag or expression ends, its closing mark included; marks inside strings and braces do not count.
fn expression_end(tail: &str, close: &str) -> usize {
    let bytes = tail.as_bytes();
    let (mut at, mut depth) = (2, 0usize);
    while at < bytes.len() {
        if depth == 0 && tail[at..].starts_with(close) {
            return at + close.len();
        }
        match bytes[at] {
            quote @ (b'\'' | b'"') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        while at < bytes.len() && !tail.is_char_boundary(at) {
            at += 1;
        }
    }
    tail.len()
}
