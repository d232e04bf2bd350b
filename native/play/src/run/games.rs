//! Live games in place of environments: which options go with them, and their description.

use sconce_env::EnvSpec;
use sconce_nn::Policy;
use sconce_tensor::{Error, Result};

use super::Task;
use crate::options::{PpoOptions, RolloutOptions, WorldOptions};

/// Refuses options that would have no effect: those of environments in a run with live games, and the other way round.
///
/// # Errors
/// `Mismatch` with the name of the option.
pub(super) fn check(options: &PpoOptions, live: bool) -> Result<()> {
    let (world, rollout) = (&options.world, &options.rollout);
    let (plain, usual) = (WorldOptions::default(), RolloutOptions::default());
    let of_environments = [
        ("time_limit", world.time_limit.is_some()),
        ("action_repeat", world.action_repeat != plain.action_repeat),
        ("frame_stack", world.frame_stack != plain.frame_stack),
        ("opponent", world.opponent.is_some()),
        ("reward_weights", world.reward_weights != plain.reward_weights),
        ("normalise_observations", rollout.normalise_observations),
        ("normalise_rewards", rollout.normalise_rewards),
        ("teacher", options.weights.teacher.is_some()),
        ("opponents", options.has_league()),
        // Live games always go on while the policy learns.
        ("overlap", rollout.overlap),
    ];
    let of_games = [
        ("off_policy", rollout.off_policy != usual.off_policy),
        ("max_lag", rollout.max_lag != usual.max_lag),
    ];
    let given =
        |all: &[(&'static str, bool)]| all.iter().find(|(_, given)| *given).map(|own| own.0);
    let (environments, games) = ("a run with environments", "live games");
    match if live { given(&of_environments) } else { given(&of_games) } {
        None => Ok(()),
        Some(name) if live => Err(Error::mismatch(name, environments, games)),
        Some(name) => Err(Error::mismatch(name, games, environments)),
    }
}

/// The description of live games.
///
/// # Errors
/// `Mismatch` for games of another Spec.
pub(super) fn live_spec(task: Task<'_>, policy: &Policy) -> Result<EnvSpec> {
    if let Some(inbox) = task.inbox.filter(|inbox| inbox.spec() != task.spec) {
        let (expected, got) = (format!("{:?}", task.spec), format!("{:?}", inbox.spec()));
        return Err(Error::mismatch("Spec of the live games", expected, got));
    }
    Ok(EnvSpec {
        name: task.env.to_string().into(),
        observation_size: policy.spec().embedding.raw_width(),
        inputs: vec![],
        seats: 1,
        time_limit: u32::MAX,
        reward_terms: vec![],
        players: vec![],
        solved: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_without_effect_are_refused_by_name() {
        let of = |given| serde_json::from_value::<PpoOptions>(given).unwrap();
        for live in [false, true] {
            check(&of(json!({"clip": 0.1, "steps": 9})), live).unwrap();
        }
        for (live, name, value) in [
            (true, "time_limit", json!(5)),
            (true, "action_repeat", json!(2)),
            (true, "frame_stack", json!(2)),
            (true, "opponent", json!("mixer")),
            (true, "reward_weights", json!([["touch", 2.0]])),
            (true, "normalise_observations", json!(true)),
            (true, "normalise_rewards", json!(true)),
            (true, "teacher", json!("a")),
            (true, "opponents", json!(["mixer"])),
            (true, "overlap", json!(true)),
            (false, "off_policy", json!("v_trace")),
            (false, "max_lag", json!(3)),
        ] {
            let options = of(json!({name: value}));
            let error = check(&options, live).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            check(&options, !live).unwrap();
        }
        assert!(of(json!({"rho": 2.0})).validate().unwrap_err().to_string().contains("rho"));
    }
}
