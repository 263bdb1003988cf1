//! The data for other programs: one row per trial and metric, and every sample. Attempts that were
//! set aside and run again are left out: each is a whole trial directory beside its replacement.

use crate::results::{Better, ResultsDir, ResultsError, Trial, TrialOutcome, write_column};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// One trial and one of its metrics; a trial without metrics has one row with an empty name.
struct Row {
    trial: i64,
    block: i64,
    texts: [String; 12],
    counts: bool,
    value: f64,
}

/// Columns of text in [`Row::texts`].
const TEXTS: [&str; 12] = [
    "treatment",
    "platform",
    "workload",
    "factors",
    "started",
    "outcome",
    "reason",
    "suspect",
    "metric",
    "unit",
    "source",
    "better",
];

/// One row per trial and metric of every readable trial, and what could not be read. Factors are
/// one column, `name=level` joined by `;`, so that the columns do not depend on the plan.
fn rows(results: &ResultsDir) -> (Vec<Row>, Vec<ResultsError>) {
    let mut rows = Vec::new();
    let mut unreadable = Vec::new();
    for trial in results.trials() {
        match trial {
            Ok(trial) => rows.extend(rows_of(&trial)),
            Err(error) => unreadable.push(error),
        }
    }
    (rows, unreadable)
}

fn rows_of(trial: &Trial) -> Vec<Row> {
    let (outcome, reason) = match &trial.outcome {
        TrialOutcome::Complete => ("complete", ""),
        TrialOutcome::Failed(reason) => ("failed", reason.as_str()),
    };
    let treatment = &trial.treatment;
    let factors: Vec<String> = treatment
        .factors
        .iter()
        .map(|(name, level)| format!("{name}={level}"))
        .collect();
    let row = |metric: &str, unit: String, source: String, better: &str, value: f64| Row {
        trial: trial.index.into(),
        block: trial.block.into(),
        texts: [
            treatment.label.clone(),
            treatment.platform.clone(),
            treatment.workload.clone(),
            factors.join(";"),
            trial.started.clone(),
            outcome.to_owned(),
            reason.to_owned(),
            trial.suspect.join("; "),
            metric.to_owned(),
            unit,
            source,
            better.to_owned(),
        ],
        counts: outcome == "complete" && trial.suspect.is_empty(),
        value,
    };
    if trial.metrics.is_empty() {
        return vec![row("", String::new(), String::new(), "", f64::NAN)];
    }
    let metrics = trial.metrics.iter().map(|(name, metric)| {
        let better = match metric.better {
            Better::Lower => "lower",
            Better::Higher => "higher",
            Better::Neither => "neither",
        };
        row(
            name,
            metric.quantity.unit.to_string(),
            metric.source.to_string(),
            better,
            metric.quantity.value,
        )
    });
    metrics.collect()
}

/// Writes one row per trial and metric as CSV (RFC 4180). Returns what could not be read.
///
/// # Errors
/// When `into` does not take it.
pub fn csv(results: &ResultsDir, into: &mut impl Write) -> io::Result<Vec<ResultsError>> {
    let (rows, unreadable) = rows(results);
    writeln!(into, "trial,block,{},counts,value", TEXTS.join(","))?;
    for row in rows {
        let texts: Vec<String> = row.texts.iter().map(|text| field(text)).collect();
        let value = if row.value.is_finite() {
            row.value.to_string()
        } else {
            String::new()
        };
        writeln!(
            into,
            "{},{},{},{},{value}",
            row.trial,
            row.block,
            texts.join(","),
            row.counts
        )?;
    }
    into.flush()?;
    Ok(unreadable)
}

/// Writes one row per trial and metric as Parquet. Returns what could not be read.
///
/// # Errors
/// When the file cannot be written.
pub fn parquet(results: &ResultsDir, path: &Path) -> Result<Vec<ResultsError>, ResultsError> {
    let (rows, unreadable) = rows(results);
    let file = File::create(path).map_err(ResultsError::io("create", path))?;
    let write = || -> Result<(), ParquetError> {
        let texts: String = TEXTS
            .iter()
            .map(|name| format!("required binary {name} (UTF8); "))
            .collect();
        let schema = format!(
            "message trials {{ required int64 trial; required int64 block; {texts}required boolean counts; required double value; }}"
        );
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .build();
        let mut writer = SerializedFileWriter::new(
            file,
            Arc::new(parse_message_type(&schema)?),
            Arc::new(properties),
        )?;
        let mut group = writer.next_row_group()?;
        write_column::<Int64Type>(
            &mut group,
            &rows.iter().map(|row| row.trial).collect::<Vec<_>>(),
        )?;
        write_column::<Int64Type>(
            &mut group,
            &rows.iter().map(|row| row.block).collect::<Vec<_>>(),
        )?;
        for column in 0..TEXTS.len() {
            let texts: Vec<ByteArray> = rows
                .iter()
                .filter_map(|row| row.texts.get(column))
                .map(|text| text.as_str().into())
                .collect();
            write_column::<ByteArrayType>(&mut group, &texts)?;
        }
        write_column::<BoolType>(
            &mut group,
            &rows.iter().map(|row| row.counts).collect::<Vec<_>>(),
        )?;
        write_column::<DoubleType>(
            &mut group,
            &rows.iter().map(|row| row.value).collect::<Vec<_>>(),
        )?;
        group.close()?;
        writer.close()?;
        Ok(())
    };
    write().map_err(|error| ResultsError::io("write", path)(io::Error::other(error)))?;
    Ok(unreadable)
}

/// Writes every sample of every trial as CSV, trial by trial, series by series. Returns what
/// could not be read.
///
/// # Errors
/// When `into` does not take it.
pub fn csv_samples(results: &ResultsDir, into: &mut impl Write) -> io::Result<Vec<ResultsError>> {
    let mut unreadable = Vec::new();
    writeln!(into, "trial,t_ns,owner,metric,unit,kind,source,value")?;
    for index in results.trial_indexes() {
        if !results.trial_path(index).join("samples.parquet").exists() {
            continue;
        }
        match results
            .samples(index)
            .and_then(|reader| reader.load(|_, _| true))
        {
            Ok(all) => {
                for samples in all {
                    let series = &samples.series;
                    let kind = series.kind.name();
                    let what = format!(
                        "{},{},{},{kind},{}",
                        field(&series.owner),
                        field(&series.metric),
                        series.unit,
                        series.source
                    );
                    for (at, value) in &samples.points {
                        writeln!(into, "{index},{},{what},{value}", at.0)?;
                    }
                }
            }
            Err(error) => unreadable.push(error),
        }
    }
    into.flush()?;
    Ok(unreadable)
}

/// A field of CSV, quoted where it must be.
pub fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
