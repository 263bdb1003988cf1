// SPDX-License-Identifier: Apache-2.0
//! `--format`, and `--json` as a short form of it.

use clap::{Args, ValueEnum};

/// The formats of a command. JSON is one of them.
pub trait HasJson: ValueEnum + Send + Sync + 'static {
    /// The name of the format without either option.
    const DEFAULT: &'static str;

    /// The format of `--json`.
    const JSON: Self;
}

/// The formats of a command that prints for people or for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TextOrJson {
    /// Text for terminals
    Text,
    /// One document of JSON, or one object a line where the output goes on
    Json,
}

impl HasJson for TextOrJson {
    const DEFAULT: &'static str = "text";
    const JSON: Self = Self::Json;
}

/// The options for the format of a command's output.
#[derive(Debug, Clone, Copy, Args)]
#[group(skip)]
pub struct FormatArgs<F: HasJson = TextOrJson> {
    /// The format of the output
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = F::DEFAULT,
        conflicts_with = "json"
    )]
    format: F,
    /// The same as --format json
    #[arg(long)]
    json: bool,
}

impl<F: HasJson> FormatArgs<F> {
    /// The requested format.
    pub fn format(&self) -> F {
        if self.json {
            F::JSON
        } else {
            self.format.clone()
        }
    }
}

impl FormatArgs {
    /// Whether JSON is requested.
    pub fn is_json(&self) -> bool {
        self.format() == TextOrJson::Json
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        format: FormatArgs,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    enum Table {
        Csv,
        Json,
    }

    impl HasJson for Table {
        const DEFAULT: &'static str = "csv";
        const JSON: Self = Self::Json;
    }

    #[derive(Parser)]
    struct Records {
        #[command(flatten)]
        format: FormatArgs<Table>,
    }

    #[test]
    fn two_commands_may_have_different_formats_and_defaults() {
        let text = Cli::try_parse_from(["vtax"]).unwrap();
        assert_eq!(text.format.format(), TextOrJson::Text);
        let records = Records::try_parse_from(["vtax"]).unwrap();
        assert_eq!(records.format.format(), Table::Csv);
    }

    #[test]
    fn json_is_a_short_form_of_format_json() {
        let is_json = |words: &[&str]| {
            let all = [&["vtax"], words].concat();
            Cli::try_parse_from(all).map(|cli| cli.format.is_json())
        };
        assert!(!is_json(&[]).unwrap());
        assert!(!is_json(&["--format", "text"]).unwrap());
        assert!(is_json(&["--format", "json"]).unwrap());
        assert!(is_json(&["--json"]).unwrap());
        assert!(is_json(&["--json", "--format", "text"]).is_err());
        assert!(is_json(&["--format", "xml"]).is_err());
    }
}
