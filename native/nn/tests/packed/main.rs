//! Results of a plan against the policy that it was packed from.

use std::ops::Range;

use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::{Decision, NONE};
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::projection::Projection;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{
    AttentionConfig, Backbone, Embedding, Head, HeadKind, Heads, HeadsConfig, HeadsKind,
    MambaConfig, Melee, RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_ops::weights::{Weight, Weights};
use sconce_realtime::{Encoding, Format, Scratch};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Kind, Precision, Result};

mod backbones;
mod stored;

use backbones::{BACKBONES, FORMS, Numbers};

/// The first seed of [`FORMS`], so that the other backbones keep theirs.
const FORM_SEEDS: u64 = 1 << 32;

fn embedding(n: &mut Numbers) -> Embedding {
    match n.below(3) {
        0 => Embedding::vector(1 + n.below(90)),
        1 => Embedding::melee(Melee { action_embed_size: 1 + n.below(20), ..Melee::default() }),
        _ => Embedding::melee(Melee::packed()),
    }
}

/// Backbones take turns, so that each has its share of the seeds. In int8 they have a minimum width: a norm over a
/// few numbers may meet nearly equal ones and amplify a rounding error.
fn spec(seed: u64, n: &mut Numbers, format: Format) -> Spec {
    let embedding = embedding(n);
    let heads = heads(n, &embedding);
    loop {
        let all = if seed < FORM_SEEDS { BACKBONES } else { FORMS };
        let backbone = all[seed as usize % all.len()](n);
        let wide = backbone.output_size(embedding.width()) >= 16;
        if wide || !matches!(format, Format::Int8(_)) {
            return Spec { embedding, backbone, heads, critic: None };
        }
    }
}

/// This many seeds of each backbone.
fn seeds(each: u64) -> impl Iterator<Item = u64> {
    let forms = FORM_SEEDS..FORM_SEEDS + each * FORMS.len() as u64;
    (0..each * BACKBONES.len() as u64).chain(forms)
}

fn format(n: &mut Numbers) -> Format {
    [Format::F32, Format::Bf16, Format::Int8(1.0)][n.below(3)]
}

fn heads(n: &mut Numbers, embedding: &Embedding) -> Heads {
    let kind = if n.flag() { HeadsKind::Autoregressive } else { HeadsKind::Independent };
    let mut heads = match embedding.game().name() {
        "melee" => Heads { prior: n.flag(), ..Heads::controller(kind) },
        _ => {
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

/// Rounds a row to numbers that are exact in f32, bf16 and int8: multiples of a power of two up to 127, the largest
/// being 127.
fn to_int8(row: &mut [f32]) {
    let most = row.iter().fold(0.0f32, |most, w| most.max(w.abs()));
    let scale = (most / 127.0).log2().ceil().exp2();
    for w in row {
        let q = if w.abs() == most { 127f32.copysign(*w) } else { (*w / scale).round() };
        *w = q * scale;
    }
}

/// A policy without weights of exactly 0 or 1, as some start, and with weights that are exact in the format.
fn policy(spec: &Spec, n: &mut Numbers, format: Format) -> Result<Policy> {
    let init = Policy::init(spec, 3)?;
    let mut weights = Weights::new();
    for (name, weight) in init.weights() {
        let drawn: Vec<f32> = to_vec(weight)?.into_iter().map(|v| v + 0.05 * n.normal()).collect();
        let mut numbers = drawn.clone();
        match (format, weight.dims()) {
            (Format::F32 | Format::Stored, _) => {}
            (Format::Int8(_), [_, width]) => numbers.chunks_exact_mut(*width).for_each(to_int8),
            // Matrices that int8 stores in bf16 are included: those with few inputs, and those of each head.
            (Format::Bf16 | Format::Int8(_) | Format::Int4(_), _) => {
                Precision::Bf16.round(&mut numbers, &drawn)
            }
        }
        weights.insert(name.clone(), Weight::from(tensor(numbers, weight.dims())?));
    }
    Policy::from_weights(spec, weights)
}

/// One frame. Some of its numbers are zeros, and sometimes the previous action is unknown.
fn frame(spec: &Spec, n: &mut Numbers) -> Frames {
    let continuous = (0..spec.embedding.continuous_width())
        .map(|_| if n.below(3) == 0 { 0.0 } else { n.normal() })
        .collect();
    let ids = spec.embedding.id_slots().iter().map(|slot| n.below(slot.rows) as u32).collect();
    let mut previous = labels(spec, n);
    if n.below(4) == 0 {
        previous.fill(NONE);
    }
    Frames { batch: 1, time: 1, continuous, ids, previous }
}

fn labels(spec: &Spec, n: &mut Numbers) -> Vec<f32> {
    let kinds = spec.heads.parts.iter().map(|head| head.kind);
    let classes = kinds.flat_map(|kind| std::iter::repeat_n(kind.classes(), kind.labels()));
    classes.map(|classes| n.below(classes) as f32).collect()
}

fn view(frames: &Frames) -> Frame<'_> {
    let Frames { continuous, ids, previous, .. } = frames;
    Frame { continuous, ids, previous }
}

/// The tolerance is relative to the largest number.
fn assert_close(got: &[f32], want: &[f32], tolerance: f32, about: &str) {
    assert_eq!(got.len(), want.len(), "{about}");
    let largest = want.iter().fold(1.0f32, |most, v| most.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * largest, "{about}[{i}]: got {g}, want {w}");
    }
}

/// The state of an xLSTM in the units of `want`. Its stabilisers are multiples of 1/64. Where the last bit of a sum
/// decides between two of them, all numbers scaled by the stabiliser differ in form but not in meaning.
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

/// Steps a plan and the policy side by side, each with its own state.
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
        let tolerance = match self.plan.format() {
            Format::Int8(_) => 1e-3,
            _ => 1e-5,
        };
        let close = |got: &[f32], want: &[f32], what: &str| {
            assert_close(got, want, tolerance, &format!("{about}: {what}"));
        };
        close(&got.logits, &want.logits, "logits");
        close(&got.confidence, &want.confidence, "confidence");
        assert_eq!(got.choices, want.choices, "{about}");
        let want = self.tensors.to_vec()?;
        let state = match &self.policy.spec().backbone {
            Backbone::Xlstm(config) => in_units_of(&want, config, &self.packed),
            _ => self.packed.clone(),
        };
        close(&state, &want, "state");
        Ok(())
    }
}

#[test]
fn steps_of_a_plan_equal_those_of_the_policy() -> Result<()> {
    for seed in seeds(30) {
        let n = &mut Numbers::new(seed);
        let format = format(n);
        let spec = spec(seed, n, format);
        if let (Format::Int8(_), Backbone::Xlstm(_)) = (format, &spec.backbone) {
            // The norm of a head amplifies a tiny output. Even in f32, weights that are off by 3e-5 change some steps
            // by 1e-2.
            continue;
        }
        let mut pair = Pair::new(&spec, n, format)?;
        for t in 0..30 {
            let frames = frame(&spec, n);
            let sampling = Sampling {
                deterministic: t % 3 == 0,
                deterministic_buttons: t % 2 == 0,
                temperature: 0.7,
                ..Sampling::default()
            };
            let given = labels(&spec, n);
            // In int8 a draw near the border of two choices may give the other choice.
            let given = (t % 5 == 1 || matches!(format, Format::Int8(_))).then_some(&given[..]);
            let rngs = [Rng::new(seed, "act", t)];
            let draw = Draw { sampling: &sampling, rngs: &rngs, given, mask: None };
            pair.step(&frames, draw, &format!("spec {seed}, step {t}: {spec:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_game_has_the_same_bits_alone_and_beside_others() -> Result<()> {
    for seed in seeds(15) {
        let n = &mut Numbers::new(1000 + seed);
        let format = format(n);
        let spec = spec(seed, n, format);
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

#[test]
fn a_step_from_one_state_to_another_has_the_bits_of_a_step_in_place() -> Result<()> {
    for seed in 0..5 * BACKBONES.len() as u64 {
        let n = &mut Numbers::new(2000 + seed);
        let format = format(n);
        let spec = spec(seed, n, format);
        let plan = Plan::of(&policy(&spec, n, format)?, format)?.expect("a plan");
        let (sampling, mut scratch) = (Sampling::default(), Scratch::default());
        let (mut place, mut want) = (plan.zero_state().to_vec(), plan.blank());
        let (mut now, mut next, mut got) = (place.clone(), place.clone(), plan.blank());
        for t in 0..10 {
            let (frames, rng) = (frame(&spec, n), Rng::new(seed, "act", t));
            let mut game = Game::new(view(&frames), &mut place, &sampling, rng, &mut want);
            plan.step(std::slice::from_mut(&mut game), &mut scratch);
            game.outcome?;
            if t > 0 {
                plan.prepare(&mut next, &now, 1);
            }
            let mut game = Game::new(view(&frames), &mut next, &sampling, rng, &mut got);
            game.before = Some(&now);
            plan.step(std::slice::from_mut(&mut game), &mut scratch);
            game.outcome?;
            assert_eq!((&next, &got), (&place, &want), "spec {seed}, step {t}: {spec:?}");
            std::mem::swap(&mut now, &mut next);
        }
        let (frames, rng) = (frame(&spec, n), Rng::new(seed, "act", 0));
        let mut game = Game::new(view(&frames), &mut next, &sampling, rng, &mut got);
        game.before = now.get(1..).or(Some(&[0.0]));
        plan.step(std::slice::from_mut(&mut game), &mut scratch);
        assert_eq!(game.outcome.unwrap_err().kind(), Kind::Mismatch);
    }
    Ok(())
}

#[test]
fn a_number_of_a_state_that_is_not_finite_is_an_error_at_any_place() -> Result<()> {
    let n = &mut Numbers::new(1);
    for state_size in [3, 16, 21] {
        let config = MambaConfig {
            hidden_size: 20,
            num_layers: 2,
            state_size,
            expand_factor: 1,
            conv_size: 4,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let spec = Spec { backbone: Backbone::Mamba(config), ..gru(Embedding::vector(3)) };
        let plan = Plan::of(&policy(&spec, n, Format::F32)?, Format::F32)?.expect("a plan");
        let (sampling, frames) = (Sampling::default(), frame(&spec, n));
        let (mut scratch, mut decision) = (Scratch::default(), plan.blank());
        let mut step = |before: Option<&[f32]>, state: &mut [f32]| {
            let rng = Rng::new(1, "act", 0);
            let mut game = Game::new(view(&frames), state, &sampling, rng, &mut decision);
            game.before = before;
            plan.step(std::slice::from_mut(&mut game), &mut scratch);
            game.outcome
        };
        // The convolution's oldest inputs leave its state; s keeps every number.
        let layer = 20 * (3 + state_size);
        for (at, bad) in (60..layer)
            .chain(layer + 60..2 * layer)
            .zip([f32::NAN, f32::INFINITY].into_iter().cycle())
        {
            let mut state = plan.zero_state().to_vec();
            state[at] = bad;
            let apart = step(Some(&state), &mut plan.zero_state().to_vec()).unwrap_err();
            let error = step(None, &mut state).unwrap_err();
            assert_eq!((error.kind(), apart.kind()), (Kind::NonFinite, Kind::NonFinite), "{at}");
            assert_eq!(error.to_string(), apart.to_string(), "{at}");
        }
    }
    Ok(())
}

/// The logits of a few frames with given choices.
fn logits(policy: &Policy, format: Format, frames: &[(Frames, Vec<f32>)]) -> Result<Vec<f32>> {
    let plan = Plan::of(policy, format)?.expect("a plan");
    let (mut scratch, mut state) = (Scratch::default(), plan.zero_state().to_vec());
    let sampling = Sampling::default();
    let mut all = vec![];
    for (frame, labels) in frames {
        let mut decision = plan.blank();
        let rng = Rng::new(1, "act", 0);
        let mut game = Game::new(view(frame), &mut state, &sampling, rng, &mut decision);
        game.given = Some(labels);
        plan.step(std::slice::from_mut(&mut game), &mut scratch);
        game.outcome?;
        all.extend(decision.logits);
    }
    Ok(all)
}

#[test]
fn int8_is_near_f32_and_falls_back_to_bf16_beyond_its_bound() -> Result<()> {
    for seed in 0..4 * BACKBONES.len() as u64 {
        let n = &mut Numbers::new(2000 + seed);
        let spec = spec(seed, n, Format::Int8(1.0));
        let policy = policy(&spec, n, Format::F32)?;
        let frames: Vec<_> = (0..10).map(|_| (frame(&spec, n), labels(&spec, n))).collect();
        let made = |format| logits(&policy, format, &frames);
        let (f32, int8) = (made(Format::F32)?, made(Format::Int8(1.0))?);
        assert_close(&int8, &f32, 0.05, &format!("spec {seed}: {spec:?}"));
        assert_eq!(made(Format::Int8(0.0))?, made(Format::Bf16)?, "spec {seed}: {spec:?}");
    }
    Ok(())
}

#[test]
fn a_plan_lists_the_encoding_of_each_matrix() -> Result<()> {
    let n = &mut Numbers::new(5);
    let policy = policy(&gru(Embedding::vector(64)), n, Format::F32)?;
    let packed = |bound| Plan::of(&policy, Format::Int8(bound));
    let plan = packed(1.0)?.expect("a plan");
    let names: Vec<&str> = plan.matrices().iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names[..2], ["backbone.weight_ih_l0", "backbone.weight_hh_l0"]);
    let [input, state] = &plan.matrices()[..2] else { unreachable!("two matrices") };
    assert_eq!((input.outputs, input.inputs, state.inputs), (24, 64, 8));
    assert_eq!(state.encoding, Encoding::Bf16);
    assert!((0.0005..0.003).contains(&state.error), "{state:?}");
    assert!((0.0005..0.02).contains(&input.error), "{input:?}");
    if input.encoding == Encoding::Int8 {
        let below = packed(input.error * 0.999)?.expect("a plan");
        assert_eq!(below.matrices()[0].encoding, Encoding::Bf16);
    }
    for bound in [f64::NAN, -0.1, 1.1] {
        assert_eq!(packed(bound).map(|_| ()).unwrap_err().kind(), Kind::OutOfRange);
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
        ..Default::default()
    };
    let heads = Heads::controller(HeadsKind::Autoregressive);
    Spec { embedding, backbone: Backbone::Gru(config), heads, critic: None }
}

#[test]
fn mismatched_inputs_and_non_finite_numbers_are_errors_of_their_game() -> Result<()> {
    let n = &mut Numbers::new(1);
    let spec = gru(Embedding::melee(Melee::default()));
    let policy = policy(&spec, n, Format::F32)?;
    let plan = Plan::of(&policy, Format::F32)?.expect("a plan");
    let good = Frames { previous: vec![NONE; 13], ..frame(&spec, n) };
    let sampling = Sampling::default();
    let (mut scratch, mut decision) = (Scratch::default(), plan.blank());
    let (mut other, mut beside) = (plan.blank(), plan.zero_state().to_vec());
    // Beside a game without errors.
    let mut step = |frames: &Frames, state: &mut [f32], given: Option<&[f32]>| {
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
        (changed(|f| f.previous[12] = 5.0), "previous shoulder: 5 is outside 0..4"),
        (changed(|f| f.continuous.truncate(3)), "continuous features: expected"),
        (changed(|f| f.ids.truncate(3)), "ids: expected"),
        (changed(|f| f.previous.truncate(3)), "previous labels: expected 13, got 3"),
    ] {
        let error = step(&frames, &mut state, None).unwrap_err().to_string();
        assert!(error.starts_with(said), "got {error}, want {said}");
    }
    assert!(step(&good, &mut state[1..], None).is_err());
    assert!(step(&good, &mut state, Some(&[2.0; 13])).is_err());
    let hot = changed(|f| f.continuous.fill(f32::NAN));
    let error = step(&hot, &mut state, None).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("logits")), (Kind::NonFinite, true));
    Ok(())
}

#[test]
fn an_impossible_frame_count_in_a_cache_is_an_error_of_its_game_only() -> Result<()> {
    let n = &mut Numbers::new(1);
    let config = AttentionConfig {
        hidden_size: 8,
        num_layers: 1,
        num_heads: 2,
        head_dim: 4,
        window_size: 3,
        qk_layernorm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let spec = Spec { backbone: Backbone::SlidingWindow(config), ..gru(Embedding::vector(3)) };
    let plan = Plan::of(&policy(&spec, n, Format::F32)?, Format::F32)?.expect("a plan");
    let (sampling, frames) = (Sampling::default(), frame(&spec, n));
    let (mut scratch, mut decisions) = (Scratch::default(), [plan.blank(), plan.blank()]);
    for (seen, said) in [
        (5.0, None),
        (6.0, Some("frames seen by a cache: 6 is outside 0..5")),
        (-1.0, Some("frames seen by a cache: -1 is outside 0..5")),
        (0.5, Some("frames seen by a cache: 0.5 is outside 0..5")),
        (f32::NAN, Some("frames seen by a cache: NaN is outside 0..5")),
    ] {
        let mut states = [plan.zero_state().to_vec(), plan.zero_state().to_vec()];
        states[0][2 * 3 * 8] = seen;
        let each = states.iter_mut().zip(&mut decisions);
        let mut games: Vec<Game<'_>> = each
            .map(|(state, decision)| {
                Game::new(view(&frames), state, &sampling, Rng::new(1, "act", 0), decision)
            })
            .collect();
        plan.step(&mut games, &mut scratch);
        let outcomes: Vec<_> = games.into_iter().map(|game| game.outcome).collect();
        assert!(outcomes[1].is_ok(), "beside {seen}");
        let got = outcomes[0].as_ref().err().map(ToString::to_string);
        assert_eq!(got.as_deref(), said, "{seen}");
    }
    Ok(())
}

#[test]
fn non_finite_weights_have_no_plan() -> Result<()> {
    let n = &mut Numbers::new(1);
    let spec = gru(Embedding::vector(3));
    let whole = policy(&spec, n, Format::F32)?;
    assert!(Plan::of(&whole, Format::F32)?.is_some());
    let mut weights = whole.weights().clone();
    // The largest f32 is finite, but too large for bf16.
    for (value, in_f32) in [(f32::INFINITY, false), (f32::MAX, true)] {
        let broken = tensor(vec![value; 24 * 8], (24, 8))?;
        weights.insert("backbone.weight_hh_l1".into(), Weight::from(broken));
        let policy = Policy::from_weights(&spec, weights.clone())?;
        assert_eq!(Plan::of(&policy, Format::F32)?.is_some(), in_f32);
        assert!(Plan::of(&policy, Format::Bf16)?.is_none());
    }
    Ok(())
}
