// SPDX-License-Identifier: Apache-2.0
//! `vtax image`: the root file system that every platform runs.

use crate::Outcome;
use crate::output::outln;
use crate::progress::note;
use vtax_guest::image::{self, Recipe};
use vtax_host::rootless;
use vtax_host::signals::end_with_reader;

pub fn build(force: bool) -> Outcome {
    if !rootless::is_root() && (force || image::cached(&Recipe::standard())?.is_none()) {
        // The cache is the user's, also from inside the namespace.
        rootless::enter()?;
    }
    let make = if force { image::rebuild } else { image::ensure };
    let files = make(&Recipe::standard(), &mut note)?;
    end_with_reader()?;
    outln!("recipe {}", files.recipe)?;
    outln!("root   {}", files.root.display())?;
    outln!("image  {}", files.image.display())?;
    outln!("kernel {}", files.kernel.display())?;
    Ok(())
}
