//! The loss of a student that learns from teachers (Hinton et al. 2015, section 2).

use sconce_tensor::{Error, Result, memory};
use serde::{Deserialize, Serialize};

use crate::matrix::{Matrix, finite};

/// The distribution of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One class for each row.
    Categorical,
    /// Independent bits.
    Bernoulli,
}

/// The options of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Distillation {
    /// The distribution.
    pub kind: Kind,
    /// Logits of students and teachers are divided by this in the soft loss.
    pub temperature: f64,
    /// The part of the soft loss.
    pub alpha: f64,
}

/// The labels of the hard loss.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// The class of each row.
    Classes(Vec<usize>),
    /// The bits of each row, 0 or 1.
    Bits(Vec<u8>),
}

/// The losses, and the gradient of `loss` at the student's logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Distilled {
    /// `alpha T^2 soft + (1 - alpha) hard`.
    pub loss: f64,
    /// `KL(teacher || student)` at the temperature: the mean over rows, or over rows and bits. With several teachers,
    /// the mean of their probabilities.
    pub soft: f64,
    /// The negative log-likelihood of the labels: the mean over rows, or over rows and bits. 0 without labels.
    pub hard: f64,
    /// The gradient, in the shape of the logits.
    pub gradient: Vec<f32>,
}

impl Distillation {
    /// The loss of a student's logits `[rows, classes]`, given those of teachers of the same shape. Finite logits have a
    /// finite loss: no probability is rounded to 0 before its logarithm is taken.
    ///
    /// # Errors
    /// `OutOfRange` for a temperature that is not above 0, an alpha outside of 0 to 1, and labels out of range;
    /// `Mismatch` without teachers, for other shapes, and without labels unless alpha is 1; `NonFinite` for a temperature
    /// by which logits cannot be divided.
    pub fn run(
        self,
        student: &Matrix,
        teachers: &[Matrix],
        target: Option<&Target>,
    ) -> Result<Distilled> {
        self.check(student, teachers, target)?;
        let cols = student.cols();
        // Rows of bits are rows of two classes each: the bit's logit, and 0.
        let width = if self.kind == Kind::Categorical { cols } else { 1 };
        let count = (student.values().len() / width) as f64;
        let mut found = Distilled {
            loss: 0.0,
            soft: 0.0,
            hard: 0.0,
            gradient: memory::with_capacity(student.values().len()),
        };
        for (at, logits) in student.values().chunks_exact(width).enumerate() {
            let own = at * width..(at + 1) * width;
            let teachers: Vec<Vec<f64>> = teachers
                .iter()
                .map(|teacher| {
                    self.log_probabilities(&teacher.values()[own.clone()], self.temperature)
                })
                .collect();
            let label = target.map(|target| target.class(at));
            let (soft, hard, gradient) = self.row(logits, &mean(&teachers), label);
            found.soft += soft / count;
            found.hard += hard / count;
            found.gradient.extend(gradient.iter().map(|d| (d / count) as f32));
        }
        let square = self.temperature * self.temperature;
        found.loss = self.alpha * square * found.soft + (1.0 - self.alpha) * found.hard;
        match found.loss.is_finite() {
            true => finite("gradient", &found.gradient).map(|()| found),
            // A temperature near the bounds of 64 bits.
            false => Err(Error::NonFinite { what: "loss".into(), value: found.loss }),
        }
    }

    /// Soft loss, hard loss and gradient of a row, from the logarithms of the teachers' mean probabilities.
    fn row(self, logits: &[f32], teacher: &[f64], label: Option<usize>) -> (f64, f64, Vec<f64>) {
        let student = self.log_probabilities(logits, self.temperature);
        let terms = teacher.iter().zip(&student).map(|(p, q)| p.exp() * (p - q));
        let plain = self.log_probabilities(logits, 1.0);
        let hard = label.map_or(0.0, |label| -plain[label]);
        let gradient = (0..logits.len()).map(|k| {
            let soft = self.alpha * self.temperature * (student[k].exp() - teacher[k].exp());
            let is_label = if label == Some(k) { 1.0 } else { 0.0 };
            let hard = label.map_or(0.0, |_| plain[k].exp() - is_label);
            soft + (1.0 - self.alpha) * hard
        });
        (terms.sum(), hard, gradient.collect())
    }

    /// The logarithms of the probabilities: of all classes, or of a bit being 1 and 0.
    fn log_probabilities(self, logits: &[f32], temperature: f64) -> Vec<f64> {
        let mut scaled: Vec<f64> = logits.iter().map(|v| f64::from(*v) / temperature).collect();
        if self.kind == Kind::Bernoulli {
            scaled.push(0.0);
        }
        let log_sum = log_sum_exp(&scaled);
        scaled.iter_mut().for_each(|v| *v -= log_sum);
        scaled
    }

    fn check(self, student: &Matrix, teachers: &[Matrix], target: Option<&Target>) -> Result<()> {
        let (rows, cols) = (student.rows(), student.cols());
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            let least = f64::MIN_POSITIVE;
            return Err(Error::out_of_range("temperature", self.temperature, least, f64::MAX));
        }
        if !(0.0..=1.0).contains(&self.alpha) {
            return Err(Error::out_of_range("alpha", self.alpha, 0.0, 1.0));
        }
        if teachers.is_empty() {
            return Err(Error::mismatch("teachers", "logits of a teacher", "none"));
        }
        teachers.iter().try_for_each(|teacher| teacher.check("logits of a teacher", rows, cols))?;
        let outside = |at: f64, most: f64| Err(Error::out_of_range("target", at, 0.0, most));
        match (self.kind, target) {
            (_, None) if self.alpha == 1.0 => Ok(()),
            (_, None) => Err(Error::mismatch("target", "labels, because alpha is below 1", "none")),
            (Kind::Categorical, Some(Target::Classes(classes))) => {
                counted(rows, classes.len())?;
                let out = classes.iter().find(|class| **class >= cols);
                out.map_or(Ok(()), |class| outside(*class as f64, cols as f64 - 1.0))
            }
            (Kind::Bernoulli, Some(Target::Bits(bits))) => {
                counted(rows * cols, bits.len())?;
                let out = bits.iter().find(|bit| **bit > 1);
                out.map_or(Ok(()), |bit| outside(f64::from(*bit), 1.0))
            }
            (Kind::Categorical, _) => {
                Err(Error::mismatch("target", "a class for each row", "bits"))
            }
            (Kind::Bernoulli, _) => Err(Error::mismatch("target", "bits", "classes")),
        }
    }
}

fn counted(expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::mismatch("target", expected, got)) }
}

impl Target {
    /// The class of a row of logits; a bit of 1 is class 0.
    fn class(&self, at: usize) -> usize {
        match self {
            Target::Classes(classes) => classes[at],
            Target::Bits(bits) => usize::from(bits[at] == 0),
        }
    }
}

/// The logarithms of the mean probabilities.
fn mean(teachers: &[Vec<f64>]) -> Vec<f64> {
    let [first, ..] = teachers else { return vec![] };
    let count = (teachers.len() as f64).ln();
    let class = |k| {
        let each: Vec<f64> = teachers.iter().map(|teacher| teacher[k]).collect();
        log_sum_exp(&each) - count
    };
    if teachers.len() == 1 { first.clone() } else { (0..first.len()).map(class).collect() }
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most + x.iter().map(|v| (v - most).exp()).sum::<f64>().ln()
}
