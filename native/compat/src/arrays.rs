//! Orders of the numbers in an array.

/// `[rows, columns]` to `[columns, rows]`.
pub(crate) fn transposed(numbers: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let at = |i: usize| numbers[(i % rows) * columns + i / rows];
    (0..numbers.len()).map(at).collect()
}

/// `[a, b, c]` to `[c, b, a]`.
pub(crate) fn reversed(numbers: &[f32], [a, b, c]: [usize; 3]) -> Vec<f32> {
    let at = |i: usize| numbers[((i % a) * b + i / a % b) * c + i / (a * b)];
    (0..numbers.len()).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_are_their_own_inverse() {
        let numbers: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let turned = transposed(&numbers, 4, 6);
        assert_eq!(turned[..3], [0.0, 6.0, 12.0]);
        assert_eq!(transposed(&turned, 6, 4), numbers);
        let turned = reversed(&numbers, [4, 2, 3]);
        assert_eq!(turned[..5], [0.0, 6.0, 12.0, 18.0, 3.0]);
        assert_eq!(reversed(&turned, [3, 2, 4]), numbers);
    }
}
