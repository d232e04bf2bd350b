//! Layers against PyTorch's float64 vectors, forward and backward.

use std::sync::Arc;

use candle_core::Tensor;
use sconce_nn::backbone::{Backbone, Cell, Context, Mlp, Recurrent, State};
use sconce_nn::heads::{Heads, NONE};
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{self, HeadsKind, MlpConfig, RecurrentConfig};
use sconce_ops as ops;
use sconce_tensor::rng::Rng;

use crate::common::Golden;

fn mlp(case: &str, hidden_sizes: &[usize], layer_norm: bool, residual: bool) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let config = MlpConfig {
            hidden_sizes: hidden_sizes.to_vec(),
            layer_norm,
            residual,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let x = golden.variable("input.x");
        let net = Mlp::new(&config, x.dim(1).unwrap(), &b).unwrap();
        let weights = b.finish().unwrap();
        let (y, _) = net.step(&x, &State(vec![]), &Context::default()).unwrap();
        golden.check("output.y", &y);
        golden.check_gradients(&golden.loss(&[("y", &y)]), &weights, &[("x", &x)]);
    }
}

#[test]
fn the_mlp_agrees_in_every_variant() {
    mlp("mlp_plain", &[24, 24], false, false);
    mlp("mlp_norm", &[40, 16], true, false);
    mlp("mlp_residual", &[40, 40, 24], false, true);
    mlp("mlp_residual_norm", &[40, 40, 24], true, true);
    mlp("mlp_288", &[64, 48], true, true);
}

/// Golden tensors `[layers, b, h]` as the parts of a state.
fn state(layers: usize, parts: &[&Tensor]) -> State {
    let part = |i: usize| parts.iter().map(move |t| t.get(i).unwrap());
    State((0..layers).flat_map(part).collect())
}

fn recurrent(cell: Cell, case: &str, num_layers: usize, hidden_size: usize, given: bool) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let config = RecurrentConfig {
            hidden_size,
            num_layers,
            layer_norm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
            ..Default::default()
        };
        let x = golden.variable("input.x");
        let net = Recurrent::new(cell, &config, x.dim(2).unwrap(), &b).unwrap();
        let weights = b.finish().unwrap();
        let names: &[&str] = if cell == Cell::Lstm { &["h", "c"] } else { &["h"] };
        let first: Vec<Tensor> = match given {
            true => names.iter().map(|n| golden.variable(&format!("input.{n}0"))).collect(),
            false => vec![],
        };
        let start = match given {
            true => state(num_layers, &first.iter().collect::<Vec<_>>()),
            false => net.zero_state(x.dim(0).unwrap()).unwrap().beside(&x).unwrap(),
        };
        let (y, last) = net.forward(&x, &start, &Context::default()).unwrap();
        let mut outputs = vec![("y".to_string(), y)];
        for (i, name) in names.iter().enumerate() {
            let parts: Vec<_> = last.0.iter().skip(i).step_by(names.len()).collect();
            outputs.push((format!("{name}_n"), Tensor::stack(&parts, 0).unwrap()));
        }
        for (name, value) in &outputs {
            golden.check(&format!("output.{name}"), value);
        }
        let outputs: Vec<_> = outputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let keys: Vec<String> = names.iter().map(|n| format!("{n}0")).collect();
        let mut inputs = vec![("x", &x)];
        inputs.extend(keys.iter().map(String::as_str).zip(&first));
        golden.check_gradients(&golden.loss(&outputs), &weights, &inputs);

        let mut now = start;
        for t in 0..x.dim(1).unwrap() {
            let frame = x.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
            let (_, next) = net.step(&frame, &now, &Context::default()).unwrap();
            now = next;
        }
        for (stepped, whole) in now.0.iter().zip(&last.0) {
            let apart = (stepped - whole).unwrap().abs().unwrap().max_all().unwrap();
            assert!(apart.to_scalar::<f32>().unwrap() < 1e-5, "{case}: step and sequence differ");
        }
    }
}

#[test]
fn lstm_and_gru_agree_as_sequence_and_step_even_over_512_frames_of_strong_decay() {
    for (name, cell) in [("lstm", Cell::Lstm), ("gru", Cell::Gru)] {
        recurrent(cell, &format!("{name}_l1_zero"), 1, 40, false);
        recurrent(cell, &format!("{name}_l1_state"), 1, 17, true);
        recurrent(cell, &format!("{name}_l2_zero"), 2, 16, false);
        recurrent(cell, &format!("{name}_l2_state"), 2, 24, true);
        recurrent(cell, &format!("{name}_w512_strong"), 2, 6, true);
    }
}

/// Golden labels, 13 per row.
fn labels(golden: &Golden, prefix: &str, spec: &spec::Heads) -> Vec<f32> {
    let rows = golden.shape("input.x")[0];
    let mut labels = vec![0.0; rows * spec.num_labels()];
    for part in spec.iter() {
        let width = part.head.kind.labels();
        let numbers = golden.numbers(&format!("{prefix}.{}", part.head.name));
        for (row, from) in labels.chunks_mut(spec.num_labels()).zip(numbers.chunks(width)) {
            row[part.labels..][..width].iter_mut().zip(from).for_each(|(l, v)| *l = *v as f32);
        }
    }
    labels
}

/// Log-probability and entropy of one head, by candle's differentiable ops.
fn likelihood(logits: &Tensor, kind: spec::HeadKind, labels: &[f32]) -> (Tensor, Tensor) {
    let (n, k) = logits.dims2().unwrap();
    match kind {
        spec::HeadKind::Bernoulli(_) => {
            let t = Tensor::from_vec(labels.to_vec(), (n, k), logits.device()).unwrap();
            // log sigmoid(x) = -log(1 + e^-x).
            let log_on = ((logits.neg().unwrap().exp().unwrap() + 1.0).unwrap().log().unwrap())
                .neg()
                .unwrap();
            let log_off = (&log_on - logits).unwrap();
            let p = log_on.exp().unwrap();
            let log_p = ((&t * &log_on).unwrap()
                + (t.affine(-1.0, 1.0).unwrap() * &log_off).unwrap())
            .unwrap();
            let entropy = ((&p * log_on).unwrap()
                + (p.affine(-1.0, 1.0).unwrap() * log_off).unwrap())
            .unwrap();
            (log_p.sum(1).unwrap(), entropy.sum(1).unwrap().neg().unwrap())
        }
        spec::HeadKind::Categorical(_) => {
            let log_p = logits
                .broadcast_sub(&logits.log_sum_exp(1).unwrap().unsqueeze(1).unwrap())
                .unwrap();
            let ids: Vec<u32> = labels.iter().map(|&v| v as u32).collect();
            let ids = Tensor::from_vec(ids, (n, 1), logits.device()).unwrap();
            let entropy = (log_p.exp().unwrap() * &log_p).unwrap().sum(1).unwrap().neg().unwrap();
            (log_p.gather(&ids, 1).unwrap().squeeze(1).unwrap(), entropy)
        }
        other => panic!("the golden heads have no {other:?}"),
    }
}

fn heads(case: &str, kind: HeadsKind) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let x = golden.variable("input.x");
        let spec = spec::Heads::controller(kind);
        let heads = Heads::new(&spec, x.dim(1).unwrap(), &b).unwrap();
        let weights = b.finish().unwrap();
        let rows = x.dim(0).unwrap();
        let none = vec![NONE; rows * spec.num_labels()];
        let given = labels(&golden, "input.action", &spec);
        let logits = heads.forward(&x.clone().into(), Some(&given), &none).unwrap();
        let (mut log_prob, mut entropy) = (vec![], vec![]);
        for part in spec.iter() {
            let name = &part.head.name;
            let own = logits.narrow(1, part.logits, part.head.kind.logits()).unwrap();
            golden.check(&format!("output.logits.{name}"), &own);
            let width = part.head.kind.labels();
            let own_labels: Vec<f32> = given
                .chunks(spec.num_labels())
                .flat_map(|r| &r[part.labels..][..width])
                .copied()
                .collect();
            let (l, e) = likelihood(&own, part.head.kind, &own_labels);
            golden.check(&format!("output.log_prob.{name}"), &l);
            golden.check(&format!("output.entropy.{name}"), &e);
            log_prob.push(l);
            entropy.push(e);
        }
        let total = |parts: Vec<Tensor>| parts.into_iter().reduce(|a, b| (a + b).unwrap()).unwrap();
        let (log_prob, entropy) = (total(log_prob), total(entropy));
        let loss = golden.loss(&[("log_prob.total", &log_prob), ("entropy.total", &entropy)]);
        golden.check_gradients(&loss, &weights, &[("x", &x)]);

        let greedy = Sampling { deterministic: true, ..Sampling::default() };
        let rngs: Vec<_> = (0..rows as u64).map(|i| Rng::new(i, "test", 0)).collect();
        let decision = heads
            .act(
                &x.detach().into(),
                &none,
                Draw { sampling: &greedy, rngs: &rngs, given: None, mask: None },
            )
            .unwrap();
        assert_eq!(decision.choices, labels(&golden, "output.greedy", &spec), "{case}");
        let logits =
            Tensor::from_vec(decision.logits, (rows, spec.num_logits()), x.device()).unwrap();
        let forced = Draw { sampling: &greedy, rngs: &rngs, given: Some(&given), mask: None };
        let scored = heads.act(&x.detach().into(), &none, forced).unwrap();
        assert_eq!(scored.choices, given, "{case}");
        let scored =
            Tensor::from_vec(scored.logits, (rows, spec.num_logits()), x.device()).unwrap();
        for part in spec.iter() {
            let own = scored.narrow(1, part.logits, part.head.kind.logits()).unwrap();
            golden.check(&format!("output.logits.{}", part.head.name), &own);
            let own = logits.narrow(1, part.logits, part.head.kind.logits()).unwrap();
            golden.check(&format!("output.greedy_logits.{}", part.head.name), &own);
        }
    }
}

#[test]
fn controller_heads_agree_teacher_forced_and_greedy() {
    heads("heads_independent", HeadsKind::Independent);
    heads("heads_autoregressive", HeadsKind::Autoregressive);
    heads("heads_autoregressive_zero", HeadsKind::Autoregressive);
}

#[test]
fn looked_up_rows_agree_and_gradients_of_repeated_ids_add_up() {
    for golden in Golden::everywhere("embedding_tables") {
        let continuous = golden.variable("input.continuous");
        let (b, t, _) = continuous.dims3().unwrap();
        let mut parts = vec![continuous.clone()];
        let mut weights = sconce_ops::weights::Weights::new();
        for name in ["action", "character", "stage"] {
            let table = golden.variable(&format!("param.{name}_embedding.weight"));
            let ids = golden.numbers(&format!("input.ids.{name}"));
            let ids: Arc<[u32]> = ids.iter().map(|&v| v as u32).collect();
            let width = ids.len() / (b * t) * table.dim(1).unwrap();
            parts.push(ops::gather(&table, ids, "ids").unwrap().reshape((b, t, width)).unwrap());
            weights.insert(format!("{name}_embedding.weight"), table.into());
        }
        let vector = Tensor::cat(&parts, 2).unwrap();
        golden.check("output.vector", &vector);
        golden.check_gradients(
            &golden.loss(&[("vector", &vector)]),
            &weights,
            &[("continuous", &continuous)],
        );
    }
}
