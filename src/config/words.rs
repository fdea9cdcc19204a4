//! Words that an older YAML reads as something else.
//!
//! YAML 1.1, which `PyYAML` and many job scripts still speak, takes `off` for a boolean, `12:30` for the number 750 and
//! `2026-11-29` for a date. YAML 1.2 takes them for the text that they are, and so does the library that prints. What
//! is printed is read by both, so such text goes in quotes. (<https://yaml.org/type/>)

/// The booleans, the null and the special keys of YAML 1.1, in lower case.
const WORDS: [&str; 12] = ["y", "yes", "n", "no", "true", "false", "on", "off", "null", "~", "=", "<<"];

/// Characters of numbers in any base, sexagesimal numbers, and timestamps.
fn is_of_a_number(character: char) -> bool {
    character.is_ascii_hexdigit()
        || matches!(character, 'x' | 'o' | '_' | ':' | '.' | '+' | '-' | 'T' | 't' | 'Z' | 'z' | ' ')
}

/// Whether YAML 1.1 might read the plain text as another type. Errs towards yes: quotes do no harm.
pub fn is_ambiguous(text: &str) -> bool {
    let starts_like_a_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    WORDS.contains(&text.to_ascii_lowercase().as_str())
        || matches!(text.to_ascii_lowercase().trim_start_matches(['+', '-']), ".inf" | ".nan")
        || (starts_like_a_number && text.contains(|c: char| c.is_ascii_digit()) && text.chars().all(is_of_a_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_yaml_reads_as_another_type_is_ambiguous() {
        for text in [
            "off",
            "No",
            "Y",
            "12:30",
            "1_000",
            "0777",
            "0x1f",
            "2026-11-29",
            "2001-12-14t21:59:43.1-05:00",
            "-.inf",
            "1.",
            "~",
            "=",
        ] {
            assert!(is_ambiguous(text), "{text}");
        }
    }

    #[test]
    fn units_names_and_paths_are_not() {
        for text in ["30%", "40GiB", "10m", "1h 30m", "gpt2-medium", "auto", "cuda:0", "/data/text", "offline", "", "-"]
        {
            assert!(!is_ambiguous(text), "{text}");
        }
    }
}
