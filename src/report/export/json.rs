//! The whole recommendation as JSON, under the names of `recommendation.yaml`: for `jq`, `json.load` and whatever has no
//! YAML parser.
//!
//! ```sh
//! batch_size=$(tune export --format json recommendation.yaml | jq .recommended.batch_size)
//! ```

use super::{Answer, ExportError, Exporter, pretty_json};

/// JSON.
#[derive(Debug)]
pub struct Json;

impl Exporter for Json {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        pretty_json(answer.recommendation)
    }
}
