//! What a plan makes, against the policy it was packed from.

use std::ops::Range;

use sconce_core::backbone::{Context, State};
use sconce_core::heads::{Decision, NONE};
use sconce_core::ops::tensor::{tensor, to_vec};
use sconce_core::policy::Frames;
use sconce_core::projection::Projection;
use sconce_core::rng::Rng;
use sconce_core::sampling::{Draw, Sampling};
use sconce_core::spec::{
    Backbone, Embedding, Head, HeadKind, Heads, HeadsConfig, HeadsKind, Melee, RecurrentConfig,
};
use sconce_core::weights::{Weight, Weights};
use sconce_core::{Kind, Policy, Precision, Result, Spec};
use sconce_realtime::{Format, Frame, Game, Plan, Scratch};

mod backbones;

use backbones::{BACKBONES, Numbers};

fn embedding(n: &mut Numbers) -> Embedding {
    match n.below(3) {
        0 => Embedding::Vector(1 + n.below(90)),
        1 => Embedding::Melee(Melee { action_embed_size: 1 + n.below(20), ..Melee::default() }),
        _ => Embedding::Melee(Melee::packed()),
    }
}

/// Its backbones come in turn, so that each has its share of the seeds.
fn spec(seed: u64, n: &mut Numbers) -> Spec {
    let embedding = embedding(n);
    let heads = heads(n, &embedding);
    let backbone = BACKBONES[seed as usize % BACKBONES.len()](n);
    Spec { embedding, backbone, heads }
}

fn format(n: &mut Numbers) -> Format {
    if n.flag() { Format::F32 } else { Format::Bf16 }
}

fn heads(n: &mut Numbers, embedding: &Embedding) -> Heads {
    let kind = if n.flag() { HeadsKind::Autoregressive } else { HeadsKind::Independent };
    let mut heads = match embedding {
        Embedding::Melee(_) => Heads { prior: n.flag(), ..Heads::controller(kind) },
        Embedding::Vector(_) => {
            let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 20 };
            let fire = head("fire", HeadKind::Bernoulli(1 + n.below(20)));
            let moves = head("move", HeadKind::Categorical(2 + n.below(80)));
            Heads { kind, parts: vec![fire, moves], stream_size: 1 + n.below(40), prior: false }
        }
    };
    if n.flag() {
        heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    }
    heads
}

/// A policy in which no weight is 0 or 1, as some begin, and each is what a format can write.
fn policy(spec: &Spec, n: &mut Numbers, format: Format) -> Result<Policy> {
    let init = Policy::init(spec, 3)?;
    let mut weights = Weights::new();
    for (name, weight) in init.weights() {
        let drawn: Vec<f32> = to_vec(weight)?.into_iter().map(|v| v + 0.05 * n.normal()).collect();
        let mut numbers = drawn.clone();
        if format == Format::Bf16 {
            Precision::Bf16.round(&mut numbers, &drawn);
        }
        weights.insert(name.clone(), Weight::from(tensor(numbers, weight.dims())?));
    }
    Policy::from_weights(spec, weights)
}

/// One frame: some of its numbers are zeros, and sometimes nobody knows the previous action.
fn frame(spec: &Spec, n: &mut Numbers) -> Frames {
    let continuous = (0..spec.embedding.continuous_width())
        .map(|_| if n.below(3) == 0 { 0.0 } else { n.normal() })
        .collect();
    let ids = spec.embedding.id_slots().iter().map(|slot| n.below(slot.rows) as u32).collect();
    let none = n.below(4) == 0;
    let mut previous = vec![];
    for head in &spec.heads.parts {
        for _ in 0..head.kind.labels() {
            previous.push(if none { NONE } else { n.below(head.kind.classes()) as u16 });
        }
    }
    Frames { batch: 1, time: 1, continuous, ids, previous }
}

fn view(frames: &Frames) -> Frame<'_> {
    let Frames { continuous, ids, previous, .. } = frames;
    Frame { continuous, ids, previous }
}

fn assert_close(got: &[f32], want: &[f32], about: &str) {
    assert_eq!(got.len(), want.len(), "{about}");
    let largest = want.iter().fold(1.0f32, |most, v| most.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-5 * largest, "{about}[{i}]: {g} is not {w}");
    }
}

/// The state of an xLSTM in the units of `want`. Its stabilisers are whole 64ths: where the last bit of a sum
/// decides which, all that is divided by one is written differently, and means the same.
fn in_units_of(want: &[f32], config: &HeadsConfig, state: &[f32]) -> Vec<f32> {
    let mut state = state.to_vec();
    let mut change = |m: usize, parts: [Range<usize>; 2]| {
        let apart = state[m] - want[m];
        assert!(apart.abs() <= 1.0 / 32.0, "stabilisers {apart} apart");
        for part in parts {
            state[part].iter_mut().for_each(|v| *v *= apart.exp());
        }
        state[m] = want[m];
    };
    let (h, heads) = (config.hidden_size, config.num_heads);
    let (inner, mut at) = (config.expand_factor * h, 0);
    let size = inner / heads;
    for layer in 0..config.num_layers {
        if layer % 2 == 0 {
            let (first, last) = (at + 3 * inner, at + 3 * inner + (size + 1) * inner);
            for i in 0..heads {
                let c = first + i * (size + 1) * size;
                let n = c + size * size;
                change(last + i, [c..n, n..n + size]);
            }
            at = last + heads;
        } else {
            for [c, n, m] in (0..h).map(|i| [1, 2, 3].map(|part| at + part * h + i)) {
                change(m, [c..c + 1, n..n + 1]);
            }
            at += 4 * h;
        }
    }
    state
}

/// Steps a plan and core side by side, each with its own state.
struct Pair {
    policy: Policy,
    plan: Plan,
    scratch: Scratch,
    decision: Decision,
    packed: Vec<f32>,
    tensors: State,
    projection: Option<std::sync::Arc<Projection>>,
}

impl Pair {
    fn new(spec: &Spec, n: &mut Numbers, format: Format) -> Result<Self> {
        let policy = policy(spec, n, format)?;
        let plan = Plan::of(&policy, format)?.expect("a plan");
        let (decision, packed) = (plan.blank(), plan.zero_state().to_vec());
        let tensors = policy.zero_state(1)?;
        let projection = match n.below(3) {
            0 => {
                let width = policy.trunk_width();
                let vectors: Vec<f32> = (0..2 * width).map(|_| n.normal()).collect();
                Some(Projection::new(&vectors, width)?.into())
            }
            _ => None,
        };
        let scratch = Scratch::default();
        Ok(Pair { policy, plan, scratch, decision, packed, tensors, projection })
    }

    fn step(&mut self, frames: &Frames, draw: Draw<'_>, about: &str) -> Result<()> {
        let context = Context::default().projecting(self.projection.clone());
        let (want, tensors) = self.policy.act(frames, &self.tensors, draw, &context)?;
        let projection = self.projection.as_deref();
        let (rng, got) = (draw.rngs[0], &mut self.decision);
        let mut game = Game::new(view(frames), &mut self.packed, draw.sampling, rng, got);
        (game.given, game.projection) = (draw.given, projection);
        self.plan.step(std::slice::from_mut(&mut game), &mut self.scratch);
        game.outcome?;
        let got = &self.decision;
        self.tensors = tensors;
        assert_close(&got.logits, &want.logits, &format!("{about}: logits"));
        assert_close(&got.confidence, &want.confidence, &format!("{about}: confidence"));
        assert_eq!(got.choices, want.choices, "{about}");
        let want = self.tensors.to_vec()?;
        let state = match &self.policy.spec().backbone {
            Backbone::Xlstm(config) => in_units_of(&want, config, &self.packed),
            _ => self.packed.clone(),
        };
        assert_close(&state, &want, &format!("{about}: state"));
        Ok(())
    }
}

#[test]
fn many_steps_of_any_spec_are_those_of_core() -> Result<()> {
    for seed in 0..30 * BACKBONES.len() as u64 {
        let n = &mut Numbers::new(seed);
        let (format, spec) = (format(n), spec(seed, n));
        let mut pair = Pair::new(&spec, n, format)?;
        for t in 0..30 {
            let frames = frame(&spec, n);
            let sampling = Sampling {
                deterministic: t % 3 == 0,
                deterministic_buttons: t % 2 == 0,
                temperature: 0.7,
                ..Sampling::default()
            };
            let given = frame(&spec, n).previous;
            let given = (t % 5 == 1 && given.first() != Some(&NONE)).then_some(&given[..]);
            let rngs = [Rng::new(seed, "act", t)];
            let draw = Draw { sampling: &sampling, rngs: &rngs, given };
            pair.step(&frames, draw, &format!("spec {seed}, step {t}: {spec:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_game_has_the_same_bits_alone_and_in_company() -> Result<()> {
    for seed in 0..15 * BACKBONES.len() as u64 {
        let n = &mut Numbers::new(1000 + seed);
        let (format, spec) = (format(n), spec(seed, n));
        let plan = Plan::of(&policy(&spec, n, format)?, format)?.expect("a plan");
        let sampling = Sampling::default();
        let count = 2 + n.below(12);
        let mut together = vec![(plan.zero_state().to_vec(), plan.blank()); count];
        let mut alone = together.clone();
        let (mut scratch, mut own) = (Scratch::default(), Scratch::default());
        for t in 0..10 {
            let frames: Vec<Frames> = (0..count).map(|_| frame(&spec, n)).collect();
            let games = frames.iter().zip(&mut together).enumerate();
            let mut games: Vec<Game<'_>> = games
                .map(|(i, (frame, (state, decision)))| {
                    let rng = Rng::new(i as u64, "act", t);
                    Game::new(view(frame), state, &sampling, rng, decision)
                })
                .collect();
            plan.step(&mut games, &mut scratch);
            games.into_iter().try_for_each(|game| game.outcome)?;
            for (i, (frame, (state, decision))) in frames.iter().zip(&mut alone).enumerate() {
                let rng = Rng::new(i as u64, "act", t);
                let mut game = Game::new(view(frame), state, &sampling, rng, decision);
                plan.step(std::slice::from_mut(&mut game), &mut own);
                game.outcome?;
            }
            assert_eq!(together, alone, "spec {seed}, step {t}: {spec:?}");
        }
    }
    Ok(())
}

fn gru(embedding: Embedding) -> Spec {
    let config = RecurrentConfig {
        hidden_size: 8,
        num_layers: 2,
        layer_norm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let heads = Heads::controller(HeadsKind::Autoregressive);
    Spec { embedding, backbone: Backbone::Gru(config), heads }
}

#[test]
fn what_does_not_fit_is_named_and_what_is_not_finite_is_refused() -> Result<()> {
    let n = &mut Numbers::new(1);
    let spec = gru(Embedding::Melee(Melee::default()));
    let policy = policy(&spec, n, Format::F32)?;
    let plan = Plan::of(&policy, Format::F32)?.expect("a plan");
    let good = Frames { previous: vec![NONE; 13], ..frame(&spec, n) };
    let sampling = Sampling::default();
    let (mut scratch, mut decision) = (Scratch::default(), plan.blank());
    let (mut other, mut beside) = (plan.blank(), plan.zero_state().to_vec());
    // Beside a game that is well.
    let mut step = |frames: &Frames, state: &mut [f32], given: Option<&[u16]>| {
        let rng = || Rng::new(1, "act", 0);
        let mut games = [
            Game::new(view(frames), state, &sampling, rng(), &mut decision),
            Game::new(view(&good), &mut beside, &sampling, rng(), &mut other),
        ];
        games[0].given = given;
        plan.step(&mut games, &mut scratch);
        let [game, beside] = games;
        beside.outcome.expect("a decision beside it");
        game.outcome
    };
    let mut state = plan.zero_state().to_vec();
    step(&good, &mut state, None)?;
    let changed = |change: fn(&mut Frames)| {
        let mut frames = good.clone();
        change(&mut frames);
        frames
    };
    for (frames, said) in [
        (changed(|f| f.ids[0] = 9999), "action: 9999 is outside 0..399"),
        (changed(|f| f.previous[12] = 5), "previous shoulder: 5 is outside 0..4"),
        (changed(|f| f.continuous.truncate(3)), "continuous features: expected"),
        (changed(|f| f.ids.truncate(3)), "ids: expected"),
        (changed(|f| f.previous.truncate(3)), "previous labels: expected 13, got 3"),
    ] {
        let error = step(&frames, &mut state, None).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error} is not {said}");
    }
    assert!(step(&good, &mut state[1..], None).is_err());
    assert!(step(&good, &mut state, Some(&[2; 13])).is_err());
    let hot = changed(|f| f.continuous.fill(f32::NAN));
    let error = step(&hot, &mut state, None).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("logits")), (Kind::NonFinite, true));
    Ok(())
}

#[test]
fn weights_that_are_not_finite_have_no_plan() -> Result<()> {
    let n = &mut Numbers::new(1);
    let spec = gru(Embedding::Vector(3));
    let whole = policy(&spec, n, Format::F32)?;
    assert!(Plan::of(&whole, Format::F32)?.is_some());
    let mut weights = whole.weights().clone();
    // The largest f32 is one, but too large for a bf16.
    for (value, in_f32) in [(f32::INFINITY, false), (f32::MAX, true)] {
        let broken = tensor(vec![value; 24 * 8], (24, 8))?;
        weights.insert("backbone.weight_hh_l1".into(), Weight::from(broken));
        let policy = Policy::from_weights(&spec, weights.clone())?;
        assert_eq!(Plan::of(&policy, Format::F32)?.is_some(), in_f32);
        assert!(Plan::of(&policy, Format::Bf16)?.is_none());
    }
    Ok(())
}
