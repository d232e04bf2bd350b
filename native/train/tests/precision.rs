//! Steps whose products are less exact than f32.

use sconce_core::ops::tensor;
use sconce_core::policy::Frames;
use sconce_core::rng::Rng;
use sconce_core::spec::{
    AttentionConfig, Backbone, Embedding, Head, HeadKind, Heads, HeadsConfig, HeadsKind,
    RecurrentConfig,
};
use sconce_core::{Policy, Precision, Spec, pool};
use sconce_train::loss::LossOptions;
use sconce_train::optimiser::OptimiserConfig;
use sconce_train::step::{Examples, Stepper};

const BATCH: usize = 20;
const TIME: usize = 8;
const SIZE: usize = 40;

/// Of widths that a matrix unit takes.
fn specs() -> [Spec; 3] {
    let (hidden_size, num_layers, input_norm) = (96, 2, true);
    let (dropout, input_dropout, num_heads) = (0.1, 0.0, 2);
    let gru = RecurrentConfig {
        hidden_size,
        num_layers,
        layer_norm: true,
        input_norm,
        dropout,
        input_dropout,
    };
    let attention = AttentionConfig {
        hidden_size,
        num_layers,
        num_heads,
        head_dim: 48,
        window_size: TIME,
        qk_layernorm: true,
        input_norm,
        dropout,
        input_dropout,
    };
    let retnet = HeadsConfig {
        hidden_size,
        num_layers,
        num_heads,
        expand_factor: 2,
        input_norm,
        dropout,
        input_dropout,
    };
    let backbones =
        [Backbone::Gru(gru), Backbone::SlidingWindow(attention), Backbone::Retnet(retnet)];
    let part = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let parts = vec![part("go", HeadKind::Bernoulli(2)), part("to", HeadKind::Categorical(3))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 5, prior: false };
    backbones.map(|backbone| Spec {
        embedding: Embedding::Vector(SIZE),
        backbone,
        heads: heads.clone(),
    })
}

/// Losses of three steps, and the weights after them.
fn trained(spec: &Spec, precision: Option<Precision>) -> (Vec<f64>, Vec<f32>) {
    let (rng, n) = (Rng::new(2, "examples", 0), BATCH * TIME);
    let continuous = (0..(SIZE * n) as u64).map(|i| rng.normal(i)).collect();
    let previous = vec![u16::MAX; 3 * n];
    let frames = Frames { batch: BATCH, time: TIME, continuous, ids: vec![], previous };
    let label = |i| [rng.below(3 * i, 2), rng.below(3 * i + 1, 2), rng.below(3 * i + 2, 3)];
    let labels: Vec<u16> = (0..n as u64).flat_map(label).map(|label| label as u16).collect();
    let x = Examples { frames: &frames, labels: &labels, weights: &vec![1.0; n] };
    let (loss, config) = (LossOptions::plain(), OptimiserConfig::default());
    let policy = Policy::init(spec, 4).unwrap();
    let mut stepper = Stepper::new(&policy, &loss, config, 1.0, 7).unwrap();
    if let Some(precision) = precision {
        stepper = stepper.in_precision(precision);
    }
    let losses = (0..3).map(|step| stepper.step(x, step, 1e-3).unwrap().losses.total).collect();
    let weights = stepper.policy().weights().values();
    (losses, weights.flat_map(|w| tensor::to_vec(w).unwrap()).collect())
}

#[test]
fn less_exact_steps_learn_alike_and_have_the_same_bits_on_any_number_of_threads() {
    let before = pool::threads();
    for spec in specs() {
        let exact = trained(&spec, None);
        assert!(trained(&spec, Some(Precision::F32)) == exact);
        for (precision, near) in [(Precision::Bf16, 1e-2), (Precision::F16, 2e-3)] {
            let rounded = trained(&spec, Some(precision));
            for threads in [1, 2, 3] {
                pool::set_threads(threads).unwrap();
                assert!(trained(&spec, Some(precision)) == rounded, "{precision:?}, {threads}");
            }
            assert!(rounded.0[0] != exact.0[0]);
            for (got, want) in rounded.0.iter().zip(&exact.0) {
                assert!((got - want).abs() < near * want, "{precision:?}: {got}, not {want}");
            }
        }
    }
    pool::set_threads(before).unwrap();
}
