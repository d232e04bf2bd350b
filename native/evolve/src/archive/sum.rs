//! A sum that is kept while its terms come and go.

/// A sum in two numbers: rounding errors of the first are collected in the second (Neumaier 1974).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) high: f64,
    pub(super) low: f64,
}

impl Sum {
    pub(super) fn add(&mut self, value: f64) {
        let sum = self.high + value;
        // The exact error of the addition (Knuth's TwoSum).
        let part = sum - self.high;
        self.low += (self.high - (sum - part)) + (value - part);
        self.high = sum;
    }

    pub(super) fn value(self) -> f64 {
        self.high + self.low
    }
}
