// SPDX-License-Identifier: Apache-2.0
//! Runs from the page: a plan is selected, gets a mistake, is corrected, started, paused, resumed and finished by a
//! user with the token; and the view of users without it.

use super::chromium::Browser;
use super::{Going, LOOK, looked_at};
use crate::fake::{self, machines};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use vtax_charge::fake::Host;
use vtax_testkit::results::ramp;
use vtax_web::{AppState, ListenerSettings, Machines, RunManager, Server, Starter, Token};

pub const OPERATOR: &str = "0123456789abcdef-operator";
const WATCHER: &str = "0123456789abcdef-watcher";
/// Longer than a trial of the fake vtax in these tests.
pub const LONG: u64 = 600_000;

pub fn serve(going: &Going, folder: &Path, listen: SocketAddr, closed: bool) -> Server {
    let starter = Starter {
        program: folder.join("vtax"),
        state: folder.join("state"),
    };
    let state = starter.state.clone();
    let app = AppState::new(going.live.clone(), &folder.join("results"), &state)
        .with_run_manager(&state, RunManager::start(starter).unwrap())
        .with_plans(&folder.join("plans"));
    let nic = folder.join("nic");
    let app = if nic.exists() {
        app.with_machines(Machines {
            nics: vec![nic],
            populations: vec![machines::population()],
        })
    } else {
        app
    };
    let settings = ListenerSettings {
        operator: Some(Token::from_text(OPERATOR)),
        watcher: closed.then(|| Token::from_text(WATCHER)),
        ..ListenerSettings::open(listen)
    };
    Server::start(app, &settings).unwrap()
}

pub fn text(words: &str) -> String {
    format!("document.body.innerText.includes({words:?})")
}

fn click(browser: &mut Browser, what: &str) {
    browser.until(&format!("document.querySelector({what:?}) !== null"));
    browser.eval(&format!("document.querySelector({what:?}).click()"));
}

/// Types into a field as a user does.
fn write(browser: &mut Browser, field: &str, words: &str) {
    browser.eval(&format!(
        "(() => {{ const field = document.querySelector({field:?}); field.value = {words:?}; field.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"
    ));
}

/// The request that a server on another port of the same host receives from the browser, and its address.
fn stranger(browser: &mut Browser, ours: SocketAddr) -> (String, String) {
    let other = TcpListener::bind((ours.ip(), 0)).unwrap();
    let address = other.local_addr().unwrap();
    let printed = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        let mut printed = [0; 4096];
        let length = stream.read(&mut printed).unwrap();
        // The browser asks a page without an icon for one later, when this server has ended.
        let body = "<link rel=icon href=data:,>other\n";
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close";
        let size = body.len();
        write!(stream, "{head}\r\nContent-Length: {size}\r\n\r\n{body}").unwrap();
        String::from_utf8_lossy(&printed[..length]).into_owned()
    });
    browser.open(&format!("http://{address}/"));
    browser.until(&text("other"));
    assert_eq!(
        browser.eval("localStorage.getItem('vtax-key')"),
        serde_json::Value::Null
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
    (printed.join().unwrap(), format!("http://{address}/"))
}

#[test(needs = [brought_by_test_all("chromium")])]
fn runs_are_started_and_asked_to_end_in_a_browser() {
    let mut browser = Browser::start();
    let going = Going::start(Host::default());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("plans")).unwrap();
    fs::write(folder.join("plans/small.toml"), fake::PLAN).unwrap();
    fake::program(folder);
    fake::pace(folder, LONG);
    let server = serve(&going, folder, "127.0.0.1:0".parse().unwrap(), false);
    let page = format!("http://{}", server.address());

    // Users without a token see that one is needed.
    looked_at(
        &mut browser,
        &format!("{page}/#/runs"),
        &text("Enter the token"),
    );
    assert_eq!(
        browser.eval("document.querySelectorAll('textarea').length"),
        0
    );
    looked_at(
        &mut browser,
        &format!("{page}/#/enter"),
        &text("operator’s token"),
    );
    browser.expect("status of 403");
    browser.open(&format!("{page}/#token=guess"));
    browser.until(&text("no token of this server"));
    assert_eq!(
        browser.eval("location.hash"),
        "",
        "a token does not stay in the address"
    );
    browser.open(&format!("{page}/#/enter"));
    browser.until("document.querySelector('input[type=password]') !== null");
    browser.eval(&format!(
        "(() => {{ document.querySelector('input[type=password]').value = {OPERATOR:?}; document.querySelector('form').requestSubmit(); }})()"
    ));
    browser.until("location.hash === '#/host'");
    browser.until("document.getElementById('enter').hidden");
    assert_eq!(browser.eval("document.cookie"), "", "no script reads it");

    // A server on another port receives the cookie of this one, and cannot change state with it.
    let (printed, other) = stranger(&mut browser, server.address());
    browser.open(&format!("{page}/#/host"));
    browser.until("document.getElementById('enter').hidden");
    let cookie = printed
        .lines()
        .find(|line| line.starts_with("Cookie: vtax-"));
    let post = "POST /api/notes HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n";
    let own = format!("Host: {0}\r\nOrigin: http://{0}\r\n", server.address());
    let mut stolen = TcpStream::connect(server.address()).unwrap();
    write!(stolen, "{post}{own}{}\r\n\r\n{{}}", cookie.expect(&printed)).unwrap();
    let mut answer = String::new();
    stolen.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("a watcher changes nothing"), "{answer}");
    assert!(!printed.to_lowercase().contains("vtax-key"), "{printed}");

    // A plan is selected, gets a mistake and is corrected.
    looked_at(
        &mut browser,
        &format!("{page}/#/runs"),
        "document.querySelector('select').options.length === 2",
    );
    browser.eval("(() => { const plan = document.querySelector('select'); plan.value = 'small.toml'; plan.dispatchEvent(new Event('change')); })()");
    browser.until("document.querySelector('.expected')?.innerText.startsWith('2 treatments, 8 trials, about ')");
    browser.until(&text("a small <b>plan</b>"));
    browser.until(&text("This host cannot run the plan:"));
    browser.until(&text("host.governor: no <cpufreq> here"));
    assert_eq!(
        browser.eval("document.querySelector('.primary').disabled"),
        false
    );
    write(
        &mut browser,
        "textarea",
        &fake::PLAN.replace("idle", "idel"),
    );
    browser.until("document.querySelector('.mistakes')?.innerText.includes('9:8')");
    browser.until("document.querySelector('.primary').disabled");
    click(&mut browser, ".mistakes button");
    assert_eq!(
        browser.eval("(() => { const plan = document.querySelector('textarea'); return plan.value.slice(plan.selectionStart, plan.selectionEnd); })()"),
        "\"idel\""
    );
    write(&mut browser, "textarea", fake::PLAN);
    browser.until("!document.querySelector('.primary').disabled");
    write(
        &mut browser,
        "[aria-label='Name of the results directory']",
        "new/small",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());

    // A testbed has settings of its own; other places have none.
    let fields = "document.querySelector('fieldset').hidden";
    assert_eq!(browser.eval(fields), true);
    write(&mut browser, "[aria-label=Place]", "testbed:kvm");
    browser.until(&format!("!{fields}"));
    write(&mut browser, "fieldset textarea", "sead = 7");
    browser.until(&text("unknown field `sead`"));
    browser.until("document.querySelector('.primary').disabled");
    write(&mut browser, "fieldset textarea", "seed = 7");
    browser.until("!document.querySelector('.primary').disabled");
    for (width, theme) in [
        (360, "light"),
        (360, "dark"),
        (1280, "dark"),
        (1280, "light"),
    ] {
        browser.screen(width, theme);
        let look = browser.eval(LOOK);
        assert!(look["ratio"].as_f64().unwrap() >= 4.5, "{look}");
        assert_eq!(look["wide"], 0, "{look}");
    }
    write(&mut browser, "[aria-label=Place]", "local");
    browser.until(fields);
    browser.until("!document.querySelector('.primary').disabled");

    // The run is started, and its progress is shown.
    // The browser requests the notes before their directory exists.
    browser.expect("/api/notes?dir=");
    click(&mut browser, ".primary");
    browser.until("location.hash === '#/run/new%2Fsmall'");
    browser.until(&text("for 1 s: measure"));
    let progress = "document.querySelector('.progress').innerText";
    browser.until(&format!("{progress}.startsWith('Running')"));
    looked_at(
        &mut browser,
        &format!("{page}/#/run/new%2Fsmall"),
        "document.querySelector('[data-ask=pause]') !== null && document.querySelectorAll('.sign.running').length > 0 && document.querySelectorAll('canvas').length === 2",
    );
    // The samples of the present trial: numbers, curves, and the actors.
    browser.until(&text("vhost 0.30"));
    // Numbers that are not measured are marked.
    browser.until(&text("emulated"));
    browser.until(&text("Target: to its network device 300 MB/s"));
    browser.eval("document.querySelector('[aria-label=\"What is sampled of this trial\"] details').open = true");
    browser.until(&text("0.60 cores"));

    // The run is paused; meanwhile the page's server ends and starts again.
    click(&mut browser, "[data-ask=pause]");
    browser.until(&format!(
        "{progress}.startsWith('Pausing after this trial')"
    ));
    let address = server.address();
    browser.expect("net::ERR_");
    drop(server);
    browser.until(&format!("{progress}.includes('connection is lost')"));
    let server = serve(&going, folder, address, false);
    browser.until(&format!(
        "{progress}.startsWith('Pausing after this trial')"
    ));
    fake::pace(folder, 800);
    browser.until(&format!("{progress}.startsWith('Paused')"));
    browser.until(&text("the same command goes on"));
    looked_at(
        &mut browser,
        &format!("{page}/#/run/new%2Fsmall"),
        "document.querySelector('[data-ask=resume]') !== null",
    );
    looked_at(&mut browser, &format!("{page}/#/runs"), &text("Paused"));

    // The run is resumed, cancelled, and resumed to its end.
    fake::pace(folder, LONG);
    browser.open(&format!("{page}/#/run/new%2Fsmall"));
    click(&mut browser, "[data-ask=resume]");
    click(&mut browser, "[data-ask=cancel]");
    browser.until(&format!("{progress}.startsWith('Cancelled')"));
    fake::pace(folder, 0);
    click(&mut browser, "[data-ask=resume]");
    browser.until(&format!("{progress}.startsWith('Complete')"));
    browser.until(&text("Not to be trusted"));
    browser.until(&text("A VM (QEMU, TCG emulation), CPU against bare metal"));
    browser.until("document.querySelectorAll('[data-ask]').length === 0");

    // A note stays with the results.
    write(
        &mut browser,
        "section form textarea",
        "the fan was <b>loud</b>",
    );
    write(&mut browser, "section form .trial", "3");
    browser.eval("document.querySelector('section form').requestSubmit()");
    browser.until(
        "document.querySelector('.notes')?.innerText.includes('Trial 3: the fan was <b>loud</b>')",
    );
    looked_at(
        &mut browser,
        &format!("{page}/#/results"),
        &text("the fan was <b>loud</b>"),
    );
    let kept = fs::read_to_string(folder.join("results/new/small/notes.jsonl")).unwrap();
    assert!(kept.contains("<b>loud</b>"), "{kept}");

    // Curves of two runs in one panel, also in the exported file.
    for name in ["one", "two"] {
        ramp::write(&folder.join("results").join(name));
    }
    let curves = "document.querySelectorAll('.panels figure').length > 4 && document.querySelectorAll('.panels path.run1').length > 4";
    looked_at(&mut browser, &format!("{page}/#/compare/one/two"), curves);
    browser.until("document.querySelector('a[download]').getAttribute('href').startsWith('/api/compare.html?dir=one')");
    let file = browser
        .eval("fetch(document.querySelector('a[download]').href).then((answer) => answer.text())");
    let alone = folder.join("alone.html");
    fs::write(&alone, file.as_str().unwrap()).unwrap();
    let alone = format!("file://{}", alone.display());
    looked_at(
        &mut browser,
        &alone,
        &format!("{curves} && {}", text("B / A")),
    );

    // A climb is drawn while it is in progress.
    fake::pace(folder, LONG);
    let climbs = serde_json::json!({"text": fake::CLIMBS, "dir": "climbs", "at": "local"});
    let sent = format!(
        "fetch('/api/runs', {{ method: 'POST', headers: {{ 'Content-Type': 'application/json', 'Vtax-Key': localStorage.getItem('vtax-key') }}, body: {:?} }}).then((answer) => answer.status)",
        climbs.to_string()
    );
    browser.open(&format!("{page}/#/runs"));
    browser.until("document.querySelector('textarea') !== null");
    assert_eq!(browser.eval(&sent), 200);
    browser.until(&text("climbs · "));
    browser.open(&format!("{page}/#/run/climbs"));
    browser.until(&text("30 of 40 so far"));
    looked_at(
        &mut browser,
        &format!("{page}/#/run/climbs"),
        "document.querySelectorAll('.panels .dot').length === 3",
    );
    fake::pace(folder, 0);
    browser.until(&format!("{progress}.startsWith('Complete')"));

    // No machine is configured, and the page shows how to add one; then there is a NIC.
    looked_at(
        &mut browser,
        &format!("{page}/#/machines"),
        &text("vtax web --nic"),
    );
    let policy = machines::nic(&folder.join("nic"));
    drop(server);
    let server = serve(&going, folder, address, false);
    looked_at(
        &mut browser,
        &format!("{page}/#/machines"),
        &text(machines::PORT),
    );
    write(&mut browser, "input[type=number]", "700");
    click(&mut browser, ".inline button");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while policy.lock().unwrap().default_us != 700 {
        assert!(
            std::time::Instant::now() < deadline,
            "the budget was not set"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    browser.until(&text("700 µs"));
    browser.until(&text("1,000,000"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    for request in browser.requests() {
        let own = [page.as_str(), &alone, &other, "data:", "blob:", "about:"];
        assert!(own.iter().any(|own| request.starts_with(own)), "{request}");
    }

    // A server where reading needs a token: first without one, then with the watchers' token.
    drop(server);
    let server = serve(&going, folder, "127.0.0.1:0".parse().unwrap(), true);
    let page = format!("http://{}", server.address());
    looked_at(
        &mut browser,
        &format!("{page}/#/results"),
        &text("for those who have its token"),
    );
    assert!(!browser.eval(&text("small")).as_bool().unwrap());
    browser.open(&format!("{page}/#token={WATCHER}"));
    browser.until(&text("This host"));
    browser.open(&format!("{page}/#/run/new%2Fsmall"));
    browser.until(&format!("{progress}.startsWith('Complete')"));
    browser.until("document.querySelector('.notes') !== null && document.querySelector('.notes').innerText.includes('loud')");
    assert_eq!(
        browser.eval("document.querySelector('.notes').parentElement.querySelector('form').hidden"),
        true
    );
    assert_eq!(
        browser.eval("fetch('/api/notes', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' }).then((answer) => answer.status)"),
        403
    );

    // The page asks again for a token that is no longer valid, and then shows the same view.
    let address = server.address();
    browser.open(&format!("{page}/#/host"));
    browser.until(&text("This host"));
    drop(server);
    browser.send("Network.clearBrowserCookies", serde_json::json!({}));
    let server = serve(&going, folder, address, true);
    browser.until(&text("for those who have its token"));
    browser.eval(&format!(
        "(() => {{ document.querySelector('input[type=password]').value = {WATCHER:?}; document.querySelector('form').requestSubmit(); }})()"
    ));
    browser.until(&text("This host"));
    drop(server);
}
