// SPDX-License-Identifier: Apache-2.0
//! Whether a template loops over message content: then it wants content as a list of parts, else as one string.

use minijinja::machinery::ast::{Expr, Stmt};

/// True if there is a `for` over `x.content`, `x['content']` or a variable named content (also sliced or filtered).
pub fn loops_over_content(statement: &Stmt) -> bool {
    match statement {
        Stmt::Template(template) => any(&template.children),
        Stmt::ForLoop(node) => is_content(&node.iter) || any(&node.body) || any(&node.else_body),
        Stmt::IfCond(node) => any(&node.true_body) || any(&node.false_body),
        Stmt::WithBlock(node) => any(&node.body),
        Stmt::SetBlock(node) => any(&node.body),
        Stmt::AutoEscape(node) => any(&node.body),
        Stmt::FilterBlock(node) => any(&node.body),
        Stmt::Block(node) => any(&node.body),
        Stmt::Macro(node) => any(&node.body),
        Stmt::CallBlock(node) => any(&node.macro_decl.body),
        _ => false,
    }
}

fn any(statements: &[Stmt]) -> bool {
    statements.iter().any(loops_over_content)
}

fn is_content(expression: &Expr) -> bool {
    match expression {
        Expr::Var(node) => node.id == "content",
        Expr::GetAttr(node) => node.name == "content",
        Expr::GetItem(node) => match &node.subscript_expr {
            Expr::Const(key) => key.value.as_str() == Some("content"),
            _ => false,
        },
        Expr::Slice(node) => is_content(&node.expr),
        Expr::Filter(node) => node.expr.as_ref().is_some_and(is_content),
        _ => false,
    }
}
