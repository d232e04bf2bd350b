//! Policies with fewer units: structured pruning of whole networks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_nn::Policy;
use sconce_nn::spec::Backbone;
use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::{Error, Result, tensor};
use serde::{Deserialize, Serialize};

use crate::calibration::Hessians;
use crate::dense::{inverse_factor, product, transposed};
use crate::hessian::Hessian;
use crate::matrix::{Matrix, finite};
use crate::stopped;
use units::{Role, Sizes, Slot, Units};

mod units;

/// The sizes of the smaller policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Shrinking {
    /// Largest share of the weights that stay; the widths are the largest that fit.
    pub keep: Option<f64>,
    /// The width of all layers.
    pub hidden_size: Option<usize>,
    /// The widths of an MLP's layers.
    pub hidden_sizes: Option<Vec<usize>>,
    /// Heads of attention.
    pub num_heads: Option<usize>,
    /// This part of the mean of a Hessian's diagonal is added to the diagonal.
    pub damping: f64,
}

/// Units of a policy, and which of them stay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnitsReport {
    /// The beginning of the names of the weights that compute them.
    pub name: String,
    /// Number of units before.
    pub units: usize,
    /// The units that stay, in their order.
    pub kept: Vec<usize>,
    /// The part of the importance of all units that stays.
    pub importance: f64,
    /// With a calibration, the relative error of the outputs that the units give their readers.
    pub output_error: Option<f64>,
}

/// Widths are multiples of this number where `keep` finds them, because vectors of packed steps have eight numbers.
const LANES: usize = 8;

impl Shrinking {
    /// Refuses sizes that do not fit the policy, before long work.
    ///
    /// # Errors
    /// `Unavailable` for a backbone without units that can be removed one by one; `OutOfRange` and `Mismatch` for sizes
    /// that do not fit; `NonFinite` for a weight that is not finite.
    pub fn check(&self, policy: &Policy) -> Result<()> {
        self.sizes(policy, &units::of(policy)?)?;
        for (name, weight) in policy.weights() {
            finite(name, &tensor::to_vec(weight)?)?;
        }
        Ok(())
    }

    fn sizes(&self, policy: &Policy, all: &[Units]) -> Result<Sizes> {
        let spec = policy.spec();
        let before = Sizes::of(&spec.backbone)?;
        let mut sizes = before.clone();
        if let Some(num_heads) = self.num_heads {
            sizes.num_heads = num_heads;
        }
        let is_mlp = matches!(spec.backbone, Backbone::Mlp(_));
        match (&self.hidden_size, &self.hidden_sizes) {
            (Some(_), _) if is_mlp => {
                return Err(Error::mismatch("shrink of an mlp", "hidden_sizes", "hidden_size"));
            }
            (_, Some(_)) if !is_mlp => {
                let what = format!("shrink of a {}", spec.backbone.name());
                return Err(Error::mismatch(what, "hidden_size", "hidden_sizes"));
            }
            (Some(width), _) => sizes.widths = vec![*width],
            (_, Some(widths)) => sizes.widths.clone_from(widths),
            _ => {}
        }
        sizes.check(spec)?;
        match self.keep {
            None => Ok(sizes),
            Some(keep) => largest(policy, all, &sizes, keep),
        }
    }
}

/// The largest widths, all in the same proportion, with at most this share of the weights.
fn largest(policy: &Policy, all: &[Units], sizes: &Sizes, keep: f64) -> Result<Sizes> {
    let total = policy.num_weights();
    let before = Sizes::of(&policy.spec().backbone)?;
    let most = before.widths.iter().max().copied().unwrap_or(1);
    let scaled = |part: usize| {
        let width = |width: &usize| {
            let exact = (width * part).div_ceil(most);
            if exact > LANES && exact < *width { exact / LANES * LANES } else { exact }
        };
        Sizes { widths: before.widths.iter().map(width).collect(), ..sizes.clone() }
    };
    let mut least = None;
    for sizes in (1..=most).rev().map(scaled) {
        if sizes.check(policy.spec()).is_err() {
            continue;
        }
        let share = weights_of(policy, all, &sizes) as f64 / total as f64;
        if share <= keep {
            return Ok(sizes);
        }
        least = Some(share);
    }
    Err(Error::out_of_range("keep", keep, least.unwrap_or(1.0), 1.0))
}

/// Number of weights with these sizes.
fn weights_of(policy: &Policy, all: &[Units], sizes: &Sizes) -> usize {
    let mut dims: BTreeMap<&str, Vec<usize>> =
        policy.weights().iter().map(|(name, own)| (name.as_str(), own.dims().to_vec())).collect();
    for units in all {
        for slot in &units.slots {
            let axis = dims.get_mut(slot.weight.as_str()).and_then(|dims| dims.get_mut(slot.axis));
            if let Some(axis) = axis {
                *axis = slot.blocks * slot.width * sizes.count(units.number);
            }
        }
    }
    dims.values().map(|dims| dims.iter().product::<usize>()).sum()
}

/// Values of a weight with its shape.
struct Values {
    dims: Vec<usize>,
    values: Vec<f32>,
}

/// The policy with fewer units, and a report of each kind of unit.
///
/// A unit's importance is the product of two norms: that of the rows that compute it, and that of the columns that read it
/// (Li et al. 2017 take the first alone); each matrix counts as much as any other. With the Hessians of a calibration it is
/// the energy that the unit gives to the outputs of its readers, and the columns of the units that stay are adjusted by
/// least squares, so that the outputs change least.
///
/// # Errors
/// Those of [`Shrinking::check`], and `Cancelled`.
pub fn shrunk(
    policy: &Policy,
    shrinking: &Shrinking,
    hessians: &Hessians,
    cancelled: &AtomicBool,
) -> Result<(Policy, Vec<UnitsReport>)> {
    let all = units::of(policy)?;
    let sizes = shrinking.sizes(policy, &all)?;
    let mut weights = BTreeMap::new();
    for (name, weight) in policy.weights() {
        let values = tensor::to_vec(weight)?;
        finite(name, &values)?;
        weights.insert(name.clone(), Values { dims: weight.dims().to_vec(), values });
    }
    // Importance is that of the weights as they are, before any is adjusted.
    let chosen = all.iter().map(|units| {
        stopped(cancelled)?;
        Ok(choose(units, sizes.count(units.number), &weights, hessians))
    });
    let chosen = chosen.collect::<Result<Vec<_>>>()?;
    let mut reports = vec![];
    for (units, (kept, importance)) in all.iter().zip(chosen) {
        let output_error = match kept.len() == units.count {
            true => units.readers().any(|slot| hessians.contains_key(&slot.weight)).then_some(0.0),
            false => adjust(units, &kept, &mut weights, hessians, shrinking.damping, cancelled)?,
        };
        let (name, units) = (units.name.clone(), units.count);
        reports.push(UnitsReport { name, units, kept, importance, output_error });
    }
    for (units, report) in all.iter().zip(&reports) {
        for slot in &units.slots {
            let of = |unit: &usize| slot.places(*unit, units.count);
            let mut places: Vec<usize> = report.kept.iter().flat_map(of).collect();
            places.sort_unstable();
            if let Some(own) = weights.get_mut(&slot.weight) {
                own.select(slot.axis, &places);
            }
        }
    }
    let mut made = Weights::new();
    for (name, Values { dims, values }) in weights {
        made.insert(name, Weight::from(tensor::tensor(values, dims)?));
    }
    let small = Policy::from_weights(&sizes.put(policy.spec()), made)?;
    Ok((small.noting(policy.notes().clone()), reports))
}

impl Values {
    /// Keeps these places of an axis.
    fn select(&mut self, axis: usize, places: &[usize]) {
        let Some(count) = self.dims.get(axis).copied() else { return };
        let inner: usize = self.dims.iter().skip(axis + 1).product();
        let picked = self.values.chunks_exact((count * inner).max(1)).flat_map(|outer| {
            places.iter().flat_map(move |place| &outer[place * inner..(place + 1) * inner])
        });
        self.values = picked.copied().collect();
        self.dims[axis] = places.len();
    }

    /// The squared norm of each place of an axis of a matrix.
    fn norms(&self, axis: usize) -> Vec<f64> {
        let (rows, cols) = match self.dims[..] {
            [rows, cols] => (rows, cols),
            _ => (self.values.len(), 1),
        };
        let mut norms = vec![0.0; if axis == 0 { rows } else { cols }];
        for (i, row) in self.values.chunks_exact(cols.max(1)).enumerate() {
            for (j, v) in row.iter().enumerate() {
                norms[if axis == 0 { i } else { j }] += f64::from(*v) * f64::from(*v);
            }
        }
        norms
    }
}

/// The units that stay, and the part of the importance of all units that they have. Units of equal importance stay in
/// their order; with a calibration, units that never fire are compared without it.
fn choose(
    units: &Units,
    count: usize,
    weights: &BTreeMap<String, Values>,
    hessians: &Hessians,
) -> (Vec<usize>, f64) {
    let of_role = |role: Role, energy: Option<&Hessians>| {
        let mut sum = vec![0.0; units.count];
        for slot in units.slots.iter().filter(|slot| slot.role == role) {
            let own = shares(slot, units.count, weights, energy);
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        sum
    };
    let (written, read) = (of_role(Role::Writes, None), of_role(Role::Reads, None));
    let norms: Vec<f64> = written.iter().zip(&read).map(|(written, read)| written * read).collect();
    let energy = match hessians.is_empty() {
        true => norms.clone(),
        false => of_role(Role::Reads, Some(hessians)),
    };
    let mut order: Vec<usize> = (0..units.count).collect();
    order.sort_by(|a, b| {
        let more = |of: &[f64]| of[*b].total_cmp(&of[*a]);
        more(&energy).then(more(&norms)).then(a.cmp(b))
    });
    let mut kept = order[..count.min(order.len())].to_vec();
    kept.sort_unstable();
    let (part, all): (f64, f64) = (kept.iter().map(|i| energy[*i]).sum(), energy.iter().sum());
    (kept, if all > 0.0 { part / all } else { 1.0 })
}

/// Each unit's part of the squared norm of a weight, or with energies, of that of its outputs; all 0 for a weight of 0.
fn shares(
    slot: &Slot,
    count: usize,
    weights: &BTreeMap<String, Values>,
    energy: Option<&Hessians>,
) -> Vec<f64> {
    let mut norms = weights.get(&slot.weight).map_or_else(Vec::new, |own| own.norms(slot.axis));
    if let Some(hessian) = energy.map(|all| all.get(&slot.weight)) {
        let Some(hessian) = hessian else { return vec![0.0; count] };
        norms.iter_mut().zip(hessian.diagonal()).for_each(|(norm, energy)| *norm *= energy);
    }
    let total: f64 = norms.iter().sum();
    let factor = if total > 0.0 { 1.0 / total } else { 0.0 };
    let of = |unit| factor * slot.places(unit, count).map(|place| norms[place]).sum::<f64>();
    (0..count).map(of).collect()
}

/// Adjusts the columns of the units that stay, in all readers whose inputs are known. Returns the relative error of their
/// outputs, if there is such a reader.
fn adjust(
    units: &Units,
    kept: &[usize],
    weights: &mut BTreeMap<String, Values>,
    hessians: &Hessians,
    damping: f64,
    cancelled: &AtomicBool,
) -> Result<Option<f64>> {
    let mut errors = None;
    let mut last: Option<(Arc<Hessian>, usize, Vec<Vec<f64>>)> = None;
    for slot in units.readers() {
        let (Some(hessian), Some(own)) =
            (hessians.get(&slot.weight), weights.get_mut(&slot.weight))
        else {
            continue;
        };
        stopped(cancelled)?;
        let stay: Vec<usize> = kept.iter().flat_map(|i| slot.places(*i, units.count)).collect();
        let removed = (0..units.count).filter(|unit| kept.binary_search(unit).is_err());
        let gone: Vec<usize> = removed.flat_map(|i| slot.places(i, units.count)).collect();
        // Readers of the same inputs share the solution.
        let known =
            last.as_ref().filter(|(of, width, _)| Arc::ptr_eq(of, hessian) && *width == slot.width);
        let mix = match known {
            Some((_, _, mix)) => mix.clone(),
            None => mixture(hessian, &stay, &gone, damping, cancelled)?,
        };
        let cols = hessian.size();
        let before = Matrix::new(&slot.weight, own.values.len() / cols, cols, own.values.clone())?;
        for row in own.values.chunks_exact_mut(cols) {
            let removed: Vec<f64> = gone.iter().map(|at| f64::from(row[*at])).collect();
            for (at, mix) in stay.iter().zip(&mix) {
                let more: f64 = removed.iter().zip(mix).map(|(w, m)| w * m).sum();
                row[*at] = (f64::from(row[*at]) + more) as f32;
            }
            gone.iter().for_each(|at| row[*at] = 0.0);
        }
        finite(&slot.weight, &own.values)?;
        let (error, whole) = errors.unwrap_or((0.0, 0.0));
        let zeros = vec![0.0; own.values.len()];
        errors = Some((
            error + hessian.error(&before, &own.values)?,
            whole + hessian.error(&before, &zeros)?,
        ));
        last = Some((hessian.clone(), slot.width, mix));
    }
    let relative = |(error, whole): (f64, f64)| {
        if whole > 0.0 { (error.max(0.0) / whole).sqrt() } else { 0.0 }
    };
    Ok(errors.map(relative))
}

/// For each input that stays, the factors of those that are gone: `(H_kk + d I)^-1 H_kg`, the least squares estimate of the
/// inputs that are gone. Inputs that never fire have factors of 0.
fn mixture(
    hessian: &Hessian,
    stay: &[usize],
    gone: &[usize],
    damping: f64,
    cancelled: &AtomicBool,
) -> Result<Vec<Vec<f64>>> {
    let (size, values) = (hessian.size(), hessian.values());
    let mean = hessian.diagonal().sum::<f64>() / size as f64;
    let none = || vec![vec![0.0; gone.len()]; stay.len()];
    if mean <= 0.0 || gone.is_empty() {
        return Ok(none());
    }
    let all = hessian.with_all_inputs();
    let mut h = Vec::with_capacity(stay.len() * stay.len());
    for (i, row) in stay.iter().enumerate() {
        h.extend(stay.iter().map(|col| all.values()[row * size + col]));
        h[i * stay.len() + i] += damping * mean;
    }
    let u = inverse_factor(&h, stay, cancelled)?;
    // H^-1 = U^T U.
    let columns: Vec<Vec<f64>> =
        gone.iter().map(|col| stay.iter().map(|row| values[row * size + col]).collect()).collect();
    let solved = product(&transposed(&u, stay.len()), &product(&u, &columns));
    Ok(transposed(&solved.concat(), stay.len())
        .chunks_exact(gone.len())
        .map(<[f64]>::to_vec)
        .collect())
}
