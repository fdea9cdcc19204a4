//! "Did you mean": the known name that a mistyped one is closest to.

/// Longer names are not compared: nobody mistypes one of ours into that.
const MAX_LENGTH: usize = 64;

/// The known name closest to `written`, if it is close enough to be what was meant.
pub fn closest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    if written.len() > MAX_LENGTH {
        return None;
    }
    let plain = normalise(written);
    known
        .iter()
        .map(|name| (distance(&plain, &normalise(name)), *name))
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// `Batch-Size` and `batchSize` are `batchsize`, as is `batch_size`.
fn normalise(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

/// The optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut current = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let substituted = previous[j] + usize::from(a != b);
            let mut best = substituted.min(previous[j + 1] + 1).min(current[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut previous, current);
    }
    previous.last().copied().unwrap_or(left.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[&str] = &["batch_size", "replicas", "tolerance", "seed"];

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        assert_eq!(closest("bacth_size", KEYS), Some("batch_size"));
        assert_eq!(closest("batchSize", KEYS), Some("batch_size"));
        assert_eq!(closest("batch-size", KEYS), Some("batch_size"));
        assert_eq!(closest("replica", KEYS), Some("replicas"));
    }

    #[test]
    fn something_else_altogether_suggests_nothing() {
        assert_eq!(closest("learning_rate", KEYS), None);
        assert_eq!(closest("", KEYS), None);
        assert_eq!(closest(&"x".repeat(100_000), KEYS), None);
    }
}
