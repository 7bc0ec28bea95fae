// SPDX-License-Identifier: Apache-2.0
//! `{% generation %}`: transformers' own tag, which marks the assistant's text for training and otherwise renders its
//! body in a scope of its own. It is renamed to `{% with %}`, which does just that, before the template is parsed.

/// `source` with the tag renamed; line numbers stay.
pub fn rename_tags(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(open) = rest.find('{') {
        let (text, tail) = rest.split_at(open);
        out.push_str(text);
        let length = if tail.starts_with("{%") {
            let end = expression_end(tail, "%}");
            let (tag, word) = (&tail[..end], first_word(tail));
            match word {
                "endraw" => raw = false,
                "raw" => raw = true,
                _ => {}
            }
            match word {
                "generation" if !raw => out.push_str(&tag.replacen("generation", "with", 1)),
                "endgeneration" if !raw => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
                _ => out.push_str(tag),
            }
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
