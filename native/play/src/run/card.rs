//! Runs on a card: their updates, and the options and policies that they refuse.

use std::time::Instant;

use sconce_nn::Policy;
use sconce_nn::spec::Embedding;
use sconce_tensor::{Error, Result};

use super::{Played, Run, Task};
use crate::options::PpoOptions;

/// Refuses a run on a card with something that only a CPU does.
///
/// # Errors
/// `Unavailable` with its name.
pub(super) fn check(task: Task<'_>, options: &PpoOptions, policy: &Policy) -> Result<()> {
    let (rollout, embedding) = (&options.rollout, &policy.spec().embedding);
    let only_on_a_cpu = [
        ("live games", task.inbox.is_some()),
        ("an environment of a module", task.host.is_some()),
        ("opponents and past_selves", options.has_league()),
        ("teacher", options.weights.teacher.is_some()),
        ("overlap", rollout.overlap),
        ("normalise_observations", rollout.normalise_observations),
        ("normalise_rewards", rollout.normalise_rewards),
        ("quantise", options.optimiser.quantise.is_some()),
        ("prune", options.optimiser.prune.is_some()),
        ("a policy with memory", !policy.zero_state(1)?.0.is_empty()),
        ("an embedding", *embedding != Embedding::vector(embedding.raw_width())),
    ];
    match only_on_a_cpu.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => Err(Error::Unavailable {
            what: format!("{name} with device {}", options.machine.device),
            reason: "learning from play does this on a CPU only (to mend it: device: :cpu)".into(),
        }),
    }
}

impl Run<'_> {
    /// [`update`](Self::update) with environments, policy and update on a card, which only figures leave.
    pub(super) fn update_on_card(&mut self, begun: Instant) -> Result<()> {
        let (policy, update, done) = (self.policy()?, self.progress.updates, self.done());
        let segment = self.player.play_on_card(&policy, self.options.discounts())?;
        let playing = begun.elapsed().as_secs_f64();
        let updated = self.learner.learn_on_card(&segment, update, done)?;
        let played = Played::of(&mut self.player, vec![], policy, update)?;
        self.count(updated, &played, [playing, begun.elapsed().as_secs_f64()], done);
        self.keep_best(&played.policy, played.update)
    }
}

#[cfg(test)]
mod tests {
    use sconce_nn::Spec;
    use sconce_nn::spec::{Backbone, Head, HeadKind, Heads, HeadsKind};
    use serde_json::{Value, json};

    use super::*;

    fn spec(backbone: Value) -> Spec {
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
        let parts =
            vec![head("action", HeadKind::Categorical(2)), head("value", HeadKind::Value(1))];
        let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false };
        let backbone: Backbone = serde_json::from_value(backbone).unwrap();
        Spec { embedding: Embedding::vector(4), backbone, heads, critic: None }
    }

    #[test]
    fn what_only_a_cpu_does_is_refused_by_name() {
        let mlp = json!({"mlp": {
            "hidden_sizes": [4], "layer_norm": false, "residual": false, "dropout": 0.0,
            "input_dropout": 0.0,
        }});
        let gru = json!({"gru": {
            "hidden_size": 4, "num_layers": 1, "layer_norm": false, "input_norm": false,
            "dropout": 0.0, "input_dropout": 0.0,
        }});
        for (backbone, given, name) in [
            (&mlp, json!({}), None),
            (&gru, json!({}), Some("memory")),
            (&mlp, json!({"normalise_observations": true}), Some("normalise_observations")),
            (&mlp, json!({"normalise_rewards": true}), Some("normalise_rewards")),
            (&mlp, json!({"teacher": "a"}), Some("teacher")),
            (&mlp, json!({"quantise": "int8"}), Some("quantise")),
            (&mlp, json!({"prune": "two_four"}), Some("prune")),
            (&mlp, json!({"past_selves": 3}), Some("past_selves")),
        ] {
            let spec = spec(backbone.clone());
            let policy = Policy::init(&spec, 1).unwrap();
            let mut all = given.clone();
            all["device"] = json!("cuda:3");
            let options: PpoOptions = serde_json::from_value(all).unwrap();
            let task = Task { spec: &spec, env: "duel", host: None, inbox: None, resume: false };
            let told = check(task, &options, &policy).err().map(|error| error.to_string());
            match (name, told) {
                (None, told) => assert_eq!(told, None),
                (Some(name), Some(told)) => {
                    assert!(told.contains(name) && told.contains("cuda:3"), "{told}");
                }
                (Some(name), None) => panic!("{name} is not refused"),
            }
        }
    }
}
