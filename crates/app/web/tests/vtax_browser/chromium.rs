// SPDX-License-Identifier: Apache-2.0
//! Debian's Chromium, headless, controlled with its DevTools protocol through two pipes: no driver, no socket, no other
//! program.

use base64::Engine;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use vtax_testkit::needs::find_program;

/// A timeout far above the duration of any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    printed: Receiver<Value>,
    events: Vec<Value>,
    expected: Vec<&'static str>,
    id: u64,
    session: Option<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Panics where there is no Chromium.
    pub fn start() -> Self {
        let program = find_program("chromium").unwrap();
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            // The protocol uses the descriptors 3 and 4.
            .args([
                "-c",
                "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1",
            ])
            .arg(program)
            // Chromium's sandbox does not work for root, and the pages are those of this project.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args(["--remote-debugging-pipe", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-dev-shm-usage"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, printed) = channel();
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else {
                    return;
                };
                if tell.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            input,
            printed,
            events: Vec::new(),
            expected: Vec::new(),
            id: 0,
            session: None,
            _profile: profile,
        };
        let target = browser.send("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.send("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page", "Network"] {
            browser.send(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a command of the protocol, and returns its result.
    pub fn send(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.answer(method, parameters);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    fn answer(&mut self, method: &str, parameters: Value) -> Value {
        self.id += 1;
        let mut message = json!({"id": self.id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.input
            .write_all(format!("{message}\0").as_bytes())
            .unwrap();
        loop {
            let message = self.printed.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == self.id {
                return message;
            }
            self.events.push(message);
        }
    }

    /// Loads an address again, also where only the part behind # differs.
    pub fn open(&mut self, address: &str) {
        self.send("Page.navigate", json!({"url": "about:blank"}));
        self.send("Page.navigate", json!({"url": address}));
    }

    /// The value of an expression; of a promise, the value that it resolves to.
    pub fn eval(&mut self, expression: &str) -> Value {
        let answer = self.evaluated(expression);
        let result = &answer["result"];
        let is_value = answer["error"].is_null() && result["exceptionDetails"].is_null();
        assert!(is_value, "{expression}: {answer}");
        result["result"]["value"].clone()
    }

    fn evaluated(&mut self, expression: &str) -> Value {
        let asked = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        self.answer("Runtime.evaluate", asked)
    }

    /// Waits until an expression is true. On a page that has not loaded it may fail.
    pub fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluated(expression)["result"]["result"]["value"] != Value::Bool(true) {
            if Instant::now() > deadline {
                let text = self.evaluated("document.body.innerText.slice(0, 2000)");
                panic!("never true: {expression}\nThe page says:\n{text}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sets the width of the screen, and the theme that its system prefers.
    pub fn screen(&mut self, width: u32, theme: &str) {
        let size = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.send("Emulation.setDeviceMetricsOverride", size);
        let theme = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.send("Emulation.setEmulatedMedia", theme);
    }

    /// From now on, complaints with this text are none. The browser may report an error after the page has shown it, and
    /// after the next page is open.
    pub fn expect(&mut self, text: &'static str) {
        self.expected.push(text);
    }

    /// The errors and warnings in the console since the last call, without those that are expected.
    pub fn complaints(&mut self) -> Vec<String> {
        // A response arrives after all events before it.
        self.eval("0");
        let complaint = |event: &Value| {
            let parameters = &event["params"];
            let level = match event["method"].as_str()? {
                "Runtime.exceptionThrown" => "error",
                "Runtime.consoleAPICalled" => parameters["type"].as_str()?,
                "Log.entryAdded" => parameters["entry"]["level"].as_str()?,
                _ => return None,
            };
            ["error", "warning", "assert"]
                .contains(&level)
                .then(|| parameters.to_string())
        };
        let expected = |text: &String| self.expected.iter().any(|part| text.contains(part));
        let complaints = self.events.iter().filter_map(complaint);
        let complaints = complaints.filter(|text| !expected(text)).collect();
        self.events
            .retain(|event| event["method"] == "Network.requestWillBeSent");
        complaints
    }

    /// Every address that the page requested.
    pub fn requests(&self) -> impl Iterator<Item = &str> {
        let events = self.events.iter();
        events
            .filter(|event| event["method"] == "Network.requestWillBeSent")
            .filter_map(|event| event["params"]["request"]["url"].as_str())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A screenshot of the page when the test failed.
            let message = json!({
                "id": 0, "method": "Page.captureScreenshot", "params": {}, "sessionId": self.session,
            });
            let _ = self.input.write_all(format!("{message}\0").as_bytes());
            while let Ok(message) = self.printed.recv_timeout(Duration::from_secs(5)) {
                let Some(picture) = message["result"]["data"].as_str() else {
                    continue;
                };
                let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("web-failure.png");
                let bytes = base64::engine::general_purpose::STANDARD.decode(picture);
                if bytes.is_ok_and(|bytes| std::fs::write(&path, bytes).is_ok()) {
                    println!("NOTE: the page when it failed: {}", path.display());
                }
                break;
            }
        }
        let _ = self
            .input
            .write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
