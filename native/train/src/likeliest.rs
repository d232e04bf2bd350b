//! The likeliest actions of a policy on some frames, with which those of another policy are compared.

use sconce_nn::head::Chance;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::Heads;
use sconce_tensor::rng::Rng;

/// The likeliest labels of each frame, `[n, num_labels]`.
#[derive(Debug)]
pub(crate) struct Likeliest {
    heads: Heads,
    labels: Vec<f32>,
}

impl Likeliest {
    /// No frames yet, of a policy with these heads.
    pub(crate) fn new(heads: &Heads) -> Self {
        Likeliest { heads: heads.clone(), labels: vec![] }
    }

    /// Adds frames with these logits, `[n, num_logits]`.
    pub(crate) fn add(&mut self, logits: &[f32]) {
        let (sampling, rng) = (
            Sampling { deterministic: true, deterministic_buttons: true, ..Sampling::default() },
            Rng::new(0, "likeliest", 0),
        );
        let chance = Chance { sampling: &sampling, rng: &rng, index: 0, held: None };
        for row in logits.chunks_exact(self.heads.num_logits().max(1)) {
            let first = self.labels.len();
            self.labels.resize(first + self.heads.num_labels(), 0.0);
            for part in self.heads.iter() {
                let out = &mut self.labels[first + part.labels..][..part.head.kind.labels()];
                let own = &row[part.logits..][..part.head.kind.logits()];
                part.head.kind.choose(own, &chance, out);
            }
        }
    }

    /// The number of the frames from `first` on whose likeliest labels by `logits` differ in any head. A bounded number
    /// differs if it is not [likely](sconce_nn::head::HeadKind::is_likely).
    pub(crate) fn differing(&self, first: usize, heads: &Heads, logits: &[f32]) -> usize {
        let rows = logits.chunks_exact(heads.num_logits().max(1));
        let labels = self.labels.chunks_exact(self.heads.num_labels().max(1)).skip(first);
        let same = |(row, labels): &(&[f32], &[f32])| {
            heads.iter().filter(|part| part.head.kind.labels() > 0).all(|part| {
                let kind = part.head.kind;
                let own = &labels[part.labels..][..kind.labels()];
                kind.is_likely(&row[part.logits..][..kind.logits()], own)
            })
        };
        rows.zip(labels).filter(|pair| !same(pair)).count()
    }
}

#[cfg(test)]
mod tests {
    use sconce_nn::head::Gaussian;
    use sconce_nn::spec::{Head, HeadKind, HeadsKind};

    use super::*;

    #[test]
    fn a_frame_differs_if_any_head_does() {
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
        let at = Gaussian { size: 1, low: -1.0, high: 1.0 };
        let parts = vec![
            head("value", HeadKind::Value(1)),
            head("bits", HeadKind::Bernoulli(2)),
            head("at", HeadKind::Gaussian(at)),
            head("to", HeadKind::Categorical(3)),
        ];
        let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 4, prior: false };
        let row = [7.0, 1.0, -1.0, 0.0, -2.0, 0.0, 2.0, 1.0];
        let mut own = Likeliest::new(&heads);
        own.add(&row);
        own.add(&[row, row].concat());
        assert_eq!(own.labels[..4], [1.0, 0.0, 0.0, 1.0]);
        let changed = |at: usize, to: f32| {
            let mut other = row;
            other[at] = to;
            own.differing(1, &heads, &[row, other].concat())
        };
        // Values, certainty, deviations and small moves of a number are no changes.
        for (at, to) in [(0, -9.0), (1, 0.1), (4, 1.0), (3, 0.03), (6, 1.5)] {
            assert_eq!(changed(at, to), 0, "{at} {to}");
        }
        for (at, to) in [(1, -0.1), (2, 0.1), (3, 0.2), (5, 2.5), (7, 2.5)] {
            assert_eq!(changed(at, to), 1, "{at} {to}");
        }
    }
}
