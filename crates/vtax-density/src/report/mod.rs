//! temporary
pub struct Summary { pub failed: usize }
impl std::fmt::Display for Summary { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{}", self.failed) } }
pub fn bytes(b: f64) -> String { format!("{b:.0} B") }
pub fn write(r: &vtax_report::results::ResultsDir) -> Result<(std::path::PathBuf, Summary), vtax_lab::LabError> { Ok((r.path().to_owned(), Summary { failed: 0 })) }
