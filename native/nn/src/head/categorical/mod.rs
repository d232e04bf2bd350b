//! A choice of one of several classes, with softmax probabilities.

use sconce_tensor::Tensor;
use sconce_tensor::simd::{add_assign, dispatch, exp, exp_with};

use super::counter::{self, Counter};
use super::distribution::{
    BaselineKind, Chance, Direction, Distribution, Pair, PriorRead, Shape, clip, log_sum_exp, power,
};
use super::label::NONE;
use crate::Result;
use crate::bounds::within;
use crate::ops::gather::one_hot;
use crate::sampling::FORBIDDEN;

/// A distribution over this many classes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Categorical(pub(super) usize);

impl Distribution for Categorical {
    fn logits(&self) -> usize {
        self.0
    }

    fn labels(&self) -> usize {
        1
    }

    fn classes(&self) -> usize {
        self.0
    }

    fn bounds(&self) -> [f32; 2] {
        [0.0, self.0 as f32 - 1.0]
    }

    fn on_card(&self) -> Option<i32> {
        Some(1)
    }

    /// The largest u16 is not a class; it marks a missing label.
    fn validate(&self, field: &str) -> Result<()> {
        within(&format!("{field}.size"), self.0, 2, u16::MAX.into())
    }

    fn choose(&self, logits: &[f32], chance: &Chance<'_>, out: &mut [f32]) {
        if let Some(choice) = out.first_mut() {
            let class = match chance.sampling.deterministic {
                true => argmax(logits),
                false => {
                    draw(logits, chance.sampling.temperature, chance.rng.uniform(chance.index))
                }
            };
            *choice = class as f32;
        }
    }

    /// The largest probability.
    fn confidence(&self, logits: &[f32]) -> f32 {
        let (top, mut room) = (largest(logits), [0.0; AT_ONCE]);
        let parts = logits.chunks(AT_ONCE);
        1.0 / parts.map(|l| weights(l, top, 1.0, &mut room).iter().sum::<f32>()).sum::<f32>()
    }

    /// If several classes are equally likely, the first is taken as the most likely one.
    fn is_likely(&self, logits: &[f32], label: &[f32]) -> bool {
        label.first() == Some(&(argmax(logits) as f32))
    }

    fn encode(&self, label: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        if let Some(one) = label.first().and_then(|class| out.get_mut(*class as usize)) {
            *one = 1.0;
        }
    }

    fn encode_there(&self, labels: &Tensor, shape: [usize; 2], first: usize) -> Result<Tensor> {
        one_hot(labels, shape, first, self.0, true)
    }

    fn nll(&self, logits: &[f32], label: &[f32]) -> f64 {
        let own = label.first().and_then(|class| logits.get(*class as usize));
        let largest = logits.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
        let sum: f64 = logits.iter().map(|&v| f64::from(exp(v - largest))).sum();
        sum.ln() + f64::from(largest) - f64::from(own.copied().unwrap_or(f32::NAN))
    }

    fn entropy(&self, logits: &[f32]) -> f64 {
        let log = log_sum(logits);
        let of_class = |x: &f32| {
            let log_p = f64::from(*x) - log;
            -log_p.exp() * log_p
        };
        logits.iter().map(of_class).sum()
    }

    /// The loss is `S (1 - p)^gamma`, where S is the smoothed cross-entropy. Let q be the softmax over all classes
    /// except the true one, and q = 0 for the true class. The gradient of the loss is `(1 - p)^gamma (p_j - target_j +
    /// gamma S (q_j - p_j))`.
    fn learn(
        &self,
        logits: &[f32],
        label: &[f32],
        shape: &Shape<'_>,
        pull: Pair,
        gradient: &mut [f32],
    ) -> Pair {
        let (x, grad, clamp) = (logits, gradient, shape.clamp);
        for (e, &v) in grad.iter_mut().zip(x) {
            *e = exp(clip(v, clamp));
        }
        let target = label.first().map_or(0, |class| *class as usize);
        // The sum omits the true class, so that 1 - p is computed without cancellation.
        let own = f64::from(std::mem::replace(&mut grad[target], 0.0));
        let own_x = f64::from(clip(x[target], clamp));
        let (mut others, mut mean, mut all) = (0.0, 0.0, 0.0);
        for (e, &v) in grad.iter().zip(x) {
            let v = clip(v, clamp);
            others += e;
            mean += e * v;
            all += v;
        }
        let others = f64::from(others);
        let sum = own + others;
        let log_sum = sum.ln();
        let entropy = log_sum - (own * own_x + f64::from(mean)) / sum;

        let share = shape.smoothing / (x.len() - 1).max(1) as f64;
        let extra = 1.0 - shape.smoothing - share;
        let nll = log_sum - extra * own_x - share * f64::from(all);
        let factor = edge(shape.edge, target, x.len()) * power(others / sum, shape.gamma);

        let focus = shape.gamma * nll;
        let pull_loss = pull.loss * factor;
        let kept = pull_loss * (1.0 - focus) / sum;
        let moved = pull_loss * focus / others;
        let bonus = pull.entropy * shape.entropy / sum;
        let offset = entropy - log_sum;
        let own_grad = own * (kept + bonus * (own_x + offset)) - pull_loss * (extra + share);
        let (rest, bonus, offset) = ((kept + moved) as f32, bonus as f32, offset as f32);
        let share = (pull_loss * share) as f32;
        for (e, &v) in grad.iter_mut().zip(x) {
            let slope = *e * (rest + bonus * (clip(v, clamp) + offset)) - share;
            *e = if v.abs() <= clamp { slope } else { 0.0 };
        }
        grad[target] = if x[target].abs() <= clamp { own_grad as f32 } else { 0.0 };
        Pair { loss: factor * nll, entropy: entropy * shape.entropy }
    }

    fn divergence(
        &self,
        direction: Direction,
        x: &[f32],
        y: &[f32],
        scale: f64,
        gradient: &mut [f32],
    ) -> f64 {
        let (log_x, log_y) = (log_sum(x), log_sum(y));
        let probability = |v: f32, log: f64| f64::from(exp((f64::from(v) - log) as f32));
        let ratio = |x: f32, y: f32| (f64::from(x) - log_x) - (f64::from(y) - log_y);
        let pairs = || x.iter().copied().zip(y.iter().copied());
        match direction {
            Direction::Forward => {
                let kl: f64 = pairs().map(|(x, y)| probability(x, log_x) * ratio(x, y)).sum();
                for ((x, y), gradient) in pairs().zip(gradient) {
                    *gradient += (scale * probability(x, log_x) * (ratio(x, y) - kl)) as f32;
                }
                kl
            }
            Direction::Reverse => {
                for ((x, y), gradient) in pairs().zip(gradient) {
                    *gradient += (scale * (probability(x, log_x) - probability(y, log_y))) as f32;
                }
                pairs().map(|(x, y)| -probability(y, log_y) * ratio(x, y)).sum()
            }
        }
    }

    fn mixture(&self, parts: &[&[f32]], out: &mut [f32]) -> bool {
        let sums: Vec<f64> = parts.iter().map(|part| log_sum(part)).collect();
        let count = (parts.len() as f64).ln();
        for (i, out) in out.iter_mut().enumerate() {
            let own = parts.iter().zip(&sums).map(|(part, sum)| f64::from(part[i]) - sum);
            *out = (log_sum_exp(own) - count) as f32;
        }
        true
    }

    /// The table has a row of log-probabilities for each previous class, and one row for no previous class.
    fn prior(&self) -> [usize; 2] {
        [self.0 + 1, self.0]
    }

    fn prior_read(&self) -> PriorRead {
        PriorRead::Rows(self.0)
    }

    fn prior_key(&self, previous: Option<&[f32]>, out: &mut Vec<u32>) {
        out.push(self.row(previous) as u32);
    }

    fn add_prior(&self, table: &[f32], previous: Option<&[f32]>, logits: &mut [f32]) {
        add_assign(logits, &table[self.row(previous) * self.0..][..self.0]);
    }

    fn counts(&self) -> usize {
        counter::len(self.0)
    }

    fn count(&self, previous: Option<&[f32]>, label: &[f32], counts: &mut [f64]) {
        if let Some(class) = label.first() {
            let before = previous.and_then(|previous| previous.first()).copied();
            counter::count(before, *class, self.0, counts);
        }
    }

    fn fit(&self, baseline: BaselineKind, counts: &[f64]) -> Vec<f32> {
        let table = Counter::new(counts, self.0).table(baseline);
        table.iter().map(|p| p.ln() as f32).collect()
    }
}

impl Categorical {
    /// Row of the prior's table for the previous class.
    fn row(&self, previous: Option<&[f32]>) -> usize {
        let class = previous.and_then(|previous| previous.first()).copied().unwrap_or(NONE);
        (class as usize).min(self.0)
    }
}

/// Loss weight of the class `target`, if `edge` is the weight of the first and the last class.
fn edge(edge: Option<f64>, target: usize, classes: usize) -> f64 {
    let centre = (classes - 1) as f64 / 2.0;
    match edge {
        Some(edge) => 1.0 + (edge - 1.0) * (target as f64 - centre).abs() / centre,
        None => 1.0,
    }
}

fn log_sum(x: &[f32]) -> f64 {
    let largest = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let sum: f64 = x.iter().map(|&v| f64::from(exp(v - largest))).sum();
    f64::from(largest) + sum.ln()
}

/// Draws a class: the one at which the cumulative probability passes `uniform`.
fn draw(logits: &[f32], temperature: f32, uniform: f32) -> usize {
    let top = largest(logits);
    let mut room = [0.0; AT_ONCE];
    let mut total = 0.0;
    for logits in logits.chunks(AT_ONCE) {
        let weights = weights(logits, top, temperature, &mut room);
        total += weights.iter().copied().map(f64::from).sum::<f64>();
    }
    let mut left = f64::from(uniform) * total;
    let is_one = logits.len() <= AT_ONCE;
    for (i, logits) in logits.chunks(AT_ONCE).enumerate() {
        // The weights of a single chunk are still there.
        let weights = match is_one {
            true => &room[..logits.len()],
            false => weights(logits, top, temperature, &mut room),
        };
        for (j, weight) in weights.iter().enumerate() {
            left -= f64::from(*weight);
            // The weight of a forbidden class is a tiny number above 0, because `exp` saturates.
            if left < 0.0 && logits[j] > FORBIDDEN {
                return i * AT_ONCE + j;
            }
        }
    }
    argmax(logits)
}

/// Number of classes processed in one chunk; few heads have more.
const AT_ONCE: usize = 64;

/// `e^((logit - top) / temperature)` of at most [`AT_ONCE`] logits.
fn weights<'a>(logits: &[f32], top: f32, temperature: f32, room: &'a mut [f32]) -> &'a [f32] {
    let room = &mut room[..logits.len()];
    exponentials(room, logits, top, temperature);
    room
}

dispatch! {
    fn exponentials(out: &mut [f32], logits: &[f32], top: f32, temperature: f32) {
        for (out, logit) in out.iter_mut().zip(logits) {
            *out = exp_with::<FMA>((logit - top) / temperature);
        }
    }
}

fn largest(logits: &[f32]) -> f32 {
    // A comparison compiles to one instruction; `f32::max` needs more to handle NaN.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (fours, rest) = logits.as_chunks::<4>();
    let most = fours.iter().fold([f32::NEG_INFINITY; 4], |most, four| {
        std::array::from_fn(|i| larger(four[i], most[i]))
    });
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::sampling::Sampling;

    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        let rng = Rng::new(3, "test", 0);
        let mut counts = vec![0.0; logits.len()];
        for index in 0..40_000 {
            let (mut out, held) = ([0.0], None);
            let chance = Chance { sampling, rng: &rng, index, held };
            Categorical(logits.len()).choose(logits, &chance, &mut out);
            counts[out[0] as usize] += 1.0 / 40_000.0;
        }
        counts
    }

    #[test]
    fn classes_are_drawn_with_their_probabilities() {
        let shares = shares(&Sampling::default(), &[1f32.ln(), 2f32.ln(), 5f32.ln()]);
        for (share, want) in shares.iter().zip([0.125, 0.25, 0.625]) {
            assert!((share - want).abs() < 0.01, "{shares:?}");
        }
    }

    #[test]
    fn a_head_of_many_classes_is_weighed_in_parts() {
        let logits: Vec<f32> = (0..150).map(|i| if i % 50 == 40 { 9.0 } else { -9.0 }).collect();
        let shares = shares(&Sampling::default(), &logits);
        for class in [40, 90, 140] {
            assert!((shares[class] - 1.0 / 3.0).abs() < 0.01, "{class}: {}", shares[class]);
        }
        let sure = Categorical(150).confidence(&logits);
        assert!((sure - 1.0 / 3.0).abs() < 1e-5, "{sure}");
    }

    #[test]
    fn a_forbidden_class_is_not_drawn_even_by_the_smallest_random_number() {
        let mut logits = [0.0; 130];
        logits[..AT_ONCE + 3].fill(FORBIDDEN);
        for temperature in [1e-3, 1.0, 1e3] {
            assert_eq!(draw(&logits, temperature, 0.0), AT_ONCE + 3);
        }
        logits[AT_ONCE + 3..].fill(FORBIDDEN);
        logits[1] = -1e8;
        assert_eq!([0.0, 0.5, 1.0].map(|uniform| draw(&logits, 1.0, uniform)), [1; 3]);
        assert_eq!(argmax(&logits), 1);
    }

    #[test]
    fn a_low_temperature_draws_the_most_likely_class() {
        let cold = Sampling { temperature: 0.01, ..Sampling::default() };
        assert!(shares(&cold, &[0.0, 0.5, 0.2])[1] > 0.999);
    }
}
