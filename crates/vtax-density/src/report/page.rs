//! The page: findings, figures, tables beside those of the paper, and provenance.

use super::published::{MEMORY, PROCESSORS, Published, Row};
use super::summary::{Each, Summary, TreatmentClimbs};
use super::{about, bytes, count, time};
use crate::fit::Line;
use crate::limits::Binding;
use crate::record::Cloud;
use crate::resources::Resource;
use std::fmt::Write;
use vtax_core::{counted, noun};
use vtax_report::figures::Figure;
use vtax_report::html::{document, drawn, escape, when};
use vtax_report::results::ResultsDir;

/// Appends formatted text; writing to a string cannot fail.
macro_rules! add {
    ($out:expr, $($text:tt)*) => { let _ = write!($out, $($text)*); };
}

const MODELLED: &str = "<span class=\"badge\">modelled</span>";

pub(super) fn page(results: &ResultsDir, summary: &Summary, figures: &[Figure]) -> String {
    let mut body = String::new();
    masthead(&mut body, results, summary);
    found(&mut body, summary);
    drawn(&mut body, figures);
    body.push_str("<section id=\"tables\">\n<h2>Tables</h2>\n");
    costs(&mut body, summary);
    clouds(&mut body, summary);
    lines(&mut body, summary);
    published_tables(&mut body, results, summary);
    trials(&mut body, summary);
    body.push_str("</section>\n");
    provenance(&mut body, results, summary);
    document(&results.run().name, &body, figures)
}

fn masthead(out: &mut String, results: &ResultsDir, summary: &Summary) {
    let run = results.run();
    let climbs: usize = summary.seen.iter().map(|seen| seen.climbs.len()).sum();
    add!(
        out,
        "<header class=\"masthead\">\n<p class=\"eyebrow\">vtax density report</p>\n<button id=\"theme\" type=\"button\" hidden>Dark</button>\n\
         <h1>{}</h1>\n<p class=\"lede\">{}</p>\n<ul class=\"facts\"><li>place <b>{}</b></li><li>started <b>{}</b></li><li>profile <b>{}</b></li>\
         <li><b>{climbs} of {}</b> {}</li><li>order <b>random, interleaved, seed {}</b></li></ul>\n",
        escape(&run.name),
        escape(&run.description),
        escape(&run.place),
        escape(&when(&run.started)),
        escape(&run.profile),
        run.schedule.len(),
        noun(run.schedule.len(), "climb"),
        run.seed,
    );
    let mut banner = |head: &str, text: &str| {
        add!(out, "<p class=\"banner\"><b>{head}</b> {text}</p>\n");
    };
    if run.profile == "quick" {
        banner(
            "Quick profile.",
            "Fewer guests and climbs, for a first look. Where nothing ended a climb, straight lines say what would, and say that they are modelled.",
        );
    }
    let suspect = summary
        .seen
        .iter()
        .flat_map(|seen| &seen.climbs)
        .filter(|(trial, _)| !trial.suspect.is_empty())
        .count();
    if suspect > 0 {
        banner(
            "Suspect.",
            &format!(
                "There are reasons not to trust {suspect} of {}: the table of climbs names them. What is suspect is shown all the same.",
                counted(climbs, "climb")
            ),
        );
    }
    if summary.pending > 0 {
        banner(
            "Unfinished.",
            &format!("{} not run yet.", counted(summary.pending, "climb")),
        );
    }
    out.push_str("</header>\n");
}

fn found(out: &mut String, summary: &Summary) {
    out.push_str("<section id=\"summary\">\n<h2>What was found</h2>\n<ul class=\"findings\">\n");
    for seen in &summary.seen {
        let label = escape(&seen.treatment.label);
        let Some(guests) = seen.guests() else {
            let why = seen.failures.first().map_or("not run yet", String::as_str);
            add!(out, "<li>{label}: {}</li>\n", escape(why));
            continue;
        };
        let mut sentence = format!(
            "<b>{label}</b>: {} {} held at once",
            count(guests),
            if guests == 1.0 {
                "guest was"
            } else {
                "guests were"
            }
        );
        match seen.memory_each() {
            Some(Each::ByHost(each)) => {
                sentence += &format!(", {} of memory each, all in", bytes(each));
            }
            Some(Each::Charged(each)) => {
                sentence += &format!(
                    ", {} of memory each charged to their control group",
                    bytes(each)
                );
            }
            None => {}
        }
        let answer = seen.at_top(|_, top| Some(top.probe?.p50_us));
        if let Some(answer) = answer {
            sentence += &format!("; one answers in {} (median)", time(answer));
        }
        if let Some(idle) = seen.at_top(|climb, _| Some(climb.idle?.core_percent)) {
            sentence += &format!("; all of them idle use {idle:.2} % of one processor");
        }
        if let Some(bound) = seen.bound() {
            let words = escape(&bound.words);
            sentence += &match (bound.modelled, bound.words.as_str()) {
                (true, _) => format!(
                    ". The expected maximum ended the climb; in a straight line, {words} would at about {} guests {MODELLED}",
                    about(bound.guests)
                ),
                (false, "nothing yet") => {
                    ". The expected maximum ended the climb, and no resource had risen enough to say what would bind".to_owned()
                }
                (false, _) => format!(". Bound by <b>{words}</b>"),
            };
        }
        add!(out, "<li class=\"different\">{sentence}.</li>\n");
    }
    out.push_str("</ul>\n<p class=\"key\">Memory is the host’s own: what less was available at the top than before the first guest, divided by the guests, kernel included. \
                  Shared pages count once, so it is not the size that tools print for a process. Where other programs came and went so much that the host’s memory does not follow the population, \
                  it is what the guests’ control group is charged for: a little less than all.</p>\n</section>\n");
}

fn dash() -> String {
    "–".to_owned()
}

fn costs(out: &mut String, summary: &Summary) {
    out.push_str(
        "<h3>What a guest costs</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>platform</th><th>guests</th><th>memory each</th><th>user</th><th>kernel</th>\
         <th>charged</th><th>made</th><th>booted in</th><th>answers in</th><th>idle CPU</th><th>J per hour</th>\
         <th>came back</th></tr></thead>\n<tbody>\n",
    );
    for seen in summary.seen.iter().filter(|seen| !seen.climbs.is_empty()) {
        let calm = seen.host_is_calm();
        let each = |of: fn(&crate::resources::Memory) -> f64| {
            seen.at_top(|climb, top| {
                (top.population > 0 && calm)
                    .then(|| (of(&top.memory) - of(&climb.before)) / f64::from(top.population))
            })
            .map_or_else(dash, bytes)
        };
        let from_to = |pair: Option<(crate::record::Latency, crate::record::Latency)>| {
            pair.map_or_else(dash, |(first, last)| {
                format!("{} → {}", time(first.p50_us), time(last.p50_us))
            })
        };
        let rate = seen.climbs.first().map_or_else(dash, |(_, climb)| {
            let mut rates = climb.climb.iter().filter_map(|interval| {
                let births = interval.births.filter(|births| births.seconds > 0.0)?;
                Some(f64::from(births.count) / births.seconds)
            });
            let first = rates.next();
            let last = rates.next_back().or(first);
            match (first, last) {
                (Some(first), Some(last)) => format!("{} → {} /s", digits(first), digits(last)),
                _ => dash(),
            }
        });
        let cells = [
            count(seen.guests().unwrap_or(0.0)),
            seen.at_top(|climb, _| climb.bytes_each())
                .filter(|_| calm)
                .map_or_else(|| "hidden".to_owned(), bytes),
            each(|m| m.user + m.swap),
            each(|m| m.kernel()),
            seen.at_top(|climb, _| climb.charged_each())
                .map_or_else(dash, bytes),
            rate,
            from_to(seen.first_and_last(|interval| interval.births?.boot)),
            from_to(seen.first_and_last(|interval| interval.probe)),
            seen.at_top(|climb, _| Some(climb.idle?.core_percent))
                .map_or_else(dash, |percent| format!("{percent:.2} %")),
            seen.at_top(|climb, top| {
                let idle = climb.idle?;
                Some(idle.joules? / idle.seconds / f64::from(top.population.max(1)) * 3600.0)
            })
            .map_or_else(|| "no meter".to_owned(), |joules| format!("{joules:.1}")),
            seen.at_top(|climb, _| climb.returned_percent())
                .map_or_else(dash, |percent| format!("{percent:.0} %")),
        ];
        add!(
            out,
            "<tr><th scope=\"row\">{}</th>",
            escape(&seen.treatment.label)
        );
        for cell in cells {
            add!(out, "<td class=\"number\">{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str(
        "</tbody></table></div>\n<p class=\"key\">Medians, from the first to the last interval of a climb. Charged: to the guests’ control group. J per hour: the host’s energy while the population is idle, divided by the guests. Idle CPU is that of the whole population, in percent of one \
         processor, over a time in which nobody asks. “User” are anonymous and shared pages of processes, “kernel” slab, page tables, per-CPU and vmalloc areas (stacks are in those); \
         what is in no account, such as KVM’s own pages, is in the whole alone. “Hidden”: other programs came and went so much that the host’s memory does not follow the population; the charged column is free of them.</p>\n",
    );
}

/// The table of churn.
fn clouds(out: &mut String, summary: &Summary) {
    let cloudy: Vec<&TreatmentClimbs> = summary
        .seen
        .iter()
        .filter(|seen| seen.records().any(|climb| climb.cloud.is_some()))
        .collect();
    if cloudy.is_empty() {
        return;
    }
    out.push_str(
        "<h3>Guests that come and go</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>platform</th><th>places</th><th>there, mean</th><th>came</th>\
         <th>turned away</th><th>went</th><th>booted in, p50, p99</th><th>answer in, p50, p99</th><th>late, at most</th><th>CPU</th></tr></thead>\n<tbody>\n",
    );
    for seen in cloudy {
        let of =
            |of: fn(&Cloud) -> Option<f64>| seen.at_top(|climb, _| of(climb.cloud.as_ref()?));
        let pair = |p50: Option<f64>, p99: Option<f64>| {
            p50.zip(p99)
                .map_or_else(dash, |(p50, p99)| format!("{}, {}", time(p50), time(p99)))
        };
        let counted = |value: Option<f64>| value.map_or_else(dash, count);
        let cells = [
            counted(of(|cloud| Some(f64::from(cloud.places)))),
            of(|cloud| Some(cloud.mean_population)).map_or_else(dash, digits),
            counted(of(|cloud| Some(f64::from(cloud.arrivals)))),
            counted(of(|cloud| Some(f64::from(cloud.turned_away)))),
            counted(of(|cloud| Some(f64::from(cloud.departures)))),
            pair(
                of(|cloud| Some(cloud.boot?.p50_us)),
                of(|cloud| Some(cloud.boot?.p99_us)),
            ),
            pair(
                of(|cloud| Some(cloud.probe.p50_us)),
                of(|cloud| Some(cloud.probe.p99_us)),
            ),
            of(|cloud| Some(cloud.late * 1e6)).map_or_else(dash, time),
            of(|cloud| Some(cloud.core_percent)).map_or_else(dash, |cpu| format!("{cpu:.1} %")),
        ];
        add!(
            out,
            "<tr><th scope=\"row\">{}</th>",
            escape(&seen.treatment.label)
        );
        for cell in cells {
            add!(out, "<td class=\"number\">{cell}</td>");
        }
        out.push_str("</tr>\n");
        let refused = seen
            .records()
            .find_map(|climb| climb.cloud.as_ref()?.refused.as_deref());
        if let Some(why) = refused {
            add!(
                out,
                "<tr><td colspan=\"10\">ended early: {}</td></tr>\n",
                escape(why)
            );
        }
    }
    out.push_str(
        "</tbody></table></div>\n<p class=\"key\">At the top of a climb guests arrive as a Poisson process and live for times drawn from an exponential distribution, in as many places as the climb had guests. \
         Late: how long after its time a guest came or went, because making and ending others took longer. CPU: of the population, in percent of one processor.</p>\n",
    );
}

fn digits(value: f64) -> String {
    if value >= 100.0 {
        count(value)
    } else {
        format!("{value:.1}")
    }
}

fn lines(out: &mut String, summary: &Summary) {
    out.push_str(
        "<h3>Straight lines through the climbs, and where they lead</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>platform</th><th>memory</th>\
         <th>R²</th><th>residual</th><th>charged</th><th>CPU of 10,000</th><th>this host holds</th><th>the paper’s host</th></tr></thead>\n<tbody>\n",
    );
    for seen in summary.seen.iter().filter(|seen| !seen.climbs.is_empty()) {
        let slope = |line: Option<Line>| {
            line.map_or_else(dash, |line| {
                let error = line
                    .slope_error
                    .map_or_else(String::new, |error| format!(" ± {}", bytes(error)));
                format!("{}{error}", bytes(line.slope))
            })
        };
        let memory = seen.memory_line();
        let processors = seen
            .climbs
            .first()
            .map_or(1.0, |(_, climb)| f64::from(climb.processors));
        let cpu = seen.line(Resource::Cpu).map_or_else(dash, |line| {
            format!(
                "{:.3} cores",
                (line.slope * 1e4 / 100.0 * processors).max(0.0)
            )
        });
        let here = seen.bound().map_or_else(dash, |bound| {
            if bound.modelled {
                format!(
                    "{} ({}){MODELLED}",
                    about(bound.guests),
                    escape(&bound.words)
                )
            } else if bound.words == "nothing yet" {
                format!("≥ {}", count(bound.guests))
            } else {
                format!("{} ({})", count(bound.guests), escape(&bound.words))
            }
        });
        let there = seen
            .on_host(PROCESSORS, MEMORY)
            .map_or_else(dash, |(guests, by)| {
                format!("{} ({by}){MODELLED}", about(guests))
            });
        add!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{cpu}</td><td class=\"number\">{here}</td><td class=\"number\">{there}</td></tr>\n",
            escape(&seen.treatment.label),
            slope(memory),
            memory.map_or_else(dash, |line| format!("{:.3}", line.r_squared)),
            memory.map_or_else(dash, |line| bytes(line.worst_residual)),
            slope(seen.charged_line()),
        );
    }
    out.push_str(
        "</tbody></table></div>\n<p class=\"key\">Least squares over the intervals of all climbs: what one guest more takes, with its standard error, and the worst residual. The paper’s host had 48 processors and 128 GB; its swap, whose size is \
         not printed, is left out, as are limits on processes and descriptors, which can be raised. A processor counts as one of this host’s. \
         Where the host’s memory follows no line (R² below 0.9, or a suspect climb), the line of what the group is charged for is led on in its place.</p>\n",
    );
}

/// A treatment as a row of the paper's tables.
fn as_row(seen: &TreatmentClimbs) -> Option<(String, Row)> {
    let factor = |key: &str| seen.treatment.factors.get(key).map(String::as_str);
    let platform = seen.treatment.platform.as_str();
    let works = factor("work").is_some_and(|work| work != "none");
    if !["qemu", "mvm-live", "mvm-parked"].contains(&platform) || works {
        return None;
    }
    let kvm = platform != "qemu" || factor("accel") == Some("kvm");
    let (_, climb) = seen.climbs.first()?;
    let row = Row {
        sleep: !matches!(factor("image"), Some("idle-pit" | "spin")),
        kvm,
        bits: if factor("binary").is_some_and(|binary| binary.ends_with("i386")) {
            32.0
        } else {
            64.0
        },
        guests: seen.guests()?,
        cpu_percent: seen.share_at_top(Resource::Cpu)?,
        ram_percent: seen.share_at_top(Resource::Memory)?,
        swap_percent: seen.share_at_top(Resource::Swap).unwrap_or(0.0),
        size_kb: seen.at_top(|climb, _| climb.bytes_each())? / 1024.0,
        minutes: climb.seconds / 60.0,
        boot_seconds: {
            let births = climb.climb.iter().filter_map(|interval| interval.births);
            let (made, seconds) = births.fold((0.0, 0.0), |(n, s), births| {
                (n + f64::from(births.count), s + births.seconds)
            });
            if made > 0.0 { seconds / made } else { 0.0 }
        },
    };
    let more = if climb.binding == Binding::Maximum {
        "≥ "
    } else {
        ""
    };
    Some((more.to_owned(), row))
}

/// Whether the processor's power saving was on (table II) or off (table I); none where that is unknown.
fn power_saving(results: &ResultsDir, seen: &TreatmentClimbs) -> Option<bool> {
    let governor = seen
        .treatment
        .factors
        .get("host.governor")
        .cloned()
        .or_else(|| {
            let host = results.host().ok()?;
            let governors = host.get("governors")?.as_array()?.clone();
            match governors.as_slice() {
                [one] => one.as_str().map(str::to_owned),
                _ => None,
            }
        })?;
    Some(governor != "performance")
}

fn published_tables(out: &mut String, results: &ResultsDir, summary: &Summary) {
    let Some(published) = Published::read() else {
        return;
    };
    let measured: Vec<(&TreatmentClimbs, String, Row)> = summary
        .seen
        .iter()
        .filter_map(|seen| as_row(seen).map(|(more, row)| (seen, more, row)))
        .collect();
    if measured.is_empty() {
        return;
    }
    let tables = [
        (
            "Table I: fixed highest frequency",
            &published.table_1,
            Some(false),
        ),
        (
            "Table II: default power saving",
            &published.table_2,
            Some(true),
        ),
    ];
    out.push_str("<h3>The paper’s tables I and II, with this host’s rows in their form</h3>\n");
    for (title, rows, saving) in tables {
        let ours: Vec<&(&TreatmentClimbs, String, Row)> = measured
            .iter()
            .filter(|(seen, ..)| power_saving(results, seen) == saving)
            .collect();
        table(out, title, rows, &ours);
    }
    let untold: Vec<&(&TreatmentClimbs, String, Row)> = measured
        .iter()
        .filter(|(seen, ..)| power_saving(results, seen).is_none())
        .collect();
    if !untold.is_empty() {
        table(
            out,
            "This host, which does not tell its frequency governor, so that its rows belong to neither table",
            &[],
            &untold,
        );
    }
    add!(
        out,
        "<p class=\"key\">Published: Bratterud and Haugerud (CloudCom 2013), QEMU on 48 processors with 128 GB and swap; their size/kB counts shared pages for every VM, ours is the host’s difference divided by the guests. \
         “≥”: the expected maximum ended the climb. Boot is wall time per guest while the population grows. Their figures 2 to 4 ran to {} VMs, where the processors stood at {} % with power saving on and at {} % with it off; \
         with the timer of every guest on they stood at {} %, with true sleep at {} %.</p>\n",
        count(published.test.vms_at_stop),
        published.test.max_cpu_percent.power_saving_on,
        published.test.max_cpu_percent.pit_on,
        published.test.max_cpu_percent.pit_on,
        published.test.max_cpu_percent.pit_off,
    );
}

fn table(
    out: &mut String,
    title: &str,
    published: &[Row],
    measured: &[&(&TreatmentClimbs, String, Row)],
) {
    add!(
        out,
        "<div class=\"scroll\"><table>\n<caption>{}</caption>\n<thead><tr><th></th><th>sleep</th><th>KVM</th><th>bits</th><th>MVMs</th><th>CPU %</th><th>RAM %</th><th>swap %</th>\
         <th>size/kB</th><th>minutes</th><th>boot/s</th></tr></thead>\n<tbody>\n",
        escape(title)
    );
    let mut line = |who: &str, more: &str, row: &Row| {
        let size = if row.size_kb < 10.0 {
            format!("{:.2}", row.size_kb)
        } else {
            count(row.size_kb)
        };
        let boot = if row.boot_seconds < 0.01 {
            format!("{:.5}", row.boot_seconds)
        } else {
            format!("{:.2}", row.boot_seconds)
        };
        add!(
            out,
            "<tr><th scope=\"row\">{who}</th><td>{}</td><td>{}</td><td class=\"number\">{:.0}</td><td class=\"number\">{more}{}</td><td class=\"number\">{:.1}</td>\
             <td class=\"number\">{:.1}</td><td class=\"number\">{:.1}</td><td class=\"number\">{size}</td><td class=\"number\">{:.1}</td><td class=\"number\">{boot}</td></tr>\n",
            if row.sleep { "on" } else { "off" },
            if row.kvm { "on" } else { "off" },
            row.bits,
            count(row.guests),
            row.cpu_percent,
            row.ram_percent,
            row.swap_percent,
            row.minutes,
        );
    };
    for row in published {
        line("published", "", row);
    }
    for (seen, more, row) in measured {
        line(
            &format!("<b>measured</b>: {}", escape(&seen.treatment.label)),
            more,
            row,
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn trials(out: &mut String, summary: &Summary) {
    out.push_str(
        "<h3>Every climb</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>trial</th><th>platform</th><th>guests</th><th>ended by</th><th>took</th><th>own cost</th>\
         <th>memory back after</th><th>doubts</th></tr></thead>\n<tbody>\n",
    );
    let mut rows: Vec<(u32, String)> = Vec::new();
    for (trial, climb) in summary.seen.iter().flat_map(|seen| &seen.climbs) {
        let doubts = if trial.suspect.is_empty() {
            "none".to_owned()
        } else {
            trial.suspect.join("; ")
        };
        rows.push((
            trial.index,
            format!(
                "<tr><td>{:04}</td><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"reason\">{}</td><td class=\"number\">{:.1} s</td>\
                 <td class=\"number\">{:.2} %</td><td class=\"number\">{:.1} s</td><td class=\"reason\">{}</td></tr>\n",
                trial.index,
                escape(&trial.treatment.label),
                count(f64::from(climb.guests())),
                escape(&climb.binding.to_string()),
                climb.seconds,
                climb.overhead_percent(),
                climb.returned_after,
                escape(&doubts)
            ),
        ));
    }
    rows.sort_by_key(|(index, _)| *index);
    for (_, row) in rows {
        out.push_str(&row);
    }
    for seen in &summary.seen {
        for why in &seen.failures {
            add!(
                out,
                "<tr><td>–</td><th scope=\"row\">{}</th><td>–</td><td class=\"reason\">failed: {}</td><td>–</td><td>–</td><td>–</td><td>–</td></tr>\n",
                escape(&seen.treatment.label),
                escape(why)
            );
        }
    }
    out.push_str("</tbody></table></div>\n<p class=\"key\">Own cost: processor time of the climb itself, guarding in the supervisor included, in percent of one processor.</p>\n");
}

fn provenance(out: &mut String, results: &ResultsDir, summary: &Summary) {
    out.push_str("<section id=\"provenance\">\n<h2>Where the numbers come from</h2>\n<dl>\n");
    for seen in &summary.seen {
        let Some((trial, _)) = seen.climbs.first() else {
            continue;
        };
        let facts: Vec<String> = trial
            .environment
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        add!(
            out,
            "<dt>{}</dt><dd>{}</dd>\n",
            escape(&seen.treatment.label),
            escape(&facts.join("; "))
        );
    }
    add!(
        out,
        "</dl>\n<h3>How each number is made</h3>\n<ol class=\"methods\">\n\
         <li><b>The test.</b> The standardized scalability test of Bratterud and Haugerud (2013): guests in equal steps to an expected maximum, every resource as 0 to 100 %, \
         until the first reaches its limit or the probe answers too slowly.</li>\n\
         <li><b>Samples</b> are taken while guests sleep; what booting used is not in them. Error bars are one standard deviation over samples and climbs.</li>\n\
         <li><b>CPU</b> in a platform’s own figure is the host’s; what ends a climb is the population’s own, by its control group’s account.</li>\n\
         <li><b>Memory</b> is what less the host has available, shared pages once, kernel included; never a sum of process sizes.</li>\n\
         <li><b>Flags.</b> {MODELLED} numbers are straight lines led on beyond what was seen. All others were measured.</li>\n</ol>\n"
    );
    let plan = results
        .plan_text()
        .unwrap_or_else(|cause| cause.to_string());
    let host = results
        .host()
        .map_or_else(|cause| cause.to_string(), |host| format!("{host:#}"));
    add!(
        out,
        "<details class=\"more\"><summary>The plan</summary><pre>{}</pre></details>\n<details class=\"more\"><summary>The host</summary><pre>{}</pre></details>\n</section>\n",
        escape(&plan),
        escape(&host)
    );
}
