// SPDX-License-Identifier: Apache-2.0
//! Writes and reads `samples.parquet`: every sample of a trial, in row groups so that memory stays bounded.

use super::ResultsError;
use super::pages::{self, refused};
use parquet::basic::Compression;
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, ParseUnitError, Series, SeriesKind, Source};
use vtax_files::Dir;

/// Rows of a row group: about 1.5 MiB of buffers, and a few seconds of a busy observer.
const ROWS_PER_GROUP: usize = 32_768;

/// Most samples in memory at once, a gigabyte: half a day of all series of an observer.
const MOST_SAMPLES: usize = 1 << 26;
/// Most series of a file, and most bytes of the name of an owner or a metric.
const MOST_SERIES: usize = 1 << 16;
const LONGEST_NAME: usize = 1 << 10;

const SCHEMA: &str = "message samples {
    required int64 t_ns;
    required binary owner (UTF8);
    required binary metric (UTF8);
    required binary unit (UTF8);
    required binary kind (UTF8);
    required binary source (UTF8);
    required double value;
}";

/// A handle to a series within one [`SampleWriter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleSeriesId(usize);

/// The descriptive columns of one series, in their order in the file, shared by all of its rows: owner, metric, unit,
/// kind, source.
const LABELS: usize = 5;
type Labels = [ByteArray; LABELS];

/// Writes `samples.parquet`.
pub struct SampleWriter {
    path: PathBuf,
    writer: SerializedFileWriter<File>,
    labels: Vec<Labels>,
    ids: HashMap<(Owner, String), SampleSeriesId>,
    times: Vec<i64>,
    series: Vec<usize>,
    values: Vec<f64>,
}

impl fmt::Debug for SampleWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleWriter")
            .field("path", &self.path)
            .field("buffered", &self.times.len())
            .finish()
    }
}

/// For `map_err`: a failed `action` on the columns of `path`.
pub fn parquet_failed(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(ParquetError) -> ResultsError + use<> {
    let failed = ResultsError::io(action, path);
    move |error| {
        failed(match error {
            ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
                Ok(io) => *io,
                Err(other) => std::io::Error::other(other),
            },
            other => std::io::Error::other(other),
        })
    }
}

impl SampleWriter {
    /// Creates the file; it must not exist.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(trial: &Dir, name: &str) -> Result<Self, ResultsError> {
        let file = trial.new_file(name)?;
        let path = &trial.path().join(name);
        let schema = parse_message_type(SCHEMA).map_err(parquet_failed("describe", path))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(concat!("vtax ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_column_dictionary_enabled("value".into(), false)
            .build();
        let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))
            .map_err(parquet_failed("start", path))?;
        Ok(Self {
            path: path.to_owned(),
            writer,
            labels: Vec::new(),
            ids: HashMap::new(),
            times: Vec::with_capacity(ROWS_PER_GROUP),
            series: Vec::with_capacity(ROWS_PER_GROUP),
            values: Vec::with_capacity(ROWS_PER_GROUP),
        })
    }

    /// Returns the handle of a series and registers a new one. Later registrations of the same owner and metric keep
    /// the unit, kind and source of the first.
    pub fn register(&mut self, series: &Series) -> SampleSeriesId {
        let key = (series.owner.clone(), series.metric.clone());
        let next = SampleSeriesId(self.labels.len());
        let id = *self.ids.entry(key).or_insert(next);
        if id == next {
            self.labels.push([
                series.owner.to_string().as_str().into(),
                series.metric.as_str().into(),
                series.unit.to_string().as_str().into(),
                series.kind.name().into(),
                series.source.to_string().as_str().into(),
            ]);
        }
        id
    }

    /// Adds one sample; an unknown handle is ignored. Writes to disk once per 32,768 samples.
    ///
    /// # Errors
    /// When a full row group cannot be written.
    pub fn push(
        &mut self,
        series: SampleSeriesId,
        at: Nanoseconds,
        value: f64,
    ) -> Result<(), ResultsError> {
        if series.0 >= self.labels.len() {
            return Ok(());
        }
        self.times.push(i64::try_from(at.0).unwrap_or(i64::MAX));
        self.series.push(series.0);
        self.values.push(value);
        if self.times.len() >= ROWS_PER_GROUP {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), ResultsError> {
        if self.times.is_empty() {
            return Ok(());
        }
        self.write_row_group()
            .map_err(parquet_failed("write samples to", &self.path))?;
        self.times.clear();
        self.series.clear();
        self.values.clear();
        Ok(())
    }

    fn write_row_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        write_column::<Int64Type>(&mut group, &self.times)?;
        for column in 0..LABELS {
            let labels = self.series.iter().filter_map(|id| self.labels.get(*id));
            let texts = labels.filter_map(|labels| labels.get(column)).cloned();
            write_column::<ByteArrayType>(&mut group, &texts.collect::<Vec<_>>())?;
        }
        write_column::<DoubleType>(&mut group, &self.values)?;
        group.close()?;
        Ok(())
    }

    /// Writes the buffered rows and the footer, and syncs the file.
    ///
    /// # Errors
    /// When a write or the sync fails.
    pub fn finish(mut self) -> Result<(), ResultsError> {
        self.flush()?;
        let path = self.path;
        let file = self
            .writer
            .into_inner()
            .map_err(parquet_failed("finish", &path))?;
        file.sync_all().map_err(ResultsError::io("sync", &path))
    }
}

/// Writes the next column of a row group.
pub fn write_column<T: parquet::data_type::DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
) -> Result<(), ParquetError> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| refused("the schema has no more columns"))?;
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}

/// One series as read from the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    /// Description of the series.
    pub series: Series,
    /// Time and value of each sample, in the order of the file, which is chronological.
    pub points: Vec<(Nanoseconds, f64)>,
}

/// Reads `samples.parquet`.
pub struct SampleReader {
    path: PathBuf,
    /// The place of the run; empty where it is unknown.
    place: String,
    file: SerializedFileReader<File>,
}

impl fmt::Debug for SampleReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleReader")
            .field("path", &self.path)
            .finish()
    }
}

impl SampleReader {
    /// Opens the file and reads its footer.
    ///
    /// # Errors
    /// When it is absent, unreadable or not a Parquet file with the expected columns.
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        let file = File::open(path).map_err(ResultsError::io("open", path))?;
        Self::from_file(file, path, "")
    }

    /// As [`SampleReader::open`], for an open file of a run at `place`; `path` is for messages.
    ///
    /// # Errors
    /// As there, and when a part of the file is larger than any that vtax writes, since an untrusted file must not
    /// exhaust the memory of this process.
    pub(super) fn from_file(file: File, path: &Path, place: &str) -> Result<Self, ResultsError> {
        let corrupted = corrupted(path);
        pages::check_footer(&file).map_err(&corrupted)?;
        let again = file.try_clone().map_err(ResultsError::io("open", path))?;
        let file = guarded(|| SerializedFileReader::new(file)).map_err(&corrupted)?;
        let columns = file.metadata().file_metadata().schema_descr();
        let found = columns.columns().iter().map(|column| column.name());
        let found: Vec<&str> = found.collect();
        if found != ["t_ns", "owner", "metric", "unit", "kind", "source", "value"] {
            return Err(corrupted(refused(format!("its columns are {found:?}"))));
        }
        guarded(|| pages::check(&again, file.metadata())).map_err(&corrupted)?;
        Ok(Self {
            path: path.to_owned(),
            place: place.to_owned(),
            file,
        })
    }

    /// Number of samples.
    pub fn rows(&self) -> u64 {
        u64::try_from(self.file.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// The series for which `wanted(owner, metric)` holds, in order of first appearance.
    ///
    /// # Errors
    /// When the file is corrupted.
    pub fn load(
        &self,
        wanted: impl Fn(&Owner, &str) -> bool,
    ) -> Result<Vec<Samples>, ResultsError> {
        self.go_through(wanted, true)
    }

    /// Checks that the whole file is readable.
    ///
    /// # Errors
    /// When the file is corrupted.
    pub(super) fn check(&self) -> Result<(), ResultsError> {
        self.go_through(|_, _| true, false).map(drop)
    }

    fn go_through(
        &self,
        wanted: impl Fn(&Owner, &str) -> bool,
        keeps: bool,
    ) -> Result<Vec<Samples>, ResultsError> {
        let mut loader = Loader {
            wanted,
            place: &self.place,
            keeps,
            kept: 0,
            seen: 0,
            index: HashMap::new(),
            series: Vec::new(),
        };
        for group in 0..self.file.num_row_groups() {
            guarded(|| loader.group(&*self.file.get_row_group(group)?))
                .map_err(corrupted(&self.path))?;
        }
        Ok(loader.series)
    }
}

fn corrupted(path: &Path) -> impl Fn(ParquetError) -> ResultsError + use<> {
    let path = path.to_owned();
    move |error| ResultsError::Corrupted {
        path: path.clone(),
        why: error.to_string(),
        remedy: "The trial's metrics are still in its trial.json; only its time series is lost"
            .to_owned(),
    }
}

/// Parses untrusted bytes and turns a panic into an error. The Parquet decoder asserts some invariants of the file
/// instead of returning an error.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    vtax_core::guarded(read)
        .unwrap_or_else(|_| Err(refused("a value in it contradicts its own description")))
}

struct Loader<'a, W> {
    wanted: W,
    place: &'a str,
    /// Whether samples are kept, or only checked for readability.
    keeps: bool,
    kept: usize,
    /// Number of distinct series.
    seen: usize,
    /// Owner → metric → position in `series`, or `None` for a series that is not wanted.
    index: HashMap<Vec<u8>, HashMap<Vec<u8>, Option<usize>>>,
    series: Vec<Samples>,
}

impl<W: Fn(&Owner, &str) -> bool> Loader<'_, W> {
    fn group(&mut self, group: &dyn RowGroupReader) -> Result<(), ParquetError> {
        let rows = usize::try_from(group.metadata().num_rows())
            .map_err(|_| refused("a row group has a negative length"))?;
        let owners = strings(group, 1, rows)?;
        let metrics = strings(group, 2, rows)?;
        let mut places = Vec::with_capacity(owners.len());
        let mut any = false;
        let mut described: Option<[Vec<ByteArray>; 3]> = None;
        for (row, (owner, metric)) in owners.iter().zip(&metrics).enumerate() {
            let known = self.index.get(owner.data());
            let place = match known.and_then(|metrics| metrics.get(metric.data())) {
                Some(place) => *place,
                None => {
                    // Unit, kind and source are decoded only in row groups with a new series.
                    let columns = match &described {
                        Some(columns) => columns,
                        None => {
                            let of = |column| strings(group, column, rows);
                            &*described.insert([of(3)?, of(4)?, of(5)?])
                        }
                    };
                    let [unit, kind, source] = columns
                        .each_ref()
                        .map(|column| column.get(row).map_or(&[][..], ByteArray::data));
                    self.admit([owner.data(), metric.data(), unit, kind, source])?
                }
            };
            any |= place.is_some();
            places.push(place);
        }
        if !any {
            return Ok(());
        }
        let (mut times, mut values) = (Vec::new(), Vec::new());
        let ColumnReader::Int64ColumnReader(mut reader) = group.get_column_reader(0)? else {
            return Err(refused("t_ns is not a 64-bit integer"));
        };
        reader.read_records(rows, None, None, &mut times)?;
        let ColumnReader::DoubleColumnReader(mut reader) = group.get_column_reader(6)? else {
            return Err(refused("value is not a double"));
        };
        reader.read_records(rows, None, None, &mut values)?;
        if !self.keeps {
            return Ok(());
        }
        self.kept += places.iter().flatten().count();
        if self.kept > MOST_SAMPLES {
            return Err(refused(format!(
                "more than {MOST_SAMPLES} of its samples are needed"
            )));
        }
        for ((place, time), value) in places.iter().zip(times).zip(values) {
            if let Some(samples) = place.and_then(|place| self.series.get_mut(place)) {
                let at = Nanoseconds(u64::try_from(time).unwrap_or(0));
                samples.points.push((at, value));
            }
        }
        Ok(())
    }

    fn admit(
        &mut self,
        [owner, metric, unit, kind, source]: [&[u8]; LABELS],
    ) -> Result<Option<usize>, ParquetError> {
        self.seen += 1;
        if self.seen > MOST_SERIES || owner.len().max(metric.len()) > LONGEST_NAME {
            return Err(refused(
                "it has more series or longer names than vtax writes",
            ));
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (named, metric_text) = (Owner::from(text(owner)), text(metric));
        let mut place = None;
        if (self.wanted)(&named, &metric_text) {
            let unit = text(unit)
                .parse()
                .map_err(|error: ParseUnitError| refused(error.to_string()))?;
            let is_no = |what: &str, found: &str| refused(format!("`{found}` is not a {what}"));
            let (kind, source) = (text(kind), text(source));
            let kind = SeriesKind::named(&kind).ok_or_else(|| is_no("kind", &kind))?;
            let source = Source::named(&source).ok_or_else(|| is_no("source", &source))?;
            let series = Series {
                owner: named,
                metric: metric_text,
                unit,
                kind,
                source: source.recorded_at(self.place),
            };
            place = Some(self.series.len());
            self.series.push(Samples {
                series,
                points: Vec::new(),
            });
        }
        let of_owner = self.index.entry(owner.to_vec()).or_default();
        of_owner.insert(metric.to_vec(), place);
        Ok(place)
    }
}

fn strings(
    group: &dyn RowGroupReader,
    column: usize,
    rows: usize,
) -> Result<Vec<ByteArray>, ParquetError> {
    let mut values = Vec::new();
    let ColumnReader::ByteArrayColumnReader(mut reader) = group.get_column_reader(column)? else {
        return Err(refused(format!("column {column} is not text")));
    };
    reader.read_records(rows, None, None, &mut values)?;
    Ok(values)
}
