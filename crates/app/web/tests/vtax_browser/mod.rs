// SPDX-License-Identifier: Apache-2.0
//! The page in a real browser: its views, in both themes and on a phone, without requests to other servers and without
//! errors in the console.
//!
//! Runs count as in progress only where a program whose name begins with `vtax` writes them; the name of this program
//! does.

mod chromium;
mod runs;
mod views;

use base64::Engine;
use chromium::Browser;
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use vtax_charge::fake::Host;
use vtax_inventory::Platform;
use vtax_testkit::results::Fake;
use vtax_web::{AppState, ListenerSettings, Live, Server};

/// The name of a guest that contains HTML and a script.
const HOSTILE: &str = "<img src=x onerror=hacked=1>";

/// A fake host that is read again in a loop, faster than a real one.
struct Going {
    live: Arc<Live>,
    host: Arc<Mutex<Host>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Going {
    fn start(host: Host) -> Self {
        let live = Arc::new(Live::default());
        let host = Arc::new(Mutex::new(host));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (live, host, stop) = (Arc::clone(&live), Arc::clone(&host), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let snapshot = host.lock().unwrap().pass(2_000_000);
                    live.show(snapshot);
                    std::thread::sleep(Duration::from_millis(250));
                }
            })
        };
        Self {
            live,
            host,
            stop,
            thread: Some(thread),
        }
    }

    fn serve(&self, results: &Path, listen: SocketAddr) -> Server {
        let app = AppState::new(Arc::clone(&self.live), results, Path::new("/nonexistent"));
        Server::start(app, &ListenerSettings::open(listen)).unwrap()
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The lowest contrast of any visible text, and that text; the width of the page beyond the screen.
const LOOK: &str = r#"(() => {
  const parse = (text) => { const [r, g, b, a] = text.match(/[\d.]+/g).map(Number); return { rgb: [r, g, b], a: a ?? 1 }; };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => { part /= 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = { ratio: 21, text: "" };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("noscript")) { continue; }
    let behind = element;
    while (behind && parse(getComputedStyle(behind).backgroundColor).a < 1) { behind = behind.parentElement; }
    const back = behind ? parse(getComputedStyle(behind).backgroundColor).rgb : [255, 255, 255];
    const [a, b] = [light(parse(getComputedStyle(element).color).rgb), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) { worst = { ratio, text: texts.currentNode.textContent.slice(0, 60) }; }
  }
  return { ...worst, wide: document.documentElement.scrollWidth - document.documentElement.clientWidth };
})()"#;

/// The number of tables of which a part cannot be seen: they are wider than their box, and it does not scroll, or the
/// names of rows do not stay in view in it.
const CUT: &str = r"[...document.querySelectorAll('table')].filter((table) => {
  const box = table.closest('.scroll') ?? document.documentElement;
  if (!table.checkVisibility() || table.scrollWidth <= box.clientWidth) { return false; }
  if (!['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) { return true; }
  box.scrollLeft = box.scrollWidth;
  const name = table.querySelector('tbody th');
  const gone = name !== null && name.getBoundingClientRect().left < box.getBoundingClientRect().left - 1;
  box.scrollLeft = 0;
  return gone;
}).length";

/// The least room in pixels at the right of a graph, for half of a label: a tick may be at the end of the axis.
const ROOM: &str = r"(() => {
  const pen = document.createElement('canvas').getContext('2d');
  pen.font = '12px system-ui, sans-serif';
  const half = pen.measureText('00:00:00').width / 2;
  const rooms = [...document.querySelectorAll('.u-wrap')].filter((plot) => plot.checkVisibility()).map((plot) =>
    plot.querySelector('canvas').getBoundingClientRect().right - plot.querySelector('.u-over').getBoundingClientRect().right - half);
  return Math.min(...rooms);
})()";

/// Unfolds all that is folded.
const UNFOLD: &str =
    "document.querySelectorAll('details').forEach((part) => { part.open = true; })";

/// Checks a view on both screens in both themes. `ready` is true when it has loaded.
fn looked_at(browser: &mut Browser, address: &str, ready: &str) {
    for (width, theme) in [
        (1280, "light"),
        (1280, "dark"),
        (360, "light"),
        (360, "dark"),
    ] {
        browser.screen(width, theme);
        browser.open(address);
        browser.until(ready);
        let look = browser.eval(LOOK);
        let at = format!("{address} at {width} px, {theme}: {look}");
        assert!(look["ratio"].as_f64().unwrap() >= 4.5, "contrast: {at}");
        assert_eq!(look["wide"], 0, "sideways: {at}");
        assert_eq!(browser.eval(CUT), 0, "a table is cut: {at}");
        assert_eq!(browser.complaints(), Vec::<String>::new(), "{at}");
    }
    browser.screen(1280, "light");
}

/// Checks a page in the layout of paper, on a system with the dark theme, and prints it. Returns the number of sheets.
fn printed(browser: &mut Browser, address: &str, ready: &str) -> usize {
    browser.screen(718, "dark");
    browser.open(address);
    browser.until(ready);
    // The width between the margins of A4 at 96 pixels an inch.
    browser.send(
        "Emulation.setEmulatedMedia",
        json!({"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}),
    );
    let look = browser.eval(LOOK);
    assert!(look["ratio"].as_f64().unwrap() >= 4.5, "contrast: {look}");
    assert_eq!(look["wide"], 0, "cut off: {look}");
    let back = browser.eval("getComputedStyle(document.documentElement).backgroundColor");
    assert!(
        ["rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"].contains(&back.as_str().unwrap()),
        "ink for a whole page: {back}"
    );
    let paper = browser.send(
        "Page.printToPDF",
        json!({"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": true}),
    );
    let paper = base64::engine::general_purpose::STANDARD.decode(paper["data"].as_str().unwrap());
    let paper = paper.unwrap();
    assert_eq!(browser.complaints(), Vec::<String>::new(), "{address}");
    browser.send("Emulation.setEmulatedMedia", json!({"media": ""}));
    browser.screen(1280, "light");
    let leaf = b"/Type /Page\n";
    paper.windows(leaf.len()).filter(|at| at == leaf).count()
}

#[test(needs = [brought_by_test_all("chromium")])]
fn the_page_works_in_a_browser() {
    let mut browser = Browser::start();
    let mut host = Host::default();
    host.start_named(1, HOSTILE, Platform::Qemu);
    for number in 2..=1000 {
        host.start(number);
    }
    let going = Going::start(host);
    let folder = tempfile::tempdir().unwrap();
    let server = going.serve(folder.path(), "127.0.0.1:0".parse().unwrap());
    let page = format!("http://{}", server.address());

    // A host with a thousand guests, one of which has HTML in its name.
    let rows = "document.querySelectorAll('tbody tr').length";
    looked_at(
        &mut browser,
        &format!("{page}/#/host"),
        &format!("{rows} === 40"),
    );
    for width in [360, 1280] {
        browser.screen(width, "light");
        let room = browser.eval(ROOM);
        assert!(room.as_f64().unwrap() >= 0.0, "{width} px: {room}");
    }
    let background = "getComputedStyle(document.body).backgroundColor";
    let light = browser.eval(background);
    browser.until(&format!("document.body.innerText.includes({HOSTILE:?})"));
    assert_eq!(browser.eval("document.images.length"), 0);
    assert_eq!(browser.eval("typeof hacked"), "undefined");
    browser.until("document.querySelector('.facts').innerText.includes('1000 guests')");

    // The list is sorted and searched.
    browser.eval("document.querySelector('th[data-key=name] button').click()");
    browser.until("document.querySelector('th[data-key=name]').ariaSort === 'ascending'");
    browser.until("document.querySelector('tbody a').innerText === '<img src=x onerror=hacked=1>'");
    browser.eval("(() => { const find = document.querySelector('input'); find.value = 'guest-77'; find.dispatchEvent(new Event('input')); })()");
    browser.until(&format!("{rows} === 11"));

    // A click in the legend hides a series; another one shows it.
    let first = "document.querySelector('button.series')";
    for shown in ["false", "true"] {
        browser.eval(&format!("{first}.click()"));
        browser.until(&format!("{first}.ariaPressed === '{shown}'"));
    }

    // The view is paused and continued.
    let facts = "document.querySelector('.facts').innerText";
    browser.eval(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'p', bubbles: true }))",
    );
    browser.until("document.querySelector('[title=\"Key: p\"]').innerText === 'Go on'");
    let then = browser.eval(facts);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(browser.eval(facts), then, "a paused page stands still");
    browser.eval("document.querySelector('[title=\"Key: p\"]').click()");
    browser.until(&format!("{facts} !== {then}"));

    // The selected theme persists.
    browser.eval("document.getElementById('theme').click()");
    assert_ne!(browser.eval(background), light);
    browser.open(&page);
    browser.until(&format!("{rows} === 40"));
    assert_ne!(browser.eval(background), light);
    browser.eval("document.getElementById('theme').click()");
    browser.eval("localStorage.clear()");

    // One guest, also after it ended, and after a reload.
    looked_at(
        &mut browser,
        &format!("{page}/#/guest/1"),
        "document.body.innerText.includes('its true cost')",
    );
    assert_eq!(
        browser.eval("document.querySelector('h1').innerText"),
        HOSTILE
    );
    going.host.lock().unwrap().end(1);
    browser.until("document.body.innerText.includes('not on the host any more')");
    browser.open(&format!("{page}/#/guest/1"));
    browser.until(&format!(
        "document.querySelector('h1').innerText === {HOSTILE:?}"
    ));
    browser.until("document.querySelectorAll('canvas').length === 5");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // The response is an error on purpose.
    browser.expect("guest=4000");
    browser.open(&format!("{page}/#/guest/4000"));
    browser.until("document.querySelector('[role=alert]') !== null");

    // A server that starts no runs says where they are started.
    looked_at(
        &mut browser,
        &format!("{page}/#/runs"),
        "document.body.innerText.includes('started with --watch-only')",
    );
    assert_eq!(
        browser.eval("document.querySelector('main').innerText.includes('null')"),
        false
    );

    // Without the server the page reports it, and continues when the server is back.
    browser.open(&format!("{page}/#/host"));
    browser.until(&format!("{rows} === 40"));
    let address = server.address();
    browser.expect("net::ERR_");
    drop(server);
    browser
        .until("document.querySelector('[role=status]').innerText.includes('connection is lost')");
    let server = going.serve(folder.path(), address);
    browser.until("document.querySelector('[role=status]').innerText === ''");

    // No results at first, then two runs and one in progress.
    looked_at(
        &mut browser,
        &format!("{page}/#/results"),
        "document.body.innerText.includes('vtax run')",
    );
    let fake = Fake {
        blocks: 4,
        seconds: 6,
        spice: "<b>&\"",
        ..Fake::default()
    };
    let dear = Fake {
        vm_cost: 9.0,
        ..fake.clone()
    };
    for (fake, dir) in [(&fake, "one"), (&dear, "a/two")] {
        let results = fake.write(&folder.path().join(dir));
        let analysis = vtax_report::analysis::analyse(&results).unwrap();
        vtax_report::html::write_report(&results, &analysis).unwrap();
    }
    let results = fake.create(&folder.path().join("going"));
    fake.write_trial(&results, 0);
    let list = "document.querySelectorAll('.runs li').length";
    looked_at(
        &mut browser,
        &format!("{page}/#/results"),
        &format!("{list} === 3"),
    );
    // A run is titled by its directory; the plan's name is beside it where it is another.
    let titles =
        "[...document.querySelectorAll('.runs .title')].map((one) => one.innerText).join(' | ')";
    let titles = browser.eval(titles);
    let titles = titles.as_str().unwrap();
    for title in ["one of ", "a/two of ", "going of "] {
        assert!(titles.contains(title), "{titles}");
    }
    browser.eval("(() => { const find = document.querySelector('input'); find.value = 'different a/two'; find.dispatchEvent(new Event('input')); })()");
    browser.until(&format!("{list} === 1"));
    // The search covers the texts of a run, not the names of the fields in its record.
    for (words, found) in [
        ("container", 3),
        ("platform:container verdict:different plan:a/two", 1),
        ("verdict:container", 0),
        ("true", 0),
        ("remaining_seconds", 0),
        ("xeon", 0),
        ("host:local", 3),
    ] {
        browser.eval(&format!("(() => {{ const find = document.querySelector('input'); find.value = {words:?}; find.dispatchEvent(new Event('input')); }})()"));
        browser.until(&format!("{list} === {found}"));
    }
    browser.eval("(() => { const find = document.querySelector('input'); find.value = ''; find.dispatchEvent(new Event('input')); })()");
    browser.until(&format!("{list} === 3"));
    browser.eval("document.querySelectorAll('.runs [type=checkbox]').forEach((box) => { if (!box.ariaLabel.endsWith('going')) { box.click(); } })");
    browser.until("document.querySelector('.tools button').innerText === 'Compare 2 runs'");
    browser.eval("document.querySelector('.tools button').click()");
    browser.until("document.body.innerText.includes('B / A')");
    looked_at(
        &mut browser,
        &format!("{page}/#/compare/one/a%2Ftwo"),
        "document.querySelectorAll('td .different').length > 0",
    );

    // The run in progress.
    let trials = "document.querySelectorAll('.matrix .sign.waiting').length";
    looked_at(
        &mut browser,
        &format!("{page}/#/run/going"),
        &format!("{trials} > 30"),
    );
    let writer = results.trial_writer(1).unwrap();
    browser.until("document.body.innerText.includes('trial 1, for')");
    writer.finish(fake.trial(results.run(), 1)).unwrap();
    for index in results.pending() {
        fake.write_trial(&results, index);
    }
    browser.until("document.querySelector('.progress').innerText.startsWith('Complete')");
    browser.until("document.body.innerText.includes('Not to be trusted')");

    // A report draws its figures in its sandbox, where Vega prints warnings.
    browser.expect("\"WARN\"");
    browser.open(&format!("{page}/report?dir=one"));
    let drawn = "document.querySelectorAll('.plot svg.marks').length";
    browser.until(&format!("{drawn} === 1"));
    browser.eval(UNFOLD);
    browser.until(&format!("{drawn} > 3"));
    for (width, theme) in [(360, "light"), (1280, "dark")] {
        browser.screen(width, theme);
        let look = browser.eval(LOOK);
        assert!(look["ratio"].as_f64().unwrap() >= 4.5, "{look}");
        assert_eq!(look["wide"], 0, "{width}: {look}");
    }
    browser.screen(1280, "light");
    for refused in ["Content Security Policy", "CORS"] {
        browser.expect(refused);
    }
    assert_eq!(
        browser.eval("fetch('/api/about').then(() => 'read', () => 'refused')"),
        "refused"
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());

    for request in browser.requests() {
        let own = [page.as_str(), "data:", "blob:", "about:"];
        assert!(own.iter().any(|own| request.starts_with(own)), "{request}");
    }
    drop(server);
}
