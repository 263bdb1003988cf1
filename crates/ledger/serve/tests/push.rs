// SPDX-License-Identifier: Apache-2.0
//! Pushes to a server with every kind of answer, and the fate of the samples.

use crate::common::{eventually, request};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vtax_charge::fake::Host;
use vtax_serve::push::{Message, PushOptions, PushState, Pusher};
use vtax_serve::roster::Roster;
use vtax_serve::{Own, Token};

type Seen = Arc<Mutex<Vec<(Instant, String, Vec<u8>)>>>;

/// A server that answers 413 to bodies of more than `most` bytes, and the sizes of all requests.
fn small_server(most: usize) -> (u16, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Some((_, body)) = request(&mut stream) else {
                continue;
            };
            kept.lock().unwrap().push(body.len());
            let status = if body.len() > most {
                "413 Content Too Large"
            } else {
                "204 No Content"
            };
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
        }
    });
    (port, seen)
}

/// A server that gives these answers in turn, the last one from then on, and the requests that it received.
fn server(answers: &[&str]) -> (u16, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
    std::thread::spawn(move || {
        let mut given = 0;
        for mut stream in listener.incoming().flatten() {
            let Some((head, body)) = request(&mut stream) else {
                continue;
            };
            kept.lock().unwrap().push((Instant::now(), head, body));
            let (head, body) = answers[given].split_once('|').unwrap();
            given = (given + 1).min(answers.len() - 1);
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    (port, seen)
}

fn options(to: &str, queue: &Path) -> PushOptions {
    PushOptions {
        to: vec![to.parse().unwrap()],
        labels: vec![("instance".to_owned(), "here".to_owned())],
        queue: queue.to_owned(),
        queue_bytes: 1 << 20,
        ..PushOptions::default()
    }
}

fn remote_write(port: u16) -> String {
    format!("remote-write:http://127.0.0.1:{port}/api/v1/write")
}

fn pass(pusher: &mut Pusher, host: &mut Host) {
    let snapshot = host.pass(1000);
    let listing = Roster::new(10).update(&snapshot);
    pusher.push(&snapshot, &listing, &Own::default());
}

fn queues(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn only_queue(directory: &Path) -> PathBuf {
    let mut queues = queues(directory);
    assert_eq!(queues.len(), 1, "{queues:?}");
    queues.remove(0)
}

fn drained(pusher: &Pusher) -> PushState {
    eventually("the queue", || match pusher.states().remove(0) {
        state if state.queue_samples == 0 => Ok(state),
        state => Err(format!("{state:?}")),
    })
}

/// Pushes `passes` passes to a server with these answers, until the queue is empty.
fn pushed(answers: &[&str], passes: usize) -> (PushState, Vec<Message>, Seen) {
    let directory = tempfile::tempdir().unwrap();
    let (port, seen) = server(answers);
    // All passes are queued before the first is sent.
    let mut pusher = Pusher::start(&options(&remote_write(1), directory.path())).unwrap();
    let mut host = Host::default();
    host.start(1);
    for _ in 0..passes {
        pass(&mut pusher, &mut host);
    }
    drop(pusher);
    let queued = only_queue(directory.path());
    // The queue of the server's address is created, and gets the queued passes.
    drop(Pusher::start(&options(&remote_write(port), directory.path())).unwrap());
    for queue in queues(directory.path()) {
        if queue != queued {
            std::fs::remove_dir_all(&queue).unwrap();
            std::fs::rename(&queued, &queue).unwrap();
        }
    }
    let pusher = Pusher::start(&options(&remote_write(port), directory.path())).unwrap();
    let state = drained(&pusher);
    (state, pusher.take_messages(), seen)
}

const TAKEN: &str = "204 No Content|";

#[test]
fn a_server_that_is_busy_is_asked_again_when_it_likes_and_gets_the_same() {
    let busy = "429 Too Many Requests\r\nRetry-After: 1|slower";
    let (state, printed, seen) = pushed(&["503 Unavailable|", busy, TAKEN], 3);
    let seen = seen.lock().unwrap();
    assert_eq!((seen.len(), state.failures, state.requests), (3, 2, 1));
    assert!(seen[2].0 - seen[1].0 >= Duration::from_secs(1));
    assert!(seen[0].2 == seen[1].2 && seen[1].2 == seen[2].2);
    assert!(state.sent > 0 && state.sent % 3 == 0, "{state:?}");
    assert_eq!(printed.len(), 2, "{printed:?}");
    assert!(printed[0].contains("503") && printed[1].contains("answers again after 2 failed"));
    let levels = printed
        .iter()
        .map(|line| matches!(line, Message::Trouble(_)));
    assert_eq!(levels.collect::<Vec<_>>(), [true, false]);
}

#[test]
fn samples_that_a_server_will_never_take_are_dropped_and_counted_and_the_others_are_not() {
    let refused = "400 Bad Request|no thanks";
    // All three together, then each alone.
    let (state, printed, seen) = pushed(&[refused, TAKEN, refused, TAKEN], 3);
    assert_eq!(seen.lock().unwrap().len(), 4);
    assert_eq!((state.sent, state.repeated), (2 * state.dropped_refused, 0));
    assert!(printed[0].contains("400 no thanks"), "{printed:?}");
}

#[test]
fn samples_that_a_server_has_already_count_as_delivered() {
    let repeat = "400 Bad Request|out of order sample";
    let (state, printed, _) = pushed(&[repeat, repeat, repeat, TAKEN], 3);
    assert_eq!((state.repeated, state.dropped_refused), (2 * state.sent, 0));
    assert!(printed.is_empty(), "{printed:?}");
}

/// Passes that no earlier attempt can have delivered, pushed one by one to a server with these answers.
fn pushed_anew(answers: &[&str], passes: usize) -> (PushState, Vec<Message>) {
    let directory = tempfile::tempdir().unwrap();
    let (port, _) = server(answers);
    let mut pusher = Pusher::start(&options(&remote_write(port), directory.path())).unwrap();
    let mut host = Host::default();
    host.start(1);
    for _ in 0..passes {
        pass(&mut pusher, &mut host);
        drained(&pusher);
    }
    (pusher.states().remove(0), pusher.take_messages())
}

#[test]
fn samples_that_a_server_calls_old_and_that_it_never_got_are_lost_and_counted_as_such() {
    let old = "400 Bad Request|out of order sample";
    let (state, printed) = pushed_anew(&[old, TAKEN], 2);
    assert_eq!((state.repeated, state.dropped_refused), (0, state.sent));
    assert!(
        printed[0].contains("refuses") && printed[0].contains("out of order"),
        "{printed:?}"
    );
    // A 500 leaves open whether the samples were accepted, so a later refusal counts as a repeat. A refusal alone does
    // not.
    let (state, printed) = pushed_anew(&["500 Internal Server Error|", old, old], 2);
    assert_eq!(state.repeated, state.dropped_refused);
    assert!(state.repeated > 0 && state.sent == 0, "{state:?}");
    assert!(
        printed.iter().any(|line| line.contains("out of order")),
        "{printed:?}"
    );
    let (state, _) = pushed_anew(&["429 Too Many Requests|", old], 1);
    assert!(
        state.repeated == 0 && state.dropped_refused > 0,
        "{state:?}"
    );
}

#[test]
fn a_server_that_asks_for_no_pause_gets_the_same_pauses_as_one_that_asks_for_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (port, seen) = server(&["503 Service Unavailable\r\nRetry-After: 0|"]);
    let mut pusher = Pusher::start(&options(&remote_write(port), directory.path())).unwrap();
    let mut host = Host::default();
    host.start(1);
    pass(&mut pusher, &mut host);
    eventually("a request", || {
        let is_empty = seen.lock().unwrap().is_empty();
        if is_empty {
            Err("none yet".to_owned())
        } else {
            Ok(())
        }
    });
    std::thread::sleep(Duration::from_secs(2));
    let asked = seen.lock().unwrap().len();
    // The pauses are at least 50, 100, 200, 400, 800 and 1,600 ms.
    assert!((1..=6).contains(&asked), "{asked} requests in two seconds");
    drop(pusher);
}

#[test]
fn a_server_that_answers_without_end_holds_the_end_up_for_two_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = request(&mut stream);
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nX: ");
            let _ = tell.send(());
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let mut pusher = Pusher::start(&options(&remote_write(port), directory.path())).unwrap();
    let mut host = Host::default();
    host.start(1);
    pass(&mut pusher, &mut host);
    asked.recv().unwrap();
    let began = Instant::now();
    let printed = pusher.finish();
    assert!(
        began.elapsed() < Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    assert!(
        printed.iter().any(|line| line.contains("wait on disk")),
        "{printed:?}"
    );
}

#[test]
fn addresses_that_differ_in_anything_have_queues_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let to = [
        "remote-write:http://127.0.0.1:1/a/b",
        "remote-write:http://127.0.0.1:1/a-b",
        "remote-write:https://127.0.0.1:1/a/b",
        "remote-write:http://127.0.0.1:1/a/b?tenant=secret-1",
        "remote-write:http://127.0.0.1:1/a/b?tenant=secret-2",
        "otlp:http://127.0.0.1:1/a/b",
    ];
    let options = PushOptions {
        to: to.iter().map(|to| to.parse().unwrap()).collect(),
        ..options(to[0], directory.path())
    };
    drop(Pusher::start(&options).unwrap());
    let queues = queues(directory.path());
    assert_eq!(queues.len(), to.len(), "{queues:?}");
    for queue in &queues {
        let name = queue.file_name().unwrap().to_string_lossy();
        assert!(
            name.contains("127.0.0.1-1-a-b") && !name.contains("secret"),
            "{name}"
        );
    }
    drop(Pusher::start(&options).unwrap());
    assert_eq!(
        self::queues(directory.path()).len(),
        to.len(),
        "the same again"
    );
}

#[test]
fn a_wrong_token_or_path_loses_nothing_and_old_samples_that_are_not_taken_count_as_lost() {
    let (state, _, _) = pushed(&["401 Unauthorized|", "404 Not Found|", TAKEN], 1);
    assert_eq!((state.failures, state.dropped_refused), (2, 0));
    let (state, _, _) = pushed(&["400 Bad Request|out of bounds"], 1);
    assert_eq!((state.sent, state.repeated), (0, 0));
    assert!(state.dropped_refused > 0);
}

#[test]
fn both_protocols_say_what_they_are_and_who_sends() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("token");
    std::fs::write(&secret, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let (port, seen) = server(&["200 OK|"]);
    for (to, path, more) in [
        (
            remote_write(port),
            "POST /api/v1/write ",
            [
                "content-encoding: snappy",
                "x-prometheus-remote-write-version: 0.1.0",
            ],
        ),
        (
            format!("otlp:http://127.0.0.1:{port}"),
            "POST /v1/metrics ",
            ["content-encoding: gzip", "user-agent: vtax/"],
        ),
    ] {
        let mut options = options(&to, directory.path());
        options.token = Some(Token::read(&secret).unwrap());
        let mut pusher = Pusher::start(&options).unwrap();
        let mut host = Host::default();
        host.start(1);
        pass(&mut pusher, &mut host);
        let printed = pusher.finish();
        assert!(printed.is_empty(), "{printed:?}");
        let (_, head, body) = seen.lock().unwrap().remove(0);
        let lower = head.to_ascii_lowercase();
        assert!(head.starts_with(path) && !body.is_empty(), "{head}");
        assert!(head.contains("Bearer 0123456789abcdef"), "{head}");
        assert!(
            lower.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        assert!(more.iter().all(|header| lower.contains(header)), "{head}");
        seen.lock().unwrap().clear();
    }
}

#[test]
fn a_token_travels_only_where_nobody_else_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let start = |to: &str, is_plain_allowed| {
        let mut options = options(to, directory.path());
        options.token = Some(Token::from_text("0123456789abcdef"));
        options.is_plain_allowed = is_plain_allowed;
        Pusher::start(&options).map(drop)
    };
    let error = start("otlp:http://192.0.2.1", false).unwrap_err();
    assert!(error.to_string().contains("unencrypted"), "{error}");
    start("otlp:http://192.0.2.1", true).unwrap();
    start("otlp:https://192.0.2.1", false).unwrap();
    start("otlp:http://[::1]", false).unwrap();
}

#[test]
fn a_queue_that_is_full_says_so_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut pusher = Pusher::start(&options(&remote_write(1), directory.path())).unwrap();
    let mut host = Host::default();
    host.start(1);
    for _ in 0..1500 {
        pass(&mut pusher, &mut host);
    }
    let state = pusher.states().remove(0);
    assert!(
        state.queue_bytes <= 1 << 20 && state.dropped_full > 0,
        "{state:?}"
    );
    let printed = pusher.take_messages();
    let full = printed.iter().filter(|line| line.contains("is full"));
    assert_eq!(full.count(), 1, "{printed:?}");
}

/// Pushes ten passes of 30 guests, queued before the server can be reached, to a server that takes `most` bytes.
fn pushed_in_small_requests(
    most: usize,
    to: fn(u16) -> String,
) -> (PushState, Vec<Message>, Vec<usize>, u64) {
    let directory = tempfile::tempdir().unwrap();
    let (port, seen) = small_server(most);
    let mut pusher = Pusher::start(&options(&to(port), directory.path())).unwrap();
    let mut host = Host::default();
    for number in 1..=30 {
        host.start(number);
    }
    let mut samples = 0;
    for _ in 0..10 {
        let snapshot = host.pass(1000);
        let listing = Roster::new(100).update(&snapshot);
        let body = vtax_serve::push::body(
            vtax_serve::push::Protocol::RemoteWrite,
            &snapshot,
            &listing,
            &[],
        );
        samples += body.unwrap().1 as u64;
        pusher.push(&snapshot, &listing, &Own::default());
    }
    let state = drained(&pusher);
    let seen = seen.lock().unwrap().clone();
    (state, pusher.take_messages(), seen, samples)
}

fn otlp(port: u16) -> String {
    format!("otlp:http://127.0.0.1:{port}/v1/metrics")
}

#[test]
fn a_server_that_takes_small_requests_only_gets_every_sample() {
    for to in [remote_write, otlp] {
        let (state, printed, seen, samples) = pushed_in_small_requests(1500, to);
        assert_eq!(
            (state.sent, state.dropped_refused),
            (samples, 0),
            "{state:?}"
        );
        assert_eq!(state.dropped_too_large, 0);
        let too_large = seen.iter().filter(|bytes| **bytes > 1500).count();
        assert!(too_large <= 12, "{too_large} of {} requests", seen.len());
        let notes = printed.iter().filter(|line| line.contains("too large"));
        assert_eq!(notes.count(), 1, "{printed:?}");
    }
}

#[test]
fn a_sample_that_is_too_large_alone_is_dropped_and_counted_with_its_reason() {
    let (state, printed, seen, samples) = pushed_in_small_requests(10, remote_write);
    assert_eq!((state.sent, state.dropped_too_large), (0, samples));
    assert_eq!(state.dropped_refused, 0);
    assert!(seen.len() as u64 <= samples * 2, "{}", seen.len());
    assert!(
        printed.iter().any(|line| line.contains("one sample")),
        "{printed:?}"
    );
}

#[test]
fn a_server_that_asks_for_a_wait_by_a_date_is_left_alone_until_then() {
    let dates = "Date: Fri, 27 Nov 2026 18:00:00 GMT\r\nRetry-After: Fri, 27 Nov 2026 18:00:02 GMT";
    let busy = format!("429 Too Many Requests\r\n{dates}|");
    let (state, _, seen) = pushed(&[&busy, TAKEN], 1);
    let seen = seen.lock().unwrap();
    assert_eq!((seen.len(), state.failures), (2, 1));
    assert!(seen[1].0 - seen[0].0 >= Duration::from_secs(2));
}

#[test]
fn a_server_that_closes_at_once_gets_a_message_that_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (mut stream, number) in listener.incoming().flatten().zip(0..) {
            // Before the request and after it; then another protocol.
            if number % 2 == 1 {
                let _ = request(&mut stream);
            }
            if number >= 4 {
                let _ = request(&mut stream);
                let _ = stream.write_all(b"<html>400</html>\r\n\r\n");
            }
        }
    });
    let mut pusher = Pusher::start(&options(&remote_write(port), directory.path())).unwrap();
    let mut host = Host::default();
    host.start(1);
    pass(&mut pusher, &mut host);
    let state = eventually("failures", || match pusher.states().remove(0) {
        state if state.failures >= 4 => Ok(state),
        state => Err(format!("{state:?}")),
    });
    assert!(state.queue_samples > 0, "nothing is lost: {state:?}");
    let printed = pusher.take_messages();
    assert!(
        printed[0].contains("it closed the connection without an answer"),
        "{printed:?}"
    );
    drop(pusher);
    // Another exporter, which the server answers with something else.
    let pusher = Pusher::start(&options(&remote_write(port), directory.path())).unwrap();
    eventually("a message", || {
        let printed = pusher.take_messages();
        let is_named = printed
            .iter()
            .any(|line| line.contains("its answer is not HTTP"));
        if is_named {
            Ok(())
        } else {
            Err(format!("{printed:?}"))
        }
    });
    drop(pusher);
}

/// The memory of this process, in KiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Servers that answer with redirects, endless heads, endless bodies, endless chunks and noise as fast as they can.
#[test]
fn hostile_answers_take_no_memory_and_lose_no_sample() {
    for answer in [
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: /again\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: ",
        "HTTP/1.1 503 Busy\r\nContent-Length: 99999999999\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n",
        "",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_complete = answer.contains("Connection: close");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = request(&mut stream);
                let _ = stream.write_all(answer.as_bytes());
                let noise = vec![b'x'; 1 << 16];
                while !is_complete && stream.write_all(&noise).is_ok() {}
            }
        });
        let before = resident();
        let mut pusher = Pusher::start(&options(&remote_write(port), directory.path())).unwrap();
        let mut host = Host::default();
        host.start(1);
        for _ in 0..20 {
            pass(&mut pusher, &mut host);
        }
        let state = eventually("failures", || match pusher.states().remove(0) {
            state if state.failures >= 3 => Ok(state),
            state => Err(format!("{state:?}")),
        });
        let grown = resident().saturating_sub(before);
        assert!(grown < 32 << 10, "{grown} KiB more by {answer:?}");
        assert!(
            state.queue_samples > 0 && state.sent == 0,
            "{answer:?}: {state:?}"
        );
    }
}
