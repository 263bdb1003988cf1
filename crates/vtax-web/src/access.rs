//! Who may ask: programs of this host and pages that this server gave out, nobody else.
//!
//! The server listens on loopback addresses alone, but a page from anywhere may make its reader's
//! browser ask it. Such a request names another host (a name that was made to lead here), or another
//! origin; both are refused. What is answered may not be framed, embedded or guessed at by others.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;

/// The page's own: everything from this server, nothing inline, nothing from elsewhere.
pub const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A report's: its scripts are part of it, so it runs as a page of nobody, which this server refuses to
/// answer, and reaches nothing.
pub const REPORT: &str = "sandbox allow-scripts allow-downloads allow-popups; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const ALWAYS: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// Refuses who may not ask, and says in each answer what its reader may do with it.
pub async fn guard(request: Request, next: Next) -> Response {
    let mut response = match check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(why) => refusal(StatusCode::FORBIDDEN, why),
    };
    let headers = response.headers_mut();
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(PAGE));
    response
}

/// An answer that says why there is none, as `{"error": …}`.
pub fn refusal(status: StatusCode, why: &str) -> Response {
    let body = serde_json::json!({ "error": why }).to_string();
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, body).into_response()
}

fn check(headers: &HeaderMap) -> Result<(), &'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next().map(HeaderValue::to_str), hosts.next()) {
        (Some(Ok(host)), None) => host,
        _ => return Err("the request does not name one host"),
    };
    if !is_loopback(host) {
        return Err(
            "this server answers to localhost and loopback addresses only: open it by one of these",
        );
    }
    for origin in headers.get_all(header::ORIGIN) {
        if origin.as_bytes() != format!("http://{host}").as_bytes() {
            return Err("a page from elsewhere may not ask this server");
        }
    }
    Ok(())
}

/// Whether the name in a Host header is this machine's own, whatever the port: a forwarded port is
/// another than the server's.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(HeaderName, &str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        check(&headers).is_ok()
    }

    #[test]
    fn loopback_is_served_by_any_of_its_names_and_nobody_else() {
        for host in [
            "localhost:19191",
            "LOCALHOST",
            "127.0.0.1:8",
            "127.3.2.1",
            "[::1]:19191",
        ] {
            assert!(asked(&[(header::HOST, host)]), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:19191",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:19191",
            "[::2]",
            "0.0.0.0",
            "[",
            "evil@localhost",
        ] {
            assert!(!asked(&[(header::HOST, host)]), "{host}");
        }
        assert!(!asked(&[]));
        assert!(!asked(&[
            (header::HOST, "localhost"),
            (header::HOST, "evil.example")
        ]));
    }

    #[test]
    fn only_pages_of_this_very_server_may_ask() {
        let of = |origin| asked(&[(header::HOST, "localhost:19191"), (header::ORIGIN, origin)]);
        assert!(of("http://localhost:19191"));
        for origin in [
            "null",
            "http://evil.example",
            "http://localhost:3000",
            "https://localhost:19191",
            "http://localhost:19191.evil.example",
            "http://127.0.0.1:19191",
            "",
        ] {
            assert!(!of(origin), "{origin}");
        }
    }
}
