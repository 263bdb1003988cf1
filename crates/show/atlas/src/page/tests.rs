// SPDX-License-Identifier: Apache-2.0
//! Tests of the page.

use super::*;
use crate::catalogue::Key;
use crate::ours::Ours;
use crate::{Folders, Measured, compare, coverage, gather, whole_page};
use vtax_testkit::markup::{FRAGMENTS, skeleton};

#[test]
fn the_page_of_what_was_kept_has_every_figure_and_needs_nothing_else() {
    let page = whole_page(None).unwrap();
    let catalogue = Catalogue::read().unwrap();
    for figure in &catalogue.figures {
        let id = format!("id=\"{}-{}\"", figure.paper, figure.id);
        assert_eq!(page.matches(&id).count(), 1, "{id}");
    }
    for outside in ["<script", "http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.len() < 512 * 1024, "{} bytes", page.len());
}

/// The page of the stored numbers and the repository's plans.
fn repository_page() -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folders = Folders {
        results: &root.join("no-results"),
        plans: &root.join("plans"),
        models: |_| Vec::new(),
    };
    whole_page(Some(&folders)).unwrap()
}

#[test]
fn the_kept_page_is_of_what_is_kept_and_claims_lead_to_figures() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/notes");
    let docs = std::path::Path::new(docs);
    let writes = std::env::var_os("VTAX_WRITE_DOCS").is_some();
    let page = repository_page();
    if writes {
        std::fs::write(docs.join("atlas-page.html"), &page).unwrap();
    }
    let kept = std::fs::read_to_string(docs.join("atlas-page.html")).unwrap();
    assert!(
        kept == page,
        "atlas-page.html differs: VTAX_WRITE_DOCS=1 cargo test -p vtax-atlas kept_page"
    );
    let (catalogue, ours) = (Catalogue::read().unwrap(), Ours::kept().unwrap());
    let figures = catalogue.select(None).unwrap();
    let entries = compare(&catalogue, &figures, &ours).unwrap();
    for paper in &catalogue.papers {
        let file = docs.join(format!("papers/{}.md", paper.key));
        // Another test writes the numbers in the page's prose.
        let lock = std::fs::File::open(&file).unwrap();
        lock.lock().unwrap();
        let table = crate::claims::markdown(&entries, &paper.key, "../atlas-page.html");
        let mut claims = std::fs::read_to_string(&file).unwrap();
        if writes {
            let title = table.lines().next().unwrap();
            let begin = claims.find(title).unwrap();
            let is_row = |line: &&str| line.starts_with('|');
            let rows = claims[begin..].split_inclusive('\n').take_while(is_row);
            let end = begin + rows.map(str::len).sum::<usize>();
            claims.replace_range(begin..end, &table);
            std::fs::write(&file, &claims).unwrap();
        }
        assert!(
            claims.contains(&table),
            "{} lacks this table:\n{table}",
            file.display()
        );
        let links: Vec<&str> = claims.split("atlas-page.html#").skip(1).collect();
        assert!(links.len() > 3, "{}", file.display());
        for link in links {
            let (id, _) = link.split_once(')').unwrap();
            assert!(
                kept.contains(&format!("id=\"{id}\"")),
                "{id} of {}",
                file.display()
            );
        }
    }
}

const ATLAS: &str = r#"
    [[paper]]
    key = "p"
    authors = "A <b>& B"
    title = "T"
    [plan.made-up]
    file = "made-up.toml"
    at = "local"
    [[figure]]
    paper = "p"
    id = "fig-1"
    number = "Figure 1"
    title = "</h3><script>alert(1)</script>"
    entries = ["p.x"]
    differs = "\"<img src=x>\""
    [[figure.series]]
    what = "W"
    unit = "<i>W</i>"
    baseline = "a <base>"
    plan = "made-up"
    metric = "m"
    rows = [
      { system = "a <base>", published = "p.x.a", ours = "one" },
      { system = "b", published = "p.x.b", ours = "two" },
    ]
    [[claim]]
    figure = "p/fig-1"
    text = "b <i>is</i> more"
    mechanism = "<b>m</b>"
    series = "W"
    row = "b"
    effect = "higher"
    minimum = 1.1"#;
const FIGURES: &str = "[p.x]\na = 30\nb = 45";

fn made_up(one: f64, two: f64) -> (Catalogue, Ours) {
    let catalogue = Catalogue::from_atlas(ATLAS, FIGURES).unwrap();
    let mut ours = Ours::default();
    for (treatment, value) in [("one", one), ("two", two)] {
        let key = Key {
            plan: "made-up".into(),
            treatment: treatment.into(),
            metric: "m".into(),
        };
        let number = Number {
            value,
            interval: Some(vtax_results::stats::Interval {
                low: value / 1.07,
                high: value * 1.07,
            }),
            n: 4,
            unit: "W".parse().unwrap(),
            source: Source::Modelled,
            varies: "seed <u>".into(),
        };
        ours.numbers.insert(key, number);
    }
    let origin = Origin {
        host: "<host>".into(),
        archive_sha256: "kept".into(),
        ..Origin::default()
    };
    ours.origins.insert("made-up".into(), origin);
    (catalogue, ours)
}

#[test]
fn names_and_prose_are_text() {
    let (catalogue, ours) = made_up(1.0, 1.6);
    let figures = catalogue.select(None).unwrap();
    let page = page(&catalogue, &compare(&catalogue, &figures, &ours).unwrap());
    for raw in [
        "<script", "<img", "<base>", "<host>", "<u>", "<i>W", "<i>is",
    ] {
        assert!(!page.contains(raw), "{raw}");
    }
    for shown in [
        "1.50×",
        "same direction</span>",
        "b &lt;i&gt;is&lt;/i&gt; more <span class=\"outcome yes\">same direction</span>",
        "<span class=\"both\">published 1.50× · ours 1.6× [1.4–1.8]</span>",
        "b &lt;i&gt;is&lt;/i&gt; more",
        "modelled</span>",
        "&lt;host&gt;",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
}

#[test]
fn text_of_the_catalogue_never_becomes_markup() {
    let with = |words: &str| {
        let (_, mut ours) = made_up(1.0, 1.6);
        ours.origins
            .values_mut()
            .for_each(|origin| origin.host = words.to_owned());
        let quoted = toml::Value::from(words).to_string();
        let texts = [
            "A <b>& B",
            "T",
            "Figure 1",
            "W",
            "<i>W</i>",
            "\\\"<img src=x>\\\"",
        ];
        let atlas = texts.iter().fold(ATLAS.to_owned(), |atlas, text| {
            atlas.replace(&format!("\"{text}\""), &quoted)
        });
        let catalogue = Catalogue::from_atlas(&atlas, FIGURES).unwrap();
        let figures = catalogue.select(None).unwrap();
        skeleton(&page(
            &catalogue,
            &compare(&catalogue, &figures, &ours).unwrap(),
        ))
    };
    for words in FRAGMENTS {
        assert_eq!(with(words), with("plain"), "{words}");
    }
}

#[test]
fn claims_are_judged_and_counted() {
    for (two, outcome, verdict) in [
        (1.6, Outcome::SameDirection, FigureVerdict::SameDirection),
        (1.12, Outcome::NotShown, FigureVerdict::NotShown),
        (0.6, Outcome::Reversed, FigureVerdict::Contradicts),
    ] {
        let (catalogue, ours) = made_up(1.0, two);
        let figures = catalogue.select(None).unwrap();
        let entries = compare(&catalogue, &figures, &ours).unwrap();
        let score = Score::from_entries(&entries);
        assert_eq!(score.claims_that_are(outcome), 1.0, "{two}");
        assert_eq!(score.figures_that_are(verdict), 1.0, "{two}");
        let page = page(&catalogue, &entries);
        assert!(page.contains(outcome.name()) && page.contains(verdict.name()));
    }
}

#[test]
fn the_same_size_is_a_second_badge_of_claims_and_figures_and_of_no_others() {
    const BADGE: &str = "<span class=\"outcome yes\">same size</span>";
    // In the explanation, and for the figure and its claim in the folded line and in the table.
    for (two, badges) in [(1.6, 4), (1.15, 1), (3.0, 1)] {
        let (catalogue, mut ours) = made_up(1.0, two);
        for number in ours.numbers.values_mut() {
            let (low, high) = (number.value * 0.999, number.value * 1.001);
            number.interval = Some(vtax_results::stats::Interval { low, high });
            number.varies = "blocks".into();
        }
        let figures = catalogue.select(None).unwrap();
        let entries = compare(&catalogue, &figures, &ours).unwrap();
        assert_eq!(entries[0].verdict(), Some(FigureVerdict::SameDirection));
        assert_eq!(entries[0].same_size(), badges == 4, "{two}");
        let page = page(&catalogue, &entries);
        assert_eq!(page.matches(BADGE).count(), badges, "{two}: {page}");
        let table = crate::claims::markdown(&entries, "p", "page.html");
        assert_eq!(table.contains("same direction, same size"), badges == 4);
    }
}

#[test]
fn each_claim_stands_with_both_numbers_outside_of_what_is_folded() {
    let page = whole_page(None).unwrap();
    let catalogue = Catalogue::read().unwrap();
    let summaries = page.split("<summary>").skip(1);
    let shown: String = summaries
        .filter_map(|rest| Some(rest.split_once("</summary>")?.0))
        .collect();
    assert_eq!(
        shown.matches("<span class=\"both\">published ").count(),
        catalogue.claims.len()
    );
    assert!(shown.contains("published 8.15× · ours "), "{shown}");
}

#[test]
fn the_page_says_direction_and_size_and_nowhere_agrees() {
    let page = whole_page(None).unwrap();
    let text = page.split("</style>").last().unwrap();
    for word in [" agrees", ">as published<"] {
        assert!(!text.contains(word), "{word}");
    }
    let (lede, _) = text
        .split_once("class=\"lede\">")
        .unwrap()
        .1
        .split_once("</p>")
        .unwrap();
    assert!(
        lede.starts_with("Of ") && lede.contains("figures that we could judge"),
        "{lede}"
    );
}

#[test]
fn a_claim_without_numbers_is_unknown_and_a_run_without_a_row_is_named() {
    let (catalogue, mut ours) = made_up(1.0, 1.6);
    ours.numbers.retain(|key, _| key.treatment == "one");
    let figures = catalogue.select(None).unwrap();
    let entries = compare(&catalogue, &figures, &ours).unwrap();
    assert_eq!(entries[0].verdict(), Some(FigureVerdict::Unknown));
    let partly = page(&catalogue, &entries);
    assert!(partly.contains("The stored run of made-up has no number for b."));
    let none = Ours::default();
    let entries = compare(&catalogue, &figures, &none).unwrap();
    assert_eq!(
        Score::from_entries(&entries).claims_that_are(Outcome::Unknown),
        1.0
    );
    let nothing = page(&catalogue, &entries);
    let command =
        "measures it: <code>vtax run plans/made-up.toml --results=atlas-results/made-up</code>";
    assert!(nothing.contains(command), "{nothing}");
    assert!(!nothing.contains("has no number for"));
}

#[test]
fn the_matrix_comes_first_with_a_cell_for_each_figure_and_figures_are_folded() {
    let page = whole_page(None).unwrap();
    let figures = Catalogue::read().unwrap().figures.len();
    let (before, after) = page.split_once("<article").unwrap();
    assert_eq!(before.matches("<a class=\"cell ").count(), figures);
    assert!(before.find("class=\"matrix\"") < before.find("<details"));
    assert_eq!(
        after
            .matches("<details class=\"more\"><summary><b>")
            .count(),
        figures
    );
    let unfolded = after.contains("<details class=\"more\" open");
    assert!(!unfolded, "an article is unfolded");
}

#[test]
fn a_figure_is_measured_in_full_only_without_gaps() {
    let measured = |atlas: &str, change: fn(&mut Ours)| {
        let catalogue = Catalogue::from_atlas(atlas, FIGURES).unwrap();
        let (_, mut ours) = made_up(1.0, 1.6);
        change(&mut ours);
        let figures = catalogue.select(None).unwrap();
        let entries = compare(&catalogue, &figures, &ours).unwrap();
        (entries[0].measured(), coverage(&entries))
    };
    let gap = ATLAS.replace("id = \"fig-1\"", "id = \"fig-1\"\nmissing = \"the wall\"");
    let (whole, words) = measured(ATLAS, |_| ());
    assert_eq!(whole, Measured::Fully);
    assert_eq!(words, "1 figure: 1 measured in full, 0 in part, 0 not");
    assert_eq!(measured(&gap, |_| ()).0, Measured::Partly);
    let without_two = |ours: &mut Ours| ours.numbers.retain(|key, _| key.treatment == "one");
    assert_eq!(measured(ATLAS, without_two).0, Measured::Partly);
    assert_eq!(
        measured(ATLAS, |ours| ours.numbers.clear()).0,
        Measured::Not
    );
}

#[test]
fn a_figure_without_vote_has_its_reason_and_no_claim() {
    let atlas = ATLAS.split("[[claim]]").next().unwrap();
    let atlas = atlas.replace(
        "id = \"fig-1\"",
        "id = \"fig-1\"\nuncounted = \"by construction\"",
    );
    let catalogue = Catalogue::from_atlas(&atlas, FIGURES).unwrap();
    let (_, ours) = made_up(1.0, 1.6);
    let figures = catalogue.select(None).unwrap();
    let entries = compare(&catalogue, &figures, &ours).unwrap();
    assert_eq!(
        (entries[0].verdict(), Score::from_entries(&entries)),
        (None, Score::default())
    );
    assert!(page(&catalogue, &entries).contains("by construction"));
}

#[test]
fn ticks_do_not_lie_on_each_other() {
    let ticks = [
        (0.9, 10.0),
        (1.0, 20.0),
        (1.2, 45.0),
        (1.5, 53.0),
        (2.0, 80.0),
    ];
    assert_eq!(apart(&ticks, 0.0).len(), 5);
    assert_eq!(
        apart(&ticks, NARROW),
        [(1.0, 20.0), (1.2, 45.0), (2.0, 80.0)]
    );
    assert_eq!(apart(&[], WIDE), []);
}

#[test]
fn a_scale_has_few_round_ticks() {
    assert_eq!(ticks(0.9, 1.6), [0.9, 1.0, 1.2, 1.5]);
    assert_eq!(ticks(0.05, 3.2), [0.1, 1.0]);
    assert!(ticks(1e-5, 1e5).len() <= 5);
}

#[test]
fn numbers_of_an_earlier_text_of_a_plan_are_named_and_count() {
    let root = tempfile::tempdir().unwrap();
    let folders = Folders {
        results: root.path(),
        plans: root.path(),
        models: |_| Vec::new(),
    };
    let catalogue = Catalogue::read().unwrap();
    let mut ours = Ours::kept().unwrap();
    let plans = ["shea-board", "shea-tables"];
    for plan in plans {
        let file = root.path().join(&catalogue.plans[plan].file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "a plan").unwrap();
    }
    let outdated = |ours: &Ours| -> Vec<String> {
        let found = crate::outdated(&catalogue, ours, &folders);
        found.into_iter().map(|(plan, _)| plan.to_owned()).collect()
    };
    assert_eq!(outdated(&ours), plans);
    let origin = ours.origins.get_mut("shea-tables").unwrap();
    origin.plan_sha256 = crate::digest(b"a plan");
    assert_eq!(outdated(&ours), ["shea-board"]);
    let (ours, _) = gather(&catalogue, Some(&folders)).unwrap();
    assert!(ours.numbers.len() > 100);
    let figures = catalogue.select(Some("shea/fig-10")).unwrap();
    let marked = |ours: &Ours| {
        let entries = compare(&catalogue, &figures, ours).unwrap();
        page(&catalogue, &entries).contains("of an earlier text of the plan")
    };
    assert!(marked(&ours));
    // Without the file of a plan nothing is known of its text.
    assert!(!marked(&Ours::kept().unwrap()));
}

#[test]
fn a_directory_of_another_plan_is_reported_and_left_out() {
    let root = tempfile::tempdir().unwrap();
    let folders = Folders {
        results: root.path(),
        plans: root.path(),
        models: |_| Vec::new(),
    };
    let catalogue = Catalogue::read().unwrap();
    for (plan, name) in [
        ("shea-tables", "something-else"),
        ("shea-board", "shea-board"),
        ("former-plan", "former-plan"),
    ] {
        let run: vtax_results::RunInfo = serde_json::from_value(serde_json::json!({
            "format": 2, "name": name, "description": "", "seed": 1, "profile": "full", "place": "local",
            "started": "2026-01-01T00:00:00Z", "plan_sha256": "x", "treatments": [], "schedule": [], "minimum_effect": 0.02
        }))
        .unwrap();
        let host = serde_json::json!({});
        vtax_results::ResultsDir::create(&folders.of_plan(plan), &run, "", &host).unwrap();
    }
    assert_eq!(
        crate::unlisted(&catalogue, &folders),
        [folders.of_plan("former-plan")]
    );
    let (ours, unusable) = gather(&catalogue, Some(&folders)).unwrap();
    assert_eq!(ours, Ours::kept().unwrap());
    let into = root.path().join("runs");
    let archived = crate::keep_runs(&ours, &folders, &into).unwrap();
    assert_eq!(archived, Vec::<String>::new());
    let reported: Vec<String> = unusable.iter().map(ToString::to_string).collect();
    let [nothing, another] = reported.as_slice() else {
        panic!("{reported:?}")
    };
    assert!(
        nothing.contains("shea-board has no trial that counts"),
        "{nothing}"
    );
    assert!(
        another.contains("something-else") && another.contains("shea-tables"),
        "{another}"
    );
    // A run is complete without pending and failed trials. A plan without a run is missing.
    let missing = |name, only_judging| {
        let figures = catalogue.select(Some(name)).unwrap();
        let plans = crate::missing(&catalogue, &figures, &folders, only_judging);
        plans.iter().map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let others = [
        "nic-closed-loop",
        "shea-board-xen",
        "shea-energy",
        "shea-fig-7",
        "shea-fig-8",
        "shea-fig-9",
        "shea-platforms",
        "shea-platforms-xen",
        "shea-tables-polling",
        "shea-tbench",
    ];
    assert_eq!(missing("shea", false), others);
    assert_eq!(
        missing("cherkasova/fig-2", false),
        [
            "cherkasova-http",
            "cherkasova-saturation-xen",
            "cherkasova-throughput-steady",
            "cherkasova-throughput-xen"
        ]
    );
    // No claim is judged by the same processor time on KVM.
    assert_eq!(
        missing("cherkasova/fig-2", true),
        ["cherkasova-saturation-xen", "cherkasova-throughput-steady"]
    );
}
