// SPDX-License-Identifier: Apache-2.0
//! The syntax of HTTP/1.1: reads requests and writes the heads of answers.

use std::io::Write;
use std::mem::MaybeUninit;

/// The longest request line with all its headers, in bytes.
pub const LONGEST_HEAD: usize = 8 << 10;

const MOST_HEADERS: usize = 64;

/// The state of the input of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A part of a request.
    Incomplete,
    /// An invalid request: the status and the text of the answer. The connection ends after it.
    Refused(u16, &'static str),
    /// A request.
    Request(Request<'a>),
}

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A request whose answer has a head and a body.
    Get,
    /// A request whose answer has only a head.
    Head,
}

/// A request. It has no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its length in bytes.
    pub length: usize,
    /// Its method.
    pub method: Method,
    /// The target, with the query.
    pub target: &'a str,
    /// The `Accept` header; empty where there is none.
    pub accept: &'a str,
    /// The `Authorization` header; empty where there is none.
    pub authorization: &'a str,
    /// Whether the client keeps the connection for more requests.
    pub keep_alive: bool,
}

impl<'a> Request<'a> {
    /// The target without its query.
    pub fn path(&self) -> &'a str {
        let path = self.target.split(['?', '#']).next();
        path.unwrap_or(self.target)
    }
}

/// Reads the first request in `received`.
pub fn parse(received: &[u8]) -> Parsed<'_> {
    let mut headers = [const { MaybeUninit::uninit() }; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(received, &mut headers) {
        Ok(httparse::Status::Complete(length)) if length <= LONGEST_HEAD => length,
        Ok(httparse::Status::Partial) if received.len() < LONGEST_HEAD => {
            return Parsed::Incomplete;
        }
        Ok(_) => return Parsed::Refused(431, "the request is too long"),
        Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Refused(431, "the request has too many headers");
        }
        Err(_) => return Parsed::Refused(400, "this is not HTTP/1.1"),
    };
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => return Parsed::Refused(405, "only GET is answered"),
    };
    let headers = |name: &'static str| {
        let named = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
        let found = request.headers.iter().filter(named);
        found.map(|header| header.value.trim_ascii())
    };
    let header = |name| headers(name).next();
    if headers("content-length").any(|length| length != b"0")
        || header("transfer-encoding").is_some()
    {
        return Parsed::Refused(400, "a GET has no body here");
    }
    let keep_alive = match header("connection") {
        Some(wish) if wish.eq_ignore_ascii_case(b"close") => false,
        Some(wish) if wish.eq_ignore_ascii_case(b"keep-alive") => true,
        _ => request.version == Some(1),
    };
    let text = |name| {
        let value = header(name).and_then(|value| std::str::from_utf8(value).ok());
        value.unwrap_or_default()
    };
    Parsed::Request(Request {
        length,
        method,
        target: request.path.unwrap_or("/"),
        accept: text("accept"),
        authorization: text("authorization"),
        keep_alive,
    })
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code, such as 200.
    pub status: u16,
    /// The `Content-Type` header.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// One line of plain text.
    pub fn text(status: u16, line: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{line}\n").into_bytes(),
        }
    }
}

/// Appends the head of an answer to `out`, whose body has `length` bytes.
pub fn write_head(
    out: &mut Vec<u8>,
    status: u16,
    content_type: &str,
    length: usize,
    keep_alive: bool,
) {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        410 => "Gone",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Answer",
    };
    let instead = match status {
        401 => "WWW-Authenticate: Bearer\r\n",
        405 => "Allow: GET\r\n",
        _ => "",
    };
    let connection = if keep_alive { "keep-alive" } else { "close" };
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         {instead}Connection: {connection}\r\n\r\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(text: &str) -> Request<'_> {
        match parse(text.as_bytes()) {
            Parsed::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_read_and_what_follows_is_left() {
        let text = "GET /a?b=1 HTTP/1.1\r\nhost: x\r\nACCEPT: text/plain \r\n\r\nGET";
        let read = request(text);
        assert_eq!((read.target, read.path()), ("/a?b=1", "/a"));
        assert_eq!(read.accept, "text/plain");
        assert_eq!((read.length, read.keep_alive), (text.len() - 3, true));
        assert!(!request("GET / HTTP/1.0\r\n\r\n").keep_alive);
        assert!(!request("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n").keep_alive);
        assert_eq!(request("HEAD / HTTP/1.1\r\n\r\n").method, Method::Head);
    }

    #[test]
    fn what_is_no_plain_get_is_refused() {
        let status = |bytes: &[u8]| match parse(bytes) {
            Parsed::Refused(status, _) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(status(b"POST / HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(status(b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), 400);
        let hidden = b"GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(status(hidden), 400, "a body behind a second length");
        assert_eq!(status(b"\x16\x03\x01"), 400);
        assert_eq!(status(&[b'G'; LONGEST_HEAD]), 431);
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(LONGEST_HEAD));
        assert_eq!(status(long.as_bytes()), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert_eq!(status(many.as_bytes()), 431);
        assert_eq!(parse(b"GET / HT"), Parsed::Incomplete);
        assert_eq!(parse(b""), Parsed::Incomplete);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_parser(received in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&received);
        }
    }
}
