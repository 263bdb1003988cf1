// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of a trial's cell: create, boot, first command, stop, destroy.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};
use vtax_guest::platform::container::Container;
use vtax_guest::platform::native::Native;
use vtax_guest::platform::{GuestFiles, Platform};
use vtax_host::cell::{Cell, CellConfig};
use vtax_host::journal::Journal;
use vtax_host::settings::Settings;

const ROUNDS: u32 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let mut journal = Journal::open(state.path())?;
    // The host's own tree serves as the image, since it is only read.
    let guest = GuestFiles {
        root: Path::new("/").to_owned(),
        image: Path::new("/").to_owned(),
        kernel: Path::new("/").to_owned(),
        initrd: Path::new("/").to_owned(),
        recipe: String::new(),
        directory: None,
        files: None,
    };
    println!("mean of {ROUNDS}, in ms");
    println!(
        "{:10} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "platform", "create", "boot", "command", "stop", "destroy"
    );
    for platform in [&Native as &dyn Platform, &Container] {
        let settings = Settings::default();
        platform.check(&settings)?;
        let mut sums = [Duration::ZERO; 5];
        for _ in 0..ROUNDS {
            let mut last = Instant::now();
            let mut step = |sum: &mut Duration| {
                *sum += last.elapsed();
                last = Instant::now();
            };
            let [create, boot, command, stop, destroy] = &mut sums;
            let cell = Cell::create(
                CellConfig {
                    name: "latency".to_owned(),
                    ..CellConfig::default()
                },
                &mut journal,
            )?;
            step(create);
            let mut target = platform.boot(&cell.target()?, &guest, &settings)?;
            step(boot);
            target.run(&vec!["true".to_owned()], Duration::from_secs(10))?;
            step(command);
            target.stop()?;
            step(stop);
            cell.destroy()?;
            step(destroy);
        }
        print!("{:10}", platform.kind());
        for sum in sums {
            print!(" {:8.1}", sum.as_secs_f64() * 1e3 / f64::from(ROUNDS));
        }
        println!();
    }
    Ok(())
}
