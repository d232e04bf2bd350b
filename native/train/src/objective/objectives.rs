//! Several objectives that are minimised together.

use std::ops::Range;
use std::sync::OnceLock;

use sconce_data::Batch;
use sconce_tensor::simd::add_assign;
use sconce_tensor::{Device, Error, Result, Tensor, pool, tensor};

use super::{
    Companion, Denominators, Figures, Objective, OnCard, Outputs, PlacedRows, Rows, SHARD_ROWS,
    Setup, Sums, TABLE,
};

/// Several objectives that are minimised together: the loss is the sum of their losses.
pub struct Objectives(Vec<Box<dyn Objective>>);

/// Sums over the parts of a batch, on the host or on the card of the outputs.
#[derive(Default)]
pub(crate) struct Total {
    here: Option<Vec<Sums>>,
    there: Option<Tensor>,
}

impl Objectives {
    /// Adds up the losses of these objectives, and their gradients in the given order.
    pub fn new(all: Vec<Box<dyn Objective>>) -> Self {
        Objectives(all)
    }

    /// The objectives that the options of a run ask for.
    pub(crate) fn of(setup: &Setup<'_>) -> Result<Self> {
        let all = TABLE.iter().filter_map(|(make, _)| make(setup).transpose());
        Ok(Objectives(all.collect::<Result<_>>()?))
    }

    /// A copy for a learner on another device.
    pub(crate) fn copy_on(&self, device: &Device) -> Result<Self> {
        let all = self.0.iter().map(|objective| objective.copy_on(device));
        Ok(Objectives(all.collect::<Result<_>>()?))
    }

    /// The companions of all objectives, in the order of the objectives.
    pub(crate) fn companions(&self) -> impl Iterator<Item = &Companion> {
        self.0.iter().flat_map(|objective| objective.companions())
    }

    /// Name of each companion's states: that of its objective, with a number from the second companion of it on.
    pub(crate) fn state_names(&self) -> Vec<String> {
        let names = |objective: &dyn Objective| {
            let name = objective.name();
            let of = move |i| if i == 0 { name.into() } else { format!("{name}.{}", i + 1) };
            (0..objective.companions().len()).map(of)
        };
        self.0.iter().flat_map(|objective| names(&**objective)).collect()
    }

    /// Whether [`denominators`](Self::denominators) needs the sums of a first pass.
    pub(crate) fn two_passes(&self) -> bool {
        self.0.iter().any(|objective| objective.two_passes())
    }

    /// Denominators of the whole batch for each objective, which every part of the batch needs.
    pub(crate) fn denominators(
        &self,
        batch: &Batch,
        first: Option<&[Sums]>,
    ) -> Result<Vec<Denominators>> {
        let all = self.0.iter().enumerate();
        all.map(|(i, objective)| objective.denominators(batch, first.and_then(|f| f.get(i))))
            .collect()
    }

    /// Sums of a first pass over some rows, for each objective that needs two passes. Companions do not run.
    pub(crate) fn sums(&self, logits: &Tensor, batch: &Batch) -> Result<Vec<Sums>> {
        if let Some(form) = self.on_card(logits)? {
            self.check(batch)?;
            let placed = Placed::new(logits, batch)?;
            form.sums(placed.rows(logits))?;
            return Ok(vec![read(form.totals())?]);
        }
        let (n, _) = logits.dims2()?;
        let unit = Denominators::of(&[1.0])?;
        tensor::read(logits, |logits| {
            let sums = self.0.iter().map(|objective| match objective.two_passes() {
                true => objective.rows(&rows(logits, &[], batch, &(0..n)), &unit, None),
                false => Ok(Sums::default()),
            });
            Ok(sums.collect())
        })?
    }

    /// Returns the gradient of the whole batch's loss at the logits of a part, on the device of the logits. Adds the
    /// sums of the part to `total`.
    pub(crate) fn gradient(
        &self,
        outputs: &Outputs,
        batch: &Batch,
        whole: &[Denominators],
        total: &mut Total,
    ) -> Result<Tensor> {
        let Outputs { logits, companions } = outputs;
        if let (Some(form), [whole]) = (self.on_card(logits)?, whole) {
            self.check(batch)?;
            let placed = Placed::new(logits, batch)?;
            form.prepare(whole)?;
            let gradient = form.gradient(placed.rows(logits), total.there.is_some())?;
            total.there = Some(form.totals().clone());
            return Ok(gradient);
        }
        let shape = logits.dims2()?;
        let (sums, gradient) = tensor::read(logits, |logits| {
            Ok(self.in_shards(logits, shape, companions, batch, whole))
        })??;
        match &mut total.here {
            Some(total) => total.iter_mut().zip(&sums).for_each(|(total, sums)| total.add(sums)),
            None => total.here = Some(sums),
        }
        Ok(tensor::beside(logits, gradient, shape)?)
    }

    /// The loss and the figures of all objectives.
    pub(crate) fn finish(&self, total: &Total, whole: &[Denominators]) -> Result<Figures> {
        match (&total.here, &total.there) {
            (_, Some(there)) => self.figures(&[read(there)?], whole),
            (Some(here), None) => self.figures(here, whole),
            (None, None) => Err(Error::not_found("rows of a batch")),
        }
    }

    pub(crate) fn figures(&self, sums: &[Sums], whole: &[Denominators]) -> Result<Figures> {
        let mut all = Figures::default();
        for ((objective, sums), whole) in self.0.iter().zip(sums).zip(whole) {
            all.add(&objective.finish(sums, whole)?, 1.0);
        }
        Ok(all)
    }

    /// Checks a batch before kernels run, which check nothing.
    pub(crate) fn check(&self, batch: &Batch) -> Result<()> {
        self.0.iter().try_for_each(|objective| objective.check(batch))
    }

    /// The objective's form on the card of these outputs, if there is a single objective and it has one.
    pub(crate) fn on_card(&self, outputs: &Tensor) -> Result<Option<&dyn OnCard>> {
        match &self.0[..] {
            [alone] => alone.on_card(outputs),
            _ => Ok(None),
        }
    }
}

/// The sums of a shard for each objective, or its error.
type Shard = OnceLock<Result<Vec<Sums>>>;

impl Objectives {
    /// Computes sums and gradient of all objectives on the CPU, in shards of a fixed number of rows.
    fn in_shards(
        &self,
        logits: &[f32],
        (n, width): (usize, usize),
        companions: &[Vec<f32>],
        batch: &Batch,
        whole: &[Denominators],
    ) -> Result<(Vec<Sums>, Vec<f32>)> {
        let mut gradient = vec![0.0; n * width];
        let shards: Vec<Shard> = (0..n.div_ceil(SHARD_ROWS)).map(|_| OnceLock::new()).collect();
        pool::for_each_rows(&mut gradient, width, SHARD_ROWS, |first, gradient| {
            let range = first..first + gradient.len() / width.max(1);
            let sums = self.shard(logits, companions, batch, range, whole, gradient);
            let _ = shards[first / SHARD_ROWS].set(sums);
        });
        let mut total = vec![Sums::default(); self.0.len()];
        for shard in shards.into_iter().filter_map(OnceLock::into_inner) {
            total.iter_mut().zip(shard?).for_each(|(total, sums)| total.add(&sums));
        }
        Ok((total, gradient))
    }

    /// Computes the sums of one shard. The first objective writes its gradient in place; the others' gradients are
    /// added to it.
    fn shard(
        &self,
        logits: &[f32],
        companions: &[Vec<f32>],
        batch: &Batch,
        range: Range<usize>,
        whole: &[Denominators],
        gradient: &mut [f32],
    ) -> Result<Vec<Sums>> {
        let (mut companions, mut more) = (companions.iter(), vec![]);
        let all = self.0.iter().zip(whole).enumerate();
        let sums = all.map(|(i, (objective, whole))| {
            let own: Vec<&[f32]> =
                companions.by_ref().take(objective.companions().len()).map(Vec::as_slice).collect();
            let rows = rows(logits, &own, batch, &range);
            if i == 0 {
                return objective.rows(&rows, whole, Some(gradient));
            }
            more.resize(gradient.len(), 0.0);
            let sums = objective.rows(&rows, whole, Some(&mut more))?;
            add_assign(gradient, &more);
            Ok(sums)
        });
        sums.collect()
    }
}

/// Selects rows of a batch and their outputs from the outputs of the whole batch.
fn rows<'a>(
    logits: &'a [f32],
    companions: &[&'a [f32]],
    batch: &'a Batch,
    range: &Range<usize>,
) -> Rows<'a> {
    let of = |outputs: &'a [f32]| {
        let width = outputs.len() / batch.weights.len().max(1);
        &outputs[range.start * width..range.end * width]
    };
    let companions = companions.iter().map(|logits| of(logits)).collect();
    Rows { logits: of(logits), companions, batch, range: range.clone() }
}

/// Waits for a card and reads sums from it.
fn read(totals: &Tensor) -> Result<Sums> {
    Ok(Sums(totals.flatten_all()?.to_vec1()?))
}

/// Labels and weights of a batch on a card.
struct Placed {
    labels: Tensor,
    weights: Tensor,
}

impl Placed {
    fn new(logits: &Tensor, batch: &Batch) -> Result<Self> {
        let (n, device) = (logits.dim(0)?, logits.device());
        Ok(Placed {
            labels: Tensor::from_slice(&batch.labels, batch.labels.len(), device)?,
            weights: Tensor::from_slice(&batch.weights, n, device)?,
        })
    }

    fn rows<'a>(&'a self, logits: &'a Tensor) -> PlacedRows<'a> {
        PlacedRows { logits, labels: &self.labels, weights: &self.weights }
    }
}
