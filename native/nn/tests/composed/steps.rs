//! Games stepped together give the results of each game alone, also on a card where one is requested.

use candle_core::Device;
use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Layout, Melee};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;

use crate::backbones::stepping;
use crate::common::card;

const GAMES: usize = 5;
const FRAMES: usize = 6;
const TOLERANCE: f32 = 1e-4;

fn spec(backbone: &Backbone, layout: Layout, kind: HeadsKind) -> Spec {
    let melee = Melee { layout, ..Melee::packed() };
    let heads = Heads { prior: true, ..Heads::controller(kind) };
    Spec { embedding: Embedding::melee(melee), backbone: backbone.clone(), heads, critic: None }
}

/// The spec with a value head that reads a second backbone of the same config.
fn with_critic(mut spec: Spec) -> Spec {
    let kind = HeadKind::Value(1);
    spec.heads.parts.push(Head { name: "value".into(), kind, hidden_size: 32 });
    Spec { critic: Some(spec.backbone.clone()), ..spec }
}

/// Frame `t` of these games.
fn frames(spec: &Spec, games: &[usize], t: usize) -> Frames {
    let (width, ids, labels) =
        (spec.embedding.continuous_width(), spec.embedding.num_ids(), spec.heads.num_labels());
    let mut frames = Frames { batch: games.len(), time: 1, ..Frames::default() };
    for game in games {
        let rng = Rng::new(*game as u64, "frame", t as u64);
        frames.continuous.extend((0..width as u64).map(|i| rng.uniform(i)));
        frames.ids.extend((0..ids as u64).map(|i| (rng.uniform(1000 + i) * 5.0) as u32));
        frames.previous.extend((0..labels).map(|i| ((t + game + i) % 2) as f32));
    }
    frames
}

/// Drawing options of a game. One game has another temperature, and one has a given action.
fn sampling(game: usize) -> Sampling {
    Sampling { temperature: if game == 2 { 0.5 } else { 1.0 }, ..Sampling::default() }
}

fn given(spec: &Spec, game: usize) -> Option<Vec<f32>> {
    (game == 3).then(|| (0..spec.heads.num_labels()).map(|i| (i % 2) as f32).collect())
}

/// Logits and choices of each frame, and the final state.
type Played = (Vec<f32>, Vec<f32>, Vec<f32>);

/// Each game stepped alone by `act`.
fn alone(policy: &Policy) -> Vec<Played> {
    let game = |game| {
        let (mut state, mut all, mut choices) = (policy.zero_state(1).unwrap(), vec![], vec![]);
        let (sampling, given) = (sampling(game), given(policy.spec(), game));
        for t in 0..FRAMES {
            let rngs = [Rng::new(game as u64, "act", t as u64)];
            let draw =
                Draw { sampling: &sampling, rngs: &rngs, given: given.as_deref(), mask: None };
            let frame = frames(policy.spec(), &[game], t);
            let (decision, next) = policy.act(&frame, &state, draw, &Context::default()).unwrap();
            all.extend(decision.logits);
            choices.extend(decision.choices);
            state = next;
        }
        (all, choices, state.to_vec().unwrap())
    };
    (0..GAMES).map(game).collect()
}

/// The same games stepped together in groups, whose size changes from frame to frame.
fn together(policy: &Policy) -> Vec<Played> {
    let mut states: Vec<State> = (0..GAMES).map(|_| policy.zero_state(1).unwrap()).collect();
    let (mut all, mut choices) = (vec![vec![]; GAMES], vec![vec![]; GAMES]);
    let samplings: Vec<Sampling> = (0..GAMES).map(sampling).collect();
    let given: Vec<_> = (0..GAMES).map(|game| given(policy.spec(), game)).collect();
    for t in 0..FRAMES {
        let cut = t % GAMES;
        for games in [0..cut, cut..GAMES].into_iter().filter(|games| !games.is_empty()) {
            let games: Vec<usize> = games.collect();
            let own: Vec<&State> = games.iter().map(|game| &states[*game]).collect();
            let rng = |game: &usize| [Rng::new(*game as u64, "act", t as u64)];
            let rngs: Vec<[Rng; 1]> = games.iter().map(rng).collect();
            let draws: Vec<Draw> = std::iter::zip(&games, &rngs)
                .map(|(&game, rngs)| Draw {
                    sampling: &samplings[game],
                    rngs,
                    given: given[game].as_deref(),
                    mask: None,
                })
                .collect();
            let frames = frames(policy.spec(), &games, t);
            let stepped = policy.step_games(&frames, &own, &draws).unwrap();
            for (game, stepped) in games.into_iter().zip(stepped) {
                let (decision, state) = stepped.unwrap();
                all[game].extend(decision.logits);
                choices[game].extend(decision.choices);
                states[game] = state;
            }
        }
    }
    let states = states.into_iter().map(|state| state.to_vec().unwrap());
    all.into_iter().zip(choices).zip(states).map(|((all, own), state)| (all, own, state)).collect()
}

fn assert_near(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-6f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let near = (got - want).abs() <= TOLERANCE * scale;
        assert!(near, "{what}, number {i}: got {got}, want {want} (scale {scale})");
    }
}

#[test]
fn games_stepped_together_equal_each_game_alone() {
    let kinds = [HeadsKind::Independent, HeadsKind::Autoregressive];
    for config in &stepping() {
        let layouts = [Layout::Packed, Layout::Learned].into_iter().zip(kinds);
        let some = if config.name() == "gru" { &kinds[..] } else { &[] };
        let all = layouts.chain(some.iter().map(|kind| (Layout::Packed, *kind)));
        let plain = all.map(|(layout, kind)| (spec(config, layout, kind), kind));
        let critics = some.iter().map(|kind| (spec(config, Layout::Packed, *kind), *kind));
        let critics = critics.map(|(spec, kind)| (with_critic(spec), kind));
        for (spec, kind) in plain.chain(critics) {
            let policy = Policy::init(&spec, 3).unwrap();
            // The encoders of choices start as zero.
            for (name, weight) in policy.weights().iter().filter(|(n, _)| n.contains("encode")) {
                let rng = Rng::new(3, name, 0);
                let fill = |v: &mut [f32]| {
                    v.iter_mut().enumerate().for_each(|(i, v)| *v = 0.5 * rng.normal(i as u64));
                };
                sconce_tensor::tensor::update(weight, fill).unwrap();
            }
            let want = alone(&policy);
            for device in std::iter::once(Device::Cpu).chain(card()) {
                let got = together(&policy.copy_on(&device).unwrap());
                for (game, (got, want)) in got.iter().zip(&want).enumerate() {
                    let place = device.location();
                    let name = config.name();
                    let what = |of| format!("{of} of game {game}, {name}, {kind:?} on {place:?}");
                    assert_eq!(got.1, want.1, "{}", what("choices"));
                    assert_near(&what("logits"), &got.0, &want.0);
                    assert_near(&what("state"), &got.2, &want.2);
                }
                #[cfg(feature = "cuda")]
                assert_eq!(sconce_tensor::device::refusals(), [""; 0], "{}", config.name());
            }
        }
    }
}

#[test]
fn a_non_finite_state_is_an_error_of_its_game_only() {
    let gru = stepping().into_iter().find(|config| config.name() == "gru").unwrap();
    let policy = Policy::init(&spec(&gru, Layout::Packed, HeadsKind::Independent), 3).unwrap();
    for device in std::iter::once(Device::Cpu).chain(card()) {
        let policy = policy.copy_on(&device).unwrap();
        let good = policy.zero_state(1).unwrap();
        let mut numbers = good.to_vec().unwrap();
        numbers[0] = f32::NAN;
        let bad = good.with_values(&numbers).unwrap();
        let frames = frames(policy.spec(), &[0, 1, 2], 0);
        let (sampling, rngs) = (Sampling::default(), [Rng::new(0, "act", 0)]);
        let draws = [Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None }; 3];
        let stepped = policy.step_games(&frames, &[&good, &bad, &good], &draws).unwrap();
        let finite: Vec<bool> = stepped.iter().map(|one| one.is_ok()).collect();
        assert_eq!(finite, [true, false, true]);
        let wrong = policy.step_games(&frames, &[&good, &bad], &draws[..2]).map(|_| ());
        assert!(matches!(wrong, Err(sconce_tensor::Error::Mismatch { .. })));
    }
}
