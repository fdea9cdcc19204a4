//! Fewer points of a series, with none of its extremes lost.

use super::Mark;

/// At most `most` points: of each stretch of the series the lowest and the highest, in their order. A short series is
/// left as it is.
pub fn thin(marks: Vec<Mark>, most: usize) -> Vec<Mark> {
    let most = most.max(2);
    if marks.len() <= most {
        return marks;
    }
    let length = marks.len().div_ceil(most / 2);
    let mut kept = Vec::with_capacity(most);
    for stretch in marks.chunks(length) {
        let places = 0..stretch.len();
        let by_height = |left: &usize, right: &usize| stretch[*left].y.total_cmp(&stretch[*right].y);
        let Some(lowest) = places.clone().min_by(by_height) else { continue };
        let highest = places.max_by(by_height).unwrap_or(lowest);
        let (first, second) = (lowest.min(highest), lowest.max(highest));
        kept.push(stretch[first].clone());
        if second > first {
            kept.push(stretch[second].clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_and_their_order_survive() {
        let height = |n: i32| if n == 777 { 1e6 } else { f64::from(n % 10) };
        let marks: Vec<Mark> = (0..1000).map(|n| Mark::at(f64::from(n), height(n))).collect();
        let kept = thin(marks.clone(), 100);
        assert!(kept.len() <= 100);
        assert!(kept.iter().any(|mark| mark.y > 1e5));
        assert!(kept.is_sorted_by(|left, right| left.x < right.x));
        assert_eq!(thin(marks[..100].to_vec(), 100).len(), 100);
        assert!(thin(Vec::new(), 0).is_empty());
    }
}
