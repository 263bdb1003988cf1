//! From a results directory to every form of report.

mod common;

use common::Fake;
use vtax_report::{analysis, terminal};

#[test]
fn show() {
    let folder = tempfile::tempdir().unwrap();
    let results = Fake {
        profile: "quick",
        ..Fake::default()
    }
    .write(&folder.path().join("run"));
    let analysis = analysis::analyse(&results).unwrap();
    println!("{}", terminal::table(&analysis, 80, false));
    let kept = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-report");
    let _ = std::fs::remove_dir_all(&kept);
    let results = Fake {
        profile: "quick",
        ..Fake::default()
    }
    .write(&kept);
    println!(
        "{}",
        vtax_report::html::write_report(&results, &analysis)
            .unwrap()
            .display()
    );
    for sentence in &analysis.sentences {
        println!("{}", sentence.text);
    }
}
