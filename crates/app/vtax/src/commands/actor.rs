// SPDX-License-Identifier: Apache-2.0
//! `vtax actor`: the process that another host's vtax starts here through ssh.

use crate::Outcome;
use std::sync::Arc;
use vtax_observe::clock::SystemClock;

pub fn serve() -> Outcome {
    #[expect(clippy::disallowed_methods, reason = "a protocol over ssh")]
    let (input, output) = (std::io::stdin(), std::io::stdout());
    Ok(vtax_lab::place::actor::serve(
        input,
        output,
        Arc::new(SystemClock),
    )?)
}
