//! A policy that learns, with its optimiser and its objectives.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_data::Batch;
use sconce_nn::Policy;
use sconce_nn::backbone::State;
use sconce_nn::checkpoint::{self, Snapshot};
use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::{Precision, Result, Tensor, tensor};
use serde_json::Value;

use super::metrics::{Learned, StepMetrics};
use super::recording::{Pending, Recording};
use super::task::Task;
use crate::loss_scale::LossScale;
use crate::objective::Objectives;
use crate::objective::imitation::{Imitation, LossOptions};
use crate::optimiser::{Optimiser, OptimiserConfig, Parameter};
use crate::stop::{NEVER, go_on};
use crate::unroll::Unroll;
use crate::weights::{Masters, STEPS, WHOLE, WeightTransforms, exponentials};

/// A weight to play before any transform, and the learned steps of its grid.
struct Played {
    weight: Tensor,
    steps: Option<Vec<f32>>,
}

/// A policy that learns, its optimiser and its objectives.
pub struct Stepper<'s> {
    pub(super) policy: Policy,
    /// The weights that learn.
    pub(super) learning: Weights,
    /// The parameters of the optimiser: the weights that learn, then the learned steps of their grids.
    pub(super) parameters: Vec<(String, Weight)>,
    /// Transforms of weights before forward passes.
    pub(super) transforms: Arc<WeightTransforms>,
    /// Transformed weights in their learned form.
    pub(super) masters: Masters,
    pub(super) optimiser: Optimiser,
    pub(super) objectives: Objectives,
    pub(super) max_grad_norm: f64,
    /// Seed of dropout.
    pub(super) seed: u64,
    pub(super) unroll: Unroll,
    /// Precision of the products of forward and backward passes.
    pub(super) precision: Precision,
    /// Scale of the loss; set only in f16, whose range gradients can exceed.
    pub(super) loss_scale: Option<LossScale>,
    /// Sum of frame weights accumulated since the last update.
    pub(super) learned: f64,
    /// Once this flag is set, a step ends before its next part.
    pub(super) cancel: &'s AtomicBool,
    pub(super) recorded: Option<Recording>,
    pub(super) pending: Vec<Pending>,
}

impl<'s> Stepper<'s> {
    /// Makes a stepper that trains a copy of `policy`.
    pub fn new(
        policy: &Policy,
        objectives: Objectives,
        transforms: WeightTransforms,
        config: OptimiserConfig,
        max_grad_norm: f64,
        seed: u64,
    ) -> Result<Self> {
        let transforms = Arc::new(transforms);
        let of = transforms.clone();
        let rounding = rounding(policy, &transforms)?;
        let policy = rounding
            .as_ref()
            .unwrap_or(policy)
            .trainable(Some(Rc::new(move |name: &str| !of.learns(name))))?;
        // Constants, such as a stored initial state, do not learn either.
        let learns =
            |(name, weight): &(&String, &Weight)| transforms.learns(name) && weight.is_variable();
        let learning = policy.weights().iter().filter(learns);
        let learning: Weights = learning.map(|(name, w)| (name.clone(), w.clone())).collect();
        let masters = Masters::new(&learning, &transforms)?;
        let parameters: Vec<_> = learning.clone().into_iter().chain(masters.steps()).collect();
        let parameter = |(name, weight): &(String, Weight)| Parameter::new(name, weight.dims());
        let optimiser = Optimiser::new(config, parameters.iter().map(parameter).collect());
        Ok(Stepper {
            policy,
            learning,
            parameters,
            transforms,
            masters,
            optimiser,
            objectives,
            max_grad_norm,
            seed,
            unroll: Unroll::default(),
            precision: Precision::F32,
            loss_scale: None,
            learned: 0.0,
            cancel: &NEVER,
            recorded: None,
            pending: vec![],
        })
    }

    /// Makes a stepper that trains a copy of `policy` by imitation alone.
    pub fn imitating(
        policy: &Policy,
        loss: &LossOptions,
        config: OptimiserConfig,
        max_grad_norm: f64,
        seed: u64,
    ) -> Result<Self> {
        let imitation = Imitation::new(&policy.spec().heads, loss)?;
        let objectives = Objectives::new(vec![Box::new(imitation)]);
        let transforms = WeightTransforms::default();
        Self::new(policy, objectives, transforms, config, max_grad_norm, seed)
    }

    /// Computes products in this precision. Weights, loss, norms and moments are f32 in every precision. In f16 the
    /// loss is scaled.
    pub fn in_precision(self, precision: Precision) -> Self {
        let loss_scale = (precision == Precision::F16).then(LossScale::default);
        Stepper { precision, loss_scale, ..self }
    }

    /// Restores the loss scale of an earlier run in the same precision.
    pub fn load_loss_scale(&mut self, scale: Option<LossScale>) {
        self.loss_scale = scale;
    }

    /// The loss scale; `None` except in f16.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.loss_scale
    }

    /// Ends a step with `Cancelled` before its next part (a micro-batch, a chunk of frames) once `cancel` is set. A
    /// cancelled step changes no weight; [`forget`](Self::forget) drops the gradients of its earlier parts.
    pub fn stopped_by(self, cancel: &'s AtomicBool) -> Self {
        Stepper { cancel, ..self }
    }

    /// Checks for cancellation.
    ///
    /// # Errors
    /// `Cancelled` once the step is cancelled.
    pub(crate) fn go_on(&self) -> Result<()> {
        go_on(self.cancel)
    }

    /// Computes batches in the parts that `unroll` defines.
    pub fn unrolling(self, unroll: Unroll) -> Self {
        Stepper { unroll, ..self }
    }

    /// Computes `windows` windows of a batch together from now on.
    pub fn set_micro_batch(&mut self, windows: usize) {
        self.unroll.micro_batch = Some(windows);
    }

    /// Keeps an average of the weights, see [`Optimiser::averaging`].
    pub fn averaging(self, decay: Option<f64>) -> Self {
        Stepper { optimiser: self.optimiser.averaging(decay), ..self }
    }

    /// Loads the moments, averages and learned steps of an earlier run after `updates` updates.
    pub fn load_moments(&mut self, updates: u64, moments: &checkpoint::Optimiser) -> Result<()> {
        self.optimiser.load_state(updates, |name| moments.get(name).map(Vec::as_slice))?;
        self.masters.load(moments, &self.learning, &self.transforms)
    }

    /// Moments, averages and learned steps, for [`load_moments`](Self::load_moments).
    pub fn moments(&self) -> Result<checkpoint::Optimiser> {
        let moments = self.optimiser.state()?.into_iter();
        let mut all = moments.map(|(name, own)| (name, own.into_owned())).collect();
        self.masters.save(&mut all)?;
        Ok(all)
    }

    /// Windows of a batch that are computed together; `None` means all.
    pub fn micro_batch(&self) -> Option<usize> {
        self.unroll.micro_batch
    }

    /// The policy that learns.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Number of learned steps of all grids.
    pub(crate) fn num_steps(&self) -> usize {
        let steps = self.parameters.iter().skip(self.learning.len());
        steps.map(|(_, steps)| steps.elem_count()).sum()
    }

    /// The optimiser.
    pub fn optimiser(&self) -> &Optimiser {
        &self.optimiser
    }

    /// The current policy, without autograd.
    pub fn frozen(&self) -> Result<Policy> {
        Policy::from_weights(self.policy.spec(), self.policy.weights().clone())
    }

    /// The policy to resume from: transformed weights are in their learned form.
    pub fn snapshot(&self, notes: Value, moments: checkpoint::Optimiser) -> Result<Snapshot> {
        if self.masters.is_empty() {
            return self.policy.snapshot(notes, moments);
        }
        Policy::from_weights(self.policy.spec(), self.learned_weights())?.snapshot(notes, moments)
    }

    /// The weights that learn.
    pub(crate) fn learning(&self) -> &Weights {
        &self.learning
    }

    /// Sets the share of the transforms that [anneal](crate::weights::WeightTransform::anneals) in the weights that
    /// forward passes read. It is 1 at first.
    ///
    /// Products that round their inputs do so with a share above 0.
    pub fn anneal(&mut self, share: f64) -> Result<()> {
        for inputs in self.learning.values().filter_map(|weight| weight.inputs()) {
            inputs.turn(share > 0.0);
        }
        self.masters.anneal(&self.learning, &self.transforms, share)
    }

    /// The weights of the policy; transformed weights are in their learned form.
    pub fn learned_weights(&self) -> Weights {
        self.masters.over(self.policy.weights())
    }

    /// The policy to play and to validate. Its weights are the averages, if these are kept, and all transforms apply as a
    /// whole: weights that become integers have codes. It has no autograd, which would keep the graph of a whole game
    /// although there is no backward pass.
    pub fn averaged(&self) -> Result<Policy> {
        let mut weights = self.policy.weights().clone();
        for (name, Played { weight, steps }) in self.to_play()? {
            let steps = steps.as_deref();
            let played = match self.transforms.coded(&name, &weight, steps)? {
                Some(codes) => self.transforms.rounding(&name, Weight::coded(codes)?)?,
                None => self.transforms.forward(&name, &weight, steps, WHOLE)?.into(),
            };
            weights.insert(name, played);
        }
        Policy::from_weights(self.policy.spec(), weights)
    }

    /// The weights that forward passes read. Those on a grid of learned steps have codes, which later steps do not change.
    pub fn shown(&self) -> Result<Weights> {
        let mut weights = self.policy.weights().clone();
        if self.masters.share() < WHOLE {
            return Ok(weights);
        }
        for (name, weight) in self.masters.learned() {
            let Some(steps) = self.masters.steps_of(name)? else { continue };
            if let Some(codes) = self.transforms.coded(name, weight, Some(&steps))? {
                let weight = self.transforms.rounding(name, Weight::coded(codes)?)?;
                weights.insert(name.clone(), weight);
            }
        }
        Ok(weights)
    }

    /// A policy whose weights are transformed as a whole: weights that are integers get their codes. Weights that have
    /// codes keep them.
    pub fn with_codes(&self, policy: &Policy) -> Result<Policy> {
        let mut weights = policy.weights().clone();
        for (name, weight) in &mut weights {
            if weight.codes().is_some() {
                continue;
            }
            if let Some(codes) = self.transforms.coded(name, weight, None)? {
                *weight = Weight::coded(codes)?;
            }
        }
        Ok(Policy::from_weights(policy.spec(), weights)?.noting(policy.notes().clone()))
    }

    /// The weights to play that differ from those that learn: averages, or learned values, before any transform.
    fn to_play(&self) -> Result<BTreeMap<String, Played>> {
        let Some(averages) = self.optimiser.averages()? else {
            let learned = self.masters.learned().iter();
            let learned = learned.map(|(name, weight)| {
                let played = Played { weight: weight.clone(), steps: self.masters.steps_of(name)? };
                Ok((name.clone(), played))
            });
            return learned.collect();
        };
        let mut all = BTreeMap::<String, Played>::new();
        for ((name, parameter), average) in self.parameters.iter().zip(averages) {
            match name.strip_suffix(STEPS).and_then(|name| all.get_mut(name.strip_suffix('.')?)) {
                Some(played) => played.steps = Some(exponentials(&average)),
                None => {
                    let weight = average.into_owned();
                    let weight = tensor::beside(parameter, weight, parameter.dims())?;
                    all.insert(name.clone(), Played { weight, steps: None });
                }
            }
        }
        Ok(all)
    }

    /// Runs step `step` of a run, counted from 0. A weight that no gradient reaches is an error that names the weight,
    /// and nothing changes.
    pub fn step(&mut self, batch: &Batch, step: u64, learning_rate: f64) -> Result<StepMetrics> {
        let state = self.policy.zero_state(batch.frames.batch)?;
        Ok(self.step_from(batch, &state, step, learning_rate)?.0)
    }

    /// Runs a step of windows that begin with `state`. Returns the state after the windows, detached from the graph, if
    /// windows [`carry`](Unroll::carry) on.
    pub fn step_from(
        &mut self,
        batch: &Batch,
        state: &State,
        step: u64,
        learning_rate: f64,
    ) -> Result<(StepMetrics, Option<State>)> {
        let Learned { figures, states } = self.learn(Task::new(batch, state, step))?;
        let learned = self.learned > 0.0;
        let grad_norm = self.update(learning_rate)?;
        let state = states.map(|states| states.learner);
        Ok((StepMetrics { figures, grad_norm, learned, gradients: vec![] }, state))
    }

    pub(crate) fn objectives(&self) -> &Objectives {
        &self.objectives
    }

    /// Sum of frame weights accumulated since the last update.
    pub fn learned(&self) -> f64 {
        self.learned
    }

    /// Drops all gradients: the next batch is the first of an update.
    pub fn forget(&mut self) {
        self.parameters.iter().for_each(|(_, weight)| weight.forget());
        self.learned = 0.0;
    }

    /// Factor on gradients besides their share: the loss scale.
    pub(super) fn scale(&self) -> f64 {
        self.loss_scale.map_or(1.0, |scale| scale.factor())
    }
}

/// The policy with weights whose products round their inputs; `None` if no transform asks for them.
fn rounding(policy: &Policy, transforms: &WeightTransforms) -> Result<Option<Policy>> {
    let mut weights = policy.weights().clone();
    for (name, weight) in &mut weights {
        *weight = transforms.rounding(name, weight.clone())?;
    }
    if weights.values().all(|weight| weight.inputs().is_none()) {
        return Ok(None);
    }
    Ok(Some(Policy::from_weights(policy.spec(), weights)?.noting(policy.notes().clone())))
}
