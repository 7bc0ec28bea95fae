// SPDX-License-Identifier: Apache-2.0
//! A chat template in the environment that transformers gives it, with bounds on the work and the output.

use std::fmt;
use std::io;

use minijinja::machinery::{self, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use minijinja_contrib::globals;

use crate::deep_stack::on_deep_stack;
use crate::{Failure, Outcome, content, python, rewrite};

const NAME: &str = "chat template";
const WHAT: &str = "the chat template";
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Of one expression or statement; each can be one more level of the syntax tree.
const MAX_TOKENS_PER_TAG: usize = 4000;
/// Steps of the virtual machine; a step that makes or reads data costs one more for 64 bytes, so this also bounds the
/// memory (320 MB). A long conversation needs some 10^5.
const MAX_STEPS: u64 = 5_000_000;
const MAX_OUTPUT_BYTES: usize = 256 << 20;
/// Nested macro calls and includes.
const MAX_RECURSION: usize = 128;

pub struct ChatTemplate {
    environment: Environment<'static>,
    wants_content_parts: bool,
}

impl ChatTemplate {
    pub fn compile(source: &str) -> Outcome<ChatTemplate> {
        on_deep_stack(WHAT, || ChatTemplate::compile_here(source))
    }

    /// The engine recurses over nested values (to print, compare and free them) without a bound of its own. What the
    /// limits above allow to be nested fits the deep stack.
    pub fn render(&self, context: &[u8]) -> Outcome<Vec<u8>> {
        on_deep_stack(WHAT, || self.render_here(context))
    }

    fn compile_here(source: &str) -> Outcome<ChatTemplate> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Failure::Invalid(format!(
                "the template has {} bytes; at most {MAX_SOURCE_BYTES} are allowed",
                source.len()
            )));
        }
        let source = rewrite::for_minijinja(source);
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(false)
            .build()
            .map_err(|error| Failure::Internal(error.to_string()))?;

        check_tag_sizes(&source, syntax.clone())?;
        let wants_content_parts = machinery::parse(&source, NAME, syntax.clone())
            .map(|tree| content::loops_over_content(&tree))
            .map_err(|error| describe(&error))?;

        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_debug(false);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(MAX_RECURSION);
        python::install(&mut environment);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
        environment.add_function("joiner", globals::joiner);
        environment.add_template_owned(NAME, source).map_err(|error| describe(&error))?;
        Ok(ChatTemplate { environment, wants_content_parts })
    }

    pub fn wants_content_parts(&self) -> bool {
        self.wants_content_parts
    }

    fn render_here(&self, context: &[u8]) -> Outcome<Vec<u8>> {
        let context: Value = serde_json::from_slice(context)
            .map_err(|error| Failure::Invalid(format!("the template's variables: {error}")))?;
        let template = self.environment.get_template(NAME).map_err(|error| describe(&error))?;
        let mut output = BoundedOutput(Vec::new());
        template.render_captured_to(context, &mut output).map_err(|error| describe(&error))?;
        Ok(output.0)
    }
}

fn check_tag_sizes(source: &str, syntax: SyntaxConfig) -> Outcome<()> {
    let mut count = 0usize;
    for token in machinery::tokenize(source, false, syntax) {
        // A lexical error is reported by the parser, with its line.
        let Ok((token, span)) = token else { return Ok(()) };
        match token {
            Token::VariableStart | Token::BlockStart => count = 0,
            _ => count += 1,
        }
        if count > MAX_TOKENS_PER_TAG {
            return Err(Failure::Invalid(format!(
                "an expression or statement has more than {MAX_TOKENS_PER_TAG} tokens (line {})",
                span.start_line
            )));
        }
    }
    Ok(())
}

/// The text of `raise_exception`, so that it can be told from an error of the engine.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Local time in the C library's words, as Python's strftime does.
fn strftime_now(format: String) -> Result<String, Error> {
    let format = std::ffi::CString::new(format)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: the format has a NUL character"))?;
    if format.as_bytes().len() > 1024 {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is longer than 1024 bytes"));
    }
    if format.is_empty() {
        return Ok(String::new());
    }
    let mut buffer = vec![0u8; 64 * 1024];
    // SAFETY: `now` and `broken` are valid for the calls, the buffer's length is passed on, the format ends in NUL.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut broken: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut broken).is_null() {
            return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the clock is out of range"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &broken)
    };
    buffer.truncate(length);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

fn describe(error: &Error) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            return Failure::Invalid(raised.0.clone());
        }
        cause = current.source();
    }
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    if error.kind() == ErrorKind::OutOfFuel {
        return Failure::Invalid(format!("the template does not end within its limit of {MAX_STEPS} steps{line}"));
    }
    let detail = error.detail().map_or_else(String::new, |detail| format!(": {detail}"));
    Failure::Invalid(format!("{}{detail}{line}", error.kind()))
}

struct BoundedOutput(Vec<u8>);

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other(format!("the template writes more than {MAX_OUTPUT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
