//! Policies whose matrices are integer codes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_nn::Policy;
use sconce_nn::policy::{LEAST_INPUTS, is_matrix, stored_bytes};
use sconce_ops::weights::{Coded, Weight, Weights};
use sconce_tensor::{Error, Result, tensor};
use serde::{Deserialize, Serialize};

use crate::calibration::Hessians;
use crate::gptq::{Gptq, Order};
use crate::grid::{Grid, Per, Scale};
use crate::hessian::Hessian;
use crate::matrix::Matrix;
use crate::quantised::Quantised;
use crate::stopped;

/// The codes that the matrices of a policy get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Coding {
    /// Bits of a code: 4 or 8.
    pub bits: u32,
    /// Inputs that share a scale; `None` for a scale per output.
    pub group: Option<usize>,
    /// The matrices.
    pub names: Names,
    /// The damping of GPTQ, for a calibration.
    pub damping: f64,
    /// How scales are found.
    #[serde(default)]
    pub scale: Scale,
}

impl Coding {
    fn grid(&self) -> Grid {
        let per = self.group.map_or(Per::Row, Per::Group);
        Grid { bits: self.bits, per, zero_point: false, scale: self.scale }
    }
}

/// The matrices of a policy that change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Names {
    /// Beginnings of the names of matrices; all matrices if empty.
    pub only: Vec<String>,
    /// Beginnings of the names of matrices that stay as they are.
    pub except: Vec<String>,
}

impl Names {
    /// Refuses beginnings of names that no matrix of the policy has, before long work.
    ///
    /// # Errors
    /// `NotFound` for such a beginning, and for a policy without a matrix of at least 32 inputs.
    pub fn check(&self, policy: &Policy) -> Result<()> {
        let matrices =
            || policy.weights().iter().filter(|(name, weight)| is_matrix(name, weight.dims()));
        if matrices().next().is_none() {
            return Err(Error::not_found(format!("a matrix of at least {LEAST_INPUTS} inputs")));
        }
        for own in self.only.iter().chain(&self.except) {
            if !matrices().any(|(name, _)| name.starts_with(own)) {
                return Err(Error::not_found(format!("a matrix whose name begins with {own}")));
            }
        }
        Ok(())
    }

    /// The policy in which `change` replaces the matrices that are chosen, if it returns another, and the reports of all
    /// matrices.
    ///
    /// # Errors
    /// Those of [`check`](Self::check), `change` and `report`, and `Cancelled`.
    pub(crate) fn changed<R>(
        &self,
        policy: &Policy,
        cancelled: &AtomicBool,
        change: impl Fn(&str, &Weight) -> Result<Option<(Weight, Errors)>>,
        report: impl Fn(&str, &Weight, Errors) -> Result<R>,
    ) -> Result<(Policy, Vec<R>)> {
        self.check(policy)?;
        let mut weights = Weights::new();
        let mut reports = vec![];
        for (name, weight) in policy.weights() {
            stopped(cancelled)?;
            let mut own = weight.copied_to(weight.device())?;
            if is_matrix(name, weight.dims()) {
                let chosen = self.choose(name).then(|| change(name, weight));
                let (changed, errors) = match chosen.transpose()?.flatten() {
                    Some((changed, errors)) => (changed, errors),
                    None => (own, Errors::default()),
                };
                reports.push(report(name, &changed, errors)?);
                own = changed;
            }
            weights.insert(name.clone(), own);
        }
        let changed = Policy::from_weights(policy.spec(), weights)?;
        Ok((changed.noting(policy.notes().clone()), reports))
    }

    pub(crate) fn choose(&self, name: &str) -> bool {
        let has = |all: &[String]| all.iter().any(|own| name.starts_with(own));
        (self.only.is_empty() || has(&self.only)) && !has(&self.except)
    }
}

/// The errors of a matrix: of its weights, and of its outputs by the rule and by a simpler one.
pub(crate) type Errors = (f64, Option<[f64; 2]>);

/// A matrix of a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MatrixReport {
    /// The name of the weight.
    pub name: String,
    /// Number of rows.
    pub outputs: usize,
    /// Number of columns.
    pub inputs: usize,
    /// Bits of a code, 32 for a matrix without codes.
    pub bits: u32,
    /// Inputs that share a scale; `None` without codes and for a scale per output.
    pub group: Option<usize>,
    /// The relative error of the codes that the matrix got, `|w - w'| / |w|` in Frobenius norms.
    pub error: f64,
    /// With a calibration, the relative error of the outputs, and that of nearest rounding: the root of
    /// [`Hessian::error`] over that of weights of 0.
    pub output_error: Option<[f64; 2]>,
    /// Bytes in a checkpoint.
    pub bytes: usize,
}

/// The policy with its matrices rounded to codes, and a report of each. Matrices that the coding leaves out keep the codes
/// that they have. With the Hessian of its inputs a matrix is rounded by GPTQ, otherwise to the nearest codes.
///
/// # Errors
/// `NotFound` for a beginning that no matrix has and for a policy without a matrix of at least 32 inputs, `NonFinite`
/// for a weight that is not finite, those of [`Coded::nearest`], and `Cancelled`.
pub fn coded(
    policy: &Policy,
    coding: &Coding,
    hessians: &Hessians,
    cancelled: &AtomicBool,
) -> Result<(Policy, Vec<MatrixReport>)> {
    coding.names.check(policy)?;
    let mut weights = Weights::new();
    let mut reports = vec![];
    for (name, weight) in policy.weights() {
        stopped(cancelled)?;
        let own = match is_matrix(name, weight.dims()) {
            false => weight.copied_to(weight.device())?,
            true => {
                let (own, report) = match coding.names.choose(name) {
                    true => round(name, weight, coding, hessians.get(name), cancelled)?,
                    false => kept(name, weight)?,
                };
                reports.push(report);
                own
            }
        };
        weights.insert(name.clone(), own);
    }
    let coded = Policy::from_weights(policy.spec(), weights)?;
    Ok((coded.noting(policy.notes().clone()), reports))
}

/// The policy with some weights of others, by name.
///
/// # Errors
/// `NotFound` for a weight that one of the policies does not have, `Mismatch` for one of another shape.
pub fn mixed(policy: &Policy, others: &[(String, Arc<Policy>)]) -> Result<Policy> {
    let copied = |weight: &Weight| weight.copied_to(policy.device());
    let own = policy.weights().iter().map(|(name, weight)| Ok((name.clone(), copied(weight)?)));
    let mut weights = own.collect::<Result<Weights>>()?;
    for (name, other) in others {
        let missing = || Error::not_found(format!("weight {name}"));
        let (own, other) = (weights.get_mut(name), other.weights().get(name));
        *own.ok_or_else(missing)? = copied(other.ok_or_else(missing)?)?;
    }
    Ok(Policy::from_weights(policy.spec(), weights)?.noting(policy.notes().clone()))
}

fn round(
    name: &str,
    weight: &Weight,
    coding: &Coding,
    hessian: Option<&Arc<Hessian>>,
    cancelled: &AtomicBool,
) -> Result<(Weight, MatrixReport)> {
    let (outputs, inputs) = weight.dims2()?;
    let matrix = Matrix::new(name, outputs, inputs, tensor::to_vec(weight)?)?;
    // Inputs that never fire tell nothing.
    let fires = |hessian: &&Arc<Hessian>| hessian.diagonal().any(|v| v > 0.0);
    let (codes, output_error) = match hessian.filter(fires) {
        Some(hessian) => calibrated(&matrix, coding, hessian, cancelled)?,
        None => (nearest(&matrix, coding)?, None),
    };
    let error = matrix.relative_error(&codes.weights());
    let own = Weight::coded(codes)?.copied_to(weight.device())?;
    Ok((own.clone(), MatrixReport { error, output_error, ..report(name, &own)? }))
}

fn calibrated(
    matrix: &Matrix,
    coding: &Coding,
    hessian: &Hessian,
    cancelled: &AtomicBool,
) -> Result<(Coded, Option<[f64; 2]>)> {
    let gptq = Gptq { grid: coding.grid(), damping: coding.damping, order: Order::Given };
    let found = gptq.run(matrix, &hessian.with_all_inputs(), cancelled)?;
    let whole = hessian.error(matrix, &vec![0.0; matrix.values().len()])?;
    let relative = |error: f64| if whole > 0.0 { (error / whole).sqrt() } else { 0.0 };
    let codes = codes_of(found.quantised, coding)?;
    let nearest = nearest(matrix, coding)?;
    let errors = [codes.weights(), nearest.weights()].map(|own| hessian.error(matrix, &own));
    let [error, nearest] = errors;
    Ok((codes, Some([relative(error?), relative(nearest?)])))
}

/// The nearest codes of the grid that is asked for.
fn nearest(matrix: &Matrix, coding: &Coding) -> Result<Coded> {
    match coding.scale {
        Scale::Search => codes_of(Quantised::nearest(matrix, coding.grid())?, coding),
        Scale::Largest => {
            let group = coding.group.unwrap_or(matrix.cols());
            Coded::nearest(coding.bits, matrix.values(), matrix.cols(), group)
        }
    }
}

fn codes_of(quantised: Quantised, coding: &Coding) -> Result<Coded> {
    let codes = quantised.codes.iter().map(|code| *code as i8).collect();
    let group = coding.group.unwrap_or(quantised.cols);
    Coded::new(coding.bits, quantised.cols, group, codes, quantised.scales)
}

fn kept(name: &str, weight: &Weight) -> Result<(Weight, MatrixReport)> {
    Ok((weight.copied_to(weight.device())?, report(name, weight)?))
}

/// The report of a matrix as it is.
fn report(name: &str, weight: &Weight) -> Result<MatrixReport> {
    let (outputs, inputs) = weight.dims2()?;
    let codes = weight.codes();
    Ok(MatrixReport {
        name: name.into(),
        outputs,
        inputs,
        bits: codes.map_or(32, |codes| codes.bits()),
        group: codes.map(|codes| codes.group()).filter(|group| *group < inputs),
        error: 0.0,
        output_error: None,
        bytes: stored_bytes(name, weight)?,
    })
}
