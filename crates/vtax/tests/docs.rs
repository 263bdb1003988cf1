// SPDX-License-Identifier: Apache-2.0
//! Every TOML block of the documentation is valid for the reader of its format.
//!
//! The second word of a block's fence names the reader: none for a whole plan, `plan-part` for a part of a plan,
//! `density`, `testbed`, `nic`, `power-model`.

use std::fs;
use std::path::{Path, PathBuf};
use vtax_density::plan as density;
use vtax_lab::plan::{Catalogue, Plan};
use vtax_nic::config::Config;
use vtax_observe::meter::Model;
use vtax_testbed::Settings;

/// A block: its position, the second word of its fence, and its text.
struct Block {
    place: String,
    reader: String,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    for folder in [root.join("docs"), root.join("docs/papers")] {
        let entries = fs::read_dir(folder).unwrap();
        pages.extend(entries.map(|entry| entry.unwrap().path()));
    }
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    pages
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(mut block) = open.take() {
            if line == "```" {
                found.push(block);
            } else {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
        } else if let Some(info) = line.strip_prefix("```toml") {
            open = Some(Block {
                place: format!("{}:{}", page.display(), number + 1),
                reader: info.trim().to_owned(),
                text: String::new(),
            });
        }
    }
    assert!(open.is_none(), "a block of {} does not end", page.display());
    found
}

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
    match block.reader.as_str() {
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
        "power-model" => Model::parse(&block.text)
            .map(drop)
            .map_err(|wrong| wrong.to_string()),
        other => Err(format!("no reader is called `{other}`")),
    }
}

#[test]
fn every_toml_block_of_the_documentation_passes_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<Block> = pages().iter().flat_map(|page| blocks(page)).collect();
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
