//! `vtax image`: the root file system that every platform runs.

use crate::Outcome;
use vtax_guest::image::{self, Recipe};

pub fn build(force: bool) -> Outcome {
    let make = if force { image::rebuild } else { image::ensure };
    let files = make(&Recipe::standard(), &mut |line: &str| eprintln!("{line}"))?;
    println!("recipe {}", files.recipe);
    println!("root   {}", files.root.display());
    println!("image  {}", files.image.display());
    println!("kernel {}", files.kernel.display());
    Ok(())
}
