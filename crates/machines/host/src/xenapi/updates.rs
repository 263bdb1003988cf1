// SPDX-License-Identifier: Apache-2.0
//! The counters that a pool's host reports: rows of averages, one step apart.

/// The columns and rows of `/rrd_updates`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Updates {
    /// The duration in seconds over which each row is averaged.
    pub step: u64,
    /// The name of each column: `AVERAGE:vm:UUID:cpu0`.
    pub legend: Vec<String>,
    /// The end of each row's step, in seconds since 1970 by that host's clock, oldest first; and the row's values,
    /// NaN where unknown.
    pub rows: Vec<(u64, Vec<f64>)>,
}

/// Counters of a pool's host that cannot be used.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum UpdatesError {
    /// The text has no such element.
    #[error("there is no {0} in it")]
    Lacks(&'static str),
    /// A row has no time.
    #[error("a row has no time")]
    Timeless,
    /// A value is no number.
    #[error("{0:?} is no number")]
    NotANumber(String),
    /// A row has another number of values than there are columns.
    #[error("a row has {values} values for {columns} columns")]
    Row {
        /// Values of the row.
        values: usize,
        /// Columns of the text.
        columns: usize,
    },
    /// No column holds a processor of the VM, of Domain 0 or of the host.
    #[error("they have no processor of {0}")]
    NoProcessor(&'static str),
}

impl Updates {
    /// Reads the XML of rrdtool's `xport`.
    ///
    /// # Errors
    /// The defect of the text.
    pub fn parse(text: &str) -> Result<Self, UpdatesError> {
        let (meta, data) = text
            .split_once("<data")
            .ok_or(UpdatesError::Lacks("<data>"))?;
        let step = contents(meta, "step")
            .next()
            .and_then(|step| step.parse().ok());
        let step = step.filter(|step| (1..=86_400).contains(step));
        let step = step.ok_or(UpdatesError::Lacks("<step> of seconds"))?;
        let legend: Vec<String> = contents(meta, "entry").map(str::to_owned).collect();
        let mut rows = Vec::new();
        for row in contents(data, "row") {
            let at = contents(row, "t").next().and_then(|at| at.parse().ok());
            let at: u64 = at.ok_or(UpdatesError::Timeless)?;
            let value = |text: &str| {
                let value = text.parse::<f64>();
                value.map_err(|_| UpdatesError::NotANumber(text.to_owned()))
            };
            let values: Vec<f64> = contents(row, "v").map(value).collect::<Result<_, _>>()?;
            if values.len() != legend.len() {
                let (values, columns) = (values.len(), legend.len());
                return Err(UpdatesError::Row { values, columns });
            }
            rows.push((at, values));
        }
        rows.sort_by_key(|(at, _)| *at);
        rows.dedup_by_key(|(at, _)| *at);
        Ok(Self { step, legend, rows })
    }

    /// The columns: index, `vm` or `host`, a UUID, and a name.
    pub fn columns(&self) -> impl Iterator<Item = (usize, &str, &str, &str)> {
        self.legend.iter().enumerate().filter_map(|(column, name)| {
            let mut parts = name.splitn(4, ':');
            let average = parts.next()?;
            let parts = (column, parts.next()?, parts.next()?, parts.next()?);
            (average == "AVERAGE").then_some(parts)
        })
    }
}

/// The contents of the elements of a name, in order.
fn contents<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (inside, after) = after.split_once(&close)?;
        rest = after;
        Some(inside.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAID: &str = "<?xml version=\"1.0\"?>\n<xport><meta><start>95</start><step>5</step><end>105</end>\
        <rows>2</rows><columns>2</columns><legend><entry>AVERAGE:vm:a-b:cpu0</entry>\
        <entry>AVERAGE:host:c-d:memory_free_kib</entry></legend></meta><data>\
        <row><t>105</t><v>0.5</v><v>3</v></row><row><t>100</t><v>NaN</v><v>1e3</v></row></data></xport>";

    #[test]
    fn rows_come_newest_first_and_are_read_oldest_first() {
        let read = Updates::parse(SAID).unwrap();
        assert_eq!(read.step, 5);
        let columns: Vec<_> = read.columns().collect();
        assert_eq!(columns[0], (0, "vm", "a-b", "cpu0"));
        assert_eq!(columns[1], (1, "host", "c-d", "memory_free_kib"));
        assert_eq!((read.rows[0].0, read.rows[1].0), (100, 105));
        assert!(read.rows[0].1[0].is_nan());
        assert_eq!(read.rows[1].1, [0.5, 3.0]);
    }

    #[test]
    fn what_is_no_counters_is_refused_with_what_is_wrong() {
        for (from, to, printed) in [
            ("<step>5", "<step>0", "<step>"),
            ("<step>5", "<step>x", "<step>"),
            ("<t>100", "<t>-1", "time"),
            ("<v>1e3</v>", "", "1 values for 2"),
            ("1e3", "many", "many"),
            ("<data>", "", "<data>"),
        ] {
            let wrong = Updates::parse(&SAID.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(wrong.contains(printed), "{to}: {wrong}");
        }
        assert!(Updates::parse("<html>Unauthorised</html>").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(cut in 0_usize..400, with in "[<>/a-z0-9]{0,9}") {
            let at = cut.min(SAID.len());
            let _ = Updates::parse(&format!("{}{with}{}", &SAID[..at], &SAID[at..]));
            let _ = Updates::parse(&SAID[..at]);
        }
    }
}
