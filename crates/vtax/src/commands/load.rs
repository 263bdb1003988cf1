//! `vtax load`: load generators, as workloads start them in the client.

use crate::Outcome;
use vtax_load::http::Arguments;

pub fn http(arguments: Arguments) -> Outcome {
    Ok(vtax_load::http::main(&arguments)?)
}
