// SPDX-License-Identifier: Apache-2.0
//! Fields of CSV (RFC 4180), harmless in spreadsheets.

/// A field, quoted where necessary. A text that a spreadsheet would evaluate, one that begins with `=`, `+`, `-`, `@`, a
/// tab or a carriage return and is no number, gets a leading apostrophe.
#[must_use]
pub fn field(text: &str) -> String {
    let is_formula =
        text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    let guard = if is_formula { "'" } else { "" };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{guard}{}\"", text.replace('"', "\"\""))
    } else {
        format!("{guard}{text}")
    }
}

/// The fields of a line, without their quotes.
#[must_use]
pub fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field) = (Vec::new(), String::new());
    let (mut quoted, mut rest) = (false, line.chars().peekable());
    while let Some(next) = rest.next() {
        match next {
            '"' if quoted && rest.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut field)),
            _ => field.push(next),
        }
    }
    all.push(field);
    all
}

#[cfg(test)]
mod tests {
    use super::{field, fields};

    #[test]
    fn fields_come_back_as_they_were_written() {
        for of in [&["a", "", "b, \"c\""][..], &[" x ", "\"", ","], &[""]] {
            let line: Vec<String> = of.iter().map(|text| field(text)).collect();
            assert_eq!(fields(&line.join(",")), of);
        }
        assert_eq!(fields("a,\"b"), ["a", "b"]);
    }

    #[test]
    fn a_text_that_a_spreadsheet_would_evaluate_gets_an_apostrophe() {
        for (text, expected) in [
            ("=1+2", "'=1+2"),
            (
                "=HYPERLINK(\"http://a\",\"b\")",
                "\"'=HYPERLINK(\"\"http://a\"\",\"\"b\"\")\"",
            ),
            ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
        ] {
            assert_eq!(field(text), expected);
        }
    }

    #[test]
    fn numbers_and_names_are_written_as_they_are() {
        for text in [
            "-1.5",
            "+2",
            "-1e-7",
            "native · http-rate",
            "a=1;b=2",
            "",
            "x-1",
        ] {
            assert_eq!(field(text), text);
        }
        assert_eq!(field("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
    }
}
