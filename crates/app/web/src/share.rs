// SPDX-License-Identifier: Apache-2.0
//! A comparison as one self-contained file: the page's scripts, the data and the styles.

use crate::assets;
use serde_json::Value;
use vtax_report::html::PALETTE;

/// The page's modules that draw a comparison, each after the modules that it imports.
const MODULES: [&str; 3] = ["/dom.js", "/curves.js", "/comparison.js"];

/// The file. Names from the data occur in its JSON only.
pub fn page(compared: &Value) -> String {
    let styles = assets::text("/app.css").unwrap_or_default();
    let scripts: String = MODULES
        .into_iter()
        .filter_map(assets::text)
        .map(without_imports)
        .collect();
    // The text of the data cannot close its HTML element.
    let data = compared.to_string().replace('<', "\\u003c");
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Comparison · vtax</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <style>\n{PALETTE}\n{styles}</style>\n</head>\n<body>\n\
         <main><h1>Comparison</h1><div id=\"comparison\"></div></main>\n\
         <footer class=\"facts\">Made by vtax {version}.</footer>\n\
         <script type=\"application/json\" id=\"compared\">{data}</script>\n\
         <script type=\"module\">\n{scripts}\
         drawComparison(document.getElementById(\"comparison\"), JSON.parse(document.getElementById(\"compared\").textContent));\n\
         </script>\n</body>\n</html>\n"
    )
}

/// A module as a part of one script, without its imports and exports.
fn without_imports(module: &str) -> String {
    let lines = module.lines().filter(|line| !line.starts_with("import "));
    lines
        .map(|line| line.strip_prefix("export ").unwrap_or(line).to_owned() + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_all_that_it_needs_and_names_cannot_end_its_data() {
        let hostile = serde_json::json!({"name": "</script><img src=x onerror=alert(1)>"});
        let page = page(&hostile);
        assert!(!page.contains("<img src=x"), "{page}");
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(page.contains("function drawComparison"));
        for outside in ["import ", "export ", "http:", "src=\"", "@import"] {
            let line = page.lines().find(|line| line.starts_with(outside));
            assert_eq!(line, None);
        }
    }
}
