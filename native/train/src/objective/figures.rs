//! Loss and other figures of a batch.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Loss and other figures of a batch, in nats unless stated otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The loss that is minimised.
    pub total: f64,
    /// Mean loss of each head; empty for objectives without such losses.
    pub heads: Vec<f64>,
    /// Other figures of the objectives by name, such as `teacher_kl`, the mean divergence from the teacher.
    #[serde(default, alias = "teacher_kl", deserialize_with = "figures")]
    pub named: BTreeMap<String, f64>,
}

impl Figures {
    /// Adds the figures of another batch or objective, multiplied by `times`.
    pub fn add(&mut self, other: &Figures, times: f64) {
        self.total += times * other.total;
        self.heads.resize(self.heads.len().max(other.heads.len()), 0.0);
        self.heads.iter_mut().zip(&other.heads).for_each(|(sum, loss)| *sum += times * loss);
        for (name, figure) in &other.named {
            *self.named.entry(name.clone()).or_default() += times * figure;
        }
    }

    /// Divides the sums by `count`.
    #[must_use]
    pub fn over(mut self, count: f64) -> Figures {
        self.total /= count;
        self.heads.iter_mut().for_each(|sum| *sum /= count);
        self.named.values_mut().for_each(|sum| *sum /= count);
        self
    }
}

/// Deserializes figures by name. Older files have a single value instead: the divergence from a teacher.
pub fn figures<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        Named(BTreeMap<String, f64>),
        Teacher(Option<f64>),
    }
    Ok(match Stored::deserialize(from)? {
        Stored::Named(named) => named,
        Stored::Teacher(kl) => kl.map(|kl| ("teacher_kl".to_string(), kl)).into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_older_runs_without_names_are_read() {
        let of = |text: &str| serde_json::from_str::<Figures>(text).unwrap().named;
        let kl = BTreeMap::from([("teacher_kl".to_string(), 0.5)]);
        assert_eq!(of(r#"{"total": 1.0, "heads": [], "teacher_kl": 0.5}"#), kl);
        assert_eq!(of(r#"{"total": 1.0, "heads": [], "teacher_kl": null}"#), BTreeMap::new());
        assert_eq!(of(r#"{"total": 1.0, "heads": []}"#), BTreeMap::new());
        let figures = Figures { named: kl.clone(), ..Figures::default() };
        assert_eq!(of(&serde_json::to_string(&figures).unwrap()), kl);
    }
}
