//! Live games in place of environments: which options go with them, and their description.

use std::sync::atomic::Ordering;

use sconce_data::Sink;
use sconce_env::EnvSpec;
use sconce_nn::Policy;
use sconce_nn::spec::Embedding;
use sconce_tensor::{Error, Result};

use super::{Run, Task};
use crate::live::{Inbox, Live, Wanted};
use crate::options::{PpoOptions, RolloutOptions, WorldOptions};
use crate::segment::Segment;
use crate::statistics::Statistics;

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

/// The description of live games. Their policies may normalise frames by other statistics, because frames are recorded
/// as they are.
///
/// # Errors
/// `Mismatch` for games of another Spec, and for frames that cannot be normalised.
pub(super) fn live_spec(task: Task<'_>, inbox: &Inbox, options: &PpoOptions) -> Result<EnvSpec> {
    if !inbox.spec().is_alike(task.spec) {
        let (expected, got) = (format!("{:?}", task.spec), format!("{:?}", inbox.spec()));
        return Err(Error::mismatch("Spec of the live games", expected, got));
    }
    let embedding = &task.spec.embedding;
    let size = embedding.raw_width();
    if options.rollout.normalise_observations && *embedding != Embedding::vector(size) {
        let expected = "a policy whose frames are plain vectors";
        return Err(Error::mismatch("normalise_observations", expected, format!("{embedding:?}")));
    }
    Ok(EnvSpec {
        name: task.env.to_string().into(),
        observation_size: size,
        observation_shape: vec![size],
        inputs: vec![],
        seats: 1,
        time_limit: u32::MAX,
        reward_terms: inbox.terms().iter().map(|name| name.clone().into()).collect(),
        players: vec![],
        solved: None,
        mask_size: 0,
    })
}

impl Run<'_> {
    /// Observes live games before the first update of a run that normalises their observations: otherwise the first
    /// update would see observations on another scale than all later ones.
    pub(super) fn look(&mut self) -> Result<()> {
        if self.live.is_none() || !self.statistics.are_missing() {
            return Ok(());
        }
        let policy = self.policy()?;
        self.with_live(&policy, Live::look)
    }

    /// Waits for the segments of live games for an update.
    pub(super) fn play_live(&mut self, policy: &Policy) -> Result<Vec<Segment>> {
        self.with_live(policy, Live::play)
    }

    fn with_live<T>(
        &mut self,
        policy: &Policy,
        work: impl Fn(&mut Live, Wanted<'_>, &mut Statistics) -> Result<T>,
    ) -> Result<T> {
        let (cancel, clock, budget) = (self.cancel, self.clock, self.budget());
        let over = || cancel.load(Ordering::Relaxed) || clock.seconds() >= budget;
        let decisions = self.options.update_steps(self.player.rows()) as usize;
        let wanted = Wanted { policy, update: self.progress.updates, decisions, over: &over };
        let live = self.live.as_mut().ok_or_else(|| Error::not_found("live games"))?;
        work(live, wanted, &mut self.statistics)
    }
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
