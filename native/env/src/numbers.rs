//! The state of environments as arrays of f32 by name, in which a checkpoint keeps it.

use std::collections::BTreeMap;

use sconce_tensor::{Error, Result};

/// Arrays by name. A whole number is stored as its two halves of 16 bits, which f32 represents exactly.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers(pub BTreeMap<String, Vec<f32>>);

impl Numbers {
    /// Stores an array.
    pub fn put(&mut self, name: &str, numbers: Vec<f32>) {
        self.0.insert(name.into(), numbers);
    }

    /// Stores whole numbers.
    pub fn put_words(&mut self, name: &str, words: &[u32]) {
        let halves = words.iter().flat_map(|word| [(word & 0xFFFF) as f32, (word >> 16) as f32]);
        self.0.insert(name.into(), halves.collect());
    }

    /// An array.
    ///
    /// # Errors
    /// `NotFound` for a name without one.
    pub fn get(&self, name: &str) -> Result<&[f32]> {
        let own = self.0.get(name).map(Vec::as_slice);
        own.ok_or_else(|| Error::not_found(format!("{name} of a player")))
    }

    /// Whole numbers.
    ///
    /// # Errors
    /// `NotFound` for a name without an array, `Corrupt` for one of other numbers.
    pub fn words(&self, name: &str) -> Result<Vec<u32>> {
        let (pairs, rest) = self.get(name)?.as_chunks::<2>();
        let half = |half: &f32| (0.0..65_536.0).contains(half) && half.fract() == 0.0;
        if !rest.is_empty() || !pairs.iter().flatten().all(half) {
            let what = format!("{name} of a player");
            return Err(Error::corrupt(what, "not halves of whole numbers"));
        }
        Ok(pairs.iter().map(|[low, high]| *low as u32 | (*high as u32) << 16).collect())
    }

    /// Stores one whole number of 64 bits.
    pub fn put_word(&mut self, name: &str, number: u64) {
        self.put_words(name, &[number as u32, (number >> 32) as u32]);
    }

    /// A whole number of 64 bits.
    ///
    /// # Errors
    /// Those of [`words`](Self::words).
    pub fn word(&self, name: &str) -> Result<u64> {
        match self.words(name)?[..] {
            [low, high] => Ok(u64::from(high) << 32 | u64::from(low)),
            _ => Err(Error::corrupt(format!("{name} of a player"), "not two words")),
        }
    }

    /// Adds arrays under names that begin with `prefix`.
    pub fn nest(&mut self, prefix: &str, numbers: Numbers) {
        let own = numbers.0.into_iter();
        self.0.extend(own.map(|(name, numbers)| (format!("{prefix}{name}"), numbers)));
    }

    /// The arrays whose names begin with `prefix`, without it.
    pub fn nested(&self, prefix: &str) -> Numbers {
        let own = self.0.range(prefix.to_string()..);
        let own = own.map_while(|(name, numbers)| Some((name.strip_prefix(prefix)?, numbers)));
        Numbers(own.map(|(name, numbers)| (name.to_string(), numbers.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_names_come_back() {
        let mut own = Numbers::default();
        own.put_words("words", &[0, 1, 65_535, 65_536, u32::MAX]);
        own.put_word("seed", u64::MAX - 5);
        own.put("states", vec![0.5, f32::MIN_POSITIVE]);
        let mut all = Numbers::default();
        all.nest("3.", own.clone());
        all.nest("30.", Numbers::default());
        all.put("3", vec![]);
        let back = all.nested("3.");
        assert_eq!(back, own);
        assert_eq!(back.words("words").unwrap(), [0, 1, 65_535, 65_536, u32::MAX]);
        assert_eq!(back.word("seed").unwrap(), u64::MAX - 5);
        for (name, kind) in [("states", "corrupt"), ("other", "not_found")] {
            assert_eq!(back.words(name).unwrap_err().kind().name(), kind);
        }
        assert_eq!(back.word("words").unwrap_err().kind().name(), "corrupt");
    }
}
