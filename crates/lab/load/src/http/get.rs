// SPDX-License-Identifier: Apache-2.0
//! HTTP: one GET, again and again.

use crate::generator::{Head, Protocol};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// A request for one file.
pub struct Get(Vec<u8>);

impl Get {
    /// The file at `path`. Without `keepalive` the server is asked to close the connection after its answer.
    pub fn new(address: SocketAddr, path: &str, keepalive: bool) -> Self {
        let head = "HTTP/1.1\r\nHost:";
        let rest = "\r\nUser-Agent: vtax\r\nAccept: */*\r\n";
        let close = if keepalive {
            ""
        } else {
            "Connection: close\r\n"
        };
        Self(format!("GET {path} {head} {address}{rest}{close}\r\n").into_bytes())
    }
}

impl Protocol for Get {
    fn request(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn head(&self, bytes: &[u8]) -> io::Result<Option<Head>> {
        let invalid = |what: String| io::Error::new(ErrorKind::InvalidData, what);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(cause) => return Err(invalid(format!("the answer is not HTTP: {cause}"))),
        };
        let status = response.code.unwrap_or(0);
        let header = |name: &str| {
            let found = response
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case(name));
            found
                .and_then(|header| std::str::from_utf8(header.value).ok())
                .map(str::trim)
        };
        let body = match header("Content-Length").map(str::parse) {
            Some(Ok(body)) => body,
            None if matches!(status, 204 | 304) => 0,
            // RFC 9112, 6.3: without a length the body is chunked or ends with the connection.
            // The files of these workloads always have one.
            _ => {
                return Err(invalid(
                    "the answer has no Content-Length, which this load generator needs".to_owned(),
                ));
            }
        };
        let closes = match header("Connection") {
            Some(value) => value.eq_ignore_ascii_case("close"),
            None => response.version == Some(0),
        };
        Ok(Some(Head {
            length,
            body,
            refused: (status != 200).then(|| format!("status {status}")),
            closes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
        Get(Vec::new()).head(bytes)
    }

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: Apache\r\ncontent-length: 5\r\n\r\nhello";

    #[test]
    fn a_request_asks_for_the_end_of_its_connection_where_none_is_kept() {
        let request = |keepalive| {
            let mut out = Vec::new();
            Get::new("10.0.0.2:80".parse().unwrap(), "/file", keepalive).request(&mut out);
            String::from_utf8(out).unwrap()
        };
        let (kept, closed) = (request(true), request(false));
        assert!(!kept.contains("Connection") && kept.ends_with("*/*\r\n\r\n"));
        assert!(closed.ends_with("*/*\r\nConnection: close\r\n\r\n"));
    }

    #[test]
    fn a_head_says_status_length_and_whether_the_connection_stays() {
        let head = parse(ANSWER).unwrap().unwrap();
        assert_eq!(
            head,
            Head {
                length: ANSWER.len() - 5,
                body: 5,
                refused: None,
                closes: false
            }
        );
        let closing = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n";
        let head = parse(closing).unwrap().unwrap();
        assert_eq!(head.refused.as_deref(), Some("status 503"));
        assert_eq!((head.body, head.closes), (0, true));
        let old = b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert!(parse(old).unwrap().unwrap().closes);
    }

    #[test]
    fn an_answer_without_a_length_is_refused_with_the_reason() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(
            parse(chunked)
                .unwrap_err()
                .to_string()
                .contains("Content-Length")
        );
        assert!(
            parse(b"SSH-2.0-OpenSSH\r\n")
                .unwrap_err()
                .to_string()
                .contains("not HTTP")
        );
    }
}
