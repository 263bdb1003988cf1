//! Just enough HTTP/1.1: `GET /vm/N/path` in, a guest's line out.

/// The longest request head that is read, in bytes.
pub const MAX_HEAD: usize = 8192;

/// What a connection has sent so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Not all of a request yet.
    Incomplete,
    /// No request that can be answered.
    Bad(u16, &'static str),
    /// A request.
    Request(Request),
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes that it took.
    pub length: usize,
    /// Whether the connection stays open after the answer.
    pub keep_alive: bool,
    /// What it asks for.
    pub target: Target,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// A guest, by number, and the line to send it.
    Guest(u32, Vec<u8>),
    /// Counts of guests.
    Status,
    /// Nothing that exists here.
    Unknown,
}

/// Reads the first request in `bytes`.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Parsed::Incomplete,
        Ok(httparse::Status::Partial) => return Parsed::Bad(431, "the request head is too long"),
        Err(_) => return Parsed::Bad(400, "this is not HTTP/1.1"),
    };
    if request.method != Some("GET") {
        return Parsed::Bad(405, "only GET is answered");
    }
    let header = |name: &str| {
        request
            .headers
            .iter()
            .find(|h| h.name.eq_ignore_ascii_case(name))
            .map(|h| h.value.trim_ascii())
    };
    if header("content-length").is_some_and(|v| v != b"0") || header("transfer-encoding").is_some()
    {
        return Parsed::Bad(400, "a GET has no body here");
    }
    let connection = header("connection").map(<[u8]>::to_ascii_lowercase);
    let keep_alive = match connection.as_deref() {
        Some(b"close") => false,
        Some(b"keep-alive") => true,
        _ => request.version == Some(1),
    };
    Parsed::Request(Request {
        length,
        keep_alive,
        target: target(request.path.unwrap_or("")),
    })
}

fn target(path: &str) -> Target {
    if path == "/status" {
        return Target::Status;
    }
    let Some(rest) = path.strip_prefix("/vm/") else {
        return Target::Unknown;
    };
    let (number, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match number.parse() {
        Ok(number) => {
            let path = if path.is_empty() { "/" } else { path };
            Target::Guest(number, format!("{path}\n").into_bytes())
        }
        Err(_) => Target::Unknown,
    }
}

/// A whole answer.
#[must_use]
pub fn response(status: u16, body: &[u8], keep_alive: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        410 => "Gone",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Answer",
    };
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let mut out = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    out.extend(body);
    out
}

/// A guest's line as status and body: `200 text` says its status, any other line is a 200.
#[must_use]
pub fn line_as_answer(line: &[u8]) -> (u16, &[u8]) {
    if let Some((head, body)) = line.split_at_checked(4)
        && let [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9', b' '] = *head
    {
        let digit = |d: u8| u16::from(d - b'0');
        let status = digit(a) * 100 + digit(b) * 10 + digit(c);
        if status >= 200 {
            return (status, body);
        }
    }
    (200, line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        match parse(text.as_bytes()) {
            Parsed::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_path_becomes_a_line_for_the_guest() {
        let text = "GET /vm/123456/hi HTTP/1.1\r\nHost: x\r\n\r\nGET";
        let parsed = request(text);
        assert_eq!(parsed.target, Target::Guest(123_456, b"/hi\n".to_vec()));
        assert_eq!((parsed.length, parsed.keep_alive), (text.len() - 3, true));
        assert_eq!(
            request("GET /vm/7 HTTP/1.0\r\n\r\n").target,
            Target::Guest(7, b"/\n".to_vec())
        );
        assert!(!request("GET /vm/7 HTTP/1.0\r\n\r\n").keep_alive);
        assert_eq!(
            request("GET /vm/x/hi HTTP/1.1\r\n\r\n").target,
            Target::Unknown
        );
    }

    #[test]
    fn what_is_not_a_plain_get_is_refused() {
        assert!(matches!(
            parse(b"POST /vm/1 HTTP/1.1\r\n\r\n"),
            Parsed::Bad(405, _)
        ));
        assert!(matches!(
            parse(b"GET /vm/1 HTTP/1.1\r\nContent-Length: 5\r\n\r\n"),
            Parsed::Bad(400, _)
        ));
        assert!(matches!(parse(b"\x16\x03\x01"), Parsed::Bad(400, _)));
        assert!(matches!(parse(&[b'G'; MAX_HEAD]), Parsed::Bad(431, _)));
        assert_eq!(parse(b"GET /vm/1 HT"), Parsed::Incomplete);
    }

    #[test]
    fn a_line_may_say_its_own_status() {
        assert_eq!(
            line_as_answer(b"404 no such page\r\n"),
            (404, &b"no such page\r\n"[..])
        );
        assert_eq!(line_as_answer(b"/hi\n"), (200, &b"/hi\n"[..]));
        assert_eq!(line_as_answer(b"100 x"), (200, &b"100 x"[..]));
    }
}
