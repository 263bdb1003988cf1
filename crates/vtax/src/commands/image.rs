//! `vtax image`: the root file system that every platform runs.

use crate::Outcome;
use crate::progress::note;
use vtax_guest::image::{self, Recipe};
use vtax_host::signals::end_with_reader;

pub fn build(force: bool) -> Outcome {
    let make = if force { image::rebuild } else { image::ensure };
    let files = make(&Recipe::standard(), &mut note)?;
    end_with_reader()?;
    println!("recipe {}", files.recipe);
    println!("root   {}", files.root.display());
    println!("image  {}", files.image.display());
    println!("kernel {}", files.kernel.display());
    Ok(())
}
