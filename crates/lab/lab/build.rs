// SPDX-License-Identifier: Apache-2.0
//! Lists the files below `plans/` for `plan::shipped`.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../plans")
        .canonicalize()?;
    let mut files = Vec::new();
    for folder in [root.clone(), root.join("papers")] {
        println!("cargo::rerun-if-changed={}", folder.display());
        let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        files.extend(entries.collect::<io::Result<Vec<PathBuf>>>()?);
    }
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    let mut lines = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root)?.with_extension("");
        lines.push((name.display().to_string(), file));
    }
    lines.sort();
    let mut list = "&[\n".to_owned();
    for (name, file) in lines {
        list.push_str(&format!("    ({name:?}, include_str!({file:?})),\n"));
    }
    list.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("plans.rs"), list)?;
    Ok(())
}
