// SPDX-License-Identifier: Apache-2.0
//! vtax as a client of HTTP servers: the settings of its requests, and documents of servers of this host.

use std::net::IpAddr;
use std::time::Duration;
use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::http::Uri;
use ureq::typestate::AgentScope;

/// The longest wait for a document.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The reason that a document was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not a URL.
    #[error("`{url}` is no URL: {cause}")]
    Url {
        /// The text.
        url: String,
        /// The fault of the text.
        cause: ureq::http::uri::InvalidUri,
    },
    /// Another scheme.
    #[error(
        "`{0}` does not begin with http://: only servers of this host are asked, without encryption"
    )]
    Scheme(String),
    /// A server elsewhere.
    #[error(
        "`{0}` is not on this host: only 127.0.0.1, [::1] and localhost are asked; fetch the document yourself and give its file"
    )]
    Elsewhere(String),
    /// No answer.
    #[error("cannot fetch {url}: {cause}")]
    Failed {
        /// The URL.
        url: String,
        /// The fault.
        cause: ureq::Error,
    },
    /// An answer without the document.
    #[error("cannot fetch {url}: the server answered with status {status}")]
    Status {
        /// The URL.
        url: String,
        /// The status.
        status: u16,
    },
}

/// Whether a host of a URL is this one.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The settings of every request: statuses are answers, redirections are not followed, and no proxy is asked. `timeout` is
/// that of a request and its response.
pub(crate) fn settings(timeout: Duration) -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("vtax/", env!("CARGO_PKG_VERSION")))
}

/// Fetches a document of at most `most` bytes from a server of this host. Redirections are not followed.
///
/// # Errors
/// When the URL names another host, or the server does not answer with the document within ten seconds.
pub fn fetch(url: &str, most: u64) -> Result<Vec<u8>, FetchError> {
    let named = || url.to_owned();
    let uri: Uri = url.parse().map_err(|cause| FetchError::Url {
        url: named(),
        cause,
    })?;
    if uri.scheme_str() != Some("http") {
        return Err(FetchError::Scheme(named()));
    }
    if !is_loopback(uri.host().unwrap_or_default()) {
        return Err(FetchError::Elsewhere(named()));
    }
    let agent = settings(TIMEOUT).build().new_agent();
    let failed = |cause| FetchError::Failed {
        url: named(),
        cause,
    };
    let mut response = agent.get(uri).call().map_err(failed)?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(FetchError::Status {
            url: named(),
            status,
        });
    }
    let body = response.body_mut().with_config().limit(most);
    body.read_to_vec().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A server that gives one answer, and its URL.
    fn server(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(answer.as_bytes());
        });
        format!("http://127.0.0.1:{port}/series")
    }

    #[test]
    fn a_document_of_this_host_is_fetched_up_to_a_size() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(fetch(&server(answer), 5).unwrap(), b"hello");
        let why = fetch(&server(answer), 4).unwrap_err().to_string();
        assert!(why.contains("cannot fetch http://127.0.0.1:"), "{why}");
    }

    #[test]
    fn other_hosts_are_not_asked_not_even_by_a_redirection() {
        for url in [
            "http://192.0.2.1/a",
            "http://example.org/a",
            "http://127.0.0.1.example.org/a",
            "http://localhost@example.org/a",
            "http://[2001:db8::1]/a",
            "http://0.0.0.0/a",
        ] {
            let why = fetch(url, 1).unwrap_err();
            assert!(matches!(why, FetchError::Elsewhere(_)), "{url}: {why}");
        }
        assert!(matches!(
            fetch("https://127.0.0.1/", 1),
            Err(FetchError::Scheme(_))
        ));
        assert!(matches!(
            fetch("http://a b", 1),
            Err(FetchError::Url { .. })
        ));
        let answer =
            "HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n";
        let why = fetch(&server(answer), 1).unwrap_err().to_string();
        assert!(why.ends_with("status 302"), "{why}");
    }
}
