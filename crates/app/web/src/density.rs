// SPDX-License-Identifier: Apache-2.0
//! The findings of climbs: a sentence for each treatment.

use vtax_density::report::Summary;
use vtax_results::ResultsDir;

/// The sentences of a density run; none where its climbs cannot be read.
pub fn sentences(results: &ResultsDir) -> Vec<String> {
    let Ok(summary) = Summary::from_results(results) else {
        return Vec::new();
    };
    let seen = summary.seen.iter();
    seen.filter_map(|seen| {
        let guests = seen.guests()?;
        let bound = seen.bound().map_or_else(String::new, |bound| {
            format!("; it would end by {}", bound.line())
        });
        let label = &seen.treatment.label;
        Some(format!("{label}: {guests:.0} guests{bound}"))
    })
    .collect()
}
