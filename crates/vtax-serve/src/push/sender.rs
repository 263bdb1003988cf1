//! The thread that sends what is queued, oldest first.

use super::queue::Batch;
use super::wire::{self, Pass};
use super::{Destination, Inside, Protocol, PushError, PushOptions, Shared};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// Passes in one request, and what they may be in the queue together: some megabytes when unpacked.
const MOST_PASSES: usize = 2000;
const MOST_BYTES: usize = 512 * 1024;

/// An answer in its time, or it counts as none.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Between two attempts, doubled each time, within these.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// What a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// How much of a server's words is told.
const WORDS: usize = 200;

/// A pass as the queue holds it.
pub(super) fn packed(pass: &Pass) -> Result<Vec<u8>, String> {
    snap::raw::Encoder::new()
        .compress_vec(&pass.encode_to_vec())
        .map_err(|cause| cause.to_string())
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

/// What became of a request.
enum Answer {
    Taken {
        /// Samples that the server took no account of, and why.
        rejected: Option<(u64, String)>,
    },
    /// The server has newer samples, or others of the same moment. It has these too if an earlier attempt may have
    /// delivered them.
    Old(String),
    /// No repeat makes it take them.
    Refused(String),
    /// To be tried again.
    Later {
        why: String,
        asked: Option<Duration>,
        /// Whether the server may have taken the samples all the same.
        may_be_taken: bool,
    },
}

/// A batch as a request.
struct Packed {
    /// The request's body, if anything of the batch can be read.
    body: Option<Vec<u8>>,
    /// How many samples cannot.
    damaged: u64,
    /// The time of its newest record, in ms since 1970.
    newest: Option<i64>,
}

pub(super) struct Sender {
    protocol: Protocol,
    url: String,
    /// The same, to tell.
    shown: String,
    labels: Vec<(String, String)>,
    authorization: Option<String>,
    agent: Agent,
    /// How many records to send one by one, since together they were refused.
    singly: usize,
    /// Records up to this time, in ms since 1970, may have been delivered by an attempt whose answer is not known.
    unsure_until: Option<i64>,
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
        let agent = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            // A token is for this server and no other.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("vtax/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Self {
            protocol: to.protocol,
            url: to.url.clone(),
            shown: to.shown(),
            labels: options.labels.clone(),
            authorization,
            agent,
            singly: 0,
            unsure_until: None,
        })
    }

    /// Sends until the end, and then what can be sent at once.
    pub(super) fn run(&mut self, shared: &Shared) {
        let mut failed: u32 = 0;
        // What an earlier exporter left: nobody knows what it had sent when it ended.
        self.unsure_until = shared.lock().queue.newest_time();
        loop {
            let Some(batch) = self.next(shared) else {
                return;
            };
            let Packed {
                body,
                damaged,
                newest,
            } = self.body(&batch);
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
                if failed == 0 {
                    let line = format!("cannot push to {}: {why}; it is tried again", self.shown);
                    inside.said.push(line);
                }
                inside.state.failures += 1;
                failed = failed.saturating_add(1);
                if wait(shared, inside, pause(failed).max(asked.unwrap_or_default())) {
                    continue;
                }
                return;
            }
            if failed > 0 {
                let line = format!(
                    "{} answers again; {} samples waited",
                    self.shown,
                    inside.queue.samples()
                );
                inside.said.push(line);
                failed = 0;
            }
            inside.state.requests += 1;
            inside.state.sent_bytes += body.map_or(0, |body| body.len() as u64);
            inside.state.dropped_disk += damaged;
            let samples = batch.samples - damaged;
            match answer {
                Answer::Old(_) | Answer::Refused(_) if batch.records.len() > 1 => {
                    // Which of them is it?
                    self.singly = batch.records.len();
                    continue;
                }
                Answer::Old(_) if newest <= self.unsure_until => inside.state.repeated += samples,
                Answer::Old(why) | Answer::Refused(why) => {
                    if inside.state.dropped_refused == 0 && !why.is_empty() {
                        let line =
                            format!("{} refuses samples, which are dropped: {why}", self.shown);
                        inside.said.push(line);
                    }
                    inside.state.dropped_refused += samples;
                }
                Answer::Taken { rejected: None } => inside.state.sent += samples,
                Answer::Taken {
                    rejected: Some((rejected, why)),
                } => {
                    if inside.state.dropped_refused == 0 {
                        let line = format!("{} refuses some samples: {why}", self.shown);
                        inside.said.push(line);
                    }
                    inside.state.dropped_refused += rejected.min(samples);
                    inside.state.sent += samples.saturating_sub(rejected);
                }
                Answer::Later { .. } => {}
            }
            self.singly = self.singly.saturating_sub(1);
            if let Err(cause) = inside.queue.done(&batch) {
                let line = format!("cannot note what was pushed to {}: {cause}", self.shown);
                inside.said.push(line);
            }
        }
    }

    /// The next batch; none at the end.
    fn next(&self, shared: &Shared) -> Option<Batch> {
        let most = if self.singly > 0 { 1 } else { MOST_PASSES };
        let mut inside = shared.lock();
        loop {
            if inside.until.is_some_and(|until| until <= Instant::now()) {
                return None;
            }
            match inside.queue.oldest(most, MOST_BYTES) {
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
                    let line = format!(
                        "cannot read the queue for {}: {cause}; {lost} samples are lost",
                        self.shown
                    );
                    inside.said.push(line);
                }
            }
        }
    }

    fn body(&self, batch: &Batch) -> Packed {
        let passes: Vec<Pass> = batch
            .records
            .iter()
            .filter_map(|record| unpacked(record))
            .collect();
        let read: u64 = passes.iter().map(|pass| pass.samples() as u64).sum();
        let body = (!passes.is_empty())
            .then(|| body(self.protocol, &passes, &self.labels))
            .flatten();
        Packed {
            body,
            damaged: batch.samples.saturating_sub(read),
            newest: passes.iter().map(|pass| pass.time_ms).max(),
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
                    why: cause.to_string(),
                    asked: None,
                    may_be_taken: was_sent(&cause),
                };
            }
        };
        let status = response.status().as_u16();
        let asked = response
            .headers()
            .get("retry-after")
            .and_then(|seconds| seconds.to_str().ok()?.trim().parse().ok())
            .map(|seconds| Duration::from_secs(seconds).min(LONGEST_ASKED));
        // Words that are too long are not worth keeping.
        let said = response.body_mut().with_config().limit(64 * 1024);
        let said = said.read_to_vec().unwrap_or_default();
        judge(self.protocol, status, &said, asked)
    }
}

/// Whether a request that failed may have reached the server.
fn was_sent(cause: &ureq::Error) -> bool {
    match cause {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => false,
        ureq::Error::Io(cause) => cause.kind() != std::io::ErrorKind::ConnectionRefused,
        _ => true,
    }
}

/// What a server's answer means.
fn judge(protocol: Protocol, status: u16, said: &[u8], asked: Option<Duration>) -> Answer {
    let text = String::from_utf8_lossy(said);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let words: String = text.trim().chars().take(WORDS).map(plain).collect();
    let why = format!("it answers {status} {words}").trim_end().to_owned();
    match status {
        200..=299 => Answer::Taken {
            rejected: match protocol {
                Protocol::RemoteWrite => None,
                Protocol::Otlp => wire::rejected(said),
            },
        },
        // Prometheus, of samples that are not newer than the last of their series. "Out of bounds" and "too old" are
        // samples that it has not, and will not take.
        400 | 409 if text.contains("out of order") || text.contains("duplicate sample") => {
            Answer::Old(why)
        }
        // A wrong path or token is for the operator to correct; the samples can wait for that.
        300..=399 | 401 | 403..=405 | 407 | 408 | 425 | 429 | 500.. => Answer::Later {
            why,
            asked,
            may_be_taken: status >= 500,
        },
        _ => Answer::Refused(why),
    }
}

/// Before the next attempt: with jitter, so that a fleet does not come back as one.
fn pause(failed: u32) -> Duration {
    let longest = SHORTEST
        .saturating_mul(1 << failed.saturating_sub(1).min(16))
        .min(LONGEST);
    // Random by its keys, which are new each time.
    let chance = RandomState::new().hash_one(failed) >> 11;
    longest.mul_f64(0.5 + 0.5 * (chance as f64 / (1u64 << 53) as f64))
}

/// Waits; false at the end, when there is no time for another attempt.
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
