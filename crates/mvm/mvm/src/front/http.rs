// SPDX-License-Identifier: Apache-2.0
//! HTTP requests to guests: a guest answers `GET /vm/N/path` with a line.

use vtax_http::{Method, Request};

/// The `Content-Type` of guests' answers.
pub const PLAIN: &str = "text/plain";

/// The target of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// A guest, by number, and the line to send it.
    Guest(u32, Vec<u8>),
    /// Counts of guests.
    Status,
    /// No target: the status and the line of the answer.
    Refused(u16, &'static str),
}

impl Target {
    /// The target of `request`.
    #[must_use]
    pub fn from_request(request: &Request<'_>) -> Self {
        match request.method {
            Method::Get => target(request.target),
            Method::Head => Self::Refused(405, "only GET is answered"),
        }
    }
}

const UNKNOWN: Target = Target::Refused(404, "try /vm/N/path or /status");

fn target(path: &str) -> Target {
    if path == "/status" {
        return Target::Status;
    }
    let Some(rest) = path.strip_prefix("/vm/") else {
        return UNKNOWN;
    };
    let (number, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match number.parse() {
        Ok(number) => {
            let path = if path.is_empty() { "/" } else { path };
            Target::Guest(number, format!("{path}\n").into_bytes())
        }
        Err(_) => UNKNOWN,
    }
}

/// The status and body of a guest's line. A line such as `404 text` has its own status; any other line has status 200.
/// Statuses without a body (1xx, 204, 205, 304) are not accepted, because a client would read the line as the next
/// answer.
#[must_use]
pub fn line_as_answer(line: &[u8]) -> (u16, &[u8]) {
    if let Some((head, body)) = line.split_at_checked(4)
        && let [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9', b' '] = *head
    {
        let digit = |d: u8| u16::from(d - b'0');
        let status = digit(a) * 100 + digit(b) * 10 + digit(c);
        if status >= 200 && !matches!(status, 204 | 205 | 304) {
            return (status, body);
        }
    }
    (200, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_http::Parsed;

    fn target(text: &str) -> Target {
        match vtax_http::parse(text.as_bytes()) {
            Parsed::Request(request) => Target::from_request(&request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_path_becomes_a_line_for_the_guest() {
        assert_eq!(
            target("GET /vm/123456/hi?a=b HTTP/1.1\r\nHost: x\r\n\r\n"),
            Target::Guest(123_456, b"/hi?a=b\n".to_vec())
        );
        assert_eq!(
            target("GET /vm/7 HTTP/1.0\r\n\r\n"),
            Target::Guest(7, b"/\n".to_vec())
        );
        assert_eq!(target("GET /status HTTP/1.1\r\n\r\n"), Target::Status);
        assert_eq!(target("GET /vm/x/hi HTTP/1.1\r\n\r\n"), UNKNOWN);
        assert!(matches!(
            target("HEAD /status HTTP/1.1\r\n\r\n"),
            Target::Refused(405, _)
        ));
    }

    #[test]
    fn a_line_may_say_its_own_status() {
        assert_eq!(
            line_as_answer(b"404 no such page\r\n"),
            (404, &b"no such page\r\n"[..])
        );
        assert_eq!(line_as_answer(b"/hi\n"), (200, &b"/hi\n"[..]));
    }

    #[test]
    fn no_guest_makes_an_answer_of_a_status_without_a_body() {
        for line in [
            &b"100 x"[..],
            b"199 x",
            b"204 HTTP/1.1 200 OK",
            b"205 x",
            b"304 x",
        ] {
            assert_eq!(line_as_answer(line), (200, line));
        }
    }
}
