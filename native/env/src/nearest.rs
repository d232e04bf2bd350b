//! The nearest name in a list, for errors about unknown names.

/// The name with the smallest edit distance to `name`; the first one of several.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.min_by_key(|other| distance(name, other))
}

/// The number of bytes to insert, remove or replace to turn `a` into `b` (Levenshtein 1966). Reads at most the first 64
/// bytes of each.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len().min(64)).collect();
    for (i, x) in a.bytes().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().take(64).enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_needs_the_fewest_edits() {
        let near = |name| nearest(name, ["cart_pole", "pendulum", "acrobot"].into_iter());
        assert_eq!(near("CartPole-v1"), Some("cart_pole"));
        assert_eq!(near("pendel"), Some("pendulum"));
        assert_eq!(nearest("x", [].into_iter()), None);
        assert_eq!((distance("", "abc"), distance("kitten", "sitting")), (3, 3));
    }
}
