// SPDX-License-Identifier: Apache-2.0
//! Expressions of a workload's file, and texts with expressions in braces.
//!
//! An expression has numbers, texts in double quotes, names, `+ - * /`, comparisons, `&&`, `||`, `!`, parentheses and
//! these functions: `if(condition, then, else)`, `has(x)` (whether there is a value), `contains(text, part)`, `min`, `max`,
//! `abs`, `ceil` and `floor`. A condition is 1 or 0. The name `none` is the number that is missing (NaN).

use super::super::Outcome;
use std::collections::BTreeMap;
use std::fmt;
use vtax_core::{Quantity, Unit};
use vtax_host::HostError;

/// A value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number; NaN where it is missing.
    Number(f64),
    /// A whole number, as exact as a plan writes it.
    Integer(i64),
    /// A text.
    Text(String),
}

/// What is wrong with an expression.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ExpressionError {
    /// A name without a value.
    #[error("nothing is called `{0}`")]
    Name(String),
    /// A function that there is not, or with other arguments.
    #[error("there is no function `{0}` of these arguments")]
    Function(String),
    /// A part that is none of an expression.
    #[error("`{0}` is not understood")]
    Syntax(String),
    /// A text in the place of a number.
    #[error("{0:?} is no number")]
    Text(String),
}

impl Value {
    /// The number.
    ///
    /// # Errors
    /// When it is a text.
    pub fn number(&self) -> Result<f64, ExpressionError> {
        match self {
            Self::Number(value) => Ok(*value),
            Self::Integer(value) => Ok(*value as f64),
            Self::Text(text) => Err(ExpressionError::Text(text.clone())),
        }
    }

    /// Whether it is a number other than 0.
    fn holds(&self) -> bool {
        let number = self.number();
        number.is_ok_and(|number| number != 0.0 && !number.is_nan())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Integer(i64::from(value))
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// The values of names.
#[derive(Debug, Clone, Default)]
pub struct Scope(BTreeMap<String, Value>);

impl Scope {
    /// Gives a name its value.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Makes a name missing that has no value yet.
    pub fn miss(&mut self, name: &str) {
        self.0.entry(name.to_owned()).or_insert(f64::NAN.into());
    }

    /// The value of an expression.
    ///
    /// # Errors
    /// When it is wrong.
    pub fn value(&self, expression: &str) -> Outcome<Value> {
        let mut reader = Reader {
            rest: expression,
            scope: self,
        };
        let value = reader
            .operation(0)
            .and_then(|value| match reader.rest.trim() {
                "" => Ok(value),
                rest => Err(ExpressionError::Syntax(rest.to_owned())),
            });
        value.map_err(|cause| wrong(expression, &cause))
    }

    /// The number of an expression.
    ///
    /// # Errors
    /// When it is wrong, or a text.
    pub fn number(&self, expression: &str) -> Outcome<f64> {
        let number = self.value(expression)?.number();
        number.map_err(|cause| wrong(expression, &cause))
    }

    /// Whether a condition holds; one that is not given does.
    ///
    /// # Errors
    /// As [`Scope::value`].
    pub fn holds(&self, condition: Option<&String>) -> Outcome<bool> {
        condition.map_or(Ok(true), |condition| Ok(self.value(condition)?.holds()))
    }

    /// A text with the values of the expressions in it: `{expression}`, `{expression:.2}` with two digits,
    /// `{expression:bit/s}` as a quantity of that unit, and `{expression:errno}` as the system's words for an error.
    ///
    /// # Errors
    /// When an expression is wrong.
    pub fn text(&self, template: &str) -> Outcome<String> {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, opened)) = rest.split_once('{') {
            let (inside, after) = opened
                .split_once('}')
                .ok_or_else(|| wrong(template, &ExpressionError::Syntax(opened.to_owned())))?;
            text.push_str(before);
            text.push_str(&self.shown(inside)?);
            rest = after;
        }
        text.push_str(rest);
        Ok(text)
    }

    fn shown(&self, inside: &str) -> Outcome<String> {
        let formatted = inside
            .rsplit_once(':')
            .filter(|(_, form)| !form.contains('"'));
        let Some((expression, form)) = formatted else {
            return Ok(self.value(inside)?.to_string());
        };
        let number = self.number(expression)?;
        if let Some(Ok(digits)) = form.strip_prefix('.').map(str::parse) {
            let digits: usize = digits;
            return Ok(format!("{number:.digits$}"));
        }
        if form == "errno" {
            return Ok(std::io::Error::from_raw_os_error(number as i32).to_string());
        }
        let unit: Unit = form
            .parse()
            .map_err(|_| wrong(inside, &ExpressionError::Syntax(form.to_owned())))?;
        Ok(Quantity::new(number, unit).to_string())
    }
}

fn wrong(expression: &str, cause: &ExpressionError) -> HostError {
    HostError::Setting(format!(
        "the expression `{expression}` of the workload is wrong: {cause}"
    ))
}

/// The operators, those that bind least first.
const OPERATORS: [&[&str]; 5] = [
    &["||"],
    &["&&"],
    &["==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/"],
];

/// Reads an expression and computes it.
struct Reader<'a> {
    rest: &'a str,
    scope: &'a Scope,
}

impl<'a> Reader<'a> {
    /// Passes over a token, if it is next.
    fn take(&mut self, token: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// The characters that come next and satisfy a condition.
    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest.trim_start();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (taken, after) = rest.split_at(end);
        self.rest = after;
        taken
    }

    fn syntax<T>(&self) -> Result<T, ExpressionError> {
        Err(ExpressionError::Syntax(self.rest.trim().to_owned()))
    }

    /// Operations of a level, from left to right.
    fn operation(&mut self, level: usize) -> Result<Value, ExpressionError> {
        let Some(operators) = OPERATORS.get(level) else {
            return self.unary();
        };
        let mut left = self.operation(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.take(operator)) {
            let right = self.operation(level + 1)?;
            left = applied(operator, &left, &right)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Value, ExpressionError> {
        if self.take("!") {
            return Ok((!self.unary()?.holds()).into());
        }
        if self.take("-") {
            return Ok((-self.unary()?.number()?).into());
        }
        if self.take("(") {
            let value = self.operation(0)?;
            return if self.take(")") {
                Ok(value)
            } else {
                self.syntax()
            };
        }
        if self.take("\"") {
            let (text, after) = self
                .rest
                .split_once('"')
                .ok_or_else(|| ExpressionError::Syntax(self.rest.to_owned()))?;
            self.rest = after;
            return Ok(text.into());
        }
        let word = self.take_while(|c| c.is_ascii_alphanumeric() || "._".contains(c));
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let number: Result<f64, _> = word.parse();
            return number
                .map(Value::Number)
                .map_err(|_| ExpressionError::Syntax(word.to_owned()));
        }
        if self.take("(") {
            let mut arguments = vec![self.operation(0)?];
            while self.take(",") {
                arguments.push(self.operation(0)?);
            }
            return if self.take(")") {
                called(word, &arguments)
            } else {
                self.syntax()
            };
        }
        match self.scope.0.get(word) {
            Some(value) => Ok(value.clone()),
            None if word == "none" => Ok(f64::NAN.into()),
            None if word.is_empty() => self.syntax(),
            None => Err(ExpressionError::Name(word.to_owned())),
        }
    }
}

fn applied(operator: &str, left: &Value, right: &Value) -> Result<Value, ExpressionError> {
    if let (Value::Text(_), _) | (_, Value::Text(_)) = (left, right) {
        // A text is another value than a number, such as one that is missing.
        return match operator {
            "==" => Ok((left == right).into()),
            "!=" => Ok((left != right).into()),
            _ => left.number().and(right.number()).map(Value::Number),
        };
    }
    let (a, b) = (left.number()?, right.number()?);
    Ok(match operator {
        "||" => (left.holds() || right.holds()).into(),
        "&&" => (left.holds() && right.holds()).into(),
        "==" => (a == b).into(),
        "!=" => (a != b).into(),
        "<=" => (a <= b).into(),
        ">=" => (a >= b).into(),
        "<" => (a < b).into(),
        ">" => (a > b).into(),
        "+" => (a + b).into(),
        "-" => (a - b).into(),
        "*" => (a * b).into(),
        _ => (a / b).into(),
    })
}

fn called(function: &str, arguments: &[Value]) -> Result<Value, ExpressionError> {
    match (function, arguments) {
        ("if", [condition, then, otherwise]) => {
            let chosen = if condition.holds() { then } else { otherwise };
            Ok(chosen.clone())
        }
        ("has", [value]) => Ok((!value.number().is_ok_and(f64::is_nan)).into()),
        ("contains", [text, Value::Text(part)]) => Ok(text.to_string().contains(part).into()),
        ("min", [a, b]) => Ok(a.number()?.min(b.number()?).into()),
        ("max", [a, b]) => Ok(a.number()?.max(b.number()?).into()),
        ("abs", [value]) => Ok(value.number()?.abs().into()),
        ("ceil", [value]) => Ok(value.number()?.ceil().into()),
        ("floor", [value]) => Ok(value.number()?.floor().into()),
        _ => Err(ExpressionError::Function(function.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scope() -> Scope {
        let mut scope = Scope::default();
        scope.set("rate", 2.5);
        scope.set("seed", i64::MAX);
        scope.set("direction", "send");
        scope.set("lost", f64::NAN);
        scope
    }

    #[test]
    fn operators_bind_as_in_arithmetic_and_conditions_are_numbers() {
        for (expression, value) in [
            ("1 + 2 * 3 - 4 / 2", 5.0),
            ("(1 + 2) * 3", 9.0),
            ("10 - 2 - 3", 5.0),
            ("-rate + 1e3", 997.5),
            ("1 < 2 && rate >= 2.5 || 0", 1.0),
            ("!(1 == 2)", 1.0),
            ("max(floor(2.9), ceil(2.1)) - min(1, 2) + abs(-2)", 4.0),
            ("if(direction == \"send\", 1, 2)", 1.0),
            ("has(lost) + has(rate) + has(direction)", 2.0),
            ("lost == lost || lost > 0 || lost == \"a\"", 0.0),
            ("contains(direction, \"end\") + contains(lost, \"x\")", 1.0),
        ] {
            assert_eq!(scope().number(expression).unwrap(), value, "{expression}");
        }
        for wrong in [
            "",
            "1 +",
            "rat",
            "(1",
            "\"a",
            "1 2",
            "f(1)",
            "direction + 1",
            "1.2.3",
            "min(1)",
        ] {
            assert!(scope().value(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_shows_numbers_quantities_and_whole_numbers_exactly() {
        for (template, text) in [
            (
                "--rate={rate} --seed={seed}",
                "--rate=2.5 --seed=9223372036854775807",
            ),
            ("{rate * 1e9:bit/s} in {rate:.2} s", "2.50 Gbit/s in 2.50 s"),
            ("{if(direction == \"send\", \"a:b\", \"\")}", "a:b"),
            ("{5:errno}", "Input/output error (os error 5)"),
            ("none", "none"),
        ] {
            assert_eq!(scope().text(template).unwrap(), text);
        }
        for wrong in ["{rate", "{rate:no unit}", "{}", "{direction:.2}"] {
            assert!(scope().text(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-a-e0-9.(){}\":+*/ <=&|!,]{0,40}") {
            let _ = scope().value(&text);
            let _ = scope().text(&text);
        }
    }
}
