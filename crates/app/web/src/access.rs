// SPDX-License-Identifier: Apache-2.0
//! Authorization: a stranger may do nothing, a watcher may read, the operator may also change state.
//!
//! On a loopback address every client on this host is a watcher, unless there is a watchers' token. On other addresses
//! every request needs a token.
//!
//! A page of another site can make the browser of its reader send requests to this server. Such a request names another
//! host (a name that resolves to this address) or another origin. Both are refused, and a request that changes state
//! must name its origin or carry a token. Other sites may not frame or embed the responses.
//!
//! A token that a browser enters becomes two secrets: a cookie, which browsers send to every port of a host, and a key,
//! which the page stores where no page of another port can read it. The cookie alone permits reading only.

use crate::error::refusal;
use crate::refusals::Refusals;
use crate::tls::Identity;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use vtax_http::Token;

/// The content security policy of the page: all resources from this server, nothing inline.
pub const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The policy of a report, whose scripts are inline. It has an opaque origin, which this server refuses, and no
/// network.
pub const REPORT: &str = "sandbox allow-scripts allow-downloads allow-popups; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every response.
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

/// The header of the key.
const KEY: HeaderName = HeaderName::from_static("vtax-key");

/// The purposes of the two secrets that are derived from a token.
const FOR_COOKIE: &str = "cookie of vtax web";
const FOR_KEY: &str = "key of vtax web";

/// The time limit until a response begins. A stream of updates may last longer.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The permissions of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// May enter a token.
    Stranger,
    /// May read.
    Watcher,
    /// May start and stop runs, write notes and set budgets.
    Operator,
}

impl Role {
    /// The name of the role in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stranger => "nothing",
            Self::Watcher => "look",
            Self::Operator => "operate",
        }
    }
}

/// The secrets of a browser, derived from a token.
#[derive(Debug)]
pub struct Session {
    pub role: Role,
    /// The value of `Set-Cookie`.
    pub cookie: String,
    /// The value of the header [`KEY`] of each request.
    pub key: String,
}

/// The rules of one server.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The operator's token; without it no client may change state.
    pub operator: Option<Token>,
    /// The watchers' token.
    pub watcher: Option<Token>,
    /// Whether reading needs a token.
    pub closed: bool,
    /// The certificate; none where connections are not encrypted.
    pub identity: Option<Identity>,
    /// The port, a part of the cookie's name: all servers of a host share their cookies.
    pub port: u16,
    /// The time limit until a response begins.
    pub timeout: Duration,
    /// The refused requests, for the log.
    pub refusals: Refusals,
}

impl Access {
    fn cookie_name(&self) -> String {
        format!("vtax-{}", self.port)
    }

    /// The role of a request.
    pub fn role(&self, headers: &HeaderMap) -> Role {
        let text = |name| {
            headers
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok())
        };
        if let Some(bearer) = text(header::AUTHORIZATION) {
            let token = bearer.strip_prefix("Bearer ").unwrap_or("");
            // A wrong token is an error also where no token is needed.
            return self.bearer(token).unwrap_or(Role::Stranger);
        }
        let name = format!("{}=", self.cookie_name());
        let cookies = headers.get_all(header::COOKIE).iter();
        let shown = cookies
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .find_map(|cookie| cookie.trim().strip_prefix(&name));
        let shows = |token: &Option<Token>, purpose: &str, shown: Option<&str>| {
            let token = token.as_ref().zip(shown);
            token.is_some_and(|(token, shown)| token.is_derived(purpose, shown))
        };
        let of = |token: &Option<Token>| shows(token, FOR_COOKIE, shown);
        if of(&self.operator) && shows(&self.operator, FOR_KEY, text(KEY)) {
            Role::Operator
        } else if of(&self.operator) || of(&self.watcher) || !self.closed {
            Role::Watcher
        } else {
            Role::Stranger
        }
    }

    /// The role of a token; `None` where it is not a token of this server.
    fn bearer(&self, token: &str) -> Option<Role> {
        let is = |own: &Option<Token>| own.as_ref().is_some_and(|own| own.is(token));
        if is(&self.operator) {
            Some(Role::Operator)
        } else {
            is(&self.watcher).then_some(Role::Watcher)
        }
    }

    /// The cookie and the key that are derived from a token; `None` where it is not a token of this server.
    pub fn enter(&self, token: &str) -> Option<Session> {
        let role = self.bearer(token)?;
        let own = if role == Role::Operator {
            &self.operator
        } else {
            &self.watcher
        };
        let secure = if self.identity.is_some() {
            "; Secure"
        } else {
            ""
        };
        let cookie = format!(
            "{}={}; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict{secure}",
            self.cookie_name(),
            own.as_ref()
                .map_or_else(String::new, |own| own.derived(FOR_COOKIE)),
        );
        let key = own.as_ref().map(|own| own.derived(FOR_KEY));
        Some(Session {
            role,
            cookie,
            key: key.unwrap_or_default(),
        })
    }

    fn scheme(&self) -> &'static str {
        if self.identity.is_some() {
            "https"
        } else {
            "http"
        }
    }

    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (hosts.next().map(HeaderValue::to_str), hosts.next()) {
            (Some(Ok(host)), None) => host,
            _ => return Err("the request does not name one host"),
        };
        if !self.is_ours(host) {
            return Err(match self.identity {
                None => {
                    "this server answers to localhost and loopback addresses only: open it by one of these"
                }
                Some(_) => {
                    "this server answers to addresses and to the names in its certificate only: open it by one of these"
                }
            });
        }
        let own = format!("{}://{host}", self.scheme());
        let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
        let unnamed = origins.peek().is_none() && !headers.contains_key(header::AUTHORIZATION);
        if *method != Method::GET && *method != Method::HEAD && unnamed {
            return Err("what changes something must say which page asks for it, or bring a token");
        }
        for origin in origins {
            if origin.as_bytes() != own.as_bytes() {
                return Err("a page from elsewhere may not ask this server");
            }
        }
        Ok(())
    }

    /// Whether a Host header names this machine, whatever the port: a forwarded port differs from the server's. A name
    /// that an attacker resolves to this address is neither an address nor a name in the certificate.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(""),
            None => host.split(':').next().unwrap_or(""),
        };
        let address = name.parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost")
            || match &self.identity {
                None => address.is_ok_and(|address| address.is_loopback()),
                Some(identity) => address.is_ok() || identity.is_for(name),
            }
    }
}

/// Refuses requests without the right role, and adds the security headers to each response.
pub async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let mut response = match access.check(request.method(), request.headers()) {
        Ok(()) => admitted(&access, request, next).await,
        Err(why) => {
            let shown = |name| request.headers().get_all(name).iter().collect::<Vec<_>>();
            let (hosts, origins) = (shown(header::HOST), shown(header::ORIGIN));
            access.refusals.warn(format_args!(
                "a request is refused: {why}; it names the host {hosts:?} and the origin {origins:?}"
            ));
            refusal(StatusCode::FORBIDDEN, why)
        }
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

/// Whether a path needs no token: the files of the page, which are the same for all clients, and the form for a token.
fn is_open(path: &str) -> bool {
    path == "/api/about"
        || path == "/api/enter"
        || !(path.starts_with("/api/") || path == "/report")
}

async fn admitted(access: &Access, request: Request, next: Next) -> Response {
    let reads = *request.method() == Method::GET || *request.method() == Method::HEAD;
    let needed = match (is_open(request.uri().path()), reads) {
        (true, _) => Role::Stranger,
        (false, true) => Role::Watcher,
        (false, false) => Role::Operator,
    };
    let role = access.role(request.headers());
    if role < needed {
        // A page without a token asks for one by a request that is refused.
        if request.headers().contains_key(header::AUTHORIZATION) {
            access.refusals.warn(match role {
                Role::Stranger => "a request is refused: its token is none of this server",
                _ => "a request is refused: its token permits to look only",
            });
        }
        return match needed {
            Role::Operator if access.operator.is_none() => refusal(
                StatusCode::FORBIDDEN,
                "this server only shows: it was started without an operator’s token",
            ),
            Role::Operator if role == Role::Watcher => refusal(
                StatusCode::FORBIDDEN,
                "a watcher changes nothing: enter the operator’s token, which vtax web printed when it started",
            ),
            _ => refusal(
                StatusCode::UNAUTHORIZED,
                "a token is needed: enter it first",
            ),
        };
    }
    match tokio::time::timeout(access.timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            access.refusals.warn(format_args!(
                "a request was not answered within {} s",
                access.timeout.as_secs()
            ));
            refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "that takes too long, or others ask for too much at once",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn asked(pairs: &[(HeaderName, &str)]) -> bool {
        Access::default()
            .check(&Method::GET, &headers(pairs))
            .is_ok()
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

    #[test]
    fn what_changes_something_says_who_asks() {
        let posted = |pairs: &[(HeaderName, &str)]| {
            Access::default()
                .check(&Method::POST, &headers(pairs))
                .is_ok()
        };
        let host = (header::HOST, "localhost:7");
        assert!(!posted(std::slice::from_ref(&host)));
        assert!(posted(&[
            host.clone(),
            (header::ORIGIN, "http://localhost:7")
        ]));
        assert!(!posted(&[
            host.clone(),
            (header::ORIGIN, "http://evil.example")
        ]));
        assert!(posted(&[host.clone(), (header::AUTHORIZATION, "Bearer x")]));
        let both = [
            host,
            (header::AUTHORIZATION, "Bearer x"),
            (header::ORIGIN, "http://evil.example"),
        ];
        assert!(!posted(&both));
    }

    #[test]
    fn whatever_is_asked_for_is_answered_within_the_limit() {
        use axum::Router;
        use axum::body::Body;
        use axum::routing::get;
        use hyper::service::Service;
        use hyper_util::service::TowerToHyperService;
        let access = Access {
            operator: Some(Token::from_text("the operator's token")),
            timeout: Duration::from_millis(20),
            ..Access::default()
        };
        let slow = || std::future::pending::<&'static str>();
        let router = Router::new()
            .route("/api/slow", get(slow).post(slow))
            .layer(axum::middleware::from_fn_with_state(
                Arc::new(access),
                guard,
            ));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        for method in ["GET", "POST"] {
            let request = Request::builder()
                .method(method)
                .uri("/api/slow")
                .header(header::HOST, "localhost")
                .header(header::AUTHORIZATION, "Bearer the operator's token")
                .body(Body::empty())
                .unwrap();
            let service = TowerToHyperService::new(router.clone());
            let answer = runtime.block_on(service.call(request)).unwrap();
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{method}");
        }
    }

    #[test]
    fn a_request_of_another_page_and_a_wrong_token_are_in_the_log_and_no_token_is() {
        use axum::Router;
        use axum::body::Body;
        use axum::routing::get;
        use hyper::service::Service;
        use hyper_util::service::TowerToHyperService;
        let logged = |more: &[(HeaderName, &str)]| {
            let access = Access {
                operator: Some(Token::from_text("the operator's token")),
                timeout: Duration::from_secs(10),
                ..Access::default()
            };
            let access = axum::middleware::from_fn_with_state(Arc::new(access), guard);
            let router = Router::new().route("/api/x", get(|| async { "x" }));
            let service = TowerToHyperService::new(router.layer(access));
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            vtax_log::testing::logged(|| {
                let mut request = Request::builder().uri("/api/x");
                for (name, value) in [(header::HOST, "localhost")].iter().chain(more) {
                    request = request.header(name, *value);
                }
                let request = request.body(Body::empty()).unwrap();
                runtime.block_on(service.call(request)).unwrap();
            })
        };
        assert_eq!(logged(&[]), "");
        let evil = logged(&[(header::ORIGIN, "http://evil.example\u{e9}")]);
        let why = "<4>vtax_web::refusals: a request is refused: a page from elsewhere may not ask";
        assert!(
            evil.starts_with(why) && evil.contains("http://evil.example"),
            "{evil}"
        );
        let wrong = logged(&[(header::AUTHORIZATION, "Bearer a guessed token")]);
        assert_eq!(
            wrong,
            "<4>vtax_web::refusals: a request is refused: its token is none of this server\n"
        );
    }

    #[test]
    fn tokens_and_their_cookies_say_what_one_may_do() {
        let access = |closed| Access {
            operator: Some(Token::from_text("the operator's token")),
            watcher: Some(Token::from_text("the watchers' token")),
            closed,
            port: 7,
            ..Access::default()
        };
        for (closed, nobody) in [(true, Role::Stranger), (false, Role::Watcher)] {
            let access = access(closed);
            assert_eq!(access.role(&headers(&[])), nobody);
            for (token, role) in [
                ("the operator's token", Role::Operator),
                ("the watchers' token", Role::Watcher),
            ] {
                let bearer = format!("Bearer {token}");
                let shown = headers(&[(header::AUTHORIZATION, bearer.as_str())]);
                assert_eq!(access.role(&shown), role);
                let Session {
                    role: entered,
                    cookie,
                    key,
                } = access.enter(token).unwrap();
                assert_eq!(entered, role);
                assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
                assert!(
                    !cookie.contains(token) && !cookie.contains(&key),
                    "{cookie}"
                );
                let kept = format!("other=1; {}", cookie.split(';').next().unwrap());
                let cookie = (header::COOKIE, kept.as_str());
                let key = (KEY, key.as_str());
                let both = access.role(&headers(&[cookie.clone(), key.clone()]));
                assert_eq!(both, role);
                // The secrets that a server on another port receives, and those that it could guess.
                assert_eq!(
                    access.role(&headers(std::slice::from_ref(&cookie))),
                    Role::Watcher
                );
                let guessed = (KEY, "vtax");
                assert_eq!(access.role(&headers(&[cookie, guessed])), Role::Watcher);
                assert_eq!(access.role(&headers(&[key])), nobody);
            }
            for wrong in ["Bearer ", "Bearer the operator's toke", "Basic dnRheDo="] {
                let shown = headers(&[(header::AUTHORIZATION, wrong)]);
                assert_eq!(access.role(&shown), Role::Stranger, "{wrong}");
            }
            assert_eq!(
                access.role(&headers(&[(header::COOKIE, "vtax-7=1")])),
                nobody
            );
            assert!(access.enter("").is_none() && access.enter("guess").is_none());
        }
        // Without tokens every client is a watcher at most.
        assert!(Access::default().enter("").is_none());
        assert_eq!(Access::default().role(&headers(&[])), Role::Watcher);
    }
}
