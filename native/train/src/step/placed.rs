//! Learning from frames that are already on a card, without waiting for it.

use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Placed;
use sconce_tensor::tape;
use sconce_tensor::{Error, Result, Tensor, memory};

use super::learn::census;
use super::stepper::Stepper;

impl Stepper<'_> {
    /// Adds the gradient of frames on the card to the sum of the next update, as [`learn`](Self::learn) does with a
    /// share of 1. `gradient` receives the logits `[n, num_logits]` and returns the gradient of the loss at them. `draw`
    /// seeds dropout.
    ///
    /// # Errors
    /// Those of the passes and of `gradient`; `NoGradient` for a weight that no gradient reaches.
    pub fn learn_placed(
        &mut self,
        placed: &Placed,
        state: &State,
        draw: u64,
        gradient: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let context = Context::training(self.seed, draw).in_precision(self.precision).forgetting();
        let pass = || {
            let _tape = tape::record();
            let (logits, _) = self.policy.forward_placed(placed, None, state, &context)?;
            let logits = logits.contiguous()?;
            let gradient = gradient(&logits.detach())?;
            tape::backward(&logits, gradient)
        };
        let learned = memory::caught(pass).and_then(|store| census(&self.learning, &store));
        match learned {
            Ok(()) => self.learned += 1.0,
            Err(_) => self.forget(),
        }
        learned
    }

    /// Launches [`update`](Self::update) without waiting for it. [`update_there`](Self::update_there) has its norm. A
    /// norm that is not finite changes no weight.
    ///
    /// # Errors
    /// `NotFound` if there are no kernels for the update.
    pub fn launch_update(&mut self, learning_rate: f64) -> Result<()> {
        let given = self.learning.values().map(|weight| {
            let gradient = weight.gradient_tensor();
            let gradient = gradient.ok_or_else(|| Error::not_found("a gradient on the card"))?;
            Ok((&**weight, gradient.contiguous()?))
        });
        let given = given.collect::<Result<Vec<_>>>()?;
        let numbers = [self.learned, self.max_grad_norm, learning_rate];
        let launched = self.optimiser.begin_at_once(&given, numbers)?;
        drop(given);
        self.forget();
        match launched {
            true => Ok(()),
            false => Err(Error::not_found("kernels of an update")),
        }
    }

    /// The state of the last launched update on the card, f64 `[3]`: updates, norm of the mean gradient before the
    /// clip, updates that were refused because their norm was not finite.
    ///
    /// # Errors
    /// `NotFound` before the first one.
    pub fn update_there(&self) -> Result<&Tensor> {
        Ok(self.optimiser.known_at_once()?.state_there())
    }

    /// Sets the number of updates, after launched ones were made.
    ///
    /// # Errors
    /// `NotFound` before the first one.
    pub fn updated(&mut self, updates: u64) -> Result<()> {
        self.optimiser.updated_at_once(updates)
    }
}
