// SPDX-License-Identifier: Apache-2.0
//! Every view, in both themes and on both screens: without content, and with a run in progress.

use super::chromium::Browser;
use super::runs::{LONG, OPERATOR, serve, text};
use super::{Going, UNFOLD, looked_at, printed};
use crate::fake;
use std::fs;
use vtax_charge::fake::Host;

/// The number of axes with tick labels that overlap.
const OVERLAPS: &str = r"[...document.querySelectorAll('.axis')].filter((axis) => {
  const seen = [...axis.querySelectorAll('.tick')].map((tick) => tick.getBoundingClientRect()).filter((tick) => tick.width > 0);
  return seen.some((one, index) => seen.some((other, at) => at > index && one.left < other.right && other.left < one.right));
}).length";

/// The number of names of the atlas that are narrower than their card, and of its numbers that are broken before their unit.
const BROKEN_CARDS: &str = r"(() => {
  const narrow = (name) => getComputedStyle(name.parentElement).display === 'grid' && name.offsetWidth < name.parentElement.clientWidth - 1;
  const broken = (cell) => {
    const number = document.createRange();
    number.setEnd(cell.firstChild, cell.firstChild.data.trimEnd().length);
    number.setStart(cell.firstChild, 0);
    return !cell.firstChild.data.includes('[') && number.getClientRects().length > 1;
  };
  const numbers = [...document.querySelectorAll('.series td:nth-child(3)')].filter((cell) => cell.firstChild?.data);
  return [...document.querySelectorAll('.claims tbody th, .series tbody th')].filter(narrow).length + numbers.filter(broken).length;
})()";

#[test(needs = [brought_by_test_all("chromium")])]
fn every_view_is_whole_with_nothing_there_and_with_a_run_under_way() {
    let mut browser = Browser::start();
    let going = Going::start(Host::default());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = serve(&going, folder, "127.0.0.1:0".parse().unwrap(), false);
    let page = format!("http://{}", server.address());
    browser.open(&format!("{page}/#token={OPERATOR}"));
    browser.until(&text("No guest runs on this host"));
    browser.until("document.getElementById('enter').hidden");
    let nothing = [
        ("#/host", text("No guest runs on this host")),
        (
            "#/runs",
            format!(
                "{} && {}",
                text("No run was started from this page"),
                text("No plans below")
            ),
        ),
        ("#/results", text("No results below")),
        ("#/machines", text("vtax web --nic")),
        ("#/enter", text("enter the operator’s token")),
        ("#/nowhere", text("no such view")),
        (
            "api/atlas.html",
            "document.querySelectorAll('article').length > 3".to_owned(),
        ),
    ];
    for (view, ready) in &nothing {
        looked_at(&mut browser, &format!("{page}/{view}"), ready);
    }

    fs::create_dir(folder.join("plans")).unwrap();
    fs::write(folder.join("plans/small.toml"), fake::PLAN).unwrap();
    fake::program(folder);
    fake::pace(folder, LONG);
    fake::invented().write(&folder.join("results/one"));
    going.host.lock().unwrap().start(1);
    browser.open(&format!("{page}/#/runs"));
    browser.until("document.querySelector('select')?.options.length === 2");
    browser.eval("(() => { const plan = document.querySelector('select'); plan.value = 'small.toml'; plan.dispatchEvent(new Event('change')); })()");
    browser.until("!document.querySelector('.primary').disabled");
    // The browser requests the notes before their directory exists.
    browser.expect("/api/notes?dir=");
    browser.eval("document.querySelector('.primary').click()");
    browser.until("location.hash.startsWith('#/run/small-')");
    browser.until(&text("for 1 s: measure"));
    let run = browser.eval("location.hash.slice('#/run/'.length)");
    let run = run.as_str().unwrap();
    let there = [
        ("#/host".to_owned(), text("1 guest")),
        ("#/guest/1".to_owned(), text("its true cost")),
        ("#/runs".to_owned(), text("Running")),
        (
            format!("#/run/{run}"),
            "document.querySelectorAll('canvas').length === 2".to_owned(),
        ),
        ("#/run/one".to_owned(), text("Complete")),
        ("#/results".to_owned(), text("running: 0 of")),
        (format!("#/compare/one/{run}"), text("A")),
        ("#/machines".to_owned(), text("vtax web --nic")),
        (
            "api/atlas.html".to_owned(),
            format!(
                "({UNFOLD}, document.querySelectorAll('article').length > 3 && {OVERLAPS} === 0 && {BROKEN_CARDS} === 0)"
            ),
        ),
    ];
    for (view, ready) in &there {
        looked_at(&mut browser, &format!("{page}/{view}"), ready);
    }
    let atlas = format!("{page}/api/atlas.html");
    let pages = printed(&mut browser, &atlas, "document.readyState === 'complete'");
    let entries = browser.eval("document.querySelectorAll('article').length");
    let entries = usize::try_from(entries.as_u64().unwrap()).unwrap();
    // A figure of several claims and charts fills two pages; a chart cut to a page of its own would double them.
    assert!(
        (entries..5 * entries / 2).contains(&pages),
        "{pages} pages of paper for {entries} figures"
    );
    browser.open(&format!("{page}/#/host"));
    browser.until("performance.getEntriesByName('first-contentful-paint').length === 1");
    let paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime";
    println!("NOTE: first paint after {} ms", browser.eval(paint));
    fake::pace(folder, 0);
    drop(server);
}
