// SPDX-License-Identifier: Apache-2.0
//! The real server with a folder of its own, which starts the stand-in for `vtax`; requests are those of scripts.
use crate::fake;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_web::{AppState, ListenerSettings, Live, RunManager, Server, Starter, Token};

pub const OPERATOR: &str = "the operator's token";
pub const WATCHER: &str = "the watchers' token";

/// A page that starts runs, and its folder.
pub struct Page {
    folder: tempfile::TempDir,
    server: Option<Server>,
}

impl Page {
    pub fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("plans")).unwrap();
        fs::write(folder.path().join("plans/small.toml"), fake::PLAN).unwrap();
        fake::program(folder.path());
        let mut page = Self {
            folder,
            server: None,
        };
        page.start();
        page
    }

    /// Starts another server in the place of the earlier one, as after its crash.
    pub fn start(&mut self) {
        self.server = None;
        let starter = Starter {
            program: self.path().join("vtax"),
            state: self.path().join("state"),
        };
        let app = AppState::new(
            Arc::new(Live::default()),
            &self.path().join("results"),
            &starter.state,
        )
        .with_run_manager(
            &self.path().join("state"),
            RunManager::start(starter).unwrap(),
        )
        .with_plans(&self.path().join("plans"));
        let settings = ListenerSettings {
            operator: Some(Token::from_text(OPERATOR)),
            watcher: Some(Token::from_text(WATCHER)),
            ..ListenerSettings::open("127.0.0.1:0".parse().unwrap())
        };
        self.server = Some(Server::start(app, &settings).unwrap());
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.server.as_ref().unwrap().address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    }

    /// The status, head and body of the response to a request with these headers.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String, String) {
        let mut stream = self.connect();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, _, body) = self.ask("GET", path, &bearer(OPERATOR), "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let headers = bearer(OPERATOR) + JSON;
        let (status, _, body) = self.ask("POST", path, &headers, &body.to_string());
        (status, serde_json::from_str(&body).unwrap())
    }

    pub fn tell(&self, dir: &str, ask: &str) {
        let (status, answer) = self.post("/api/run", &json!({"dir": dir, "ask": ask}));
        assert_eq!(status, 200, "{ask}: {answer}");
    }

    pub fn start_run(&self, dir: &str, at: &str) {
        let wanted = json!({"text": fake::PLAN, "dir": dir, "at": at});
        let (status, answer) = self.post("/api/runs", &wanted);
        assert_eq!(status, 200, "{answer}");
    }

    /// The state of a run, as soon as `is` accepts it.
    pub fn until(&self, dir: &str, is: impl Fn(&Value) -> bool) -> Value {
        let dir = dir.replace('/', "%2F");
        let mut stream = self.connect();
        write!(
            stream,
            "GET /api/run?dir={dir} HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            bearer(OPERATOR)
        )
        .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut last = Value::Null;
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap_or_else(|cause| panic!("{cause}; the last was {last}"));
            if let Some(data) = line.strip_prefix("data: ") {
                last = serde_json::from_str(data).unwrap();
                if is(&last) {
                    return last;
                }
            }
            assert!(Instant::now() < deadline, "the last was {last}");
        }
        panic!("it was followed no more; the last was {last}");
    }

    pub fn until_state(&self, dir: &str, state: &str) -> Value {
        self.until(dir, |run| run["state"] == state)
    }

    /// The process ID in the lab's lock file.
    pub fn lab(&self) -> u32 {
        let text = fs::read_to_string(self.path().join("state/lock")).unwrap();
        let text = text.strip_prefix("process ").unwrap();
        text.split(',').next().unwrap().parse().unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // A run that is still in progress ends by itself.
        fake::pace(self.path(), 0);
    }
}

pub const JSON: &str = "Content-Type: application/json\r\n";

pub fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}
