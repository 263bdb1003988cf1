// SPDX-License-Identifier: Apache-2.0
//! NICs and micro VMs on the page: the server sends requests in their own protocols, here to stand-ins with the real
//! structures.

use crate::fake::machines::{PORT, nic, population};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use vtax_nic::control::Policy;
use vtax_web::{AppState, ListenerSettings, Live, Machines, Server, Token};

#[test]
fn ports_and_populations_are_shown_and_budgets_stay_within_the_cap() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nic");
    let policy = nic(&socket);
    let gone = folder.path().join("gone");
    let machines = Machines {
        nics: vec![socket.clone(), gone],
        populations: vec![population()],
    };
    let app = AppState::new(Arc::new(Live::default()), folder.path(), folder.path());
    let settings = ListenerSettings {
        operator: Some(Token::from_text("operator")),
        ..ListenerSettings::open("127.0.0.1:0".parse().unwrap())
    };
    let server = Server::start(app.with_machines(machines), &settings).unwrap();
    let ask = |method: &str, body: &Value| -> (u16, Value) {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        write!(
            stream,
            "{method} /api/machines HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer operator\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        (status, serde_json::from_str(body).unwrap())
    };
    let (_, seen) = ask("GET", &Value::Null);
    let port = &seen["nics"][0]["ports"][0];
    assert_eq!(
        (&port["info"]["port"], &port["info"]["in_force_us"]),
        (&json!(PORT), &json!(200))
    );
    assert_eq!(port["stats"]["rx_packets"], 0);
    assert_eq!(port["stats"]["hold_ns"]["p99"], 0);
    assert!(
        seen["nics"][1]["error"].as_str().unwrap().contains("--api"),
        "{seen}"
    );
    assert_eq!(seen["populations"][0]["status"]["guests"], 1_000_000);

    let set = |change: Value| {
        let mut budget = json!({"socket": socket, "port": PORT});
        budget
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        ask("POST", &budget)
    };
    assert_eq!(set(json!({"default_us": 300})).0, 200);
    assert_eq!(set(json!({"override_us": 1000})).0, 200);
    let all = *policy.lock().unwrap();
    assert_eq!(
        (all.default_us, all.override_us, all.cap_us),
        (300, Some(1000), 1000)
    );
    // Neither value may exceed the cap, and the page cannot raise the cap.
    for above in [json!({"default_us": 1001}), json!({"override_us": 1001})] {
        let (status, answer) = set(above);
        assert_eq!(status, 409);
        assert!(
            answer["error"].as_str().unwrap().contains("--cap TIME"),
            "{answer}"
        );
    }
    assert_eq!(set(json!({"cap_us": 5000})).0, 400);
    assert_eq!(set(json!({})).0, 409);
    assert_eq!(set(json!({"clear": true})).0, 200);
    assert_eq!(
        *policy.lock().unwrap(),
        Policy {
            default_us: 300,
            ..Policy::default()
        }
    );
    let other = json!({"socket": "/run/other", "port": PORT, "default_us": 1});
    assert_eq!(ask("POST", &other).0, 409);
}
