// SPDX-License-Identifier: Apache-2.0
//! Writes and reads `latencies.hlog`: the distributions of a trial in the format of HdrHistogram's interval log.

use super::ResultsError;
use base64::Engine;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, IntervalLogWriterError, LogEntry,
    LogIteratorError, Tag,
};
use hdrhistogram::serialization::{DeserializeError, Deserializer, V2DeflateSerializer};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;
use vtax_core::Nanoseconds;
use vtax_files::Dir;

/// The file's name in a trial's directory.
pub(super) const FILE: &str = "latencies.hlog";

/// Nanoseconds per unit of the log's third column, which other tools show as milliseconds.
const NANOSECONDS_PER_MILLISECOND: f64 = 1e6;

/// The most by which rounding lengthens a window of the log, in nanoseconds.
const ROUNDING: u64 = 2_000_000;

/// Longest log that is read, in bytes.
const MOST_BYTES: u64 = 64 << 20;
/// Most bytes of decompressed counters in one log.
const MOST_COUNTERS: usize = 512 << 20;
/// Most significant digits; each further digit takes ten times the memory.
const MOST_DIGITS: u32 = 3;
/// The most bytes of one histogram: 9 for each of the 56,320 counters of three digits and 64 bits.
const MOST_PAYLOAD: u64 = 9 * 56_320;
/// Bytes before a compressed histogram: its cookie and its length.
const OUTER: usize = 8;
/// Bytes before a histogram's counters: cookie, length, offset, digits, bounds and ratio.
const HEAD: usize = 40;

/// The distribution of one metric of one actor within one phase, or within the whole window.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramRecord {
    /// The actor that the values belong to, such as `client` or `pi.client`.
    pub actor: String,
    /// Name of the metric, without a dot: `latency`.
    pub metric: String,
    /// The phase's window on the clock of `samples.parquet`, with a resolution of one millisecond.
    pub window: (Nanoseconds, Nanoseconds),
    /// The values, in nanoseconds.
    pub histogram: Histogram<u64>,
}

impl HistogramRecord {
    /// Whether the record lies in `window`: its middle does, because its ends are rounded to a millisecond, and it is no
    /// longer, as that of a load which ran throughout several windows is.
    pub fn is_of(&self, window: (Nanoseconds, Nanoseconds)) -> bool {
        let middle = self.window.0.0 / 2 + self.window.1.0 / 2;
        let length = |of: (Nanoseconds, Nanoseconds)| of.1.saturating_since(of.0).0;
        (window.0.0..window.1.0).contains(&middle)
            && length(self.window) <= length(window).saturating_add(ROUNDING)
    }
}

/// Writes the log, with its entries in chronological order, as the format requires.
///
/// # Errors
/// When an actor's or metric's name is no valid tag, or the file cannot be written.
pub(super) fn write(trial: &Dir, records: &[HistogramRecord]) -> Result<(), ResultsError> {
    if records.is_empty() {
        return Ok(());
    }
    let path = &trial.path().join(FILE);
    let refused = |why: String| ResultsError::io("write", path)(io::Error::other(why));
    let mut ordered: Vec<&HistogramRecord> = records.iter().collect();
    ordered.sort_by_key(|record| record.window);
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment(
            "Values in ns, maxima in ms; start and length in s on the clock of samples.parquet",
        )
        .with_max_value_divisor(NANOSECONDS_PER_MILLISECOND)
        .begin_log_with(&mut text, &mut serializer)
        .map_err(|error| refused(error.to_string()))?;
    for record in ordered {
        let (actor, metric, window) = (&record.actor, &record.metric, record.window);
        let name = format!("{actor}.{metric}");
        let is_read_again = !metric.contains('.') && !actor.is_empty() && !metric.is_empty();
        let tag = match Tag::new(&name) {
            Some(tag) if is_read_again => tag,
            _ => return Err(refused(format!("`{name}` cannot be a tag"))),
        };
        let length = window.1.saturating_since(window.0);
        log.write_histogram(
            &record.histogram,
            Duration::from_nanos(window.0.0),
            Duration::from_nanos(length.0),
            Some(tag),
        )
        .map_err(|error| match error {
            IntervalLogWriterError::IoError(error) => ResultsError::io("write", path)(error),
            IntervalLogWriterError::SerializeError(error) => refused(error.to_string()),
        })?;
    }
    Ok(trial.write(FILE, &text)?)
}

/// Reads the log; an absent file gives no records.
///
/// # Errors
/// When the file cannot be read, or its content is invalid.
pub(super) fn read(directory: &Dir, below: &Path) -> Result<Vec<HistogramRecord>, ResultsError> {
    let bytes = match directory.read(below, MOST_BYTES) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        other => other?,
    };
    // The decoder relies on the counts in the file, so a panic on a damaged one is caught here.
    vtax_core::guarded(|| parse(&bytes))
        .unwrap_or(Err(LogError::Contradiction))
        .map_err(|why| ResultsError::Corrupted {
            path: directory.path().join(below),
            why: why.to_string(),
            remedy:
                "The trial's metrics are still in its trial.json; only its distributions are lost"
                    .to_owned(),
        })
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error("a histogram contradicts its own description")]
    Contradiction,
    #[error("it is no interval log: {0:?}")]
    Log(LogIteratorError),
    #[error("the tag `{0}` is not ACTOR.METRIC")]
    Tag(String),
    #[error("{name}: {error}")]
    Histogram { name: String, error: HistogramError },
    #[error("its histograms take more than {} MiB", MOST_COUNTERS >> 20)]
    TooMany,
}

/// A histogram that cannot be decoded.
#[derive(Debug, thiserror::Error)]
enum HistogramError {
    #[error("it ends too early")]
    Short,
    #[error("its length is not what it says")]
    Length,
    #[error("it has more than {MOST_DIGITS} significant digits")]
    Digits,
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
    #[error(transparent)]
    Zlib(#[from] io::Error),
    #[error(transparent)]
    Decode(#[from] DeserializeError),
}

fn parse(bytes: &[u8]) -> Result<Vec<HistogramRecord>, LogError> {
    let mut records = Vec::new();
    let mut deserializer = Deserializer::new();
    let mut counters = 0;
    for entry in IntervalLogIterator::new(bytes) {
        let interval = match entry {
            Ok(LogEntry::Interval(interval)) => interval,
            Ok(_) => continue,
            Err(error) => return Err(LogError::Log(error)),
        };
        let name = interval.tag().map_or("", |tag| tag.as_str());
        let (actor, metric) = name
            .rsplit_once('.')
            .ok_or_else(|| LogError::Tag(name.to_owned()))?;
        let mut decode = || -> Result<Histogram<u64>, HistogramError> {
            let encoded =
                base64::engine::general_purpose::STANDARD.decode(interval.encoded_histogram())?;
            let plain = unfold(&encoded)?;
            Ok(deserializer.deserialize(&mut plain.as_slice())?)
        };
        let histogram = decode().map_err(|error| LogError::Histogram {
            name: name.to_owned(),
            error,
        })?;
        counters += histogram.distinct_values() * size_of::<u64>();
        if counters > MOST_COUNTERS {
            return Err(LogError::TooMany);
        }
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let start = nanoseconds(interval.start_timestamp());
        records.push(HistogramRecord {
            actor: actor.to_owned(),
            metric: metric.to_owned(),
            window: (
                Nanoseconds(start),
                Nanoseconds(start.saturating_add(nanoseconds(interval.duration()))),
            ),
            histogram,
        });
    }
    Ok(records)
}

/// Decompresses a histogram after a check of its stated size against its real size and the limit: the decoder allocates
/// the stated memory before it reads the data.
fn unfold(encoded: &[u8]) -> Result<Vec<u8>, HistogramError> {
    let compressed = encoded.get(OUTER..).ok_or(HistogramError::Short)?;
    let mut plain = Vec::new();
    ZlibDecoder::new(compressed)
        .take(MOST_PAYLOAD + 1)
        .read_to_end(&mut plain)?;
    let number = |at: usize| {
        let bytes = plain.get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    let stated = number(4).and_then(|length| usize::try_from(length).ok());
    let there = plain.len().checked_sub(HEAD);
    if there.is_none() || stated != there {
        return Err(HistogramError::Length);
    }
    if number(12).is_none_or(|digits| digits > MOST_DIGITS) {
        return Err(HistogramError::Digits);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn read(path: &Path) -> Result<Vec<HistogramRecord>, ResultsError> {
        let folder = Dir::open(path.parent().unwrap()).unwrap();
        super::read(&folder, Path::new(FILE))
    }

    fn write(path: &Path, records: &[HistogramRecord]) -> Result<(), ResultsError> {
        super::write(&Dir::open(path.parent().unwrap()).unwrap(), records)
    }

    fn record(actor: &str, start: u64, values: &[u64]) -> HistogramRecord {
        let mut histogram = Histogram::new(3).unwrap();
        for value in values {
            histogram.record(*value).unwrap();
        }
        HistogramRecord {
            actor: actor.to_owned(),
            metric: "latency".to_owned(),
            window: (Nanoseconds(start), Nanoseconds(start + 2_500_000_000)),
            histogram,
        }
    }

    #[test]
    fn what_is_written_is_read_in_order_of_time_and_adds_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let late = record("pi.client", 4_000_000_000, &[1_000_000, 2_000_000]);
        let early = record("client", 1_000_000_000, &[5_000_000; 3]);
        write(&path, &[late.clone(), early.clone()]).unwrap();
        let found = read(&path).unwrap();
        assert_eq!(found, [early.clone(), late.clone()]);
        assert!(early.is_of((Nanoseconds(0), Nanoseconds(3_000_000_000))));
        assert!(!late.is_of((Nanoseconds(0), Nanoseconds(3_000_000_000))));
        // A load throughout several windows belongs to none of them.
        assert!(!early.is_of((Nanoseconds(2_000_000_000), Nanoseconds(3_000_000_000))));
        let mut sum = early.histogram;
        sum.add(&late.histogram).unwrap();
        assert_eq!(sum.len(), 5);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("Tag=client.latency,1.000,2.500,"), "{text}");
    }

    #[test]
    fn a_name_that_cannot_be_a_tag_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        for actor in ["a,b", "a b", ""] {
            let error = write(&path, &[record(actor, 0, &[1])]).unwrap_err();
            assert!(error.to_string().contains("cannot be a tag"), "{error}");
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_bad_file_is_an_error_that_names_it_and_a_missing_one_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(read(&path).unwrap(), []);
        for text in [
            "no log\n",
            "Tag=client,0,1,1,AAAA\n",
            "Tag=client.latency,0,1,1,!!\n",
            "Tag=client.latency,0,1,1,HISTFAAAACx4\n",
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(
                error.contains(FILE) && error.contains("corrupted"),
                "{error}"
            );
        }
    }

    /// A log of one histogram with these bytes in its header, and no counters.
    fn crafted(payload: u32, digits: u32) -> String {
        let mut plain = 0x1c84_9313_u32.to_be_bytes().to_vec();
        for number in [payload, 0, digits] {
            plain.extend(number.to_be_bytes());
        }
        for number in [1, u64::MAX >> 1, 1.0_f64.to_bits()] {
            plain.extend(number.to_be_bytes());
        }
        let mut packed = Vec::new();
        flate2::read::ZlibEncoder::new(plain.as_slice(), flate2::Compression::fast())
            .read_to_end(&mut packed)
            .unwrap();
        let mut encoded = 0x1c84_9314_u32.to_be_bytes().to_vec();
        encoded.extend(u32::try_from(packed.len()).unwrap().to_be_bytes());
        encoded.extend(packed);
        let encoded = base64::engine::general_purpose::STANDARD.encode(encoded);
        format!("Tag=client.latency,0.000,1.000,1.000,{encoded}\n")
    }

    #[test]
    fn a_log_gets_no_memory_for_what_it_only_states() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        fs::write(&path, crafted(0, 3)).unwrap();
        assert!(read(&path).unwrap()[0].histogram.is_empty());
        let many = crafted(0, 3).repeat(MOST_COUNTERS / (8 * 50_000) + 1);
        for (text, why) in [
            (crafted(u32::MAX, 3), "length is not what it says"),
            (crafted(0, 5), "significant digits"),
            (many, "more than 512 MiB"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(FILE), "{error}");
        }
        fs::File::create(&path)
            .unwrap()
            .set_len(MOST_BYTES + 1)
            .unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("longer than 64 MiB"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_damage_panics_the_reader(place in 0usize..400, byte in any::<u8>()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(FILE);
            write(&path, &[record("client", 0, &[3, 40_000, 7_000_000])]).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            let place = place % bytes.len();
            bytes[place] = byte;
            fs::write(&path, bytes).unwrap();
            let _ = read(&path);
        }
    }
}
