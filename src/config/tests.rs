//! Laws that tie the parts of this room together; whole files are in `tests/config_errors.rs`.

use super::file::{File, json_schema};
use super::introspect::field_names;

#[test]
fn the_schema_and_serde_know_the_same_keys() {
    let schema = json_schema();
    let mut described: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let mut read = field_names::<File>().to_vec();
    described.sort_unstable();
    read.sort_unstable();
    assert_eq!(described, read);
}

#[test]
fn every_key_in_the_schema_is_described() {
    let schema = json_schema();
    let definitions = schema["$defs"].as_object().unwrap();
    for (name, definition) in definitions.iter().chain([(&"File".to_owned(), &schema)]) {
        for (key, property) in definition["properties"].as_object().into_iter().flatten() {
            assert!(property["description"].is_string(), "{name}.{key}: {property}");
        }
    }
}

#[test]
fn unknown_keys_are_refused_by_the_schema_too() {
    let schema = json_schema();
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["$defs"]["TargetFile"]["additionalProperties"], false);
}
