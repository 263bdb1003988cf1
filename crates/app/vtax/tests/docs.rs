// SPDX-License-Identifier: Apache-2.0
//! Every TOML block of the documentation is valid for the reader of its format, and every shell block that needs nothing
//! runs.
//!
//! The second word of a block's fence names the reader: none for a whole plan, `plan-part` for a part of a plan,
//! `density`, `testbed`, `nic`, `power-model`, `tariff`, `cost-model` for a part of a cost model.

use std::fs;
use std::path::Path;
use vtax_density::plan as density;
use vtax_lab::plan::{Catalogue, Plan};
use vtax_meter::Model;
use vtax_nic::config::Config;
use vtax_record::bill::tariff::Tariff;
use vtax_testbed::Settings;
use vtax_testbed::cost::CostModel;
use vtax_testkit::pages::{self, Block};
use vtax_testkit::results::Fake;
use vtax_testkit::workspace;

/// A part of a plan, completed with the other required parts.
fn completed(part: &str) -> String {
    let mut plan = String::new();
    if !part.contains("name = \"whole\"") {
        plan.push_str("name = \"part\"\n");
    }
    plan.push_str(part);
    for (table, entry) in [
        ("[[platform]]", "kind = \"qemu\"\nname = \"vm\"\n"),
        ("[[workload]]", "kind = \"http-rate\"\n"),
    ] {
        if !part.contains(table) {
            plan.push_str(&format!("{table}\n{entry}"));
        }
    }
    plan
}

fn read(block: &Block, file: &Path) -> Result<(), String> {
    let plan = |text: &str| {
        Plan::read("block", text, &Catalogue::standard())
            .map(drop)
            .map_err(|wrong| wrong.to_string())
    };
    fs::write(file, &block.text).unwrap();
    match block.marks.join(" ").as_str() {
        "" => plan(&block.text),
        "plan-part" => plan(&completed(&block.text)),
        "density" => density::Plan::read("block", &block.text, false)
            .map(drop)
            .map_err(|wrong| wrong.to_string()),
        "testbed" => Settings::read(file)
            .map(drop)
            .map_err(|wrong| wrong.to_string()),
        "nic" => Config::read(file)
            .map(drop)
            .map_err(|wrong| wrong.to_string()),
        "tariff" => Tariff::parse(&block.text)
            .map(drop)
            .map_err(|wrong| wrong.to_string()),
        "power-model" => Model::parse(&block.text)
            .map(drop)
            .map_err(|wrong| wrong.to_string()),
        // A part of a model: it is added to a shipped one.
        "cost-model" => {
            let shipped = "crates/lab/testbed/src/cost-models/sandy-bridge.toml";
            let shipped = fs::read_to_string(workspace::root().join(shipped)).unwrap();
            fs::write(file, shipped + &block.text).unwrap();
            CostModel::read(file)
                .map(drop)
                .map_err(|wrong| wrong.to_string())
        }
        other => Err(format!("no reader is called `{other}`")),
    }
}

#[test]
fn every_toml_block_of_the_documentation_passes_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let mut all: Vec<Block> = pages::all()
        .iter()
        .flat_map(|page| pages::blocks(page))
        .collect();
    all.retain(|block| block.language == "toml");
    assert!(all.len() > 10, "only {} blocks were found", all.len());
    let refused: Vec<String> = all
        .iter()
        .filter_map(|block| {
            let file = folder.path().join("block.toml");
            let wrong = read(block, &file).err()?;
            Some(format!("{}: {wrong}", block.place))
        })
        .collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Makes what the commands of the pages read: the repository's plans, runs of one plan, and the results of others.
fn prepare(work: &Path) {
    for part in ["plans", "papers"] {
        std::os::unix::fs::symlink(workspace::root().join(part), work.join(part)).unwrap();
    }
    for (name, vm_cost) in [
        ("base", 3.0),
        ("new", 4.5),
        ("results/redis", 3.0),
        ("results/first", 3.0),
    ] {
        let fake = Fake {
            blocks: 6,
            vm_cost,
            trouble: false,
            platforms: vec!["native", "qemu"],
            ..Fake::default()
        };
        fs::create_dir_all(work.join(name).parent().unwrap()).unwrap();
        fake.write(&work.join(name));
    }
}

#[test]
fn every_shell_block_of_the_documentation_that_needs_nothing_runs() {
    let program = Path::new(env!("CARGO_BIN_EXE_vtax")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut run = 0;
    let mut failed = Vec::new();
    let work = tempfile::tempdir().unwrap();
    prepare(work.path());
    for page in pages::all() {
        let blocks = pages::blocks(&page);
        let blocks = blocks.iter().filter(|block| block.marks.is_empty());
        for block in blocks.filter(|block| ["sh", "console"].contains(&block.language.as_str())) {
            for line in pages::shell_lines(block) {
                run += 1;
                let output = std::process::Command::new("sh")
                    .args(["-c", &line])
                    .env("PATH", &path)
                    .env("VTAX_STATE_DIR", work.path().join("state"))
                    .env("VTAX_CACHE_DIR", work.path().join("cache"))
                    .env("GITHUB_STEP_SUMMARY", work.path().join("summary.md"))
                    .current_dir(work.path())
                    .output()
                    .unwrap();
                // A comparison may be inconclusive (3), and a gate may be missed (4): the pages show both.
                if !matches!(output.status.code(), Some(0 | 3 | 4)) {
                    let printed = [output.stdout, output.stderr].concat();
                    let printed = String::from_utf8_lossy(&printed);
                    failed.push(format!(
                        "{}: {line}: {}: {printed}",
                        block.place, output.status
                    ));
                }
            }
        }
    }
    assert!(run >= 8, "{run} commands");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The fragment of a heading, as forges and mdBook make it.
fn fragment(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim();
    let letters = heading.to_lowercase().chars().collect::<Vec<_>>();
    let letters = letters.into_iter().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    letters.collect()
}

/// The fragments of a page's headings, and the identifiers of HTML.
fn fragments(text: &str) -> Vec<String> {
    let mut is_fenced = false;
    let identifiers = text.split("id=\"").skip(1);
    let identifiers = identifiers.filter_map(|rest| rest.split('"').next());
    let mut found: Vec<String> = identifiers.map(str::to_owned).collect();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && line.starts_with('#') {
            found.push(fragment(line));
        }
    }
    found
}

#[test]
fn every_link_of_the_documentation_leads_to_a_file_and_a_heading_and_stays_in_the_site() {
    let site = workspace::root().join("docs").canonicalize().unwrap();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in pages::all() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            seen += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let is_in_site = |path: &Path| path.canonicalize().unwrap().starts_with(&site);
            let is_found = to.exists()
                && (is_in_site(&to) || !is_in_site(&page))
                && (heading.is_empty()
                    || fs::read_to_string(&to)
                        .is_ok_and(|text| fragments(&text).iter().any(|one| one == heading)));
            if !is_found {
                wrong.push(format!("{}: {link}", pages::name(&page)));
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Pages of other projects: Kata Containers and Firecracker.
const OF_OTHERS: [&str; 2] = ["docs/design/host-cgroups.md", "docs/getting-started.md"];

#[test]
fn every_page_that_a_file_of_the_repository_names_exists() {
    let mut files = Vec::new();
    let mut folders = vec![workspace::root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type().unwrap().is_dir() {
                true if [".git", "target", "results"].contains(&name.as_str()) => {}
                true => folders.push(entry.path()),
                // The paths in a patch are those of another tree, and a build is keyed by its digest.
                false if name.ends_with(".patch") => {}
                false => files.push(entry.path()),
            }
        }
    }
    let mut wrong = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(file) else {
            continue;
        };
        for (at, _) in text.match_indices("docs/") {
            let is_path_of_another = text[..at]
                .ends_with(|before: char| before.is_alphanumeric() || "/.-_".contains(before));
            let name = text[at..]
                .split(|letter: char| !(letter.is_ascii_alphanumeric() || "/.-_".contains(letter)))
                .next()
                .unwrap();
            let name = name.trim_end_matches('.');
            let is_ours =
                !is_path_of_another && name.ends_with(".md") && !OF_OTHERS.contains(&name);
            if is_ours && !workspace::root().join(name).exists() {
                wrong.push(format!("{}: {name}", pages::name(file)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_contents_of_the_site_list_every_page_once() {
    let docs = workspace::root().join("docs");
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut wrong = Vec::new();
    for page in pages::all() {
        let Ok(page) = page.strip_prefix(&docs) else {
            continue;
        };
        let link = format!("]({})", page.display());
        let count = contents.matches(&link).count();
        if count != 1 && page != Path::new("SUMMARY.md") {
            wrong.push(format!("{}: {count} times", page.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_file_of_the_site_has_the_name_of_the_html_of_a_page() {
    let html = pages::all()
        .into_iter()
        .map(|page| page.with_extension("html"));
    let taken: Vec<_> = html.filter(|path| path.exists()).collect();
    assert!(taken.is_empty(), "{taken:?}");
}
