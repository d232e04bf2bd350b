//! Steps of many games at once are those of each game alone, also on a card where it is asked for.

use crate::common::backbones::configs;
use crate::common::card;
use candle_core::Device;
use sconce_core::backbone::{Context, State};
use sconce_core::policy::Frames;
use sconce_core::rng::Rng;
use sconce_core::sampling::{Draw, Sampling};
use sconce_core::spec::{Backbone, Embedding, Heads, HeadsKind, Layout, Melee};
use sconce_core::{Policy, Spec};

const GAMES: usize = 5;
const FRAMES: usize = 6;
const TOLERANCE: f32 = 1e-4;

fn spec(backbone: &Backbone, layout: Layout) -> Spec {
    let melee = Melee { layout, ..Melee::packed() };
    let heads = Heads { prior: true, ..Heads::controller(HeadsKind::Independent) };
    Spec { embedding: Embedding::Melee(melee), backbone: backbone.clone(), heads }
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
        frames.previous.extend((0..labels).map(|i| ((t + game + i) % 2) as u16));
    }
    frames
}

/// Logits of each frame and the state after all, of each game stepped alone by `act`.
fn alone(policy: &Policy) -> Vec<(Vec<f32>, Vec<f32>)> {
    let game = |game| {
        let (mut state, mut all) = (policy.zero_state(1).unwrap(), vec![]);
        for t in 0..FRAMES {
            let rngs = [Rng::new(0, "act", t as u64)];
            let draw = Draw { sampling: &Sampling::default(), rngs: &rngs, given: None };
            let frame = frames(policy.spec(), &[game], t);
            let (decision, next) = policy.act(&frame, &state, draw, &Context::default()).unwrap();
            all.extend(decision.logits);
            state = next;
        }
        (all, state.to_vec().unwrap())
    };
    (0..GAMES).map(game).collect()
}

/// The same in company, whose size changes from frame to frame.
fn together(policy: &Policy) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut states: Vec<State> = (0..GAMES).map(|_| policy.zero_state(1).unwrap()).collect();
    let mut all = vec![vec![]; GAMES];
    for t in 0..FRAMES {
        let cut = t % GAMES;
        for games in [0..cut, cut..GAMES].into_iter().filter(|games| !games.is_empty()) {
            let games: Vec<usize> = games.collect();
            let own: Vec<&State> = games.iter().map(|game| &states[*game]).collect();
            let stepped = policy.step_games(&frames(policy.spec(), &games, t), &own).unwrap();
            for (game, stepped) in games.into_iter().zip(stepped) {
                let (logits, state) = stepped.unwrap();
                all[game].extend(logits);
                states[game] = state;
            }
        }
    }
    all.into_iter().zip(states).map(|(all, state)| (all, state.to_vec().unwrap())).collect()
}

fn assert_near(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-6f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let near = (got - want).abs() <= TOLERANCE * scale;
        assert!(near, "{what}, number {i}: {got} is not {want} at a scale of {scale}");
    }
}

#[test]
fn games_that_are_stepped_together_come_out_as_each_alone() {
    for config in &configs() {
        for layout in [Layout::Packed, Layout::Learned] {
            let policy = Policy::init(&spec(config, layout), 3).unwrap();
            let want = alone(&policy);
            for device in std::iter::once(Device::Cpu).chain(card()) {
                let got = together(&policy.copy_on(&device).unwrap());
                for (game, (got, want)) in got.iter().zip(&want).enumerate() {
                    let what = |of| {
                        let name = config.name();
                        format!(
                            "{of} of game {game}, {name}, {layout:?} on {:?}",
                            device.location()
                        )
                    };
                    assert_near(&what("logits"), &got.0, &want.0);
                    assert_near(&what("state"), &got.1, &want.1);
                }
                #[cfg(feature = "cuda")]
                assert_eq!(sconce_core::device::refusals(), [""; 0], "{}", config.name());
            }
        }
    }
}

#[test]
fn a_game_that_spoils_its_state_is_told_and_no_other() {
    let gru = configs().into_iter().find(|config| config.name() == "gru").unwrap();
    let policy = Policy::init(&spec(&gru, Layout::Packed), 3).unwrap();
    for device in std::iter::once(Device::Cpu).chain(card()) {
        let policy = policy.copy_on(&device).unwrap();
        let good = policy.zero_state(1).unwrap();
        let mut numbers = good.to_vec().unwrap();
        numbers[0] = f32::NAN;
        let bad = good.with_values(&numbers).unwrap();
        let frames = frames(policy.spec(), &[0, 1, 2], 0);
        let stepped = policy.step_games(&frames, &[&good, &bad, &good]).unwrap();
        let finite: Vec<bool> = stepped.iter().map(|one| one.is_ok()).collect();
        assert_eq!(finite, [true, false, true]);
        let wrong = policy.step_games(&frames, &[&good, &bad]).map(|_| ());
        assert!(matches!(wrong, Err(sconce_core::Error::Mismatch { .. })));
    }
}
