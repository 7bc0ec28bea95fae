// SPDX-License-Identifier: Apache-2.0
//! Where Jinja under Python differs from minijinja: JSON as json.dumps writes it, floats as repr, string methods, and
//! tests that know bool as a number and a string or mapping as a sequence.

use minijinja::value::{Kwargs, Rest, ValueIter, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

/// Of values that are printed.
const MAX_DEPTH: usize = 256;
/// Of fields in str.format, which the library makes before it counts them.
const MAX_FORMAT_DIGITS: usize = 5;

pub fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(print);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |state: &State, value: &Value| text_of(state, value));
    environment.add_filter("trim", |state: &State, value: &Value, chars: Option<String>| {
        Ok::<_, Error>(strip(&text_of(state, value)?, chars.as_deref(), true, true).to_owned())
    });
    environment.add_filter("int", to_int);
    environment.add_filter("float", |value: &Value, default: Option<Value>| {
        number_of(value).map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
    });
    environment.add_filter("wordcount", |text: &str| {
        let word = |character: char| character.is_alphanumeric() || character == '_';
        text.split(|character| !word(character)).filter(|part| !part.is_empty()).count()
    });
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::String)
    });
    environment.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number) && value.try_iter().is_ok()
    });
    environment.add_test("callable", is_callable);
}

/// `{{ value }}`.
fn print(output: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => output.write_str(text).map_err(Error::from),
        None => output.write_str(&text_of(state, value)?).map_err(Error::from),
    }
}

fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain && value.as_object().is_some()
}

fn float_of(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// str(value).
fn text_of(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    write_repr(state, value, 0, &mut out)?;
    Ok(out)
}

/// repr(value). Each item costs fuel, as lists can be lazy and much longer than what made them.
fn write_repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep("printing"));
    }
    if let Some(number) = float_of(value) {
        out.push_str(&float_repr(number));
        return Ok(());
    }
    match value.kind() {
        ValueKind::String => out.push_str(&format!("{value:?}")),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                state.consume_fuel(1)?;
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            out.push(if value.is_tuple() { '(' } else { '[' });
            for (index, item) in value.try_iter()?.checked().enumerate() {
                state.consume_fuel(1)?;
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(state, &item?, depth + 1, out)?;
            }
            out.push_str(match (value.is_tuple(), value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                _ => "]",
            });
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn too_deep(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what}: the value is nested more than {MAX_DEPTH} deep"))
}

/// Python's repr of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// float(value), or nothing where Python raises an error.
fn number_of(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => strip(text, None, true, true).replace('_', "").parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
        None => f64::try_from(value.clone()).ok(),
    }
}

/// Jinja's int(value, default=0, base=10): also of floats and of strings that hold one.
fn to_int(value: &Value, default: Option<Value>, base: Option<u32>, options: Kwargs) -> Result<Value, Error> {
    let base = base.or(options.get::<Option<u32>>("base")?).unwrap_or(10);
    let default = default.or(options.get::<Option<Value>>("default")?).unwrap_or_else(|| Value::from(0));
    options.assert_all_used()?;
    if value.is_integer() {
        return Ok(value.clone());
    }
    if let Some(text) = value.as_str() {
        let text = strip(text, None, true, true).to_lowercase().replace('_', "");
        let prefix = match base {
            2 => "0b",
            8 => "0o",
            16 => "0x",
            _ => "",
        };
        let digits = text.strip_prefix(prefix).unwrap_or(&text);
        let number = (2..=36).contains(&base).then(|| i64::from_str_radix(digits, base).ok()).flatten();
        if let Some(number) = number {
            return Ok(Value::from(number));
        }
    }
    Ok(match number_of(value) {
        Some(number) if number.is_finite() && number.abs() < 9e18 => Value::from(number.trunc() as i64),
        _ => default,
    })
}

/// json.dumps(value, ensure_ascii, indent, separators, sort_keys), the signature transformers gives the filter.
fn to_json(state: &State, value: &Value, positional: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let named = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let chosen = match positional.get(index) {
            Some(given) => Some(given.clone()),
            None => options.get::<Option<Value>>(name)?,
        };
        Ok(chosen.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = named(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match named(1, "indent")? {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(value)?.clamp(0, 64)).unwrap_or(0)),
        }),
    };
    let sort_keys = named(3, "sort_keys")?.is_some_and(|value| value.is_true());
    let (item, key) = match named(2, "separators")? {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(pair) => (text_of(state, &pair.get_item_by_index(0)?)?, text_of(state, &pair.get_item_by_index(1)?)?),
    };
    options.assert_all_used()?;
    let mut writer = JsonWriter { state, out: String::new(), ensure_ascii, indent, item, key, sort_keys };
    writer.write(value, 0)?;
    Ok(Value::from(writer.out))
}

struct JsonWriter<'a> {
    state: &'a State<'a, 'a>,
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl JsonWriter<'_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep("tojson"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match float_of(value) {
                Some(number) if number.is_nan() => self.out.push_str("NaN"),
                Some(number) if number.is_infinite() => {
                    self.out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
                }
                _ => self.out.push_str(&text_of(self.state, value)?),
            },
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.write_items(value.try_iter()?, depth, ('[', ']'), |_, _| Ok(()))?
            }
            ValueKind::Map if self.sort_keys => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                keys.sort();
                self.write_map(value, Value::from(keys).try_iter()?, depth)?;
            }
            ValueKind::Map => self.write_map(value, value.try_iter()?, depth)?,
            other => {
                let detail = format!("tojson: a value of type {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
        Ok(())
    }

    fn write_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.write_string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.out.push_str("\"null\""),
            ValueKind::Bool => self.out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
            ValueKind::Number => self.out.push_str(&format!("\"{}\"", text_of(self.state, key)?)),
            other => {
                let detail = format!("tojson: a key of type {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
        Ok(())
    }

    fn write_map(&mut self, map: &Value, keys: ValueIter, depth: usize) -> Result<(), Error> {
        self.write_items(keys, depth, ('{', '}'), |writer, key| {
            writer.write_key(key)?;
            let separator = writer.key.clone();
            writer.out.push_str(&separator);
            *key = map.get_item(key)?;
            Ok(())
        })
    }

    /// `prepare` turns an item of the iterator into the value to write.
    fn write_items(
        &mut self,
        items: ValueIter,
        depth: usize,
        brackets: (char, char),
        mut prepare: impl FnMut(&mut Self, &mut Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets.0);
        let mut empty = true;
        for item in items.checked() {
            let mut item = item?;
            self.state.consume_fuel(1)?;
            if !empty {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            empty = false;
            self.new_line(depth + 1);
            prepare(self, &mut item)?;
            self.write(&item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(brackets.1);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn write_string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                control if (control as u32) < 0x20 => self.out.push_str(&format!("\\u{:04x}", control as u32)),
                // json.dumps escapes DEL only together with everything that is not ASCII.
                other if self.ensure_ascii && !(' '..='~').contains(&other) => {
                    let mut units = [0u16; 2];
                    for unit in other.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }
}

/// What str.strip() and str.split() take for white space.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |character: char| match chars {
        Some(chars) => chars.contains(character),
        None => is_space(character),
    };
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right { text.trim_end_matches(drop) } else { text }
}

fn call_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) if value.kind() == ValueKind::String => match string_method(state, text, method, args)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, value, method, args),
        },
        _ if value.kind() == ValueKind::Map => match map_method(value, method, args)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, value, method, args),
        },
        _ if matches!(value.kind(), ValueKind::Seq) && method == "index" => {
            let (what,): (&Value,) = from_args(args)?;
            for (index, item) in value.try_iter()?.checked().enumerate() {
                if item? == *what {
                    return Ok(Value::from(index));
                }
            }
            Err(Error::new(ErrorKind::InvalidOperation, "index: the value is not in the list"))
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn map_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        // Templates run over data they do not own: as in the sandbox of the reference.
        "update" | "pop" | "popitem" | "clear" | "setdefault" => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("dict.{method} changes its object, which a template may not do"),
        )),
        _ => Ok(None),
    }
}

fn string_method(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let affix = |method: &str| {
        from_args::<(&str,)>(args).map(|(affix,)| match method {
            "removeprefix" => text.strip_prefix(affix).unwrap_or(text),
            _ => text.strip_suffix(affix).unwrap_or(text),
        })
    };
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, chars, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => {
            let (separator, limit, options): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(options.get::<Option<&str>>("sep")?);
            let limit = limit.or(options.get::<Option<i64>>("maxsplit")?).unwrap_or(-1);
            options.assert_all_used()?;
            split(text, separator, usize::try_from(limit).ok(), method == "rsplit")?
        }
        "format" => {
            check_format(text, args)?;
            return Ok(None);
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, method == "rpartition")?
        }
        "removeprefix" | "removesuffix" => Value::from(affix(method)?),
        "index" | "rindex" | "find" | "rfind" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            find(text, what, start, end, method)?
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            join(state, text, items)?
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swapped = |character: char| -> String {
                if character.is_uppercase() {
                    character.to_lowercase().collect()
                } else {
                    character.to_uppercase().collect()
                }
            };
            Value::from(text.chars().map(swapped).collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "zfill" | "ljust" | "rjust" | "center" => pad(text, method, args)?,
        _ => return Ok(None),
    }))
}

/// As in Python only strings can be joined.
fn join(state: &State, separator: &str, items: &Value) -> Result<Value, Error> {
    let mut joined = String::new();
    for (index, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let Some(text) = item.as_str() else {
            let detail = format!("join: item {index} is of type {}, a string is expected", item.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        };
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(text);
        // One unit for 64 bytes, as the engine counts.
        state.consume_fuel(1 + ((separator.len() + text.len()) / 64) as u64)?;
    }
    Ok(Value::from(joined))
}

fn split(text: &str, separator: Option<&str>, limit: Option<usize>, from_right: bool) -> Result<Value, Error> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "split: empty separator")),
        Some(separator) if from_right => text.rsplitn(limit.saturating_add(1), separator).collect(),
        Some(separator) => text.splitn(limit.saturating_add(1), separator).collect(),
        None => split_space(text, limit, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Splits at runs of white space, `limit` times at most; the remainder loses its white space on the outer side only.
fn split_space(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, !from_right, from_right);
    while !rest.is_empty() {
        let cut = if parts.len() == limit {
            None
        } else if from_right {
            rest.char_indices().rev().find(|(_, character)| is_space(*character))
        } else {
            rest.char_indices().find(|(_, character)| is_space(*character))
        };
        match cut {
            None => {
                // What is left over keeps the white space at its far end unless it was never cut.
                let whole = parts.len() < limit;
                parts.push(if whole { strip(rest, None, true, true) } else { rest });
                break;
            }
            Some((at, space)) if from_right => {
                parts.push(&rest[at + space.len_utf8()..]);
                rest = strip(&rest[..at], None, false, true);
            }
            Some((at, _)) => {
                parts.push(&rest[..at]);
                rest = strip(&rest[at..], None, true, false);
            }
        }
    }
    parts
}

/// Refuses widths that would make a field of megabytes, written out or given as an argument of a nested field.
fn check_format(format: &str, args: &[Value]) -> Result<(), Error> {
    let digits = format.split(|character: char| !character.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    let nested = format.split(':').skip(1).any(|spec| spec.split('}').next().is_some_and(|spec| spec.contains('{')));
    if digits > MAX_FORMAT_DIGITS || (nested && args.iter().any(|value| value.as_usize().is_some_and(|n| n > 99_999))) {
        return Err(Error::new(ErrorKind::InvalidOperation, "format: a width of more than five digits"));
    }
    Ok(())
}

fn partition(text: &str, separator: &str, from_right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "partition: empty separator"));
    }
    let cut = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(minijinja::value::Tuple::from(parts.map(Value::from))))
}

/// Positions are in characters, as everything is in Python.
fn find(text: &str, what: &str, start: Option<i64>, end: Option<i64>, method: &str) -> Result<Value, Error> {
    let count = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let bound = |position: i64| if position < 0 { (position + count).max(0) } else { position };
    let (start, end) = (bound(start.unwrap_or(0)), bound(end.unwrap_or(count)).min(count));
    let found = if start > end {
        None
    } else {
        let byte_at = |position: i64| {
            let position = usize::try_from(position).unwrap_or(usize::MAX);
            text.char_indices().nth(position).map_or(text.len(), |(at, _)| at)
        };
        let window = &text[byte_at(start)..byte_at(end)];
        let at = if method.starts_with('r') { window.rfind(what) } else { window.find(what) };
        at.map(|at| start + i64::try_from(window[..at].chars().count()).unwrap_or(0))
    };
    match found {
        Some(position) => Ok(Value::from(position)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(Error::new(ErrorKind::InvalidOperation, format!("{method}: substring not found"))),
    }
}

fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    let length = text.chars().count();
    let width = usize::try_from(width).unwrap_or(0);
    if width > 65536 {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{method}: a width of {width} is too large")));
    }
    let missing = width.saturating_sub(length);
    let fill = |count: usize, default: char| fill.unwrap_or(default).to_string().repeat(count);
    Ok(Value::from(match method {
        "zfill" => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            format!("{}{}{digits}", &text[..text.len() - digits.len()], "0".repeat(missing))
        }
        "ljust" => format!("{text}{}", fill(missing, ' ')),
        "rjust" => format!("{}{text}", fill(missing, ' ')),
        _ => {
            // CPython puts the odd character to the left when the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill(left, ' '), fill(missing - left, ' '))
        }
    }))
}
