// SPDX-License-Identifier: Apache-2.0
//! The thread that sends what is queued, oldest first.

use super::message::{Message as LogMessage, is_logged};
use super::queue::Batch;
use super::wire::{self, Pass};
use super::{Destination, Inside, Protocol, PushError, PushOptions, Shared};
use crate::client;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use prost::Message;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// Limits of one request: the passes, and their bytes in the queue, some megabytes when unpacked.
const MAX_PASSES: usize = 2000;
const MAX_BATCH_BYTES: usize = 512 * 1024;

/// Of a request and its response.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Between two attempts, doubled each time, within these.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// The longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The characters of a server's message that are logged.
const MAX_MESSAGE_CHARS: usize = 200;

/// A pass as the queue holds it.
pub(super) fn packed(pass: &Pass) -> Result<Vec<u8>, snap::Error> {
    snap::raw::Encoder::new().compress_vec(&pass.encode_to_vec())
}

fn unpacked(record: &[u8]) -> Option<Pass> {
    let pass = snap::raw::Decoder::new().decompress_vec(record).ok()?;
    Pass::decode(pass.as_slice()).ok()
}

/// Passes in order as a request's body.
pub(super) fn body(
    protocol: Protocol,
    passes: &[Pass],
    labels: &[(String, String)],
) -> Option<Vec<u8>> {
    match protocol {
        Protocol::RemoteWrite => snap::raw::Encoder::new()
            .compress_vec(&wire::remote_write(passes, labels))
            .ok(),
        Protocol::Otlp => {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            let written = packer.write_all(&wire::otlp(passes, labels));
            written.and_then(|()| packer.finish()).ok()
        }
    }
}

/// The outcome of a request.
enum Answer {
    Taken {
        /// The number of samples that the server ignored, and why.
        rejected: Option<(u64, String)>,
    },
    /// The server has newer samples, or others of the same time. It has these too if an earlier attempt may have delivered
    /// them.
    Old(String),
    /// The server will never take the samples.
    Refused(String),
    /// The request is too large for the server.
    TooLarge(String),
    /// The request is to be repeated.
    Later {
        why: String,
        asked: Option<Duration>,
        /// Whether the server may have taken the samples.
        may_be_taken: bool,
    },
}

/// A batch as a request.
struct Packed {
    /// The request's body, if any pass of the batch can be read.
    body: Option<Vec<u8>>,
    /// The samples of the other passes.
    damaged: u64,
    /// The time of its newest record, in ms since 1970.
    newest: Option<i64>,
    /// The samples of the body.
    samples: u64,
}

/// A record that is sent in several requests, since it is too large for one.
struct Part {
    record: Vec<u8>,
    /// The samples that were sent or dropped.
    from: usize,
    /// The samples of the next request.
    count: usize,
    /// The samples of the record.
    all: usize,
}

pub(super) struct Sender {
    protocol: Protocol,
    url: String,
    /// The URL without its query, for messages.
    shown: String,
    labels: Vec<(String, String)>,
    authorization: Option<String>,
    agent: Agent,
    /// Records to send one by one, after they were refused together.
    singly: usize,
    /// Records of the next request, at most.
    most: usize,
    /// Bytes of a body, at most: half of the smallest that the server found too large.
    limit: usize,
    part: Option<Part>,
    /// Records up to this time, in ms since 1970, may have been delivered by an attempt without a response.
    pub(super) unsure_until: Option<i64>,
}

impl Sender {
    pub(super) fn new(to: &Destination, options: &PushOptions) -> Result<Self, PushError> {
        let authorization = options.token.as_ref().map(|token| token.authorization());
        let is_private = to.is_encrypted || to.is_loopback || options.is_plain_allowed;
        if authorization.is_some() && !is_private {
            return Err(PushError::Plain { to: to.shown() });
        }
        let mut tls = TlsConfig::builder();
        if let Some(path) = &options.authorities {
            let wrong = |why: String| PushError::Authorities {
                path: path.clone(),
                why,
            };
            let text = std::fs::read(path).map_err(|cause| wrong(cause.to_string()))?;
            let mut certificates = Vec::new();
            for item in parse_pem(&text) {
                match item.map_err(|cause| wrong(cause.to_string()))? {
                    PemItem::Certificate(certificate) => certificates.push(certificate),
                    _ => return Err(wrong("there is something else in it".to_owned())),
                }
            }
            if certificates.is_empty() {
                return Err(wrong("there is no certificate in it; give PEM".to_owned()));
            }
            tls = tls.root_certs(RootCerts::from(certificates));
        }
        // A token is for this server and no other: no redirection is followed.
        let config = client::settings(TIMEOUT).tls_config(tls.build());
        let agent = config.build().new_agent();
        Ok(Self {
            protocol: to.protocol,
            url: to.url.clone(),
            shown: to.shown(),
            labels: options.labels.clone(),
            authorization,
            agent,
            singly: 0,
            most: MAX_PASSES,
            limit: usize::MAX,
            part: None,
            unsure_until: None,
        })
    }

    /// Sends until the exporter ends, and then what can be sent within its time.
    pub(super) fn run(&mut self, shared: &Shared) {
        let mut failed: u32 = 0;
        let to = self.shown.clone();
        loop {
            let Some(batch) = self.next(shared) else {
                return;
            };
            let Packed {
                body,
                damaged,
                newest,
                samples,
            } = self.body(&batch);
            let size = body.as_ref().map_or(0, Vec::len);
            if size > self.limit && self.shrink(&batch, samples) {
                continue;
            }
            let answer = match &body {
                Some(body) => self.send(body),
                None => Answer::Refused(String::new()),
            };
            let mut inside = shared.lock();
            if let Answer::Later {
                why,
                asked,
                may_be_taken,
            } = answer
            {
                if may_be_taken {
                    self.unsure_until = self.unsure_until.max(newest);
                }
                inside.state.failures += 1;
                failed = failed.saturating_add(1);
                if is_logged(failed) {
                    let waiting = inside.queue.samples();
                    inside.trouble(format!(
                        "cannot push to {to}: {why}; it is tried again after {failed} attempts, and {waiting} samples wait"
                    ));
                }
                if wait(shared, inside, pause(failed).max(asked.unwrap_or_default())) {
                    continue;
                }
                return;
            }
            if failed > 0 {
                let waited = inside.queue.samples();
                let line = format!(
                    "{to} answers again after {failed} failed attempts; {waited} samples waited"
                );
                inside.messages.push(LogMessage::Recovery(line));
                failed = 0;
            }
            inside.state.requests += 1;
            inside.state.sent_bytes += size as u64;
            if matches!(answer, Answer::TooLarge(_)) && samples > 1 {
                if self.limit == usize::MAX {
                    inside.trouble(format!(
                        "{to} finds a request of {size} bytes too large; smaller ones are sent"
                    ));
                }
                self.limit = self.limit.min(size / 2);
                drop(inside);
                self.shrink(&batch, samples);
                continue;
            }
            match answer {
                Answer::TooLarge(why) => {
                    if let Some(lost) = inside.losses.too_large.add(samples) {
                        inside.trouble(format!(
                            "{to} finds requests with one sample too large, and {lost} are dropped: {why}"
                        ));
                    }
                    inside.state.dropped_too_large += samples;
                }
                Answer::Old(_) | Answer::Refused(_) if batch.records.len() > 1 => {
                    // One by one shows which record is refused.
                    self.singly = batch.records.len();
                    continue;
                }
                Answer::Old(_) if newest <= self.unsure_until => inside.state.repeated += samples,
                Answer::Old(why) | Answer::Refused(why) => {
                    if !why.is_empty()
                        && let Some(lost) = inside.losses.refused.add(samples)
                    {
                        inside.trouble(format!(
                            "{to} refuses {lost} samples, which are dropped: {why}"
                        ));
                    }
                    inside.state.dropped_refused += samples;
                }
                Answer::Taken { rejected: None } => inside.state.sent += samples,
                Answer::Taken {
                    rejected: Some((rejected, why)),
                } => {
                    let rejected = rejected.min(samples);
                    if let Some(lost) = inside.losses.refused.add(rejected) {
                        inside.trouble(format!("{to} refuses {lost} samples: {why}"));
                    }
                    inside.state.dropped_refused += rejected;
                    inside.state.sent += samples.saturating_sub(rejected);
                }
                Answer::Later { .. } => {}
            }
            if let Some(part) = &mut self.part {
                part.from += part.count;
                if part.from < part.all {
                    continue;
                }
                self.part = None;
            }
            inside.state.dropped_disk += damaged;
            self.most = self.most.saturating_mul(2).min(MAX_PASSES);
            self.singly = self.singly.saturating_sub(1);
            if let Err(cause) = inside.queue.done(&batch) {
                inside.trouble(format!("cannot note what was pushed to {to}: {cause}"));
            }
        }
    }

    /// The next batch; none at the end.
    fn next(&self, shared: &Shared) -> Option<Batch> {
        let is_single = self.singly > 0 || self.part.is_some();
        let most = if is_single { 1 } else { self.most };
        let mut inside = shared.lock();
        loop {
            if inside.until.is_some_and(|until| until <= Instant::now()) {
                return None;
            }
            match inside.queue.oldest(most, MAX_BATCH_BYTES) {
                Ok(Some(batch)) => return Some(batch),
                Ok(None) if inside.until.is_some() => return None,
                Ok(None) => {
                    inside = shared
                        .news
                        .wait(inside)
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                }
                Err(cause) => {
                    let lost = inside.queue.drop_oldest();
                    inside.state.dropped_disk += lost;
                    let to = &self.shown;
                    inside.trouble(format!(
                        "cannot read the queue for {to}: {cause}; {lost} samples are lost"
                    ));
                }
            }
        }
    }

    /// Halves the next request; false where it has one sample only.
    fn shrink(&mut self, batch: &Batch, samples: u64) -> bool {
        if batch.records.len() > 1 {
            self.most = batch.records.len() / 2;
            return true;
        }
        let samples = usize::try_from(samples).unwrap_or(usize::MAX);
        if samples <= 1 {
            return false;
        }
        let Some(record) = batch.records.first() else {
            return false;
        };
        let part = self.part.get_or_insert_with(|| Part {
            record: record.clone(),
            from: 0,
            count: samples,
            all: samples,
        });
        part.count = samples / 2;
        true
    }

    fn body(&mut self, batch: &Batch) -> Packed {
        // A record may have been dropped meanwhile to make room.
        self.part = self
            .part
            .take()
            .filter(|part| batch.records.first() == Some(&part.record));
        let mut passes: Vec<Pass> = batch
            .records
            .iter()
            .filter_map(|record| unpacked(record))
            .collect();
        let read: u64 = passes.iter().map(|pass| pass.samples() as u64).sum();
        let newest = passes.iter().map(|pass| pass.time_ms).max();
        if let (Some(part), Some(pass)) = (&self.part, passes.first_mut()) {
            pass.keep(part.from, part.count);
        }
        let samples = passes.iter().map(|pass| pass.samples() as u64).sum();
        let body = (!passes.is_empty())
            .then(|| body(self.protocol, &passes, &self.labels))
            .flatten();
        Packed {
            body,
            damaged: batch.samples.saturating_sub(read),
            newest,
            samples,
        }
    }

    fn send(&self, body: &[u8]) -> Answer {
        let mut request = self
            .agent
            .post(&self.url)
            .header("Content-Type", "application/x-protobuf");
        request = match self.protocol {
            Protocol::RemoteWrite => request
                .header("Content-Encoding", "snappy")
                .header("X-Prometheus-Remote-Write-Version", "0.1.0"),
            Protocol::Otlp => request.header("Content-Encoding", "gzip"),
        };
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut response = match request.send(body) {
            Ok(response) => response,
            Err(cause) => {
                return Answer::Later {
                    why: failure(&cause),
                    asked: None,
                    may_be_taken: was_sent(&cause),
                };
            }
        };
        let status = response.status().as_u16();
        let header = |name| response.headers().get(name)?.to_str().ok();
        let now = header("date").and_then(date).unwrap_or_else(Timestamp::now);
        let asked = header("retry-after").and_then(|text| retry_after(text, now));
        // A longer body is ignored.
        let message = response.body_mut().with_config().limit(64 * 1024);
        let message = message.read_to_vec().unwrap_or_default();
        judge(self.protocol, status, &message, asked)
    }
}

/// The reason why a request got no answer.
fn failure(cause: &ureq::Error) -> String {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    const CHECK: &str = "check that the address and the port are those of its receiver, and whether it speaks http or https";
    match cause {
        ureq::Error::Io(io)
            if [
                BrokenPipe,
                ConnectionAborted,
                ConnectionReset,
                UnexpectedEof,
            ]
            .contains(&io.kind()) =>
        {
            format!("it closed the connection without an answer; {CHECK}")
        }
        ureq::Error::Protocol(cause) => format!("its answer is not HTTP ({cause}); {CHECK}"),
        cause => cause.to_string(),
    }
}

/// A date of HTTP, as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7; the obsolete forms are not read).
fn date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text.trim())
        .ok()
}

/// The wait that a server asks for, in seconds or by a date (RFC 9110, section 10.2.3), limited.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let asked = match text.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // A date that has passed asks for no wait.
        Err(_) => Duration::try_from(date(text)?.duration_since(now)).unwrap_or_default(),
    };
    Some(asked.min(MAX_RETRY_AFTER))
}

/// Whether a request that failed may have reached the server.
fn was_sent(cause: &ureq::Error) -> bool {
    match cause {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => false,
        ureq::Error::Io(cause) => cause.kind() != std::io::ErrorKind::ConnectionRefused,
        _ => true,
    }
}

/// The outcome by a server's response.
fn judge(protocol: Protocol, status: u16, message: &[u8], asked: Option<Duration>) -> Answer {
    let text = String::from_utf8_lossy(message);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let words: String = text
        .trim()
        .chars()
        .take(MAX_MESSAGE_CHARS)
        .map(plain)
        .collect();
    let why = format!("it answers {status} {words}").trim_end().to_owned();
    match status {
        200..=299 => Answer::Taken {
            rejected: match protocol {
                Protocol::RemoteWrite => None,
                Protocol::Otlp => wire::rejected(message),
            },
        },
        // Prometheus answers so when samples are not newer than the last of their series. "Out of bounds" and "too old" mean
        // samples that it lacks and will not take.
        400 | 409 if text.contains("out of order") || text.contains("duplicate sample") => {
            Answer::Old(why)
        }
        // The samples wait until the operator has corrected a wrong path or token.
        300..=399 | 401 | 403..=405 | 407 | 408 | 425 | 429 | 500.. => Answer::Later {
            why,
            asked,
            may_be_taken: status >= 500,
        },
        413 => Answer::TooLarge(why),
        _ => Answer::Refused(why),
    }
}

/// The time until the next attempt, with jitter, so that the hosts of a fleet do not retry together.
fn pause(failed: u32) -> Duration {
    let longest = MIN_BACKOFF
        .saturating_mul(1 << failed.saturating_sub(1).min(16))
        .min(MAX_BACKOFF);
    // Random because its keys are.
    let chance = RandomState::new().hash_one(failed) >> 11;
    longest.mul_f64(0.5 + 0.5 * (chance as f64 / (1u64 << 53) as f64))
}

/// Waits; false when the exporter ends, which leaves no time for another attempt.
fn wait(shared: &Shared, inside: std::sync::MutexGuard<'_, Inside>, time: Duration) -> bool {
    let until = Instant::now() + time;
    let mut inside = inside;
    loop {
        if inside.until.is_some() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        let waited = shared.news.wait_timeout(inside, left);
        (inside, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_asks_for_a_wait_in_seconds_or_by_a_date_and_never_for_more_than_five_minutes() {
        let now = date("Fri, 27 Nov 2026 18:00:00 GMT").unwrap();
        for (text, seconds) in [
            ("6", Some(6)),
            (" 0 ", Some(0)),
            ("86400", Some(300)),
            ("18446744073709551615", Some(300)),
            ("Fri, 27 Nov 2026 18:00:06 GMT", Some(6)),
            ("Fri, 27 Nov 2026 17:59:59 GMT", Some(0)),
            ("Sat, 27 Nov 2027 18:00:00 GMT", Some(300)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Wed, 30 Dec 9998 23:59:59 GMT", Some(300)),
            // Beyond the dates that are read.
            ("Fri, 31 Dec 9999 23:59:59 GMT", None),
            ("Fri, 27 Nov 2026", None),
            ("-1", None),
            ("soon", None),
            ("", None),
        ] {
            let asked = retry_after(text, now);
            assert_eq!(asked, seconds.map(Duration::from_secs), "{text}");
        }
    }
}
