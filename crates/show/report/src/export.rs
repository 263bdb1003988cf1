// SPDX-License-Identifier: Apache-2.0
//! Exports data for other programs: one row per trial and metric, and every sample. Attempts that were set aside and
//! repeated are left out; each is a whole trial directory beside its replacement.

use crate::analysis::{TrialQuantile, trial_quantiles};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vtax_core::csv::field;
use vtax_core::owner::TARGET;
use vtax_core::{Quantity, metric};
use vtax_files::Output;
use vtax_results::stats::Interval;
use vtax_results::{
    Better, Machine, ResultsDir, ResultsError, Trial, TrialOutcome, parquet_failed, power_model,
    write_column,
};

/// One trial and one of its metrics; a trial without metrics has one row with an empty name.
pub(crate) struct Row {
    trial: i64,
    block: i64,
    texts: [ByteArray; TEXTS.len()],
    counts: bool,
    /// The value, and the ends of the interval of a quantile within the trial; what does not exist is no number.
    numbers: [f64; 3],
}

/// Names of the text columns in [`Row::texts`]: of the run and its machine, of the trial, of the metric.
const TEXTS: [&str; 23] = [
    "results",
    "plan",
    "plan_sha256",
    "machine",
    "host",
    "processor",
    "kernel",
    "treatment",
    "platform",
    "workload",
    "factors",
    "started",
    "outcome",
    "reason",
    "suspect",
    "disturbed",
    "metric",
    "unit",
    "source",
    "better",
    "model",
    "meter",
    "unsupported",
];
/// Number of run columns, which the CSV of a single run leaves out.
const OF_RUN: usize = 7;

/// Rows in a row group: some 40 MiB of buffers.
const ROWS_PER_GROUP: usize = 1 << 16;

/// One row per trial and metric of every readable trial, and the errors of the others. Factors are one column,
/// `name=level` joined by `;`, so that the columns do not depend on the plan.
fn rows(results: &ResultsDir) -> Result<(Vec<Row>, Vec<ResultsError>), ResultsError> {
    let machines = results.machines()?;
    let mut rows = Vec::new();
    let mut unreadable = Vec::new();
    for trial in results.trials() {
        match trial {
            Ok(trial) => {
                let quantiles = quantiles_of(results, &trial).unwrap_or_else(|error| {
                    unreadable.push(error);
                    Vec::new()
                });
                let machine = machines.of_block(trial.block);
                rows.extend(rows_of(results, machine, &trial, &quantiles));
            }
            Err(error) => unreadable.push(error),
        }
    }
    Ok((rows, unreadable))
}

/// The quantiles of a trial, from its histograms; none are read where the trial has no quantile.
pub(crate) fn quantiles_of(
    results: &ResultsDir,
    trial: &Trial,
) -> Result<Vec<TrialQuantile>, ResultsError> {
    let mut names = trial.metrics.keys();
    if !names.any(|name| metric::quantile(name).is_some()) {
        return Ok(Vec::new());
    }
    let mut found = trial_quantiles(trial, &results.histograms(trial.index)?);
    found.retain(|one| one.guest == TARGET && one.level.is_none());
    Ok(found)
}

/// The rows of one trial, with its machine and quantiles.
pub(crate) fn rows_of(
    results: &ResultsDir,
    machine: Option<&Machine>,
    trial: &Trial,
    quantiles: &[TrialQuantile],
) -> Vec<Row> {
    let (outcome, reason) = match &trial.outcome {
        TrialOutcome::Complete => ("complete", ""),
        TrialOutcome::Failed(reason) => ("failed", reason.as_str()),
    };
    let (run, treatment) = (results.run(), &trial.treatment);
    let factors = treatment.factors.iter();
    let factors = factors.map(|(name, level)| format!("{name}={level}"));
    let factors = factors.collect::<Vec<_>>().join(";");
    let fact = |path: &str| {
        let fact = machine.and_then(|machine| machine.host.pointer(path)?.as_str());
        ByteArray::from(fact.unwrap_or_default())
    };
    let text = |text: &str| ByteArray::from(text);
    let of_trial = [
        text(&results.path().to_string_lossy()),
        text(&run.name),
        text(&run.plan_sha256),
        fact("/boot_id"),
        fact("/hostname"),
        fact("/cpu/model"),
        fact("/kernel"),
        text(&treatment.label),
        text(&treatment.platform),
        text(&treatment.workload),
        text(&factors),
        text(&trial.started),
        text(outcome),
        text(reason),
        text(&trial.suspect.join("; ")),
        text(&trial.disturbed.join("; ")),
    ];
    let row = |of_metric: [&str; 7], value: f64, interval: Option<Interval>| {
        let mut metric = of_metric.into_iter().map(text);
        Row {
            trial: trial.index.into(),
            block: trial.block.into(),
            // All rows of a trial share its texts.
            texts: std::array::from_fn(|at| match of_trial.get(at) {
                Some(text) => text.clone(),
                None => metric.next().unwrap_or_default(),
            }),
            counts: trial.counts(),
            numbers: [
                value,
                interval.map_or(f64::NAN, |ends| ends.low),
                interval.map_or(f64::NAN, |ends| ends.high),
            ],
        }
    };
    if trial.metrics.is_empty() {
        return vec![row([""; 7], f64::NAN, None)];
    }
    let power_model = trial.environment.get(power_model::MODEL);
    let power_name = trial.environment.get(power_model::NAME);
    let metrics = trial.metrics.iter().map(|(name, metric)| {
        // The model is a column beside the source, which may be a worse one than `modelled`.
        let model = match &metric.model {
            Some(name) if Some(name) == power_name => power_model.unwrap_or(name),
            Some(name) => name,
            None => "",
        };
        let better = match metric.better {
            Better::Lower => "lower",
            Better::Higher => "higher",
            Better::Neither => "neither",
        };
        let Quantity { value, unit } = metric.quantity;
        let quantile = quantiles.iter().find(|one| one.metric == *name);
        let unsupported = quantile.and_then(TrialQuantile::unsupported);
        let of = [
            name,
            &unit.to_string(),
            &metric.source.to_string(),
            better,
            model,
            metric.meter.as_deref().unwrap_or_default(),
            &unsupported.map_or_else(String::new, |why| why.to_string()),
        ];
        row(of, value, quantile.and_then(|one| one.interval))
    });
    metrics.collect()
}

/// Writes one row per trial and metric as CSV (RFC 4180). Returns the errors of unreadable trials.
///
/// # Errors
/// When a write to `into` fails.
pub fn csv(results: &ResultsDir, into: &mut impl Write) -> io::Result<Vec<ResultsError>> {
    let (rows, unreadable) = rows(results).map_err(io::Error::other)?;
    let names: Vec<&str> = TEXTS.into_iter().skip(OF_RUN).collect();
    writeln!(
        into,
        "trial,block,{},counts,value,low,high",
        names.join(",")
    )?;
    for row in rows {
        let texts = row.texts.iter().skip(OF_RUN);
        let texts = texts.map(|text| field(&String::from_utf8_lossy(text.data())));
        let texts = texts.collect::<Vec<_>>().join(",");
        write!(into, "{},{},{texts},{}", row.trial, row.block, row.counts)?;
        for number in row.numbers {
            write!(into, ",")?;
            if number.is_finite() {
                write!(into, "{number}")?;
            }
        }
        writeln!(into)?;
    }
    into.flush()?;
    Ok(unreadable)
}

/// Writes one row per trial and metric as Parquet. Returns the errors of unreadable trials.
///
/// # Errors
/// When the file cannot be written.
pub fn parquet(results: &ResultsDir, path: &Path) -> Result<Vec<ResultsError>, ResultsError> {
    let mut dataset = Dataset::create(path)?;
    let (rows, unreadable) = rows(results)?;
    dataset.add(rows)?;
    dataset.finish()?;
    Ok(unreadable)
}

/// A Parquet file of one row per trial and metric, of any number of runs; `docs/howto/many-machines.md` describes its columns.
pub struct Dataset {
    path: PathBuf,
    output: Output,
    writer: SerializedFileWriter<File>,
    rows: Vec<Row>,
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset").field("path", &self.path).finish()
    }
}

impl Dataset {
    /// Starts the file, which replaces an existing one when it is finished.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path) -> Result<Self, ResultsError> {
        let texts: String = TEXTS
            .iter()
            .map(|name| format!("required binary {name} (UTF8); "))
            .collect();
        let schema = format!(
            "message trials {{ required int64 trial; required int64 block; {texts}required boolean counts; required double value; required double low; required double high; }}"
        );
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_column_dictionary_enabled("value".into(), false)
            .build();
        let mut output = vtax_files::output(path)?;
        let file = output.file().try_clone();
        let file = file.map_err(ResultsError::io("create", path))?;
        let writer = parse_message_type(&schema).and_then(|schema| {
            SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))
        });
        Ok(Self {
            path: path.to_owned(),
            output,
            writer: writer.map_err(parquet_failed("start", path))?,
            rows: Vec::new(),
        })
    }

    /// Adds rows; the file grows once for each [`ROWS_PER_GROUP`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn add(&mut self, rows: Vec<Row>) -> Result<(), ResultsError> {
        self.rows.extend(rows);
        if self.rows.len() < ROWS_PER_GROUP {
            Ok(())
        } else {
            self.flush()
        }
    }

    /// Writes the buffered rows and the footer.
    ///
    /// # Errors
    /// As `Dataset::add`.
    pub fn finish(mut self) -> Result<(), ResultsError> {
        self.flush()?;
        let closed = self.writer.close().map(drop);
        closed.map_err(parquet_failed("finish", &self.path))?;
        Ok(self.output.finish()?)
    }

    fn flush(&mut self) -> Result<(), ResultsError> {
        let written = self.write_row_group();
        self.rows.clear();
        written.map_err(parquet_failed("write", &self.path))
    }

    fn write_row_group(&mut self) -> Result<(), ParquetError> {
        let rows = &self.rows;
        let mut group = self.writer.next_row_group()?;
        let mut numbers = |of: fn(&Row) -> i64| {
            let numbers: Vec<i64> = rows.iter().map(of).collect();
            write_column::<Int64Type>(&mut group, &numbers)
        };
        numbers(|row| row.trial)?;
        numbers(|row| row.block)?;
        for column in 0..TEXTS.len() {
            let texts = rows.iter().filter_map(|row| row.texts.get(column));
            let texts: Vec<ByteArray> = texts.cloned().collect();
            write_column::<ByteArrayType>(&mut group, &texts)?;
        }
        let counts: Vec<bool> = rows.iter().map(|row| row.counts).collect();
        write_column::<BoolType>(&mut group, &counts)?;
        for column in 0..3 {
            let all = rows.iter();
            let numbers = all.filter_map(|row| row.numbers.get(column).copied());
            write_column::<DoubleType>(&mut group, &numbers.collect::<Vec<f64>>())?;
        }
        group.close()?;
        Ok(())
    }
}

/// Writes every sample of every trial as CSV, trial by trial, series by series. Returns the errors of unreadable
/// trials.
///
/// # Errors
/// When a write to `into` fails.
pub fn csv_samples(results: &ResultsDir, into: &mut impl Write) -> io::Result<Vec<ResultsError>> {
    let mut unreadable = Vec::new();
    writeln!(into, "trial,t_ns,owner,metric,unit,kind,source,value")?;
    for index in results.trial_indexes() {
        if !results.has_samples(index) {
            continue;
        }
        let reader = results.samples(index);
        let all = reader.and_then(|reader| reader.load(|_, _| true));
        let all = all.unwrap_or_else(|error| {
            unreadable.push(error);
            Vec::new()
        });
        for samples in all {
            let series = &samples.series;
            let (owner, metric) = (field(&series.owner.to_string()), field(&series.metric));
            let (unit, source, kind) = (series.unit, series.source, series.kind.name());
            let what = format!("{owner},{metric},{unit},{kind},{source}");
            for (at, value) in &samples.points {
                writeln!(into, "{index},{},{what},{value}", at.0)?;
            }
        }
    }
    into.flush()?;
    Ok(unreadable)
}
