//! The least of HTTP that Prometheus needs: `GET /metrics`, one request a connection.

use super::{PortSnapshot, prometheus};

/// A request's head is at most this long, in bytes.
const LONGEST_HEAD: usize = 8 * 1024;

/// The answer to the bytes received so far, or `None` while the request's head is incomplete.
/// The connection is to be closed after the answer.
pub fn respond(
    received: &[u8],
    snapshots: impl FnOnce() -> Result<Vec<PortSnapshot>, String>,
) -> Option<Vec<u8>> {
    let complete = received.windows(4).any(|bytes| bytes == b"\r\n\r\n");
    if !complete {
        let too_long = received.len() > LONGEST_HEAD;
        return too_long.then(|| answer("431 Request Header Fields Too Large", "too long\n"));
    }
    let line = received
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let response = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => match snapshots() {
            Ok(snapshots) => answer("200 OK", &prometheus::text(&snapshots)),
            Err(error) => answer("503 Service Unavailable", &format!("{error}\n")),
        },
        (Some(b"GET"), _) => answer("404 Not Found", "the metrics are at /metrics\n"),
        _ => answer("405 Method Not Allowed", "only GET\n"),
    };
    Some(response)
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(request: &[u8]) -> Option<String> {
        let answer = respond(request, || Ok(Vec::new()))?;
        let line = answer.split(|byte| *byte == b'\r').next().unwrap();
        Some(String::from_utf8(line.to_vec()).unwrap())
    }

    #[test]
    fn only_the_metrics_are_served() {
        assert_eq!(
            status(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap(),
            "HTTP/1.1 200 OK"
        );
        assert_eq!(
            status(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
            "HTTP/1.1 404 Not Found"
        );
        assert_eq!(
            status(b"PUT /metrics HTTP/1.1\r\n\r\n").unwrap(),
            "HTTP/1.1 405 Method Not Allowed"
        );
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost:"), None);
        assert!(status(&[b'x'; LONGEST_HEAD + 1]).unwrap().contains("431"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = status(&bytes);
        }
    }
}
