// SPDX-License-Identifier: Apache-2.0
//! The file around a figure that was drawn as PDF: one page of the figure's size (ISO 32000-1, clause 7.5).

use serde::Deserialize;
use std::fmt::Write;

/// A context of a canvas that writes the content of a page.
pub(crate) const CANVAS: &str = include_str!("../assets/pdf-canvas.js");

/// Points for each pixel: 72 to the inch, and 96.
const SCALE: f64 = 0.75;

/// A drawn page, as [`CANVAS`] returns it.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    content: String,
    /// Opacities, which the content names G0, G1, …
    alphas: Vec<f64>,
    /// The size in pixels.
    width: f64,
    height: f64,
}

impl Page {
    /// Returns the file: its objects and the table of their positions.
    pub(crate) fn file(&self) -> String {
        let (width, height) = (self.width * SCALE, self.height * SCALE);
        // The origin of PDF is at the bottom.
        let content = format!("{SCALE} 0 0 -{SCALE} 0 {height:.2} cm\n{}", self.content);
        let states = self.alphas.iter().enumerate();
        let states: String = states
            .map(|(place, alpha)| format!("/G{place}<</ca {alpha:.3}/CA {alpha:.3}>>"))
            .collect();
        let font = |name: &str| {
            format!("<</Type/Font/Subtype/Type1/BaseFont/{name}/Encoding/WinAnsiEncoding>>")
        };
        let objects = [
            "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
            "<</Type/Pages/Kids[3 0 R]/Count 1>>".to_owned(),
            format!(
                "<</Type/Page/Parent 2 0 R/MediaBox[0 0 {width:.2} {height:.2}]/Contents 4 0 R\
                 /Resources<</Font<</F1 5 0 R/F2 6 0 R>>/ExtGState<<{states}>>>>>>"
            ),
            format!("<</Length {}>>\nstream\n{content}endstream", content.len()),
            font("Helvetica"),
            font("Helvetica-Bold"),
        ];
        let mut file = String::from("%PDF-1.4\n");
        let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
        // Writing to a text does not fail.
        for (place, object) in objects.iter().enumerate() {
            let _ = writeln!(table, "{:010} 00000 n ", file.len());
            let _ = write!(file, "{} 0 obj\n{object}\nendobj\n", place + 1);
        }
        let (position, size) = (file.len(), objects.len() + 1);
        let _ = write!(
            file,
            "{table}trailer\n<</Size {size}/Root 1 0 R>>\nstartxref\n{position}\n%%EOF\n"
        );
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_objects_has_their_positions() {
        let page = Page {
            content: "0 0 m\n".to_owned(),
            alphas: vec![1.0, 0.5],
            width: 200.0,
            height: 100.0,
        };
        let text = page.file();
        assert!(text.contains("/MediaBox[0 0 150.00 75.00]"), "{text}");
        assert!(
            text.contains("0.75 0 0 -0.75 0 75.00 cm\n0 0 m\n"),
            "{text}"
        );
        assert!(text.contains("/G1<</ca 0.500/CA 0.500>>"), "{text}");
        let (_, table) = text.rsplit_once("startxref\n").unwrap();
        let table: usize = table.lines().next().unwrap().parse().unwrap();
        assert!(text[table..].starts_with("xref\n0 7\n"));
        for (number, line) in text[table..].lines().skip(3).take(6).enumerate() {
            let position: usize = line[..10].parse().unwrap();
            let object = format!("{} 0 obj\n", number + 1);
            assert!(text[position..].starts_with(&object), "{line}");
        }
        let (_, stream) = text.split_once("/Length ").unwrap();
        let (length, stream) = stream.split_once(">>\nstream\n").unwrap();
        assert_eq!(stream.find("endstream"), length.parse().ok());
    }
}
